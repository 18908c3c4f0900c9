"""Position schemes, one file each: `model.position` is the file's name, and `none` the base class itself."""

from __future__ import annotations

from importlib import import_module

from crope.config import ModelConfig
from crope.errors import ConfigError
from crope.model.positions._base import BASE, DistanceBias, Positions, angles
from crope.model.positions.alibi import AlibiBias
from crope.model.positions.learned import LearnedPositions
from crope.model.positions.relative_bias import RelativeBias
from crope.model.positions.rotary import RotaryEmbedding
from crope.model.positions.sinusoidal import SinusoidalPositions

__all__ = [
    "BASE",
    "AlibiBias",
    "DistanceBias",
    "LearnedPositions",
    "Positions",
    "RelativeBias",
    "RotaryEmbedding",
    "SinusoidalPositions",
    "angles",
    "build_positions",
    "find_scheme",
]


def find_scheme(position: str) -> type[Positions]:
    """The class that the file of that name defines. Raises ConfigError where it defines none, or several."""
    if position == "none":
        return Positions
    module = import_module(f"{__name__}.{position}")
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    found = [value for value in own if isinstance(value, type) and issubclass(value, Positions)]
    if len(found) != 1:
        names = f"{len(found)}: {', '.join(scheme.__name__ for scheme in found)}" if found else "none"
        raise ConfigError(f"crope/model/positions/{position}.py: must define one class of Positions, defines {names}")
    return found[0]


def build_positions(config: ModelConfig, *, max_len: int) -> Positions:
    """The scheme that `model.position` names."""
    return find_scheme(config.position).build(config, max_len)
