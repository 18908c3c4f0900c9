"""Batches as a function of (seed, step, purpose), and the fixed pass, against positions in a permuted token array."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crope.data.batches import check_length, full_pass, sample_batch
from crope.errors import ConfigError

# No token twice: each one says where in the array it stands.
TOKENS = np.random.default_rng(0).permutation(500).astype(np.uint16)
PLACE = np.argsort(TOKENS)


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


def test_same_for_equal_arguments_and_another_for_any_other() -> None:
    def starts(**changes) -> tuple[int, ...]:
        return tuple(places(draw(**changes)[0])[:, 0].tolist())

    assert starts(seed=3, step=5) == starts(seed=3, step=5)
    every = {
        starts(seed=seed, step=step, purpose=purpose)
        for seed in range(4)
        for step in (0, 1, 2, 9999)
        for purpose in ("train", "validation/0", "validation/1")
    }
    assert len(every) == 4 * 4 * 3


@pytest.mark.parametrize("vary", ["step", "seed", "purpose"])
def test_offsets_are_uniform_over_all_valid_places(vary: str) -> None:
    """20 tokens hold windows of 12 + 1 at offsets 0 to 7: the first and the last as often as the others.

    8,000 draws: 1,000 an offset, sigma 29.6.
    """
    counts = np.zeros(20, dtype=int)
    for i in range(1000):
        value = f"validation/{i}" if vary == "purpose" else i
        options = {"seed": 0, "step": 0, "purpose": "train", vary: value}
        inputs_BT, targets_BT = sample_batch(np.arange(20, dtype=np.uint16), batch_size=8, seq_len=12, **options)
        assert targets_BT.max() <= 19
        counts += np.bincount(inputs_BT[:, 0].numpy(), minlength=20)
    assert counts[8:].sum() == 0
    assert np.abs(counts[:8] - 1000).max() < 5 * 29.6


def test_a_split_of_one_window() -> None:
    inputs_BT, targets_BT = sample_batch(TOKENS[:17], seed=0, step=0, batch_size=3, seq_len=16, purpose="train")
    np.testing.assert_array_equal(inputs_BT, np.tile(TOKENS[:16], (3, 1)))
    np.testing.assert_array_equal(targets_BT, np.tile(TOKENS[1:17], (3, 1)))


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


def kept_starts(length: int, max_tokens: int, *, seq_len: int = 7, batch_size: int = 4) -> np.ndarray:
    found = []
    for inputs_BT, _ in full_pass(TOKENS[:length], seq_len=seq_len, batch_size=batch_size, max_tokens=max_tokens):
        assert inputs_BT.shape[1] == seq_len
        found.extend(places(inputs_BT)[:, 0].tolist())
    return np.array(found)


@pytest.mark.parametrize("max_tokens", [14, 20, 21, 70, 104, 200, 343])
def test_subset_is_evenly_spaced_over_the_split(max_tokens: int) -> None:
    """361 tokens: 51 windows of 7 and 3 targets more; as many windows as fit, from the first to the last."""
    starts = kept_starts(361, max_tokens)
    assert len(starts) == max_tokens // 7
    assert (starts % 7 == 0).all()
    assert (starts[0], starts[-1]) == (0, 50 * 7)
    gaps = np.diff(starts) // 7
    assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1


def test_subset_is_the_same_at_every_batch_size() -> None:
    assert kept_starts(361, 100, batch_size=1).tolist() == kept_starts(361, 100, batch_size=99).tolist()


def test_subset_holds_at_least_one_window() -> None:
    assert len(kept_starts(361, 3)) == 1


@pytest.mark.parametrize("max_tokens", [360, 361, 10_000])
def test_a_subset_as_large_as_the_split_is_the_split(max_tokens: int) -> None:
    batches = full_pass(TOKENS[:361], seq_len=7, batch_size=4, max_tokens=max_tokens)
    assert sum(targets_BT.numel() for _, targets_BT in batches) == 360


@pytest.mark.parametrize("max_tokens", [350, 356, 357, 358, 359])
def test_subset_has_at_most_max_tokens(max_tokens: int) -> None:
    """Where every whole window fits, but not the 3 targets that are left over after them."""
    batches = full_pass(TOKENS[:361], seq_len=7, batch_size=4, max_tokens=max_tokens)
    assert sum(targets_BT.numel() for _, targets_BT in batches) <= max_tokens


def test_a_split_that_is_too_short_is_named() -> None:
    check_length(TOKENS[:9], 8, "validation")
    with pytest.raises(ConfigError) as caught:
        check_length(np.zeros(1200, dtype=np.uint16), 2048, "validation")
    assert str(caught.value) == (
        "train.seq_len=2048: the validation split has only 1,200 tokens; choose at most 1199 or a larger dataset"
    )
    with pytest.raises(ConfigError, match=r"the train split has only 1 tokens; choose a larger dataset$"):
        check_length(TOKENS[:1], 8, "train")
    # One window needs the token after its last one as well; what the message proposes does fit.
    with pytest.raises(ConfigError, match="choose at most 7 "):
        check_length(TOKENS[:8], 8, "train")
    check_length(TOKENS[:8], 7, "train")


def test_a_corpus_on_the_device_gives_the_same_windows() -> None:
    """As a GPU holds it, a tensor of 32-bit ids; here on the CPU."""
    ids = np.random.default_rng(0).integers(60_000, size=500).astype(np.uint16)
    tensor = torch.from_numpy(ids.astype(np.int32))
    options = {"seed": 3, "step": 7, "batch_size": 4, "seq_len": 16, "purpose": "train"}
    for found, expected in zip(sample_batch(tensor, **options), sample_batch(ids, **options), strict=True):
        assert found.dtype == torch.int64 and torch.equal(found, expected)
    passes = [list(full_pass(corpus, seq_len=16, batch_size=5, max_tokens=0)) for corpus in (tensor, ids)]
    assert len(passes[0]) == len(passes[1]) == 8
    for (inputs, targets), (same_inputs, same_targets) in zip(*passes, strict=True):
        assert torch.equal(inputs, same_inputs) and torch.equal(targets, same_targets)
