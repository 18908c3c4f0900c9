"""Both branches of softmax attention."""

import pytest


@pytest.fixture(params=["written_out", "sdpa"])
def branch(request, monkeypatch):
    """Softmax attention as on a short CPU sequence, then through the kernel of CUDA and of long CPU
    sequences.
    """
    if request.param == "sdpa":
        monkeypatch.setattr("crope.model.attention.SHORT", 0)
