"""The reference loss against a log-softmax by hand in float64, also under bf16 autocast."""

from __future__ import annotations

import math

import pytest
import torch

from crope.config import ModelConfig
from crope.loss import cross_entropy
from crope.model.gpt import GPT

VOCAB = 70


class FixedLogits:
    """Stands for a model whose head gives these logits."""

    def __init__(self, logits_BTV: torch.Tensor) -> None:
        self.logits_BTV = logits_BTV

    def __call__(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return tokens_BT

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits_BTV


def mean_loss(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> float:
    losses = []
    for logits_V, target in zip(logits_BTV.flatten(0, 1).tolist(), targets_BT.flatten().tolist(), strict=True):
        top = max(logits_V)
        log_sum = top + math.log(math.fsum(math.exp(logit - top) for logit in logits_V))
        losses.append(log_sum - logits_V[target])
    return math.fsum(losses) / len(losses)


def small_gpt() -> GPT:
    config = ModelConfig(position="rotary", projection="complex", n_layers=1, n_heads=2, d_model=8)
    return GPT(config, vocab_size=VOCAB, max_len=16, seed=0)


def random_tokens(seed: int) -> torch.Tensor:
    return torch.randint(VOCAB, (3, 16), generator=torch.Generator().manual_seed(seed))


def test_by_hand() -> None:
    """Odds 1 : 3 and 7 : 1; the targets cost ln 4 and ln(8/7)."""
    logits_BTV = torch.tensor([[[0.0, math.log(3)], [math.log(7), 0.0]]], dtype=torch.float64)
    loss = cross_entropy(FixedLogits(logits_BTV), torch.zeros(1, 2), torch.tensor([[0, 0]]))
    assert loss.item() == pytest.approx((math.log(4) + math.log(8 / 7)) / 2, rel=1e-12)


def test_against_log_softmax_in_float64() -> None:
    model = small_gpt().double()
    with torch.no_grad():
        model.embedding.weight.mul_(50)  # at the initial 0.02 every logit is near 0
        found = cross_entropy(model, random_tokens(0), random_tokens(1))
        expected = mean_loss(model.logits(model(random_tokens(0))), random_tokens(1))
    assert abs(expected - math.log(VOCAB)) > 0.1
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_without_information_a_token_costs_the_log_of_the_vocabulary() -> None:
    """ln 70, not ln 128: the padding rows get no share."""
    model = small_gpt()
    with torch.no_grad():
        model.embedding.weight.zero_()
    assert cross_entropy(model, random_tokens(0), random_tokens(1)).item() == pytest.approx(math.log(70), rel=1e-6)


@pytest.mark.parametrize("autocast", [True, False])
def test_bf16_logits_are_summed_in_float32(autocast: bool) -> None:
    """Summed in bf16, a log-sum-exp near 11 keeps steps of 1/16. Without autocast torch itself would do so."""
    logits_BTV = torch.randn(4, 64, 5000, generator=torch.Generator().manual_seed(0)).mul(2).bfloat16()
    targets_BT = torch.randint(5000, (4, 64), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = cross_entropy(FixedLogits(logits_BTV), targets_BT, targets_BT)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(mean_loss(logits_BTV.double(), targets_BT), rel=2e-6)


def test_model_under_bf16_autocast() -> None:
    model = small_gpt()
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_entropy(model, random_tokens(0), random_tokens(1))
        logits_BTV = model.logits(model(random_tokens(0))).detach()
    assert logits_BTV.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(mean_loss(logits_BTV.double(), random_tokens(1)), rel=2e-6)
