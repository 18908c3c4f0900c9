"""RoFormer's rotation of queries and keys. Shapes: B batch, H heads, T tokens, K head width, J = K/2 pairs."""

from __future__ import annotations

from typing import Self

import torch

from crope.config import ModelConfig
from crope.model.positions._base import Positions, angles
from crope.model.schemes import head_width


class RotaryEmbedding(Positions):
    """Rotates channel pair (2i, 2i+1) of queries and keys at position m by +m theta_i (Eq. 6, RoFormer Eq. 15).

    theta_i = 10000^(-2i/K), i = 0 .. K/2 - 1, so that scores depend on m - n only (Eq. 7). Tables are made in float64
    and kept in float32; under autocast the rotation itself runs in float32.

    Shapes    x_BHTK -> x_BHTK, dtype kept.
    Raises    ValueError if K is odd.
    """

    cos_TJ: torch.Tensor
    sin_TJ: torch.Tensor

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        return cls(head_width(config), max_len)

    def __init__(self, d_head: int, max_len: int) -> None:
        super().__init__()
        if d_head % 2:
            raise ValueError(f"rotary positions pair channels: head width {d_head} must be even")
        angle_TJ = angles(d_head, max_len)
        self.register_buffer("cos_TJ", angle_TJ.cos().float(), persistent=False)
        self.register_buffer("sin_TJ", angle_TJ.sin().float(), persistent=False)

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        cos_TJ, sin_TJ = self.cos_TJ[: x_BHTK.shape[2]], self.sin_TJ[: x_BHTK.shape[2]]
        even_BHTJ, odd_BHTJ = x_BHTK.to(cos_TJ.dtype).unflatten(-1, (-1, 2)).unbind(-1)
        pairs = (even_BHTJ * cos_TJ - odd_BHTJ * sin_TJ, even_BHTJ * sin_TJ + odd_BHTJ * cos_TJ)
        return torch.stack(pairs, dim=-1).flatten(-2).to(x_BHTK.dtype)
