"""Batches and the fixed pass, against positions: the token at position i has the id 1000 + i."""

from pathlib import Path

import numpy as np
import pytest
import torch

from crope.config import Config, TrainConfig
from crope.data.batches import full_pass, resident, sample_batch
from crope.data.tokens import TokenSet
from crope.errors import ConfigError

TOKENS = np.arange(1000, 1500, dtype=np.uint16)


def draw(tokens=TOKENS, *, seed=0, step=0, seq_len=16, purpose="train"):
    config = Config(train=TrainConfig(batch_size=8, seq_len=seq_len), seed=seed)
    return sample_batch(tokens, config=config, step=step, purpose=purpose)


def test_offsets_are_those_that_published_runs_were_trained_on():
    """Of seed 3 at step 5, frozen."""
    inputs_BT, _ = draw(seed=3, step=5)
    offsets = inputs_BT[:, 0] - 1000
    assert offsets.tolist() == [17, 236, 69, 442, 95, 79, 73, 106]


@pytest.mark.parametrize("vary", ["step", "seed", "purpose"])
def test_offsets_are_uniform_from_the_first_window_to_the_last(vary):
    """20 tokens hold windows of 12 + 1 at offsets 0 to 7; of 8,000 draws 1,000 per offset, sigma
    29.6.
    """
    tokens = np.arange(20, dtype=np.uint16)
    counts = np.zeros(20, dtype=int)
    for i in range(1000):
        inputs_BT, _ = draw(tokens, seq_len=12, **{vary: i})
        counts += np.bincount(inputs_BT[:, 0].numpy(), minlength=20)
    assert counts[8:].sum() == 0
    assert np.abs(counts[:8] - 1000).max() < 5 * 29.6


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("length", [8, 9, 15, 50])
def test_full_pass_covers_each_target_once_in_order(length, batch_size):
    seen = []
    windows = full_pass(TOKENS[:length], seq_len=7, batch_size=batch_size, max_tokens=0)
    for inputs_BT, targets_BT in windows:
        assert len(inputs_BT) <= batch_size
        assert torch.equal(targets_BT, inputs_BT + 1)
        seen += targets_BT.flatten().tolist()
    assert seen == list(range(1001, 1000 + length))


@pytest.mark.parametrize(
    ("max_tokens", "kept"),
    [
        (3, [0]),  # at least one
        (27, [0, 25, 50]),
        (359, [*range(51)]),
        (360, [*range(52)]),
    ],
)
def test_a_subset_is_of_evenly_spaced_windows_from_the_first_to_the_last(max_tokens, kept):
    """Of 361 tokens: 51 windows of 7 and a shorter one, which only the whole split has."""
    windows = full_pass(TOKENS[:361], seq_len=7, batch_size=4, max_tokens=max_tokens)
    starts = torch.cat([inputs_BT[:, 0] for inputs_BT, _ in windows])
    assert ((starts - 1000) / 7).tolist() == kept


def test_a_split_that_is_too_short_is_refused():
    TokenSet(Path(), {}, TOKENS[:9], TOKENS[:9]).check_length(8)
    with pytest.raises(ConfigError, match=r"seq_len=8: the train split .* at most 7"):
        TokenSet(Path(), {}, TOKENS[:8], TOKENS[:9]).check_length(8)


def test_a_corpus_on_a_gpu_gives_the_same_batches(monkeypatch):
    """Also of ids that 16 bits with a sign would not hold; the copy stays on the CPU here."""
    monkeypatch.setattr("torch.Tensor.to", lambda tensor, *_, **__: tensor)
    tokens = TOKENS + np.uint16(40_000)
    on_gpu = resident(tokens, torch.device("cuda"))
    for found, expected in zip(draw(on_gpu), draw(tokens), strict=True):
        assert torch.equal(found, expected)
