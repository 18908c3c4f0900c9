"""Parameters by part, and floating-point operations: what the savings are shares of.

The paper counts the weights of a block (Sec. 6.1: 50 % of Q/K/V, 37.5 % with the output projection, 12.5 % with the
FFN); the share of the whole model, embeddings included, is much smaller. Both stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from crope.config import FFN_RATIO, ModelConfig
from crope.model.schemes import CHUNK, attention_width, half_rank, head_width

if TYPE_CHECKING:  # the report counts too, without torch
    from crope.model.gpt import GPT


@dataclass(frozen=True)
class Parameters:
    """Stored parameters, padding rows not counted; a tied head counts once, as embedding.

    Embeddings are those of tokens and of positions: the learned table, T5's scalars.
    """

    qkv: int
    output_projection: int
    ffn: int
    norms: int
    embeddings: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def count_parameters(model: GPT) -> Parameters:
    """Parameters of each part, biases with the part that they belong to."""
    found = {"qkv": 0, "output_projection": 0, "ffn": 0, "norms": 0, "embeddings": 0}
    for name, parameter in model.named_parameters():
        if name in ("embedding.weight", "head.weight"):
            found["embeddings"] += model.vocab_size * parameter.shape[1]
        elif name.startswith("positions."):
            found["embeddings"] += parameter.numel()
        elif "norm" in name:
            found["norms"] += parameter.numel()
        elif ".ffn_" in name:
            found["ffn"] += parameter.numel()
        elif ".out_proj." in name:
            found["output_projection"] += parameter.numel()
        else:
            found["qkv"] += parameter.numel()
    return Parameters(**found)


def savings(full: Parameters, lean: Parameters, *, n_layers: int, d_model: int) -> dict[str, float]:
    """Share of weights that `lean` saves against `full`, in per cent, over growing wholes.

    The first three are the paper's and count weight matrices alone (its 12.5 % leaves biases and norms out).
    """
    qkv = full.qkv - lean.qkv
    saved = qkv + full.output_projection - lean.output_projection  # `halved` narrows the output projection as well
    square = n_layers * d_model**2
    return {
        "Q/K/V": 100 * qkv / (3 * square),
        "attention": 100 * saved / (4 * square),
        "block": 100 * saved / ((4 + 2 * FFN_RATIO) * square),
        "model": 100 * saved / full.total,
    }


def train_flops_per_token(model: ModelConfig, *, vocab_size: int, seq_len: int) -> int:
    """Multiply-adds count two; forward and backward three times the forward; causal squares count half."""
    width, d_model = attention_width(model), model.d_model
    qkv = 3 * MULTIPLY_ADDS.get(model.projection, _dense)(d_model, width)
    mixing = MIXING_FLOPS[model.attention](model, seq_len)
    block = 2 * (qkv + width * d_model + 2 * FFN_RATIO * d_model**2) + mixing
    return 3 * (model.n_layers * block + 2 * d_model * vocab_size)


def _dense(d_in: int, d_out: int) -> int:
    return d_in * d_out


# Of one Q, K or V map, by `model.projection`: the complex ones multiply their dense matrix and count as real.
MULTIPLY_ADDS: dict[str, Callable[[int, int], int]] = {
    "lowrank": lambda d_in, d_out: half_rank(d_in, d_out) * (d_in + d_out),
    "blockdiag": lambda d_in, d_out: d_in * d_out // 2,
}


def _softmax_mixing(model: ModelConfig, seq_len: int) -> int:
    """Scores and weighted sum of values: half of 2 T E each."""
    return 2 * seq_len * attention_width(model)


def _linear_mixing(model: ModelConfig, seq_len: int) -> int:
    """Eq. 19 in chunks of C tokens. A head: three half squares of C K (both scores, sum of values) and one of C (sum of
    scores), then 2 K x K state in and out for the numerator, and K for the denominator."""
    chunk, width = min(CHUNK, seq_len), head_width(model)
    return model.n_heads * (3 * chunk * width + chunk + 4 * width**2 + 4 * width)


MIXING_FLOPS: dict[str, Callable[[ModelConfig, int], int]] = {"softmax": _softmax_mixing, "linear": _linear_mixing}
