"""Position schemes. Each may act in two places: on the embedding, and on queries and keys.

Shapes: B batch, T tokens, D model width, H heads, K head width, J = K/2 pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

BASE = 10000.0  # of the wavelengths, in Vaswani et al. (Sec. 3.5) and in RoFormer (Eq. 15) alike


class Positions(nn.Module):
    """Acts nowhere; a scheme overrides what it needs."""

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        return x_BHTK


class SinusoidalPositions(Positions):
    """Fixed sinusoids added to the token embedding (Vaswani et al. Sec. 3.5; XPOS of Sec. 5.1).

    Channel 2i is sin(m / 10000^(2i/D)), channel 2i+1 the cosine: each token vector gains a norm of sqrt(D/2).
    """

    table_TD: torch.Tensor

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        angle_TJ = angles(d_model, max_len)
        table_TD = torch.stack((angle_TJ.sin(), angle_TJ.cos()), dim=-1).flatten(-2).float()
        self.register_buffer("table_TD", table_TD, persistent=False)

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.table_TD[: x_BTD.shape[1]]


class RotaryEmbedding(Positions):
    """Rotates channel pair (2i, 2i+1) of queries and keys at position m by +m theta_i (Eq. 6, RoFormer Eq. 15).

    theta_i = 10000^(-2i/K), i = 0 .. K/2 - 1, so that scores depend on m - n only (Eq. 7). Tables are made in float64
    and kept in float32; under autocast the rotation itself runs in float32.

    Shapes    x_BHTK -> x_BHTK, dtype kept.
    Raises    ValueError if K is odd.
    """

    cos_TJ: torch.Tensor
    sin_TJ: torch.Tensor

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


def angles(width: int, max_len: int) -> torch.Tensor:
    """m * 10000^(-2i/width) in float64, shape (max_len, width/2)."""
    theta_J = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(max_len, dtype=torch.float64)[:, None] * theta_J


def build_positions(name: str, *, d_model: int, n_heads: int, max_len: int) -> Positions:
    """The scheme that `model.position` names."""
    builders: dict[str, Callable[[], Positions]] = {
        "sinusoidal": lambda: SinusoidalPositions(d_model, max_len),
        "rotary": lambda: RotaryEmbedding(d_model // n_heads, max_len),
    }
    return builders[name]()
