"""Random streams: Philox written out, and one purpose never moving another."""

import hashlib

import numpy as np
import pytest
import torch

from crope.seeding import stream, torch_seed


@pytest.mark.parametrize(
    ("seed", "purpose", "index"), [(0, "batches/train", 0), (3, "init/a", 1), (0, "x", 9999)]
)
def test_stream_is_philox_with_the_index_in_the_highest_word(
    seed: int, purpose: str, index: int
) -> None:
    """So the streams of two steps lie 2^192 blocks apart: they cannot overlap."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:16], "little")
    expected = np.random.Philox(key=key, counter=index << 192).random_raw(8)
    assert stream(seed, purpose, index).bit_generator.random_raw(8).tolist() == expected.tolist()


def test_torch_seeds_are_63_bit_and_differ_by_step() -> None:
    seeds = [torch_seed(seed, "dropout", step) for seed in range(3) for step in range(200)]
    assert len(set(seeds)) == 600
    assert 2**62 < max(seeds) < 2**63 and min(seeds) >= 0
    torch.Generator().manual_seed(max(seeds))
