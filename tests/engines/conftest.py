"""Skips an engine that is not installed, and makes the study once, in one process, as every engine's oracle."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.study import Sweep


def needs(plugin: str, extra: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(f"hydra_plugins.{plugin}")
    return pytest.mark.skipif(not found, reason=f"{plugin} is not installed (pip install -e '.[{extra}]')")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the study made by hydra/launcher=basic, uninterrupted."""
    results = tmp_path_factory.mktemp("basic")
    sweep = Sweep("basic", results)
    assert sweep.end() and sweep.process.returncode == 0
    return results


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that fails midway leaves no sweep behind."""
    yield
    for sweep in Sweep.started:
        if sweep.process.poll() is None:
            sweep.process.kill()
            sweep.process.wait()
    Sweep.started.clear()
