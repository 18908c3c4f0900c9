"""Real runs on the toy corpus, for tests of what happens after training."""

from contextlib import contextmanager

import pytest

from crope.data.tokens import train_bpe
from crope.records.store import read_record
from crope.runs.run import execute
from tests.conftest import TOY_VOCAB, make_toy_tokens, toy_run


@contextmanager
def toy_corpus(folder):
    """Every load of tokens within the block returns the toy corpus, with a tokenizer of its size.

    Everything runs on the CPU, also where there is a GPU: tests compare with the CPU's bits.
    """
    folder.mkdir(exist_ok=True)
    tokens = make_toy_tokens(folder)
    words = [f"{first}{last}" for first in "abcdefgh" for last in "stuvwxyz"]
    train_bpe([" ".join(words * 2)], TOY_VOCAB).save(str(folder / "tokenizer.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crope.runs.run.load_tokens", lambda *_, **__: tokens)
        patch.setattr("crope.runs.load.load_tokens", lambda *_, **__: tokens)
        patch.setattr("torch.cuda.is_available", lambda: False)
        yield


def train_toy(folder, *overrides):
    """A complete run of 12 steps below `folder`."""
    run = toy_run(folder, *overrides)
    assert execute(run).status in ("complete", "skipped")
    return read_record(run.path)
