"""What a position scheme is: it may act in three places, on the embedding, on queries and keys, and on their scores.

Shapes: B batch, T tokens, D model width, H heads, K head width, J pairs, S = 2T - 1.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import nn

from crope.config import ModelConfig

BASE = 10000.0  # of the wavelengths, in Vaswani et al. (Sec. 3.5) and in RoFormer (Eq. 15) alike


class Positions(nn.Module):
    """Acts nowhere; a scheme overrides what it needs.

    By itself `none`: order enters by the causal mask alone (Haviv et al. 2022; Kazemnejad et al. 2023).
    """

    extends = True  # whether it says anything past the length that it was trained at

    @classmethod
    def build(cls, config: ModelConfig, max_len: int) -> Self:
        """The scheme of a model, for sequences of up to max_len tokens."""
        return cls()

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        return x_BHTK

    def bias(self, length: int) -> torch.Tensor | None:
        """What is added to the scores, causal mask included, (1, H, T, T); None: nothing but the mask."""
        return None


class DistanceBias(Positions):
    """A number added to each score by head and by the distance m - n >= 0 of query and key."""

    def by_distance(self, length: int) -> torch.Tensor:
        """(H, T): the bias at distances 0 .. T - 1."""
        raise NotImplementedError

    def bias(self, length: int) -> torch.Tensor:
        past_HT = self.by_distance(length).flip(-1)
        future_HS = past_HT.new_full((len(past_HT), length - 1), -math.inf)
        # Row m of the matrix is this line shifted by m: the windows are views, and one copy turns them over.
        line_HS = torch.cat((past_HT, future_HS), dim=-1)
        return line_HS.unfold(-1, length, 1).flip(-2)[None]


def angles(width: int, max_len: int) -> torch.Tensor:
    """m * 10000^(-2i/width) in float64, shape (max_len, width/2)."""
    theta_J = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(max_len, dtype=torch.float64)[:, None] * theta_J
