"""Position schemes. Each may act in three places: on the embedding, on queries and keys, and on their scores.

Shapes: B batch, T tokens, D model width, H heads, K head width, J = K/2 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from crope.config import ModelConfig
from crope.model.schemes import head_width

BASE = 10000.0  # of the wavelengths, in Vaswani et al. (Sec. 3.5) and in RoFormer (Eq. 15) alike


class Positions(nn.Module):
    """Acts nowhere; a scheme overrides what it needs. By itself `none`: order enters by the causal mask alone."""

    extends = True  # whether it says anything past the length that it was trained at

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        return x_BHTK

    def bias(self, length: int) -> torch.Tensor | None:
        """What is added to the scores, causal mask included, (1, H, T, T); None: nothing but the mask."""
        return None


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


class LearnedPositions(Positions):
    """A trained vector for each of max_len positions, added to the token embedding (GPT-2; BERT)."""

    extends = False

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_len, d_model))

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.weight[: x_BTD.shape[1]]


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


class RelativeBias(DistanceBias):
    """T5's relative positions, unidirectional: a trained scalar for each head and bucket, shared by all layers.

    Raffel et al. (2020), Sec. 2.1: 32 buckets; distances below 16 have one each, then they grow logarithmically up to
    128, and all distances beyond share the last. Unlike T5, scores are divided by sqrt(K) as in every model here.
    """

    BUCKETS, FURTHEST = 32, 128
    bucket_T: torch.Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(self.BUCKETS, n_heads))
        buckets = torch.tensor([self.bucket(distance) for distance in range(self.FURTHEST)])
        self.register_buffer("bucket_T", buckets, persistent=False)

    @classmethod
    def bucket(cls, distance: int) -> int:
        exact = cls.BUCKETS // 2
        if distance < exact:
            return distance
        share = math.log(distance / exact) / math.log(cls.FURTHEST / exact)
        return min(cls.BUCKETS - 1, exact + int(share * (cls.BUCKETS - exact)))

    def by_distance(self, length: int) -> torch.Tensor:
        distance_T = torch.arange(length, device=self.bucket_T.device).clamp(max=self.FURTHEST - 1)
        return self.weight[self.bucket_T[distance_T]].T


class AlibiBias(DistanceBias):
    """ALiBi: minus the distance, times a fixed slope for each head (Press et al. 2022, Sec. 3). Not divided by sqrt(K).

    The slopes of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8. Where H is no power of two, its authors take those of the
    power of two below H, then every other one of the next power's.
    """

    slope_H: torch.Tensor

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


def angles(width: int, max_len: int) -> torch.Tensor:
    """m * 10000^(-2i/width) in float64, shape (max_len, width/2)."""
    theta_J = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(max_len, dtype=torch.float64)[:, None] * theta_J


def build_positions(config: ModelConfig, *, max_len: int) -> Positions:
    """The scheme that `model.position` names."""
    builders: dict[str, Callable[[], Positions]] = {
        "none": Positions,
        "sinusoidal": lambda: SinusoidalPositions(config.d_model, max_len),
        "learned": lambda: LearnedPositions(config.d_model, max_len),
        "rotary": lambda: RotaryEmbedding(head_width(config), max_len),
        "relative_bias": lambda: RelativeBias(config.n_heads),
        "alibi": lambda: AlibiBias(config.n_heads),
    }
    return builders[config.position]()
