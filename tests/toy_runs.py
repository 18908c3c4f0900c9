"""Real runs on the toy corpus, for tests of what happens after training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crope.record import Record, read_record
from crope.run import execute
from tests.conftest import make_toy_tokens, toy_run


@contextmanager
def toy_corpus(folder: Path) -> Iterator[None]:
    """Every load of tokens within the block returns the toy corpus."""
    tokens = make_toy_tokens(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crope.run.load_tokens", lambda *_, **__: tokens)
        yield


def train_toy(folder: Path, *overrides: str) -> Record:
    """A complete run of 12 steps below `folder`."""
    run = toy_run(folder, *overrides)
    assert execute(run).status in ("complete", "skipped")
    return read_record(run.path)
