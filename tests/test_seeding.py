"""Random streams: Philox written out, and one purpose never moving another."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from crope.config import ROOT, ModelConfig
from crope.model.gpt import GPT
from crope.seeding import stream, torch_seed

WORD = 2**64 - 1


def philox(key: int, counter: int) -> list[int]:
    """Philox4x64-10 of Salmon et al. (SC 2011): four 64-bit words from a 256-bit counter and a 128-bit key."""
    c = [counter >> (64 * i) & WORD for i in range(4)]
    k = [key & WORD, key >> 64]
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & WORD, low >> 64 ^ c[3] ^ k[1], low & WORD]
        k = [(k[0] + 0x9E3779B97F4A7C15) & WORD, (k[1] + 0xBB67AE8584CAA73B) & WORD]
    return c


@pytest.mark.parametrize(("seed", "purpose", "index"), [(0, "batches/train", 0), (3, "init/a", 1), (0, "x", 9999)])
def test_stream_is_philox_with_the_index_in_the_highest_word(seed: int, purpose: str, index: int) -> None:
    """So the streams of two steps lie 2^192 blocks apart: they cannot overlap."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:16], "little")
    start = index << 192
    # numpy raises the counter before it draws.
    expected = philox(key, start + 1) + philox(key, start + 2)
    assert stream(seed, purpose, index).bit_generator.random_raw(8).tolist() == expected


def test_equal_arguments_equal_draws_and_any_other_argument_others() -> None:
    def draws(*arguments) -> tuple[int, ...]:
        return tuple(stream(*arguments).integers(2**63, size=50).tolist())

    assert draws(1, "batches/train", 7) == draws(1, "batches/train", 7)
    every = [
        draws(seed, purpose, index)
        for seed in (0, 1, 11)
        for purpose in ("batches/train", "batches/validation/0", "batches/validation/1", "init/embedding.weight")
        for index in (0, 1, 2, 10_000)
    ]
    # Not only different: no number of one turns up in another.
    assert len({number for numbers in every for number in numbers}) == 50 * len(every)


def test_draws_do_not_depend_on_what_was_drawn_before() -> None:
    first = stream(0, "batches/train", 5).integers(1000, size=20)
    np.random.default_rng(0).random(100)
    np.random.seed(1)
    torch.manual_seed(1)
    config = ModelConfig(position="rotary", projection="complex", n_layers=1, n_heads=2, d_model=8)
    GPT(config, vocab_size=70, max_len=4, seed=0)
    stream(0, "batches/train", 4).integers(1000, size=20)
    assert stream(0, "batches/train", 5).integers(1000, size=20).tolist() == first.tolist()


def test_building_a_model_leaves_a_models_values_alone() -> None:
    """torch's own generator, which nn.Module constructors draw from, decides no initial value."""
    config = ModelConfig(position="sinusoidal", projection="real", n_layers=1, n_heads=2, d_model=8)
    models = []
    for torchs in (1, 2):
        torch.manual_seed(torchs)
        models.append(GPT(config, vocab_size=70, max_len=4, seed=0).state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_independent_of_pythons_hash_seed() -> None:
    code = "from crope.seeding import torch_seed; print(torch_seed(2, 'dropout', 3))"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
        )
        assert int(run.stdout) == torch_seed(2, "dropout", 3)


def test_torch_seeds_are_63_bit_and_differ_by_step() -> None:
    seeds = [torch_seed(seed, "dropout", step) for seed in range(3) for step in range(200)]
    assert len(set(seeds)) == 600
    assert 2**62 < max(seeds) < 2**63 and min(seeds) >= 0
    torch.Generator().manual_seed(max(seeds))
