"""Random streams: Philox written out, and one purpose never moving another."""

import hashlib

import numpy as np

from crope.seeding import stream, torch_seed


def test_stream_is_philox_with_the_index_in_the_highest_word():
    """So the streams of two steps lie 2^192 blocks apart: they cannot overlap."""
    key = int.from_bytes(hashlib.sha256(b"3/init/a").digest()[:16], "little")
    expected = np.random.Philox(key=key, counter=9999 << 192)
    drawn = stream(3, "init/a", 9999).bit_generator
    assert drawn.random_raw(8).tolist() == expected.random_raw(8).tolist()


def test_torch_seeds_have_63_bits_and_differ_by_seed_and_step():
    seeds = {torch_seed(seed, "dropout", step) for seed in range(3) for step in range(200)}
    assert len(seeds) == 600
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63
