"""Batches and the fixed pass, against positions in a permuted token array."""

import numpy as np
import pytest
import torch

from crope.data.batches import check_length, full_pass, sample_batch
from crope.errors import ConfigError

# No token twice: each names its position.
TOKENS = np.random.default_rng(0).permutation(500).astype(np.uint16)
PLACE = np.argsort(TOKENS)
GOLDEN = [17, 236, 69, 442, 95, 79, 73, 106]


def places(tokens_BT: torch.Tensor) -> np.ndarray:
    return PLACE[tokens_BT.numpy()]


def draw(**changes):
    options = {"seed": 0, "step": 0, "batch_size": 8, "seq_len": 16, "purpose": "train"}
    return sample_batch(TOKENS, **{**options, **changes})


def test_windows_are_contiguous_and_targets_one_further() -> None:
    inputs_BT, targets_BT = draw()
    assert inputs_BT.shape == targets_BT.shape == (8, 16)
    assert inputs_BT.dtype == targets_BT.dtype == torch.int64
    starts = places(inputs_BT)[:, :1]
    np.testing.assert_array_equal(places(inputs_BT), starts + np.arange(16))
    np.testing.assert_array_equal(places(targets_BT), starts + np.arange(1, 17))


def test_batches_are_those_that_published_runs_were_trained_on() -> None:
    assert places(draw(seed=3, step=5)[0])[:, 0].tolist() == GOLDEN


@pytest.mark.parametrize("vary", ["step", "seed", "purpose"])
def test_offsets_are_uniform_from_the_first_window_to_the_last(vary: str) -> None:
    """20 tokens hold windows of 12 + 1 at offsets 0 to 7; of 8,000 draws 1,000 per offset, sigma
    29.6.
    """
    counts = np.zeros(20, dtype=int)
    for i in range(1000):
        value = f"validation/{i}" if vary == "purpose" else i
        options = {"seed": 0, "step": 0, "purpose": "train", vary: value}
        inputs_BT, targets_BT = sample_batch(
            np.arange(20, dtype=np.uint16), batch_size=8, seq_len=12, **options
        )
        assert targets_BT.max() <= 19
        counts += np.bincount(inputs_BT[:, 0].numpy(), minlength=20)
    assert counts[8:].sum() == 0
    assert np.abs(counts[:8] - 1000).max() < 5 * 29.6


@pytest.mark.parametrize("batch_size", [1, 3, 100])
@pytest.mark.parametrize("length", [8, 9, 14, 15, 16, 50, 57])
def test_full_pass_covers_each_target_once_in_order(length: int, batch_size: int) -> None:
    tokens, seen = TOKENS[:length], []
    for inputs_BT, targets_BT in full_pass(tokens, seq_len=7, batch_size=batch_size, max_tokens=0):
        assert inputs_BT.shape[0] <= batch_size and inputs_BT.shape[1] <= 7
        np.testing.assert_array_equal(places(targets_BT), places(inputs_BT) + 1)
        assert (np.diff(places(inputs_BT), axis=1) == 1).all()
        seen.append(targets_BT.flatten().numpy())
    np.testing.assert_array_equal(np.concatenate(seen), tokens[1:])


def kept_starts(max_tokens: int, batch_size: int = 4) -> list[int]:
    """Starts of the windows of 7 that are kept from 361 tokens: 51 windows and 3 more targets."""
    batches = full_pass(TOKENS[:361], seq_len=7, batch_size=batch_size, max_tokens=max_tokens)
    return [int(start) for inputs_BT, _ in batches for start in places(inputs_BT)[:, 0]]


@pytest.mark.parametrize("max_tokens", [14, 20, 21, 70, 104, 200, 343, 357, 359])
def test_subset_is_evenly_spaced_from_the_first_window_to_the_last(max_tokens: int) -> None:
    starts = np.array(kept_starts(max_tokens))
    assert len(starts) == max_tokens // 7
    assert (starts % 7 == 0).all() and (starts[0], starts[-1]) == (0, 50 * 7)
    gaps = np.diff(starts) // 7
    assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1
    assert kept_starts(max_tokens, batch_size=99) == starts.tolist()


def test_subsets_smaller_than_a_window_and_larger_than_the_split() -> None:
    assert len(kept_starts(3)) == 1
    for max_tokens in (360, 361, 10_000):
        assert kept_starts(max_tokens) == [*range(0, 51 * 7, 7), 357]


def test_a_split_that_is_too_short_is_refused() -> None:
    check_length(TOKENS[:9], 8, "validation")
    with pytest.raises(ConfigError, match=r"train\.seq_len=8.*at most 7"):
        check_length(TOKENS[:8], 8, "train")
    with pytest.raises(ConfigError, match="validation"):
        check_length(TOKENS[:1], 8, "validation")


def test_a_corpus_on_the_device_gives_the_same_batches() -> None:
    """A tensor of 32-bit ids, as on a GPU; here on the CPU."""
    ids = np.random.default_rng(0).integers(60_000, size=500).astype(np.uint16)
    tensor = torch.from_numpy(ids.astype(np.int32))
    options = {"seed": 3, "step": 7, "batch_size": 4, "seq_len": 16, "purpose": "train"}
    pairs = [(sample_batch(tensor, **options), sample_batch(ids, **options))]
    passes = [full_pass(corpus, seq_len=16, batch_size=5, max_tokens=0) for corpus in (tensor, ids)]
    pairs += zip(*passes, strict=True)
    assert len(pairs) == 1 + 8
    for (inputs, targets), (same_inputs, same_targets) in pairs:
        assert torch.equal(inputs, same_inputs) and torch.equal(targets, same_targets)
        assert inputs.dtype == targets.dtype == torch.int64
