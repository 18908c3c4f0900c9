"""The reference loss against a float64 log-softmax by hand; full and sampled validation."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from crope.config import Config, EvalConfig, TrainConfig
from crope.train.losses import cross_entropy, full_means, sampled_means

TOKENS = np.arange(400, dtype=np.uint16)
CONFIG = Config(
    train=TrainConfig(batch_size=2, seq_len=4),
    eval=EvalConfig(batches=5, full_tokens=0),
)


def mean_target(inputs_BT, targets_BT):
    """Two quantities known by hand, by window: a target costs its own value, or twice that."""
    mean_B = targets_BT.float().mean(dim=-1)
    return {"loss_nats": mean_B, "twice": 2 * mean_B}


@pytest.mark.parametrize("at_once", [4, 12, 4096])
def test_full_means_do_not_depend_on_batching(at_once, monkeypatch):
    """Targets 1 to 398, mean 199.5, in 99 windows and a rest of 2; 2, 3 or 1,024 windows at once."""
    monkeypatch.setattr("crope.train.losses.FULL_BATCH_TOKENS", at_once)
    found = full_means(mean_target, TOKENS[:399], name="val_full", config=CONFIG, max_tokens=0)
    expected = {"val_full/loss_nats": 199.5, "val_full/twice": 399, "val_full/tokens": 398}
    assert found == pytest.approx(expected, rel=1e-6)


def test_sampled_means_are_those_over_distinct_batches():
    seen = []

    def loss(inputs_BT, targets_BT):
        means = mean_target(inputs_BT, targets_BT)
        seen.append(tuple(means["loss_nats"].tolist()))
        return means

    found = sampled_means(loss, TOKENS, config=CONFIG, step=20)
    mean = np.mean(seen)
    assert found == pytest.approx({"val/loss_nats": mean, "val/twice": 2 * mean}, rel=1e-12)
    assert len(set(seen)) == len(seen) == 5


def test_the_loss_of_bf16_logits_is_their_log_softmax_in_float32():
    """Summed in bf16, as torch itself would do, a log-sum-exp near 11 keeps steps of 1/16."""
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(4, 64, 5000, generator=generator).mul(2).bfloat16()
    targets_BT = torch.randint(5000, (4, 64), generator=generator)
    model = torch.nn.Identity()
    model.logits = lambda hidden: logits_BTV
    found = cross_entropy(model, targets_BT, targets_BT)
    assert found.dtype == torch.float32
    log_p_BTV = log_softmax(logits_BTV.double().numpy(), axis=-1)
    chosen_BT1 = np.take_along_axis(log_p_BTV, targets_BT[..., None].numpy(), axis=-1)
    assert found.item() == pytest.approx(-chosen_BT1.mean(), rel=2e-6)
