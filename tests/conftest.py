"""Fixtures shared by all tests: a toy corpus, quick overrides, and a network that must not be used."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from crope.data.token_files import TokenSet

TOY_VOCAB = 300
TOY_OVERRIDES = (
    "data=tiny",
    "tracker=none",
    f"tokenizer.vocab_size={TOY_VOCAB}",
    "train.max_steps=12",
    "train.batch_size=2",
    "train.seq_len=16",
    "train.lr_step_size=4",
    "train.precision=fp32",
    "eval.every=4",
    "eval.full_every=6",
    "eval.full_tokens=64",
    "model.d_model=16",
    "model.n_layers=1",
    "runtime.device=cpu",
    "runtime.log_every=3",
    "runtime.checkpoint_every=5",
)


def make_toy_tokens(folder: Path) -> TokenSet:
    """Two short splits of random ids with the meta that a prepared corpus has."""
    ids = np.random.default_rng(1).integers(TOY_VOCAB, size=1200).astype(np.uint16)
    splits = {"train": ids[:900], "validation": ids[900:]}
    meta = {
        "tokenizer": {"name": "bpe", "vocab_size": TOY_VOCAB},
        "splits": {
            name: {"tokens": len(part), "bytes": 3 * len(part), "sha256": name} for name, part in splits.items()
        },
    }
    return TokenSet(folder, meta, splits["train"], splits["validation"])


@pytest.fixture
def toy_tokens(tmp_path: Path) -> TokenSet:
    return make_toy_tokens(tmp_path)


@pytest.fixture
def toy_data(toy_tokens: TokenSet, monkeypatch: pytest.MonkeyPatch) -> TokenSet:
    """Runs see the toy corpus whatever they ask for."""
    monkeypatch.setattr("crope.run.load_tokens", lambda *_, **__: toy_tokens)
    return toy_tokens


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    """What takes a signal gives it back: a handler that is left behind would swallow the next one."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture(scope="session")
def data_dir() -> Path | None:
    """The real text, where CROPE_DATA_DIR points to it."""
    return Path(os.environ["CROPE_DATA_DIR"]) if os.environ.get("CROPE_DATA_DIR") else None
