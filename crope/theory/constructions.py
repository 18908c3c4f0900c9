"""Secs. 4.1 to 4.3: attention with weights set by hand, in the project's own modules (one head, float64).

What each of Eqs. 14 to 29 claims can be read off a Construction's scores and weights; where a claim fails as printed,
`errata.py` says what holds instead.

Shapes: T tokens, D model width = head width, J = D/2 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crope.config import ModelConfig
from crope.model.attention import CausalAttention
from crope.model.complex_linear import ComplexLinear
from crope.model.positions import Positions, build_positions
from crope.seeding import stream
from crope.theory.attention import attend, attention_scores, attention_weights
from crope.theory.kernel import Array, frequencies

Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class Construction:
    """An attention layer with prescribed Q and K maps, its positions, and the embeddings that it is made for.

    V and the output projection are identities, so the layer returns a mixture of its inputs.
    """

    attention: CausalAttention
    positions: Positions
    x_TD: Array

    def scores(self) -> Array:
        """f(x_m, x_n, m, n) of Eqs. 4 and 7, (T, T): query m in rows, key n in columns, not divided by sqrt(D)."""
        return attention_scores(self.attention, self.positions, self._input())[0, 0].detach().numpy()

    def weights(self, *, causal: bool = False) -> Array:
        """a_{m,n} of Eq. 2, (T, T), from scores over sqrt(D)."""
        return attention_weights(self.attention, self.positions, self._input(), causal=causal)[0, 0].detach().numpy()

    def output(self, *, causal: bool = False) -> Array:
        """o_m of Eq. 3, (T, D)."""
        return attend(self.attention, self.positions, self._input(), causal=causal)[0].detach().numpy()

    def _input(self) -> torch.Tensor:
        return self.positions.embed(torch.from_numpy(self.x_TD)[None])


def comparison(x_TD: Array, *, position: str, projection: str = "real") -> Construction:
    """W_q = W_k = 1, the identity: Eqs. 14 and 19 (`sinusoidal`), 17 and 22 (`rotary`).

    The embeddings alone decide what is compared: large ones or ones on slow pairs (Eq. 16) compare tokens, small or
    constant ones positions. The identity is complex-linear, so CRoPE has the same construction.
    """
    attention, positions = _build_layer(x_TD, position=position, projection=projection)
    return Construction(attention, positions, x_TD)


def on_slow_pairs(tokens_TC: Array, width: int) -> Array:
    """Eq. 16: embeddings of C channels on the C/2 slowest pairs of `width` channels, zero elsewhere."""
    x_TD = np.zeros((len(tokens_TC), width))
    x_TD[:, width - tokens_TC.shape[1] :] = tokens_TC
    return x_TD


def pointing(
    offsets: Sequence[int], *, width: int, projection: str, sign: int = 1, gain: float = 1.0, seed: int = 0
) -> Construction:
    """Eqs. 27 to 29: token m attends to m + sign * offsets[m]; offsets are 1 ("next"), 2 ("nexnext"), 0 (any other).

    Under rotation by +m theta the score is Re[conj(q) e^{i(n-m) theta} k], so the query of "next" must be e^{+i theta};
    `sign=-1` gives the printed e^{-i theta}, which attends to m - 1 and m - 2. The free numbers a_t are positive and
    sum to 1, different for every token; W_k is all ones, so each token, of either kind or none, has the key 1. `gain`
    scales the queries.
    `width` is a multiple of 4.
    """
    x_TJ = np.zeros((len(offsets), width // 2), dtype=np.complex128)
    generator = stream(seed, "theory/pointing")
    for token_J, offset in zip(x_TJ, offsets, strict=True):
        channels = token_J[offset - 1 :: 2] if offset else token_J
        channels[:] = generator.dirichlet(np.ones(len(channels)))
    x_TD = x_TJ.view(np.float64)
    attention, positions = _build_layer(x_TD, position="rotary", projection=projection)
    phase_J = np.exp(1j * sign * frequencies(width))
    set_map(attention.q_proj, gain * np.tile(np.stack((phase_J, phase_J**2), axis=1), width // 4))
    set_map(attention.k_proj, np.ones((width // 2, width // 2)))
    return Construction(attention, positions, x_TD)


def absolute_pointing(offsets: Sequence[int], *, width: int, gain: float = 1.0, lean: float = 0.02) -> Construction:
    """`pointing` with absolute sinusoids in one layer: what Sec. 4.3 calls impossible, over a finite window.

    The position part of the query is turned on by 1.5 steps, so that m + 1 and m + 2 tie for the highest score; the
    token tips the balance with a key that grows slowly with position: sin(n theta_min), for n < pi / (2 theta_min). The
    margin is `lean` at every m (times `gain`); over N positions the lean adds up to N times that, which must stay below
    the kernel's fall at that distance.
    For *all* positions the paper is right: the two tokens' scores differ by a bounded g(n), which would have to fall
    at every step, so over N positions the margin is at most the range of g over N.
    """
    theta_J, token = frequencies(width), 100.0  # a large embedding, for W_q reads a sinusoid with the token
    x_TD = np.zeros((len(offsets), width))
    for token_D, offset in zip(x_TD, offsets, strict=True):
        if offset:
            token_D[2 * (offset - 1)] = token
    attention, positions = _build_layer(x_TD, position="sinusoidal", projection="real")
    seen_J = np.where(np.arange(width // 2) < 2, 0, 1)  # the two fastest pairs carry the token: keys are blind to it
    query_DD = dense(np.diag(seen_J * np.exp(-1.5j * theta_J)))  # a pair is (sin, cos): minus is forwards
    query_DD[width - 2, [0, 2]] = np.array([-1, 1]) * lean / (token * theta_J[-1])
    with torch.no_grad():
        attention.q_proj.get_parameter("weight").copy_(torch.from_numpy(gain * query_DD))
    set_map(attention.k_proj, np.diag(seen_J))
    return Construction(attention, positions, x_TD)


def set_map(layer: nn.Module, w_JJ: NDArray[np.generic]) -> None:
    """Gives either kind of projection the complex-linear map w: in ComplexLinear w = a - ib, else its dense matrix."""
    w = torch.from_numpy(np.asarray(w_JJ, dtype=np.complex128))
    with torch.no_grad():
        if isinstance(layer, ComplexLinear):
            layer.a.copy_(w.real)
            layer.b.copy_(-w.imag)
        else:
            layer.get_parameter("weight").copy_(torch.from_numpy(dense(w.numpy())))


def dense(w_JJ: Complex) -> Array:
    """The real matrix of a complex one, interleaved pairs: w = u + iv becomes blocks [[u, -v], [v, u]] (Eq. 30)."""
    return np.kron(w_JJ.real, [[1, 0], [0, 1]]) + np.kron(w_JJ.imag, [[0, -1], [1, 0]])


def _build_layer(x_TD: Array, *, position: str, projection: str) -> tuple[CausalAttention, Positions]:
    length, width = x_TD.shape
    config = ModelConfig(position=position, projection=projection, n_layers=1, n_heads=1, d_model=width)
    attention = CausalAttention(config).double()
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        set_map(layer, np.eye(width // 2))
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(width))
        attention.out_proj.bias.zero_()
    return attention, build_positions(config, max_len=length).double()
