"""Fixtures of the model tests: one thread, and both branches of softmax attention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from crope.model import attention


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are tiny: on a busy machine, threads that wait for each other take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["written_out", "sdpa"])
def branch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Softmax attention as on a short CPU sequence, then through the kernel of CUDA and of long CPU sequences."""
    if request.param == "sdpa":
        monkeypatch.setattr(attention, "SHORT", 0)
    return request.param
