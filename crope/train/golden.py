"""Golden losses: 20 steps of each model of conf/model in float64 through the trainer's own loop.

float64, because rounding then differs between machines by about 1e-14 and a changed constant by far
more: the tolerance can be tight. The corpus is generated, so the numbers depend on no data file.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from crope.config import GOLDEN_FILE
from crope.data.tokens import TokenSet
from crope.files import read_json, read_metrics, write_json
from crope.runs.compose import group_files, load_run
from crope.runs.load import build_model
from crope.train.loop import train

VOCAB_SIZE = 300  # no multiple of 64, so that padding columns exist
OVERRIDES = (
    "tokenizer.name=bpe",
    f"tokenizer.vocab_size={VOCAB_SIZE}",
    "train.max_steps=20",
    "train.batch_size=2",
    "train.seq_len=24",
    "train.lr_step_size=6",
    "train.lr=0.01",  # ten times the paper's: attention must matter within 20 steps, or no rotary constant would show
    "train.precision=fp32",
    "eval.every=10",
    "eval.full_every=10",
    "eval.full_tokens=100",
    "model.d_model=32",
    "model.n_layers=2",
    "runtime.device=cpu",
    "runtime.log_every=1",
    "tracker=none",
)
RELATIVE_TOLERANCE = 1e-10
Losses = dict[str, list[float]]


def golden_losses(model_name: str) -> tuple[list[Any], Losses]:
    """(position, projection, attention, ffn_ratio) of a model, and its losses by kind: every
    training and validation loss.
    """
    config = load_run([f"model={model_name}", *OVERRIDES]).config
    with tempfile.TemporaryDirectory() as folder:
        train(build_model(config).double(), _tokens(), config, Path(folder))
        rows = read_metrics(Path(folder) / "metrics.jsonl")
    losses = {
        kind: [row[f"{kind}/loss_nats"] for row in rows if f"{kind}/loss_nats" in row]
        for kind in ("train", "val", "val_full", "train_full")
    }
    model = config.model
    return [model.position, model.projection, model.attention, model.ffn_ratio], losses


def remake(file: Path = GOLDEN_FILE) -> list[str]:
    """Rewrites the golden file: a model's version rises if its losses moved beyond the tolerance.
    Returns their names.

    A new model starts at version 1; a model without a file in conf/model is dropped.
    """
    before: dict[str, Any] = read_json(file)
    after, changed = {}, []
    for name in group_files("model"):
        choices, losses = golden_losses(name)
        entry = before.get(name)
        if entry and agree(entry["losses"], losses):
            after[name] = entry | {"choices": choices}
        else:
            version = entry["numerics_version"] + 1 if entry else 1
            after[name] = {"choices": choices, "numerics_version": version, "losses": losses}
            changed.append(name)
    if after != before:
        write_json(file, after)
    return changed


def agree(expected: Losses, losses: Losses) -> bool:
    """Whether two sets of losses have the same kinds and lengths and are equal within
    RELATIVE_TOLERANCE.
    """
    return expected.keys() == losses.keys() and all(
        len(expected[kind]) == len(losses[kind])
        and np.allclose(expected[kind], losses[kind], rtol=RELATIVE_TOLERANCE, atol=0)
        for kind in losses
    )


def _tokens() -> TokenSet:
    """Two splits of a random corpus in which each token depends on the one before: there is
    something to learn.
    """
    generator = np.random.Generator(np.random.Philox(key=7))
    chain = np.cumsum(generator.zipf(1.5, size=4000) % 37) % VOCAB_SIZE
    generated = {"sha256": "generated"}
    meta = {
        "tokenizer": {"vocab_size": VOCAB_SIZE},
        "splits": {"train": generated, "validation": generated},
    }
    return TokenSet(folder=Path(), meta=meta, train=chain[:3000], validation=chain[3000:])
