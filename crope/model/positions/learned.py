"""A trained vector for each position. Shapes: B batch, T tokens, D model width."""

from __future__ import annotations

from typing import Self

import torch
from torch import nn

from crope.config import ModelConfig
from crope.model.positions._base import Positions


class LearnedPositions(Positions):
    """A trained vector for each of max_len positions, added to the token embedding (GPT-2; BERT)."""

    extends = False

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        return cls(config.d_model, max_len)

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_len, d_model))

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.weight[: x_BTD.shape[1]]
