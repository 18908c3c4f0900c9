"""Validation losses by hand: token-weighted full pass, sampled batches shared by all models, unigram entropy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from crope import evaluate
from crope.config import Config, EvalConfig, ModelConfig, TrainConfig
from crope.evaluate import full_loss, sampled_loss, unigram_cross_entropy

CPU = torch.device("cpu")
TOKENS = np.arange(400, dtype=np.uint16)


def config(*, batch_size: int = 2, seq_len: int = 4, batches: int = 3, full_tokens: int = 0, seed: int = 0) -> Config:
    return Config(
        model=ModelConfig(position="rotary", projection="real", d_model=8),
        train=TrainConfig(batch_size=batch_size, seq_len=seq_len, max_steps=10, lr_gamma=0.8, lr_step_size=1),
        eval=EvalConfig(batches=batches, full_every=10, full_tokens=full_tokens),
        seed=seed,
    )


def mean_target(inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """A loss known by hand: a target costs its own value."""
    return targets_BT.float().mean()


class Recorder:
    """A loss that keeps the batches it is given."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[list[int]], list[list[int]]]] = []
        self.losses: list[float] = []

    def __call__(self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        self.batches.append((inputs_BT.tolist(), targets_BT.tolist()))
        self.losses.append(targets_BT.double().mean().item())
        return targets_BT.double().mean()


def test_full_loss_weighs_windows_by_their_tokens() -> None:
    """Targets 1 to 10 in windows of 4, 4 and 2: the mean is 5.5; of three windows alike it would be 6.17."""
    assert full_loss(mean_target, TOKENS[:11], config=config(), device=CPU) == (5.5, 10)


@pytest.mark.parametrize("batch_size", [1, 2, 500])
@pytest.mark.parametrize("at_once", [4, 12, 4096])
def test_full_loss_does_not_depend_on_batching(batch_size: int, at_once: int, monkeypatch) -> None:
    """Targets 1 to 398, mean 199.5, in 99 windows and a rest of 2."""
    monkeypatch.setattr(evaluate, "FULL_BATCH_TOKENS", at_once)
    mean, count = full_loss(mean_target, TOKENS[:399], config=config(batch_size=batch_size), device=CPU)
    assert (mean, count) == (pytest.approx(199.5, rel=1e-6), 398)


def test_full_loss_takes_the_configured_subset_unless_told() -> None:
    """400 tokens hold 99 windows of 4. Two of them: targets 1-4 and 393-396, mean 198.5."""
    chosen = config(full_tokens=8)
    assert full_loss(mean_target, TOKENS, config=chosen, device=CPU) == (198.5, 8)
    assert full_loss(mean_target, TOKENS, config=chosen, device=CPU, max_tokens=0) == (200.0, 399)
    assert full_loss(mean_target, TOKENS, config=config(), device=CPU, max_tokens=8) == (198.5, 8)


def test_sampled_loss_is_the_mean_over_distinct_batches() -> None:
    seen = Recorder()
    found = sampled_loss(seen, TOKENS, config=config(batches=5), step=20, device=CPU)
    assert found == pytest.approx(math.fsum(seen.losses) / 5, rel=1e-12)
    starts = [tuple(row[0] for row in inputs) for inputs, _ in seen.batches]
    assert len(starts) == len(set(starts)) == 5
    for inputs, targets in seen.batches:
        assert np.shape(inputs) == (2, 4)
        assert (np.array(targets) == np.array(inputs) + 1).all()


def test_all_models_see_the_same_sampled_batches() -> None:
    """Equal for any model at equal (seed, step), whatever was drawn between; other steps and seeds see others."""

    def batches(step: int = 20, **changes):
        seen = Recorder()
        sampled_loss(seen, TOKENS, config=replace(config(), **changes), step=step, device=CPU)
        return seen.batches

    rope = batches()
    torch.rand(10)
    np.random.default_rng().random(10)
    models = [
        ModelConfig(position=position, projection=projection, d_model=16, n_layers=1)
        for position, projection in [("sinusoidal", "real"), ("rotary", "complex")]
    ]
    assert all(batches(model=model) == rope for model in models)
    assert batches(step=40) != rope
    assert batches(seed=1) != rope


def test_more_batches_add_to_the_same_first_ones() -> None:
    few, many = Recorder(), Recorder()
    sampled_loss(few, TOKENS, config=config(batches=2), step=0, device=CPU)
    sampled_loss(many, TOKENS, config=config(batches=4), step=0, device=CPU)
    assert many.batches[:2] == few.batches


def test_unigram_cross_entropy_by_hand() -> None:
    """Counts 3, 1, 0 and one more each: 4/7, 2/7, 1/7. Their mean cost is ln 7 - (ln 4 + ln 2) / 3 = ln 3.5."""
    train, validation = np.array([0, 0, 1, 0], dtype=np.uint16), np.array([2, 0, 1], dtype=np.uint16)
    assert unigram_cross_entropy(train, validation, 3) == pytest.approx(math.log(3.5), rel=1e-12)


def test_unigram_counts_tokens_that_no_split_has() -> None:
    """Five entries: counts 4, 2, 1, 1, 1 of 9; validation 0, 0 costs ln(9/4)."""
    train = np.array([0, 0, 1, 0], dtype=np.uint16)
    assert unigram_cross_entropy(train, np.array([0, 0]), 5) == pytest.approx(math.log(9 / 4), rel=1e-12)
