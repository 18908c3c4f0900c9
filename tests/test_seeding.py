"""Random streams: Philox written out, and one purpose never moving another."""

import hashlib

import pytest
import torch

from crope.seeding import stream, torch_seed

WORD = 2**64 - 1


def philox(key: int, counter: int) -> list[int]:
    """Philox4x64-10 of Salmon et al. (SC 2011): four 64-bit words from a 256-bit counter and a
    128-bit key.
    """
    c = [counter >> (64 * i) & WORD for i in range(4)]
    k = [key & WORD, key >> 64]
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & WORD, low >> 64 ^ c[3] ^ k[1], low & WORD]
        k = [(k[0] + 0x9E3779B97F4A7C15) & WORD, (k[1] + 0xBB67AE8584CAA73B) & WORD]
    return c


@pytest.mark.parametrize(
    ("seed", "purpose", "index"), [(0, "batches/train", 0), (3, "init/a", 1), (0, "x", 9999)]
)
def test_stream_is_philox_with_the_index_in_the_highest_word(
    seed: int, purpose: str, index: int
) -> None:
    """So the streams of two steps lie 2^192 blocks apart: they cannot overlap."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:16], "little")
    start = index << 192
    # numpy raises the counter before it draws.
    expected = philox(key, start + 1) + philox(key, start + 2)
    assert stream(seed, purpose, index).bit_generator.random_raw(8).tolist() == expected


def test_torch_seeds_are_63_bit_and_differ_by_step() -> None:
    seeds = [torch_seed(seed, "dropout", step) for seed in range(3) for step in range(200)]
    assert len(set(seeds)) == 600
    assert 2**62 < max(seeds) < 2**63 and min(seeds) >= 0
    torch.Generator().manual_seed(max(seeds))
