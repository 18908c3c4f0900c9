"""The same work done by others, for the benchmark: a plain PyTorch loop, and `transformers`' GPT-2 as its users run it.

Each contender trains one decoder of the run's shape on random tokens: forward, mean cross entropy, backward, AdamW.
None shares code with this repository's model, loss or trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crope.compose import Run

Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Setting:
    """How a contender is run. `padded`: vocabulary rounded up to a multiple of 64. Only ours has the last two."""

    precision: str
    compiled: bool
    padded: bool
    loss: str = "plain"
    cuda_graphs: bool = False

    def __str__(self) -> str:
        parts = ["compiled" if self.compiled else "eager", self.precision, "padded" if self.padded else ""]
        parts += ["" if self.loss == "plain" else f"{self.loss} loss", "CUDA graphs" if self.cuda_graphs else ""]
        return ", ".join(part for part in parts if part)


class PlainGPT(nn.Module):
    """A decoder as a compact training script writes it: fused QKV, learned positions, tied head."""

    def __init__(self, *, vocab: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "norm2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        x = self.tokens(inputs_BT) + self.places(torch.arange(inputs_BT.shape[1], device=inputs_BT.device))
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            heads = layer["qkv"](layer["norm1"](x)).unflatten(-1, (3, self.heads, -1))
            q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
            x = x + layer["out"](mixed)
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x)), approximate="tanh"))
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def plain_step(run: Run, setting: Setting, device: torch.device) -> Step:
    config = run.config
    model = PlainGPT(
        vocab=_vocabulary(run, setting),
        width=config.model.d_model,
        layers=config.model.n_layers,
        heads=config.model.n_heads,
        length=config.train.seq_len,
    )
    return _step(model.to(device), model, run, setting, device)


def transformers_step(run: Run, setting: Setting, device: torch.device) -> Step:
    """GPT2LMHeadModel from a configuration, dropout off as here; its loss shifts the labels itself."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = run.config
    shape = GPT2Config(
        vocab_size=_vocabulary(run, setting),
        n_positions=config.train.seq_len,
        n_embd=config.model.d_model,
        n_layer=config.model.n_layers,
        n_head=config.model.n_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model: nn.Module = GPT2LMHeadModel(shape)
    model.to(device)
    model.train()

    def loss(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        return model(input_ids=inputs_BT, labels=inputs_BT).loss

    return _step(model, loss, run, setting, device)


def _vocabulary(run: Run, setting: Setting) -> int:
    size = run.config.tokenizer.vocab_size
    return -(-size // 64) * 64 if setting.padded else size


def _step(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], run: Run, setting: Setting, device: torch.device
) -> Step:
    config, bf16 = run.config, setting.precision == "bf16"
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.train.lr, fused=True)
    if setting.compiled:
        loss = torch.compile(loss, dynamic=False)
    shape = (config.train.batch_size, config.train.seq_len)

    def step() -> Tensor:
        inputs_BT, targets_BT = (torch.randint(config.tokenizer.vocab_size, shape, device=device) for _ in range(2))
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            value = loss(inputs_BT, targets_BT)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step
