"""Secs. 4.1 to 4.3: attention with hand-set weights in the project's own modules (one head,
float64).

A Construction's scores and weights show each claim of Eqs. 14 to 29; docs/equations.md lists those
that do not hold as printed.

Shapes: B batch, T tokens, D model width, C = D/2 pairs, H heads, K head width, M query position, N
key position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crope.config import ModelConfig
from crope.model.attention import CausalAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.positions import POSITIONS, Positions
from crope.seeding import stream
from crope.theory.complex_maps import Array, dense
from crope.theory.rotary import frequencies, missed_weight

LEAN = 0.02  # of a query towards the tokens behind or ahead, see absolute_pointing
# The sequence of Fig. 3: 0 is "next", 1 is "nexnext", others are words. Each pointer's target is in it.
EXAMPLE = (2, 0, 3, 1, 4, 0, 1, 5, 6, 1, 0, 7)
# Widths, gain of the queries, and tokens in a window, for which missed weights are printed.
WIDTHS, GAIN, WINDOW = (16, 4096), 1000.0, 64


class Attended(NamedTuple):
    """The steps of attention: f of Eqs. 4 and 7 before division by sqrt(K), a_{m,n} of Eq. 2, and
    the layer's output.
    """

    score_BHMN: torch.Tensor
    weight_BHMN: torch.Tensor
    y_BTD: torch.Tensor


def attend(
    attention: CausalAttention, positions: Positions, x_BTD: torch.Tensor, *, causal: bool
) -> Attended:
    """Computes Eqs. 1 to 3 step by step; with `causal`, as the layer does without dropout.

    `causal=False` attends to tokens ahead, as Sec. 4.3 does.
    """
    q_BHTK, k_BHTK, v_BHTK = (attention.heads(layer(x_BTD)) for layer in attention.qkv)
    score_BHMN = positions.rotate(q_BHTK) @ positions.rotate(k_BHTK).mT
    scaled_BHMN = score_BHMN / math.sqrt(attention.head_width)  # GPT-2's; Eq. 2 has no scale
    if causal:
        ahead = torch.ones_like(scaled_BHMN, dtype=torch.bool).triu(1)
        scaled_BHMN = scaled_BHMN.masked_fill(ahead, -math.inf)
    weight_BHMN = scaled_BHMN.softmax(-1)
    y_BHTK = weight_BHMN @ v_BHTK
    y_BTD = attention.out_proj(y_BHTK.transpose(1, 2).flatten(-2))
    return Attended(score_BHMN, weight_BHMN, y_BTD)


@dataclass(frozen=True)
class Construction:
    """An attention layer with prescribed Q and K maps, its positions, and the embeddings that it is
    made for.

    V and the output projection are identities, so the layer returns a mixture of its inputs.
    """

    attention: CausalAttention
    positions: Positions
    x_TD: Array

    @torch.no_grad()
    def _attend(self, *, causal: bool) -> Attended:
        x_BTD = self.positions.embed(torch.from_numpy(self.x_TD)[None])
        return attend(self.attention, self.positions, x_BTD, causal=causal)

    def scores(self) -> Array:
        """Returns f(x_m, x_n, m, n) of Eqs. 4 and 7, (T, T): query m in rows, key n in columns, not
        divided by sqrt(D).
        """
        return self._attend(causal=False).score_BHMN[0, 0].numpy()

    def weights(self, *, causal: bool = False) -> Array:
        """Returns a_{m,n} of Eq. 2, (T, T), from scores over sqrt(D)."""
        return self._attend(causal=causal).weight_BHMN[0, 0].numpy()


def comparison(x_TD: Array, *, position: str, projection: str = "real") -> Construction:
    """Builds attention with W_q = W_k = 1 (identity): Eqs. 14 and 19 (`sinusoidal`), 17 and 22
    (`rotary`).

    The embeddings alone decide what is compared: large ones or ones on slow pairs (Eq. 16) compare
    tokens, small or constant ones positions. The identity is complex-linear, so CRoPE has the same
    construction.
    """
    length, width = x_TD.shape
    config = ModelConfig(
        position=position, projection=projection, n_layers=1, n_heads=1, d_model=width
    )
    attention = CausalAttention(config).double()
    for layer in attention.qkv:
        set_map(layer, np.eye(width // 2))
    attention.set_submodule("out_proj", nn.Identity())  # outputs are mixtures of the inputs
    return Construction(attention, POSITIONS[position](config, length).double(), x_TD)


def on_slow_pairs(tokens: Array, width: int) -> Array:
    """Puts embeddings (T, channels) on the slowest pairs of `width` channels, zero elsewhere:
    (T, width), Eq. 16.
    """
    return np.pad(tokens, ((0, 0), (width - tokens.shape[1], 0)))


def pointing(
    offsets: Sequence[int], *, width: int, projection: str, sign: int = 1, gain: float = 1.0
) -> Construction:
    """Builds Eqs. 27 to 29: token m attends to m + sign * offsets[m]; offsets are 1 ("next"), 2
    ("nexnext"), 0 (any other).

    Under rotation by +m theta the score is Re[conj(q) e^{i(n-m) theta} k], so the query of "next"
    must be e^{+i theta}; `sign=-1` gives the printed e^{-i theta}, which attends to m - 1 and m -
    2. The free numbers a_t are positive and sum to 1, different for every token; W_k is all ones,
    so every token has the key 1. `gain` scales the queries. `width` must be a multiple of 4.
    """
    # Even pairs are read by the query of "next", odd ones by that of "nexnext".
    x_TC = np.zeros((len(offsets), width // 2), dtype=np.complex128)
    generator = stream(0, "theory/pointing")
    for token_C, offset in zip(x_TC, offsets, strict=True):
        channels = token_C[offset - 1 :: 2] if offset else token_C
        channels[:] = generator.dirichlet(np.ones(len(channels)))
    x_TD = x_TC.view(np.float64)
    made = comparison(x_TD, position="rotary", projection=projection)
    phase_C = np.exp(1j * sign * frequencies(width))
    query_CC = np.tile(np.stack((phase_C, phase_C**2), axis=1), width // 4)
    set_map(made.attention.q_proj, gain * query_CC)
    set_map(made.attention.k_proj, np.ones((width // 2, width // 2)))
    return made


def absolute_pointing(offsets: Sequence[int], *, width: int, gain: float = 1.0) -> Construction:
    """Builds `pointing` with absolute sinusoids in one layer over a finite window; Sec. 4.3 calls
    it impossible.

    The position part of the query is shifted by 1.5 steps: m + 1 and m + 2 tie for the highest
    score. The token breaks the tie with a key that grows slowly with position: sin(n theta_min),
    for n < pi / (2 theta_min). The margin is LEAN times `gain` at every m. For *all* positions the
    paper is right: the two tokens' scores differ by a bounded g(n), which must fall at every step,
    so over N positions the margin is at most the range of g over N.
    """
    theta_C = frequencies(width)
    token = 100.0  # a large embedding, because W_q reads a sinusoid with the token
    x_TD = np.zeros((len(offsets), width))
    for token_D, offset in zip(x_TD, offsets, strict=True):
        if offset:
            token_D[2 * (offset - 1)] = token
    made = comparison(x_TD, position="sinusoidal")
    seen_C = np.ones(width // 2)
    seen_C[:2] = 0.0  # the two fastest pairs carry the token: keys do not read them
    # A pair is (sin, cos): minus is forwards.
    query_DD = dense(np.diag(seen_C * np.exp(-1.5j * theta_C)))
    query_DD[width - 2, [0, 2]] = np.array([-1, 1]) * LEAN / (token * theta_C[-1])
    with torch.no_grad():
        made.attention.q_proj.get_parameter("weight").copy_(torch.from_numpy(gain * query_DD))
    set_map(made.attention.k_proj, np.diag(seen_C))
    return made


def set_map(layer: nn.Module, w: NDArray[np.generic]) -> None:
    """Gives either kind of projection the complex-linear map w, (C, C): in ComplexLinear w = a -
    ib, else dense(w).
    """
    value = torch.from_numpy(np.asarray(w, dtype=np.complex128))
    with torch.no_grad():
        if isinstance(layer, ComplexLinear):
            layer.a.copy_(value.real)
            layer.b.copy_(-value.imag)
        else:
            layer.get_parameter("weight").copy_(torch.from_numpy(dense(value.numpy())))


def construction_results(*, width: int) -> dict[str, Any]:
    """Computes Sec. 4.3 in numbers: missed weights, and the attention on EXAMPLE."""
    missed = partial(missed_weight, length=WINDOW, offsets=(1, 2))
    offsets = [token + 1 if token < 2 else 0 for token in EXAMPLE]
    # Gains at which the weights on the targets are near 1.
    rotary = pointing(offsets, width=width, projection="complex", gain=300.0)
    absolute = absolute_pointing(offsets, width=width, gain=30_000.0)
    return {
        "width": width,
        "window": WINDOW,
        "widths": WIDTHS,
        "missed_by_width": [missed(frequencies(w), gain=1.0) for w in WIDTHS],
        "gain": GAIN,
        "missed_by_gain": [missed(frequencies(width), gain=gain) for gain in (1.0, GAIN)],
        "attention": {"rotary": rotary.weights().tolist(), "absolute": absolute.weights().tolist()},
    }
