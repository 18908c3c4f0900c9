"""A finished run opened again: its model and its tokens."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from crope.config import Config
from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError
from crope.files import sha256_file
from crope.model.gpt import GPT
from crope.runs.compose import load_config
from crope.runs.record import PUBLISHED, Record, read_measurement, run_status


def build_model(config: Config, *, max_len: int | None = None) -> GPT:
    """The model of a run at its initial values, on the CPU. max_len: default train.seq_len."""
    length = max_len or config.train.seq_len
    return GPT(
        config.model, vocab_size=config.tokenizer.vocab_size, max_len=length, seed=config.seed
    )


def load_trained(record: Record, *, max_len: int | None = None, converted: bool = False) -> GPT:
    """The trained model of a finished run, on the CPU.

    max_len     length that its position tables must reach, if they extend past the trained one
    converted   the model that `convert` made of a RoPE run

    Raises UserError if the run is stale, or its weights are missing, not those that were recorded
    or of another model.
    """
    config, path = load_config(record.config), record.path
    if run_status(record) == "stale":
        raise UserError(f"{path}: the code of its model has changed since; train it again")
    weights, digest = path / "weights.pt", record.summary.get("weights_sha256")
    remedy = f"remove {path} and train again with scripts/train.py"
    if PUBLISHED in path.resolve().parents:
        remedy = "published records hold none; train the run with scripts/train.py"
    if converted:
        weights, digest = path / "converted.pt", None
        if weights.exists() and (path / "conversion.json").exists():
            digest = read_measurement(path / "conversion.json", record.summary).get(
                "converted_sha256"
            )
        config.model = replace(config.model, projection="complex", tied_head=False)
        remedy = "convert the run again with scripts/tools.py convert"
    if not weights.exists():
        raise UserError(f"{path}: no {weights.name}; {remedy}")
    if sha256_file(weights) != digest:
        raise UserError(f"{weights}: corrupt (SHA-256 is not the recorded one); {remedy}")
    try:
        model = build_model(config, max_len=max_len)
    except ValueError as error:
        raise UserError(f"{path}: this code has no such model ({error})") from error
    try:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise UserError(f"{weights}: does not fit config.yaml; {remedy}") from error
    return model


def load_run_tokens(record: Record) -> TokenSet:
    """The tokens of a run.

    A raw corpus that must be tokenised again is searched where CROPE_DATA_DIR points now. Raises
    UserError if the corpus or its tokenizer has changed since.
    """
    config = load_config(record.config)
    data_dir = os.environ.get("CROPE_DATA_DIR") or config.data_dir
    tokens = load_tokens(config.data.corpus, config.tokenizer, data_dir=Path(data_dir))
    recorded = record.provenance["data"]["splits"]
    if any(tokens.meta["splits"][name]["sha256"] != recorded[name]["sha256"] for name in SPLITS):
        raise UserError(
            f"{record.path}: the tokens of {tokens.folder.name} are not those of the run; restore"
            " the corpus that it was trained on"
        )
    return tokens
