"""The one decoder (Sec. 5.1: GPT-2, pre-LN, GELU, FFN ratio 4); the configuration chooses its
parts.

Shapes: B batch, T tokens, D model width, V vocabulary, P = V padded to a multiple of 64.
"""

import math
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from crope.config import INIT_STD, ModelConfig, model_problems, value_problems
from crope.errors import ConfigError
from crope.model.attention import ATTENTIONS
from crope.model.positions import POSITIONS, Positions
from crope.model.projections import PROJECTIONS
from crope.seeding import stream

VOCAB_MULTIPLE = 64  # matmuls over an odd 50,257 columns take about twice as long


class Block(nn.Module):
    """x + attention(LN(x)), then x + FFN(LN(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.d_model
        self.attn_norm = nn.LayerNorm(width, eps=1e-5)
        self.attn = ATTENTIONS[config.attention](config)
        self.ffn_norm = nn.LayerNorm(width, eps=1e-5)
        self.ffn_up = nn.Linear(width, config.ffn_width)
        self.ffn_down = nn.Linear(config.ffn_width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: torch.Tensor, positions: Positions) -> torch.Tensor:
        x_BTD = x_BTD + self.dropout(self.attn(self.attn_norm(x_BTD), positions))
        hidden = F.gelu(self.ffn_up(self.ffn_norm(x_BTD)), approximate="tanh")  # GPT-2's GELU
        return x_BTD + self.dropout(self.ffn_down(hidden))


class GPT(nn.Module):
    """Decoder-only language model (GPT-2).

    Initial values depend on (seed, parameter name) only, so tensors shared by two models start
    equal. Embedding rows past vocab_size are padding for speed: they start at zero, carry no
    probability mass and get no gradient unless such an id is fed (not checked).

    Shapes    tokens_BT (int64) -> hidden_BTD; `logits` maps hidden_BTD to logits_BTV without the
              padding.
    Raises    ConfigError (a ValueError) for an invalid value or combination in the config;
              ValueError if T exceeds max_len.
    """

    padding_bias_P: torch.Tensor | None

    def __init__(self, config: ModelConfig, *, vocab_size: int, max_len: int, seed: int) -> None:
        super().__init__()
        parts: Any = {"position": POSITIONS, "projection": PROJECTIONS, "attention": ATTENTIONS}
        for key, registry in parts.items():
            if (name := getattr(config, key)) not in registry:
                raise ConfigError(f"model.{key}={name} must be one of {', '.join(registry)}")
        for key, text in chain(value_problems(config, "model."), model_problems(config)):
            raise ConfigError(f"{key} {text}")
        self.vocab_size, self.max_len = vocab_size, max_len
        self.embed_factor = config.embed_factor
        self.config = config
        padded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        self.embedding = nn.Embedding(padded, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.positions = POSITIONS[config.position](config, max_len)
        if self.positions.bias(1) is not None and not ATTENTIONS[config.attention].forms_scores:
            raise ConfigError("model.position adds to scores, which model.attention never forms")
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=1e-5)
        bias_P = torch.zeros(padded)
        bias_P[vocab_size:] = -math.inf
        # Without padding none: the sum would take 1 % of a step.
        bias = bias_P if padded > vocab_size else None
        self.register_buffer("padding_bias_P", bias, persistent=False)
        # Where tied, no second reference to the embedding: a state dict would hold it twice.
        self.head = None if config.tied_head else nn.Linear(config.d_model, padded, bias=False)
        self._initialise(seed, branch_std=INIT_STD / math.sqrt(2 * config.n_layers))

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        if tokens_BT.shape[1] > self.max_len:
            raise ValueError(
                f"{tokens_BT.shape[1]} tokens in a sequence, but max_len is {self.max_len}"
            )
        x_BTD = self.embedding(tokens_BT) * self.embed_factor
        x_BTD = self.dropout(self.positions.embed(x_BTD))
        for block in self.blocks:
            x_BTD = block(x_BTD, self.positions)
        return self.norm(x_BTD)

    def logits(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden_BTD, self.head_weight)[..., : self.vocab_size]

    def masked_logits(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """Returns logits with the padding, (B, T, P), which is minus infinity: without mass or
        gradient. Cutting it off would copy the gradient of all logits.
        """
        return F.linear(hidden_BTD, self.head_weight, self.padding_bias_P)

    @property
    def head_weight(self) -> torch.Tensor:
        """Returns the output head, (P, D): the token embedding where tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    @torch.no_grad()
    def _initialise(self, seed: int, *, branch_std: float) -> None:
        """Draws N(0, 0.02), the projections into the residual stream N(0, branch_std) as in GPT-2;
        norms 1, biases 0.

        Modules with `init_stds` choose their own: learned positions, and structured projections,
        whose outputs then vary as those of a dense N(0, 0.02) weight.
        """
        own_stds = {
            f"{prefix}.{name}": std
            for prefix, module in self.named_modules()
            if hasattr(module, "init_stds")
            for name, std in module.init_stds(INIT_STD).items()
        }
        for name, parameter in self.named_parameters():
            std = own_stds.get(name, INIT_STD)
            if name.endswith(("out_proj.weight", "ffn_down.weight")):
                std = branch_std
            # A scheme's own parameter may be called bias or norm, and still choose its values.
            if name.endswith("bias") and name not in own_stds:
                parameter.zero_()
            elif "norm" in name and name not in own_stds:
                parameter.fill_(1.0)
            else:
                drawn: torch.Tensor = parameter
                if name in ("embedding.weight", "head.weight"):
                    parameter.zero_()  # the padding
                    drawn = parameter[: self.vocab_size]
                values = stream(seed, f"init/{name}").standard_normal(tuple(drawn.shape))
                drawn.copy_(torch.as_tensor(values * std))


def count_parameters(model: GPT) -> dict[str, int]:
    """Counts the trained parameters by part, and in `total`. A bias counts with its weight.

    Padding rows are not counted; a tied head counts once, as embedding. `embeddings` includes those
    of position schemes (the learned table, T5's scalars).
    """
    padding = model.embedding.num_embeddings - model.vocab_size
    counts = {"qkv": 0, "output_projection": 0, "ffn": 0, "norms": 0, "embeddings": 0}
    for name, parameter in model.named_parameters():  # a shared one once
        size = parameter.numel()
        if name in ("embedding.weight", "head.weight"):
            size -= padding * parameter.shape[1]
        counts[part_of(name)] += size
    return {**counts, "total": sum(counts.values())}


def part_of(name: str) -> str:
    """Returns the part of the model to which a parameter belongs by name."""
    if ".attn.out_proj." in name:
        return "output_projection"
    if ".attn." in name:
        return "qkv"
    if ".ffn_up." in name or ".ffn_down." in name:
        return "ffn"
    return "norms" if "norm." in name else "embeddings"
