"""Seeds trained as one program: each has the curve that it has alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crope.checkpoint import TrainState
from crope.compose import load_run
from crope.errors import ConfigError
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.seed_batch import SeedBatch
from crope.trainer import build_training_loss, prepare_device, train_step

from .conftest import TOY_OVERRIDES, TOY_VOCAB

SEEDS, STEPS, CPU = (3, 0, 7), 12, torch.device("cpu")  # the rate drops at steps 4 and 8
TOKENS = np.random.default_rng(1).integers(TOY_VOCAB, size=900).astype(np.uint16)


def alone(seed: int, *overrides: str) -> torch.Tensor:
    """Losses of the trainer's own steps."""
    config = load_run([*TOY_OVERRIDES, *overrides, f"seed={seed}"]).config
    model = GPT(config.model, vocab_size=TOY_VOCAB, max_len=config.train.seq_len, seed=seed)
    state, loss = TrainState(model, *build_optimizer(model, config.train)), build_training_loss(model, config, CPU)
    losses = []
    for step in range(STEPS):
        losses.append(train_step(state, loss, TOKENS, config=config, step=step, device=CPU))
        state.scheduler.step()
    return torch.stack(losses)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=crope"],
        ["model=rope", "model.tied_head=false"],
        ["model=xpos"],
        ["model=relative_bias"],
        ["model=rope_linear"],
        ["model=crope", "runtime.compile=true"],
    ],
    ids=" ".join,
)
def test_each_seed_has_its_own_curve(overrides: list[str]) -> None:
    """To 1e-5 relative in float32, sums being made in another order; the curves lie a thousand times that apart."""
    config = load_run([*TOY_OVERRIDES, *overrides]).config
    prepare_device(config)
    batch = SeedBatch(config, SEEDS, vocab_size=TOY_VOCAB, device=CPU)
    losses_SN = torch.stack([batch.train_step(TOKENS, step) for step in range(STEPS)])
    expected_SN = torch.stack([alone(seed, *overrides) for seed in SEEDS], dim=1)
    torch.testing.assert_close(losses_SN, expected_SN, rtol=1e-5, atol=0)
    assert (expected_SN[-1].diff().abs() > 1e-2).all()


@pytest.mark.parametrize("override", ["model.dropout=0.1", "runtime.loss=torch", "runtime.accumulate=2"])
def test_what_was_not_written_for_several_seeds_is_refused(override: str) -> None:
    config = load_run([*TOY_OVERRIDES, override]).config
    with pytest.raises(ConfigError, match=r"one program only with model\.dropout=0, runtime\.loss=plain"):
        SeedBatch(config, SEEDS, vocab_size=TOY_VOCAB, device=CPU)
