"""CRoPE, reproduced: the models, the protocol and the evidence. Source map: CONTRIBUTING.md."""

import os
from typing import TYPE_CHECKING, Any

# Before torch loads its OpenMP: with the default, threads that wait for each other spin for
# milliseconds, and a step takes up to a hundred times as long as soon as another process wants the
# same core.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from crope.adapt import complexify
    from crope.config import ModelConfig
    from crope.model.complex_linear import ComplexLinear
    from crope.model.gpt import GPT
    from crope.model.positions import RotaryEmbedding

__all__ = ["GPT", "ComplexLinear", "ModelConfig", "RotaryEmbedding", "adapt", "complexify"]


def __getattr__(name: str) -> Any:
    """Loads the public names on first use: the report and `--help` must not wait for torch."""
    from importlib import import_module

    if name == "adapt":
        return import_module("crope.adapt")
    homes = {
        "ComplexLinear": "crope.model.complex_linear",
        "GPT": "crope.model.gpt",
        "ModelConfig": "crope.config",
        "RotaryEmbedding": "crope.model.positions",
        "complexify": "crope.adapt",
    }
    if name not in homes:
        raise AttributeError(f"module 'crope' has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
