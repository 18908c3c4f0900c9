"""AdamW against the published update in float64, and StepLR against its formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from crope.config import ModelConfig, TrainConfig
from crope.model.gpt import GPT
from crope.optim import build_optimizer


def train_config(**changes: float) -> TrainConfig:
    """Every value away from its default, so that none can stand in for another."""
    values = {"lr": 0.05, "lr_gamma": 0.5, "lr_step_size": 3, "beta1": 0.7, "beta2": 0.9, "eps": 0.01}
    return TrainConfig(batch_size=1, seq_len=1, max_steps=10, **{**values, "weight_decay": 0.2, **changes})


def test_adamw_is_the_published_update() -> None:
    """Loshchilov and Hutter, Algorithm 2, with the decay times lr as torch has it; StepLR runs along."""
    model = nn.Linear(5, 3).double()
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(generator.standard_normal(parameter.shape)))
    expected = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    first, second = ([np.zeros_like(value) for value in expected] for _ in range(2))
    optimizer, scheduler = build_optimizer(model, train_config())

    for t in range(1, 8):
        lr = 0.05 * 0.5 ** ((t - 1) // 3)
        for i, parameter in enumerate(model.parameters()):
            gradient = generator.standard_normal(parameter.shape)
            parameter.grad = torch.from_numpy(gradient)
            first[i] = 0.7 * first[i] + (1 - 0.7) * gradient
            second[i] = 0.9 * second[i] + (1 - 0.9) * gradient**2
            step = (first[i] / (1 - 0.7**t)) / (np.sqrt(second[i] / (1 - 0.9**t)) + 0.01)
            expected[i] = expected[i] - lr * 0.2 * expected[i] - lr * step
        optimizer.step()
        scheduler.step()
        for parameter, value in zip(model.parameters(), expected, strict=True):
            np.testing.assert_allclose(parameter.detach(), value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("lr", "gamma", "step_size", "steps"),
    [
        (1e-3, 0.8, 1000, 3001),  # Table 1
        (1e-3, 0.9, 20, 200),
        (0.5, 0.5, 1, 12),
        (0.5, 0.5, 100, 99),  # ends before the first decay
    ],
)
def test_step_lr_follows_its_formula(lr: float, gamma: float, step_size: int, steps: int) -> None:
    """Update number step + 1 uses lr * gamma^(step // step_size)."""
    model = nn.Linear(1, 1)
    optimizer, scheduler = build_optimizer(model, train_config(lr=lr, lr_gamma=gamma, lr_step_size=step_size))
    for step in range(steps):
        expected = lr * gamma ** (step // step_size)
        assert math.isclose(optimizer.param_groups[0]["lr"], expected, rel_tol=1e-9), step
        assert math.isclose(scheduler.get_last_lr()[0], expected, rel_tol=1e-9), step
        optimizer.step()
        scheduler.step()


def test_weight_decay_falls_on_every_parameter() -> None:
    """Gains and biases too: with zero gradients each value shrinks by 1 - lr * weight_decay."""
    config = ModelConfig(
        position="rotary", projection="complex", n_layers=1, n_heads=2, d_model=8, tied_head=False, qkv_bias=True
    )
    model = GPT(config, vocab_size=70, max_len=4, seed=0)
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    optimizer, _ = build_optimizer(model, train_config())
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter, torch.tensor(1 - 0.05 * 0.2), rtol=1e-6, atol=0), name


def test_defaults_are_torchs() -> None:
    """DESIGN 4: betas, eps and weight decay are torch's defaults, written out."""
    optimizer, _ = build_optimizer(
        nn.Linear(1, 1), TrainConfig(batch_size=1, seq_len=1, max_steps=1, lr_gamma=0.8, lr_step_size=1000)
    )
    torchs = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    for name in ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"):
        assert optimizer.defaults[name] == torchs.defaults[name]
