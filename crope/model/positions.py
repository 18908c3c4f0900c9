"""Position schemes. A scheme may act on the token embedding, on queries and keys, and on attention
scores.

Shapes: B batch, T tokens, D model width, H heads, K head width, J channel pairs (K/2 or D/2), S =
2T - 1.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from crope.config import INIT_STD, ModelConfig

BASE = 10000.0  # of the wavelengths, in Vaswani et al. (Sec. 3.5) and in RoFormer (Eq. 15) alike


class Positions(nn.Module):
    """Base class, and by itself the scheme `none`: order enters by the causal mask alone (Haviv et
    al. 2022; Kazemnejad et al. 2023).

    A scheme overrides the methods for the places where it acts.
    """

    # False: undefined beyond max_len, so that a longer sequence needs a retrained model.
    extends = True

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Returns the scaled token embedding as it enters the first block."""
        return x_BTD

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        """Returns queries or keys as they enter the scores."""
        return x_BHTK

    def bias(self, length: int) -> torch.Tensor | None:
        """Returns the matrix added to the scores, causal mask included, (1, H, T, T); None: only
        the causal mask.
        """
        return None


def angles(width: int, max_len: int, base: float = BASE) -> torch.Tensor:
    """Computes m * base^(-2i/width) in float64, shape (max_len, width/2)."""
    theta_J = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(max_len, dtype=torch.float64)[:, None] * theta_J


class SinusoidalPositions(Positions):
    """Fixed sinusoids added to the token embedding (Vaswani et al. Sec. 3.5; XPOS of Sec. 5.1).

    Channel 2i is sin(m / 10000^(2i/D)), channel 2i+1 the cosine, both times `scale`. With scale 1
    the added vector has norm sqrt(D/2): at D = 128, 3.1 times the initial norm of the token
    embedding scaled by sqrt(D) and 35 times the unscaled one's.
    """

    table_TD: torch.Tensor

    def __init__(self, d_model: int, max_len: int, *, scale: float = 1.0) -> None:
        super().__init__()
        angle_TJ = angles(d_model, max_len)
        table_TD = scale * torch.stack((angle_TJ.sin(), angle_TJ.cos()), dim=-1).flatten(-2)
        self.register_buffer("table_TD", table_TD.float(), persistent=False)

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.table_TD[: x_BTD.shape[1]]


