"""Parameters by part, and floating-point operations: what the savings are shares of.

The paper counts the weights of a block (Sec. 6.1: 50 % of Q/K/V, 37.5 % with the output projection, 12.5 % with the
FFN); the share of the whole model, embeddings included, is much smaller. Both stand side by side.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from crope.config import FFN_RATIO

if TYPE_CHECKING:  # the report counts too, without torch
    from crope.model.gpt import GPT


@dataclass(frozen=True)
class Parameters:
    """Stored parameters, padding rows not counted; a tied head counts once, as embedding."""

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
    saved = full.qkv - lean.qkv
    square = n_layers * d_model**2
    return {
        "Q/K/V": 100 * saved / (3 * square),
        "attention": 100 * saved / (4 * square),
        "block": 100 * saved / ((4 + 2 * FFN_RATIO) * square),
        "model": 100 * saved / full.total,
    }


def train_flops_per_token(*, n_layers: int, d_model: int, vocab_size: int, seq_len: int) -> int:
    """Multiply-adds count two; forward and backward three times the forward; causal attention half the square.

    ComplexLinear multiplies its dense matrix, so all models count alike.
    """
    block = 2 * (4 + 2 * FFN_RATIO) * d_model**2 + 2 * seq_len * d_model
    return 3 * (n_layers * block + 2 * d_model * vocab_size)
