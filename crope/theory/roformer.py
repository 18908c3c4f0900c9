"""RoFormer (Su et al.): the rotation in its matrix form and its cheap form, and rotary positions in linear attention.

Shapes: B batch, T tokens, H heads, K head width, V value width, N key position.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from crope.theory.kernel import Array, frequencies


def rotary_matrix(position: float, width: int) -> Array:
    """R_{Theta,m} of Eq. 15 (Eq. 6 of the CRoPE paper), block-diagonal, (width, width)."""
    angle = position * frequencies(width)
    matrix = np.zeros((width, width))
    even, odd = np.arange(0, width, 2), np.arange(1, width, 2)
    matrix[even, even] = matrix[odd, odd] = np.cos(angle)
    matrix[odd, even], matrix[even, odd] = np.sin(angle), -np.sin(angle)
    return matrix


def rotate_cheaply(x_K: Array, position: float) -> Array:
    """Eq. 34: two element-wise products instead of the matrix. (..., K) -> (..., K)."""
    angle_K = np.repeat(position * frequencies(x_K.shape[-1]), 2)
    swapped_K = np.stack((-x_K[..., 1::2], x_K[..., 0::2]), axis=-1).reshape(x_K.shape)
    return x_K * np.cos(angle_K) + swapped_K * np.sin(angle_K)


def linear_attention(
    q_BHTK: torch.Tensor,
    k_BHTK: torch.Tensor,
    v_BHTV: torch.Tensor,
    *,
    rotate: Callable[[torch.Tensor], torch.Tensor] = lambda x_BHTK: x_BHTK,
    causal: bool,
) -> torch.Tensor:
    """Attention in time linear in T with phi(x) = elu(x) + 1 (Eq. 18), rotary if `rotate` turns its argument (Eq. 19).

    Features are rotated *after* phi, in the numerator only: a rotated one may be negative, and a sum of such could
    vanish under the fraction. So the weights of values need neither be positive nor sum to 1.

    Shapes    q_BHTK, k_BHTK, v_BHTV -> y_BHTV; `rotate` is RotaryEmbedding.rotate. Memory B H T K V if causal.
    """
    q_BHTK, k_BHTK = F.elu(q_BHTK) + 1, F.elu(k_BHTK) + 1
    turned_q_BHTK, turned_k_BHTK = rotate(q_BHTK), rotate(k_BHTK)
    if causal:
        state_BHTKV = (turned_k_BHTK[..., :, None] * v_BHTV[..., None, :]).cumsum(2)
        above_BHTV = torch.einsum("bhtk,bhtkv->bhtv", turned_q_BHTK, state_BHTKV)
        below_BHT = (q_BHTK * k_BHTK.cumsum(2)).sum(-1)
    else:
        above_BHTV = turned_q_BHTK @ (turned_k_BHTK.transpose(-1, -2) @ v_BHTV)
        below_BHT = (q_BHTK * k_BHTK.sum(2, keepdim=True)).sum(-1)
    return above_BHTV / below_BHT[..., None]
