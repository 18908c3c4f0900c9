"""Ways to multiply by the weight of Eq. 30 without building it: the same map as ComplexLinear, other costs.

Training builds the dense weight (complex_linear.py): it is read once for thousands of tokens. Where one token at a time
is decoded, reading weights is what takes time, and half as many take half of it (scripts/bench_projection.py).

Shapes: D in-features, E out-features; a and b: (E/2, D/2); any leading dimensions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def two_products(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """(a x0 + b x1, a x1 - b x0), x0 and x1 stacked: two products of half the width for twice the rows.

    As many multiplications as the dense product, D E, from half as many weights.
    """
    pair = torch.stack(_split(x))
    (a_even, a_odd), (b_even, b_odd) = F.linear(pair, a), F.linear(pair, b)
    return _join(a_even + b_odd, a_odd - b_even)


def three_products(x: Tensor, a: Tensor, b_minus_a: Tensor, a_plus_b: Tensor) -> Tensor:
    """Gauss: with s = a (x0 + x1), the outputs are s + (b - a) x1 and s - (a + b) x0: 3/4 of the multiplications.

    The two sums of weights are the caller's: made once they are 3/4 of the dense weights to read.
    """
    even, odd = _split(x)
    both = F.linear(even + odd, a)
    return _join(both + F.linear(odd, b_minus_a), both - F.linear(even, a_plus_b))


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return even, odd


def _join(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack((even, odd), dim=-1).flatten(-2)
