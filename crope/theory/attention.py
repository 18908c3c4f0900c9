"""What CausalAttention computes, opened up: its scores and weights, and attention without the causal mask.

Sec. 4.3 attends to tokens ahead, which a causal layer cannot; weights and positions are the model's own.

Shapes: B batch, T tokens, D model width, H heads, M query position, N key position.
"""

from __future__ import annotations

import math

import torch

from crope.model.attention import CausalAttention
from crope.model.positions import Positions


def attention_scores(attention: CausalAttention, positions: Positions, x_BTD: torch.Tensor) -> torch.Tensor:
    """q_m . k_n of every head, before the division by sqrt(K): f of Eqs. 4 and 7. x_BTD -> BHMN."""
    q_BHTK = positions.rotate(_heads(attention, attention.q_proj(x_BTD)))
    k_BHTK = positions.rotate(_heads(attention, attention.k_proj(x_BTD)))
    return q_BHTK @ k_BHTK.transpose(-1, -2)


def attention_weights(
    attention: CausalAttention, positions: Positions, x_BTD: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    """a_{m,n} of Eq. 2, from scores over sqrt(K): rows sum to 1. x_BTD -> BHMN."""
    score_BHMN = attention_scores(attention, positions, x_BTD)
    score_BHMN = score_BHMN / math.sqrt(x_BTD.shape[-1] // attention.n_heads)
    if causal:
        ahead = torch.ones(score_BHMN.shape[-2:], dtype=torch.bool, device=score_BHMN.device).triu(1)
        score_BHMN = score_BHMN.masked_fill(ahead, -math.inf)
    return score_BHMN.softmax(-1)


def attend(attention: CausalAttention, positions: Positions, x_BTD: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """Eq. 3 and the output projection: with `causal` the same as the layer's forward pass without dropout."""
    y_BHTK = attention_weights(attention, positions, x_BTD, causal=causal) @ _heads(attention, attention.v_proj(x_BTD))
    return attention.out_proj(y_BHTK.transpose(1, 2).flatten(-2))


def _heads(attention: CausalAttention, x_BTD: torch.Tensor) -> torch.Tensor:
    return x_BTD.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
