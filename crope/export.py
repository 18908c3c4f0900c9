"""A finished run's weights for others: as trained, or with dense Q, K and V, as safetensors or torch's own format.

    python scripts/export.py RUN out.safetensors --dense [--converted]

Dense is what a plain model with the same positions loads (`projection=real`), with equal outputs: every structured map
is written out as the matrix that it stands for. Names are those of crope.model.gpt; rows of the embedding past the
vocabulary are padding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from crope.checkpoint import save_weights
from crope.errors import UserError
from crope.model.gpt import GPT, Block
from crope.model.schemes import WIDTHS
from crope.trained import load_config, load_model

QKV_NAMES = ("q_proj", "k_proj", "v_proj")
FORMATS = (".safetensors", ".pt")


def export(path: Path, out: Path, *, dense: bool, converted: bool = False) -> None:
    """Writes the weights of the run in `path` to `out`, whose ending says in which format.

    `converted`: not the run's own, but those that scripts/convert.py left there (complex, with a head of their own).

    A safetensors file carries the model's configuration (JSON under "model"), vocabulary size, context and run id.
    Raises UserError for a run that is not complete, another ending, a package that is missing, or, where dense, for a
    projection whose width differs from d_model, which no plain model has.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"{out}: the file's name must end in {' or '.join(FORMATS)}")
    config, weights = load_config(path), "weights.pt"
    if converted:
        config.model, weights = replace(config.model, projection="complex", tied_head=False), "converted.pt"
        if not (path / weights).exists():
            raise UserError(f"{path}: no {weights}; scripts/convert.py makes it")
    model, choices = load_model(path, config, weights=weights), config.model
    if dense:
        if choices.projection in WIDTHS:
            raise UserError(
                f"{path}: projection={choices.projection} has a width of its own; export it without --dense"
            )
        model, choices = with_dense_qkv(model), replace(choices, projection="real")
    if out.suffix == ".pt":
        save_weights(out, model)
        return
    about = {"vocab_size": config.tokenizer.vocab_size, "max_len": config.train.seq_len, "run_id": path.name}
    _write_safetensors(out, model, {"model": json.dumps(asdict(choices)), **{k: str(v) for k, v in about.items()}})


def with_dense_qkv(model: GPT) -> GPT:
    """The same function with real Q, K and V: its state dict is what a plain model loads."""
    full = copy.deepcopy(model)
    for block in cast(Iterable[Block], full.blocks):
        for name in QKV_NAMES:
            setattr(block.attn, name, _linear(getattr(block.attn, name)))
    return full


@torch.no_grad()
def _linear(layer: Any) -> nn.Linear:
    """Any map that has a dense `weight` and a `bias` or None, as nn.Linear."""
    weight_ED = layer.weight
    linear = nn.Linear(weight_ED.shape[1], weight_ED.shape[0], bias=layer.bias is not None).to(weight_ED)
    linear.weight.copy_(weight_ED)
    if layer.bias is not None:
        linear.bias.copy_(layer.bias)
    return linear


def _write_safetensors(out: Path, model: GPT, metadata: dict[str, str]) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UserError(f"{out}: safetensors is not installed: pip install -e '.[export]'") from error
    beside = out.with_name(f".{out.name}.part")
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, beside, metadata)
    beside.replace(out)
