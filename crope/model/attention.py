"""Causal multi-head attention over any projection.

Shapes: B batch, T tokens, D model width, H heads, K = D/H head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from crope.config import ModelConfig
from crope.model.complex_linear import ComplexLinear
from crope.model.positions import Positions

PROJECTIONS: dict[str, type[nn.Linear] | type[ComplexLinear]] = {"real": nn.Linear, "complex": ComplexLinear}


class CausalAttention(nn.Module):
    """softmax(q k^T / sqrt(K)) v over the tokens up to and including each one (Eqs. 2, 3 and 7).

    Q, K and V are of the class that `model.projection` names; the output projection is a full nn.Linear in every model.
    Channels of a head are contiguous and K is even, so no complex pair straddles two heads.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, projection = config.d_model, PROJECTIONS[config.projection]
        self.n_heads, self.dropout = config.n_heads, config.dropout
        self.q_proj = projection(width, width, bias=config.qkv_bias)
        self.k_proj = projection(width, width, bias=config.qkv_bias)
        self.v_proj = projection(width, width, bias=config.qkv_bias)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x_BTD: torch.Tensor, positions: Positions) -> torch.Tensor:
        q_BHTK = positions.rotate(self._heads(self.q_proj(x_BTD)))
        k_BHTK = positions.rotate(self._heads(self.k_proj(x_BTD)))
        v_BHTK = self._heads(self.v_proj(x_BTD))
        dropout = self.dropout if self.training else 0.0
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, dropout_p=dropout, is_causal=True)
        return self.out_proj(y_BHTK.transpose(1, 2).flatten(-2))

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


ATTENTIONS: dict[str, type[CausalAttention]] = {"softmax": CausalAttention}
