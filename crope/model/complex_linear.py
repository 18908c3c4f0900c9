"""The paper's contribution: a linear layer constrained to be complex-linear (Eq. 30).

Shapes: B batch, T tokens, D in-features, E out-features (both even; pairs are interleaved).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ComplexLinear(nn.Module):
    """A real linear layer constrained to be complex-linear: half the weights of nn.Linear.

    Channels (2j, 2j+1) are one complex number (Eq. 8). Each 2x2 block of the dense weight is [[a, b], [-b, a]]
    (Eq. 30): multiplication by w = a - ib. Rotation and scaling remain, reflections are lost (Sec. 3.2).
    The layer is complex-linear in its own input. After a LayerNorm with two different gains in a pair, it is not
    complex-linear in the residual stream.

    Shapes    x_BTD -> y_BTE; a and b: (E/2, D/2) each, E*D/2 weights in total; the optional bias is real: (E,).
    Raises    ValueError if a width is odd.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        if in_features % 2 or out_features % 2:
            raise ValueError(f"ComplexLinear pairs channels: widths {in_features} -> {out_features} must be even")
        self.in_features, self.out_features = in_features, out_features
        self.a = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.b = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @property
    def weight(self) -> torch.Tensor:
        """The dense real weight of Eq. 30, (E, D): the weight of the equivalent nn.Linear."""
        rows = torch.stack(
            (
                torch.stack((self.a, self.b), dim=-1).flatten(-2),  # even outputs: a x0 + b x1
                torch.stack((-self.b, self.a), dim=-1).flatten(-2),  # odd outputs: -b x0 + a x1
            ),
            dim=1,
        )
        return rows.flatten(0, 1)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(x_BTD, self.weight, self.bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> ComplexLinear:
        """The complex-linear layer nearest to `linear` (least squares): each 2x2 block loses its reflections."""
        layer = cls(linear.in_features, linear.out_features, bias=linear.bias is not None).to(linear.weight)
        blocks = linear.weight.detach().unflatten(0, (-1, 2)).unflatten(-1, (-1, 2))  # E/2, 2, D/2, 2
        with torch.no_grad():
            layer.a.copy_((blocks[:, 0, :, 0] + blocks[:, 1, :, 1]) / 2)
            layer.b.copy_((blocks[:, 0, :, 1] - blocks[:, 1, :, 0]) / 2)
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer

    def to_linear(self) -> nn.Linear:
        """The equivalent nn.Linear, with the dense weight."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None).to(self.a)
        with torch.no_grad():
            linear.weight.copy_(self.weight)
            if self.bias is not None:
                linear.bias.copy_(self.bias)
        return linear

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
