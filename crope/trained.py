"""A finished run read back: its configuration, its model with the trained weights, its tokens."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import yaml
from omegaconf import OmegaConf

from crope.config import Config
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError
from crope.model.gpt import GPT


def load_config(path: Path) -> Config:
    """config.yaml of the run directory `path`. Raises UserError where it is none."""
    try:
        saved = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no config.yaml, so no run directory; name one, such as results/runs/<run_id>"
        ) from error
    config: Config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), saved))  # type: ignore[assignment]
    return config


def load_model(path: Path, config: Config, *, max_len: int | None = None, weights: str = "weights.pt") -> GPT:
    """The trained model, on the CPU. max_len (default train.seq_len): what its position tables must reach.

    Raises UserError where weights.pt is missing, or where the trained positions end before max_len.
    """
    file, trained_len = path / weights, config.train.seq_len
    if not file.exists():
        raise UserError(f"{path}: no weights.pt; the run is not complete here: train it again with scripts/train.py")
    max_len = max_len or trained_len
    model = GPT(config.model, vocab_size=config.tokenizer.vocab_size, max_len=max_len, seed=config.seed)
    if max_len > trained_len and not model.positions.extends:
        raise UserError(f"{path}: position={config.model.position} is not defined past {trained_len} tokens")
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return model


def load_run_tokens(config: Config) -> TokenSet:
    """The tokens of the run; raw text, if it must be prepared anew, from where CROPE_DATA_DIR says now."""
    data_dir = os.environ.get("CROPE_DATA_DIR") or config.data_dir
    return load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(data_dir))