class LearnedPositions(Positions):
    """One trained vector per position, added to the token embedding (GPT-2; BERT).

    The vectors start at the rms of the scaled token embedding, as in `transformers`' GPT-2.
    """

    extends = False

    def __init__(self, d_model: int, max_len: int, *, embed_factor: float) -> None:
        super().__init__()
        self.embed_factor = embed_factor
        self.weight = nn.Parameter(torch.zeros(max_len, d_model))

    def init_stds(self, dense_std: float) -> dict[str, float]:
        """Gives initial stds by parameter name; the token embedding starts at N(0, dense_std)."""
        return {"weight": dense_std * self.embed_factor}

    def embed(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD + self.weight[: x_BTD.shape[1]]


class RotaryEmbedding(Positions):
    """Rotation of channel pair (2i, 2i+1) of queries and keys at position m by +m theta_i (Eq. 6,
    RoFormer Eq. 15).

    theta_i = base^(-2i/K), i = 0 .. K/2 - 1, so scores depend on m - n only (Eq. 7). Tables are
    computed in float64 and stored in float32; under autocast the rotation runs in float32.

    Shapes    x_BHTK -> x_BHTK, dtype kept; K is even.
    """

    cos_TJ: torch.Tensor
    sin_TJ: torch.Tensor

    def __init__(self, d_head: int, max_len: int, *, base: float = BASE) -> None:
        super().__init__()
        angle_TJ = angles(d_head, max_len, base)
        # Not in the state dict: weights of one length fit a model of another.
        self.register_buffer("cos_TJ", angle_TJ.cos().float(), persistent=False)
        self.register_buffer("sin_TJ", angle_TJ.sin().float(), persistent=False)

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        cos_TJ, sin_TJ = self.cos_TJ[: x_BHTK.shape[2]], self.sin_TJ[: x_BHTK.shape[2]]
        x_BHTJ2 = x_BHTK.to(cos_TJ.dtype).unflatten(-1, (-1, 2))
        if not torch.compiler.is_compiling():  # one product; Inductor would not fuse it
            z_BHTJ = torch.view_as_complex(x_BHTJ2.contiguous()) * torch.complex(cos_TJ, sin_TJ)
            return torch.view_as_real(z_BHTJ).flatten(-2).to(x_BHTK.dtype)
        even_BHTJ, odd_BHTJ = x_BHTJ2.unbind(-1)
        pairs = (even_BHTJ * cos_TJ - odd_BHTJ * sin_TJ, even_BHTJ * sin_TJ + odd_BHTJ * cos_TJ)
        return torch.stack(pairs, dim=-1).flatten(-2).to(x_BHTK.dtype)


class DistanceBias(Positions):
    """Base class of schemes that add a number to each score, by head and distance m - n >= 0."""

    def by_distance(self, length: int) -> torch.Tensor:
        """Computes the bias, (H, T), at distances 0 .. T - 1."""
        raise NotImplementedError

    def bias(self, length: int) -> torch.Tensor:
        past_HT = self.by_distance(length).flip(-1)
        future_HS = past_HT.new_full((len(past_HT), length - 1), -math.inf)
        # Every row of the matrix is a window of this line. The windows are views in reverse order;
        # `flip` copies once.
        line_HS = torch.cat((past_HT, future_HS), dim=-1)
        return line_HS.unfold(-1, length, 1).flip(-2)[None]


class RelativeBias(DistanceBias):
    """T5's relative positions, unidirectional: a trained scalar per head and bucket, shared by all
    layers.

    Raffel et al. (2020), Sec. 2.1: 32 buckets; distances below 16 have one each, then buckets grow
    logarithmically up to 128, and all beyond share the last. Unlike T5, scores are divided by
    sqrt(K) as in every model here. Adam moves a scalar by about the learning rate per step, so
    biases stay small in short runs.
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
        # Exact buckets up to 15, then equal steps of the logarithm up to FURTHEST.
        fraction = math.log(distance / exact) / math.log(cls.FURTHEST / exact)
        return min(cls.BUCKETS - 1, exact + int(fraction * (cls.BUCKETS - exact)))

    def by_distance(self, length: int) -> torch.Tensor:
        distance_T = torch.arange(length, device=self.bucket_T.device).clamp(max=self.FURTHEST - 1)
        return self.weight[self.bucket_T[distance_T]].T


class Alibi(DistanceBias):
    """ALiBi: minus the distance, times a fixed slope per head (Press et al. 2022, Sec. 3). Not
    divided by sqrt(K).

    The slopes of H heads are 2^(-8/H), 2^(-16/H), ..., 2^-8. Where H is not a power of two, the
    authors take the slopes for the power of two below H, then every other one of those for the next
    power.
    """

    slope_H: torch.Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slope_H", torch.tensor(self.slopes(n_heads)), persistent=False)

    @staticmethod
    def slopes(n_heads: int) -> list[float]:
        below = 1 << (n_heads.bit_length() - 1)
        slopes_below, slopes_above = (
            [2.0 ** (-8 * i / n) for i in range(1, n + 1)] for n in (below, 2 * below)
        )
        return slopes_below + slopes_above[: 2 * (n_heads - below) : 2]

    def by_distance(self, length: int) -> torch.Tensor:
        return -self.slope_H[:, None] * torch.arange(length, device=self.slope_H.device)


# The scheme of a model for sequences of up to max_len tokens.
POSITIONS: dict[str, Callable[[ModelConfig, int], Positions]] = {
    "none": lambda model, max_len: Positions(),
    "sinusoidal": lambda model, max_len: SinusoidalPositions(model.d_model, max_len),
    # The rms of a sinusoid is 1/sqrt(2); here it is that of the scaled token embedding, a ratio of
    # 1 instead of 3.1.
    "sinusoidal_balanced": lambda model, max_len: SinusoidalPositions(
        model.d_model, max_len, scale=math.sqrt(2) * INIT_STD * model.embed_factor
    ),
    "learned": lambda model, max_len: LearnedPositions(
        model.d_model, max_len, embed_factor=model.embed_factor
    ),
    "rotary": lambda model, max_len: RotaryEmbedding(
        model.head_width, max_len, base=model.rope_base
    ),
    "relative_bias": lambda model, max_len: RelativeBias(model.n_heads),
    "alibi": lambda model, max_len: Alibi(model.n_heads),
}
