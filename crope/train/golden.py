"""Golden losses: 20 steps of each model of conf/model in float64 through the trainer's own loop.

In float64, rounding changes losses between machines by about 1e-14, a changed constant by far more:
the tolerance can be tight. The corpus is generated, so the numbers depend on no data file.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from crope.config import (
    GOLDEN_FILE,
    ROOT,
    Config,
    EvalConfig,
    ModelConfig,
    RuntimeConfig,
    TokenizerConfig,
    TrainConfig,
)
from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet
from crope.files import read_json, read_metrics, write_json
from crope.model.gpt import GPT
from crope.train.loop import train

VOCAB_SIZE = 300  # no multiple of 64, so that padding columns exist
SETTINGS = Config(
    tokenizer=TokenizerConfig(name="bpe", vocab_size=VOCAB_SIZE),
    # A rate of ten times the paper's: attention must matter within 20 steps, or no rotary constant
    # would show.
    train=TrainConfig(2, seq_len=24, max_steps=20, lr=0.01, lr_step_size=6, precision="fp32"),
    eval=EvalConfig(every=10, batches=1, full_every=10, full_tokens=100),
    runtime=RuntimeConfig(device="cpu", log_every=1),
)
RELATIVE_TOLERANCE = 1e-10
Losses = dict[str, list[float]]


def golden_models() -> dict[str, ModelConfig]:
    """Returns the models of conf/model by name, at two layers of width 32."""
    models: dict[str, Any] = {}
    for path in sorted((ROOT / "conf" / "model").glob("[!.]*.yaml")):  # none of an editor
        # As a run reads it: of the schema's types, and 5e5 is a number.
        values = OmegaConf.merge(ModelConfig, OmegaConf.load(path), {"d_model": 32, "n_layers": 2})
        models[path.stem] = OmegaConf.to_object(values)
    return models


def golden_losses(model: ModelConfig) -> Losses:
    """Trains a model; returns every training and validation loss by kind."""
    config, length = replace(SETTINGS, model=model), SETTINGS.train.seq_len
    decoder = GPT(model, vocab_size=VOCAB_SIZE, max_len=length, seed=config.seed).double()
    with tempfile.TemporaryDirectory() as folder:
        train(decoder, _tokens(), config, Path(folder), run_id="golden")
        rows = read_metrics(Path(folder) / "metrics.jsonl")
    losses = {}
    for kind in ("train", "val", "val_full", "train_full"):
        key = f"{kind}/loss_nats"
        losses[kind] = [row[key] for row in rows if key in row]
    return losses


def remake(file: Path = GOLDEN_FILE) -> list[str]:
    """Rewrites the golden file; returns the models whose losses moved beyond the tolerance, new
    ones too. Models without a file in conf/model are dropped.
    """
    before: dict[str, Losses] = read_json(file)
    after = {name: golden_losses(model) for name, model in golden_models().items()}
    changed = [name for name, losses in after.items() if not agree(before.get(name, {}), losses)]
    write_json(file, {name: (after if name in changed else before)[name] for name in after})
    return changed


def agree(expected: Losses, losses: Losses) -> bool:
    """Tells whether two sets of losses are equal within RELATIVE_TOLERANCE."""
    return expected.keys() == losses.keys() and all(
        len(before) == len(losses[kind])
        and np.allclose(losses[kind], before, rtol=RELATIVE_TOLERANCE, atol=0)
        for kind, before in expected.items()
    )


def _tokens() -> TokenSet:
    """Makes two splits of random tokens, each dependent on the one before: there is something to
    learn.
    """
    generator = np.random.Generator(np.random.Philox(key=7))
    chain = np.cumsum(generator.zipf(1.5, size=4000) % 37) % VOCAB_SIZE
    meta = {"splits": {split: {"sha256": "generated"} for split in SPLITS}}
    return TokenSet(folder=Path(), meta=meta, train=chain[:3000], validation=chain[3000:])
