"""Golden losses: 20 steps of each model in float64, and the version number that hangs on them.

float64, because rounding then differs between machines by some 1e-14 and a changed constant by far more: the
tolerance can be tight. The text is generated, so the numbers depend on no data file.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from crope.checkpoint import TrainState
from crope.compose import load_run
from crope.config import GOLDEN_FILE
from crope.data.token_files import TokenSet
from crope.interrupt import Unstoppable
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.record import write_json
from crope.trainer import build_loss, train_step, validate

MODELS = ("xpos", "rope", "crope")
STEPS = 20
VOCAB_SIZE = 300  # no multiple of 64: the padding takes part
OVERRIDES = (
    "tokenizer.name=bpe",
    f"tokenizer.vocab_size={VOCAB_SIZE}",
    f"train.max_steps={STEPS}",
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
    "tracker=none",
)
RELATIVE_TOLERANCE = 1e-10


def golden_losses(model_name: str) -> dict[str, list[float]]:
    """Training losses of 20 steps and both kinds of validation loss, through the trainer's own functions."""
    run = load_run([f"model={model_name}", *OVERRIDES])
    config, device, tokens = run.config, torch.device("cpu"), _tokens()
    model = GPT(config.model, vocab_size=VOCAB_SIZE, max_len=config.train.seq_len, seed=config.seed).double()
    optimizer, scheduler = build_optimizer(model, config.train)
    state, loss_function = TrainState(model, optimizer, scheduler), build_loss(model, config, device)
    found: dict[str, list[float]] = {"train": [], "val": [], "val_full": []}
    for step in range(STEPS + 1):
        line = validate(model, loss_function, tokens, config=config, step=step, device=device, stop=Unstoppable())
        for name in ("val", "val_full"):
            found[name] += [line[f"{name}/loss_nats"]] if f"{name}/loss_nats" in line else []
        if step < STEPS:
            found["train"].append(
                train_step(state, loss_function, tokens.train, config=config, step=step, device=device).item()
            )
            scheduler.step()
    return found


def remake() -> bool:
    """Rewrites the golden file; where a loss moved by more than the tolerance, raises the version. True if it did."""
    before = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))
    losses = {name: golden_losses(name) for name in MODELS}
    if agree(before["losses"], losses):
        return False
    version = before["numerics_version"] + (1 if before["losses"] else 0)
    write_json(GOLDEN_FILE, {"numerics_version": version, "losses": losses})
    return True


def agree(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether two sets of losses name the same models and curves, equal within RELATIVE_TOLERANCE."""
    return expected.keys() == found.keys() and all(
        expected[model].keys() == found[model].keys()
        and all(
            len(expected[model][name]) == len(found[model][name])
            and np.allclose(expected[model][name], found[model][name], rtol=RELATIVE_TOLERANCE, atol=0)
            for name in found[model]
        )
        for model in found
    )


def _tokens() -> TokenSet:
    """Two splits of a random text whose next token depends on the last one: there is something to learn."""
    generator = np.random.Generator(np.random.Philox(key=7))
    chain = np.cumsum(generator.zipf(1.5, size=4000) % 37) % VOCAB_SIZE
    return TokenSet(folder=GOLDEN_FILE.parent, meta={}, train=chain[:3000], validation=chain[3000:])
