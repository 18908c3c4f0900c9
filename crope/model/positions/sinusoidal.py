"""The sinusoids of Vaswani et al.: the paper's XPOS. Shapes: B batch, T tokens, D model width, J = D/2 pairs."""

from __future__ import annotations

from typing import Self

import torch

from crope.config import ModelConfig
from crope.model.positions._base import Positions, angles


class SinusoidalPositions(Positions):
    """Fixed sinusoids added to the token embedding (Vaswani et al. Sec. 3.5; XPOS of Sec. 5.1).

    Channel 2i is sin(m / 10000^(2i/D)), channel 2i+1 the cosine: each token vector gains a norm of sqrt(D/2).
    """

    table_TD: torch.Tensor

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        return cls(config.d_model, max_len)

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        angle_TJ = angles(d_model, max_len)
        table_TD = torch.stack((angle_TJ.sin(), angle_TJ.cos()), dim=-1).flatten(-2).float()
        self.register_buffer("table_TD", table_TD, persistent=False)

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.table_TD[: x_BTD.shape[1]]
