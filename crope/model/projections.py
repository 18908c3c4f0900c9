"""Q, K and V projections by `model.projection`: the paper's two, its literal wording, and matched
controls.

Shapes: B batch, T tokens, D in-features, E out-features, K head width, R rank.

The controls isolate what Eq. 30 contributes. `lowrank` and `blockdiag` have as many weights as
ComplexLinear without its structure; `complex_misaligned` has the structure, but not in the rotated
channel pairs.

A structured layer's dense weight is its property `weight`, (E, D). `init_stds` maps its parameter
names to stds that give each output the variance of a dense N(0, dense_std) weight.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from crope.config import ModelConfig
from crope.model.complex_linear import ComplexLinear


def dense_linear(layer: Any) -> nn.Linear:
    """Returns the nn.Linear equivalent to a layer that has a dense `weight` and a `bias` or None.

    Its weight is trained if a part of it was; dtype and device stay, and the bias keeps its own.
    """
    outputs, inputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, bias=False, device="meta")
    trained = any(part.requires_grad for name, part in layer.named_parameters() if name != "bias")
    linear.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=trained)
    linear.bias = copy.deepcopy(layer.bias)
    return linear


class LowRankLinear(nn.Module):
    """W = up down, of rank R = D E / (2 (D + E)): half the weights of nn.Linear, slightly fewer
    where that is no integer.

    Shapes    x_BTD -> y_BTE; down: (R, D), up: (E, R).
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        rank = in_features * out_features // (2 * (in_features + out_features))
        self.down = nn.Parameter(torch.zeros(rank, in_features))
        self.up = nn.Parameter(torch.zeros(out_features, rank))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """Gives the std: an entry of W sums R products of two factors, with variance R std^4."""
        std = (dense_std / self.up.shape[1] ** 0.5) ** 0.5
        return {"down": std, "up": std}

    @property
    def weight(self) -> torch.Tensor:
        return self.up @ self.down

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x_BTD, self.down), self.up, self.bias)


class BlockDiagonalLinear(nn.Module):
    """Two blocks on the diagonal: the first half of the outputs (heads) reads only the first half
    of the inputs.

    Shapes    x_BTD -> y_BTE; first and second: (E/2, D/2) each.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.second = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """Gives the stds of outputs that sum over half of the inputs."""
        return {"first": dense_std * 2**0.5, "second": dense_std * 2**0.5}

    @property
    def weight(self) -> torch.Tensor:
        return torch.block_diag(self.first, self.second)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        first_BTD, second_BTD = x_BTD.chunk(2, dim=-1)
        y_BTE = torch.cat(
            (F.linear(first_BTD, self.first), F.linear(second_BTD, self.second)), dim=-1
        )
        return y_BTE if self.bias is None else y_BTE + self.bias


class ConjugateLinear(ComplexLinear):
    """y = w conj(x) on the channel pairs of ComplexLinear: each 2x2 block is [[a, -b], [-b, -a]].

    A common phase of all inputs turns its outputs the other way. In Q alone it makes the score
    depend on that phase, under which CRoPE's score is invariant; in Q, K and V alike it is CRoPE
    with the two channels of each input pair swapped.

    Shapes    x_BTD -> y_BTE; a and b: (E/2, D/2) each.
    """

    def dense_weight(self) -> torch.Tensor:
        first, second = super().dense_weight().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((first, -second), dim=-1).flatten(-2)


Builder = Callable[[ModelConfig], Sequence[nn.Module]]


def layers(*kinds: type[nn.Module], **options: Any) -> Builder:
    """Returns a function that builds Q: D -> E, and K and V: D -> E or one head's width.

    kinds     one class, or those of Q, K and V
    options   of their constructors; they have a bias if `model.qkv_bias` is set
    """

    def build(model: ModelConfig) -> Sequence[nn.Module]:
        widths = (model.attention_width, model.kv_width, model.kv_width)
        return [
            kind(model.d_model, width, bias=model.qkv_bias, **options)
            for kind, width in zip(kinds * (3 // len(kinds)), widths, strict=True)
        ]

    return build


# Each builds Q, K and V of a block; two of them may be one layer, or have one weight. `halved` and
# `complex_wide` differ from `real` and `complex` in ModelConfig.attention_width, `multi_query` from
# `real` in ModelConfig.kv_width. `complex_misaligned` pairs channels (j, j + K/2) of a head, while
# the rotation pairs (2i, 2i+1). Without positions it would be equivalent to `complex` (q.k does not
# depend on the order of channels, and the output projection undoes it for V), so a difference in
# loss measures the alignment of Eqs. 10 and 13.
PROJECTIONS: dict[str, Builder] = {
    "real": layers(nn.Linear),
    "complex": layers(ComplexLinear),
    "halved": layers(nn.Linear),
    "lowrank": layers(LowRankLinear),
    "blockdiag": layers(BlockDiagonalLinear),
    "complex_misaligned": lambda model: layers(
        ComplexLinear, pairing="half", head_dim=model.head_width
    )(model),
    "complex_qk": layers(ComplexLinear, ComplexLinear, nn.Linear),
    "complex_v": layers(nn.Linear, nn.Linear, ComplexLinear),
    "complex_wide": layers(ComplexLinear),
    "conjugate": layers(ConjugateLinear, ComplexLinear, ComplexLinear),
    "multi_query": layers(nn.Linear),
}
