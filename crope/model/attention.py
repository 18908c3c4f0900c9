"""Causal multi-head attention over any projection: softmax, and RoFormer's linear form.

Shapes: B batch, T tokens, D model width, E attention width, H heads, K head width, C tokens of a
chunk, N chunks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from crope.config import CHUNK, ModelConfig
from crope.model.positions import Positions
from crope.model.projections import PROJECTIONS

SHORT = 512  # tokens up to which attention is written out on a CPU


class CausalAttention(nn.Module):
    """softmax(q k^T / sqrt(K) + bias) v over the tokens up to and including each one (Eqs. 2, 3 and
    7).

    `model.projection` selects Q, K and V, `model.position` rotation and bias; the output projection
    is always a full nn.Linear. Channels of a head are contiguous and K is even, so no complex pair
    straddles two heads. A single head of K and V (`multi_query`) serves all heads of Q.

    Shapes    x_BTD -> y_BTD.
    """

    forms_scores = True  # False: a position scheme cannot add a bias to them

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.head_width = config.n_heads, config.head_width
        self.dropout = config.dropout
        self.q_proj, self.k_proj, self.v_proj = PROJECTIONS[config.projection](config)
        self.out_proj = nn.Linear(config.attention_width, config.d_model)

    @property
    def qkv(self) -> tuple[Any, Any, Any]:
        """Returns the projections, of classes that `model.projection` selects."""
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, x_BTD: torch.Tensor, positions: Positions) -> torch.Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self.heads(layer(x_BTD)) for layer in self.qkv)
        return self.out_proj(
            self.mix(q_BHTK, k_BHTK, v_BHTK, positions).transpose(1, 2).flatten(-2)
        )

    def mix(
        self, q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, positions: Positions
    ) -> torch.Tensor:
        """Computes the weighted sum of values per head, y_BHTK."""
        q_BHTK, k_BHTK = positions.rotate(q_BHTK), positions.rotate(k_BHTK)
        bias = positions.bias(q_BHTK.shape[2])
        dropout = self.dropout if self.training else 0.0
        # torch's kernel is faster in float32; with a bias or dropout it is not.
        kernel = q_BHTK.dtype == torch.float32 and bias is None and not dropout
        if q_BHTK.device.type == "cpu" and q_BHTK.shape[2] <= SHORT and not kernel:
            return written_out_attention(q_BHTK, k_BHTK, v_BHTK, bias=bias, dropout=dropout)
        # A bias contains the causal mask. Autocast rounds it to bf16 as it does q and k; at 1,024
        # tokens that adds less than 1 % to the error of bf16 (docs/performance.md).
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, attn_mask=bias, dropout_p=dropout, is_causal=bias is None
        )

    def heads(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Returns the heads of a projection's output, (B, H, T, K); a single one is repeated for
        all.
        """
        heads_BHTK = x_BTE.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        return heads_BHTK.expand(-1, self.n_heads, -1, -1)


def written_out_attention(
    q_BHTK: torch.Tensor,
    k_BHTK: torch.Tensor,
    v_BHTK: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Computes causal F.scaled_dot_product_attention as matrix products and a softmax, the latter
    in float32 or float64.

    On a CPU it takes about half the time of torch's kernel in bf16, while the scores fit in the
    cache. It rounds q.k to bf16 there, unlike torch's kernel: this moves trained models' losses by
    about 0.0001 nats (docs/performance.md).
    """
    dtype = torch.promote_types(q_BHTK.dtype, torch.float32)
    score_BHTT = (q_BHTK @ k_BHTK.mT).to(dtype) * q_BHTK.shape[-1] ** -0.5
    if bias is None:
        bias = score_BHTT.new_full(score_BHTT.shape[-2:], -torch.inf).triu(1)
    weight_BHTT = F.dropout(torch.softmax(score_BHTT + bias, dim=-1), dropout)
    return weight_BHTT.to(v_BHTK.dtype) @ v_BHTK


class LinearAttention(CausalAttention):
    """Causal linear attention in O(T) time and memory, rotated in the numerator only (RoFormer, Eq.
    19).

    y_m = sum_{n<=m} (R_m f(q_m)).(R_n f(k_n)) v_n / sum_{n<=m} f(q_m).f(k_n), with the features f =
    elu + 1 and the causal sum over chunks of Katharopoulos et al. 2020. The denominator is
    positive; the weights may be negative and need not sum to 1. The score matrix is never formed:
    it takes no position bias (such configurations are rejected) and no dropout. Runs in float32
    under autocast.
    """

    forms_scores = False

    def mix(
        self, q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTK: torch.Tensor, positions: Positions
    ) -> torch.Tensor:
        with torch.autocast(q_BHTK.device.type, enabled=False):
            dtype = torch.promote_types(q_BHTK.dtype, torch.float32)
            q_BHTK, k_BHTK = features(q_BHTK.to(dtype)), features(k_BHTK.to(dtype))
            ones_BHT1 = torch.ones_like(q_BHTK[..., :1])
            total_BHT1 = causal_product(q_BHTK, k_BHTK, ones_BHT1)
            sum_BHTK = causal_product(
                positions.rotate(q_BHTK), positions.rotate(k_BHTK), v_BHTK.to(dtype)
            )
            return (sum_BHTK / total_BHT1).to(v_BHTK.dtype)


def features(x: torch.Tensor) -> torch.Tensor:
    """Computes elu(x) + 1 (Katharopoulos et al. 2020), in a form that stays above 0: float32's
    elu(-20) is exactly -1.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def causal_product(
    q_BHTK: torch.Tensor, k_BHTK: torch.Tensor, v_BHTV: torch.Tensor
) -> torch.Tensor:
    """Computes sum_{n<=m} (q_m . k_n) v_n, any value width V: (C, C) scores within chunks, a (K, V)
    state between them.
    """
    length = q_BHTK.shape[2]
    chunk = min(CHUNK, length)
    q, k, v = (  # (B, H, N, C, K or V): N chunks of C tokens
        F.pad(x, (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk))
        for x in (q_BHTK, k_BHTK, v_BHTV)
    )
    within = (q @ k.mT).tril() @ v
    # A loop, because torch.cumsum is not deterministic on CUDA; the products above are batched in
    # any case.
    chunk_states = (k.mT @ v).unbind(2)
    states = [torch.zeros_like(chunk_states[0])]
    for chunk_state in chunk_states[:-1]:
        states.append(states[-1] + chunk_state)
    return (within + q @ torch.stack(states, dim=2)).flatten(2, 3)[:, :, :length]


ATTENTIONS: dict[str, type[CausalAttention]] = {
    "softmax": CausalAttention,
    "linear": LinearAttention,
}
