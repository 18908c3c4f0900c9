"""A finished run opened again: its model and its tokens."""

import os
from pathlib import Path

import safetensors.torch

from crope.config import Config
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import UserError, one_line
from crope.files import sha256_file
from crope.model.gpt import GPT
from crope.plan.compose import load_config
from crope.records.store import Record, data_digests

WEIGHTS = "weights.safetensors"


def build_model(config: Config, *, max_len: int | None = None) -> GPT:
    """Builds a run's model at its initial values, on the CPU. max_len: default train.seq_len."""
    length = max_len or config.train.seq_len
    return GPT(
        config.model, vocab_size=config.tokenizer.vocab_size, max_len=length, seed=config.seed
    )


def load_trained(record: Record, *, max_len: int | None = None) -> GPT:
    """Loads the trained model of a finished run, on the CPU.

    max_len   length that its position tables must reach; default: the training length

    Raises UserError if the run is stale, or its weights are missing, not the recorded ones or of
    another model.
    """
    if record.status == "stale":
        raise UserError(f"{record.path}: the code of its model has changed since; train it again")
    weights = record.path / WEIGHTS
    remedy = "move the folder away and train again with scripts/train.py"
    if not weights.exists():
        raise UserError(f"{record.path}: {record.status}, has no {WEIGHTS}; {remedy}")
    # Before it is opened: half a file, or that of another run, may open as well.
    if sha256_file(weights) != record.summary.get("weights_sha256"):
        raise UserError(f"{weights}: corrupt (SHA-256 is not the recorded one); {remedy}")
    try:
        model = build_model(load_config(record.config), max_len=max_len)
        safetensors.torch.load_model(model, weights)  # a shared tensor under all its names
    except (ValueError, RuntimeError) as error:  # of a version with other models or modules
        reason = one_line(error)[:200]
        raise UserError(
            f"{record.path}: does not fit the model that this code builds ({reason}); train it again"
        ) from error
    return model


def load_run_tokens(record: Record) -> TokenSet:
    """Loads the tokens of a run; text that must be tokenised again is searched where CROPE_DATA_DIR
    points now. Raises UserError if the corpus or its tokenizer has changed since.
    """
    config = load_config(record.config)
    data_dir = os.environ.get("CROPE_DATA_DIR") or config.data_dir  # the run's may be elsewhere
    tokens = load_tokens(config.data, config.tokenizer, data_dir=Path(data_dir))
    if data_digests(tokens.meta) != data_digests(record.provenance["data"]):
        raise UserError(
            f"{record.path}: the tokens of {tokens.folder.name} are not those of the run;"
            " restore the corpus that it was trained on"
        )
    return tokens
