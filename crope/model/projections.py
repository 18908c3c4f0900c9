"""The Q, K and V maps that `model.projection` names: the paper's two, its literal wording, and controls.

Shapes: B batch, T tokens, D in-features, E out-features, K head width, R rank.

The controls ask what it is about Eq. 30 that costs nothing. `lowrank` and `blockdiag` hold as many weights as
ComplexLinear without its structure; `complex_misaligned` has the structure, but not in the pairs that are rotated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from crope.config import ModelConfig
from crope.model.complex_linear import ComplexLinear
from crope.model.schemes import attention_width, half_rank, head_width


class StructuredLinear(nn.Module):
    """A linear map whose dense weight is made of fewer numbers, which need initial values of their own."""

    bias: nn.Parameter | None

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """Parameter name -> std for which each output has the variance that a dense N(0, dense_std) map gives it."""
        raise NotImplementedError

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight, (E, D)."""
        raise NotImplementedError


class LowRankLinear(StructuredLinear):
    """W = up down, of rank R = D E / (2 (D + E)): half the weights of nn.Linear, to within a row where 4 is no factor.

    Shapes    x_BTD -> y_BTE; down: (R, D), up: (E, R).
    Raises    ValueError where half the weights make no whole rank.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        rank = half_rank(in_features, out_features)
        if rank < 1:
            raise ValueError(f"LowRankLinear: widths {in_features} -> {out_features} leave no rank at half the weights")
        self.down = nn.Parameter(torch.zeros(rank, in_features))
        self.up = nn.Parameter(torch.zeros(out_features, rank))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """An entry of W sums R products of two independent factors: its variance is R std^4."""
        std = (dense_std / self.up.shape[1] ** 0.5) ** 0.5
        return {"down": std, "up": std}

    @property
    def weight(self) -> torch.Tensor:
        return self.up @ self.down

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x_BTD, self.down), self.up, self.bias)


class BlockDiagonalLinear(StructuredLinear):
    """Two blocks on the diagonal: the first half of the outputs (heads) reads the first half of the inputs alone.

    Shapes    x_BTD -> y_BTE; first and second: (E/2, D/2) each.
    Raises    ValueError if a width is odd.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        if in_features % 2 or out_features % 2:
            raise ValueError(f"BlockDiagonalLinear halves its widths: {in_features} -> {out_features} must be even")
        self.first = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.second = nn.Parameter(torch.zeros(out_features // 2, in_features // 2))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """An output sums over half of the inputs."""
        return {"first": dense_std * 2**0.5, "second": dense_std * 2**0.5}

    @property
    def weight(self) -> torch.Tensor:
        return torch.block_diag(self.first, self.second)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        first_BTD, second_BTD = x_BTD.chunk(2, dim=-1)
        y_BTE = torch.cat((F.linear(first_BTD, self.first), F.linear(second_BTD, self.second)), dim=-1)
        return y_BTE if self.bias is None else y_BTE + self.bias


class MisalignedComplexLinear(ComplexLinear):
    """ComplexLinear whose output j of a head stands in channels (j, j + K/2), where the rotation turns (2i, 2i+1).

    Without positions the model would be CRoPE itself (q.k does not see an order of channels, and the output projection
    undoes it for V), so a difference in loss is the worth of the alignment of Eqs. 10 and 13.

    Raises    ValueError if a width is odd, or K is no even divisor of E.
    """

    def __init__(self, in_features: int, out_features: int, *, d_head: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        if d_head % 2 or out_features % d_head:
            raise ValueError(f"MisalignedComplexLinear: heads of width {d_head} do not pair {out_features} channels")
        self.d_head = d_head

    @property
    def weight(self) -> torch.Tensor:
        rows = super().weight.unflatten(0, (-1, self.d_head // 2, 2))
        return rows.transpose(1, 2).flatten(0, 2)


Build = Callable[[int, int, bool, int], nn.Module]  # in-features, out-features, bias, head width


def of_class(layer: type[nn.Linear] | type[ComplexLinear] | type[StructuredLinear]) -> Build:
    return lambda d_in, d_out, bias, d_head: layer(d_in, d_out, bias=bias)


def misaligned(d_in: int, d_out: int, bias: bool, d_head: int) -> nn.Module:
    return MisalignedComplexLinear(d_in, d_out, d_head=d_head, bias=bias)


REAL, COMPLEX = of_class(nn.Linear), of_class(ComplexLinear)

# Q, K and V of each scheme; `halved` and `complex_wide` differ from `real` and `complex` in width (schemes.WIDTHS).
PROJECTIONS: dict[str, tuple[Build, Build, Build]] = {
    "real": (REAL, REAL, REAL),
    "complex": (COMPLEX, COMPLEX, COMPLEX),
    "halved": (REAL, REAL, REAL),
    "lowrank": (of_class(LowRankLinear),) * 3,
    "blockdiag": (of_class(BlockDiagonalLinear),) * 3,
    "complex_misaligned": (misaligned, misaligned, misaligned),
    "complex_qk": (COMPLEX, COMPLEX, REAL),
    "complex_v": (REAL, REAL, COMPLEX),
    "complex_wide": (COMPLEX, COMPLEX, COMPLEX),
}


def build_projections(config: ModelConfig) -> list[nn.Module]:
    """Q, K and V: D -> E, with a bias where `model.qkv_bias` says so."""
    d_head, width = head_width(config), attention_width(config)
    return [build(config.d_model, width, config.qkv_bias, d_head) for build in PROJECTIONS[config.projection]]
