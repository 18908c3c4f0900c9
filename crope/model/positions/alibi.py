"""ALiBi's fixed bias by distance. Shapes: H heads, T tokens."""

from __future__ import annotations

from typing import Self

import torch

from crope.config import ModelConfig
from crope.model.positions._base import DistanceBias


class AlibiBias(DistanceBias):
    """ALiBi: minus the distance, times a fixed slope for each head (Press et al. 2022, Sec. 3). Not divided by sqrt(K).

    The slopes of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8. Where H is no power of two, its authors take those of the
    power of two below H, then every other one of the next power's.
    """

    slope_H: torch.Tensor

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        return cls(config.n_heads)

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slope_H", torch.tensor(self.slopes(n_heads)), persistent=False)

    @staticmethod
    def slopes(n_heads: int) -> list[float]:
        below = 1 << (n_heads.bit_length() - 1)
        of_power, of_next = ([2.0 ** (-8 * i / n) for i in range(1, n + 1)] for n in (below, 2 * below))
        return of_power + of_next[: 2 * (n_heads - below) : 2]

    def by_distance(self, length: int) -> torch.Tensor:
        return -self.slope_H[:, None] * torch.arange(length, device=self.slope_H.device)
