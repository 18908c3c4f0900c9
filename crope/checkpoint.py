"""Checkpoints: everything that a run needs to go on as if it had never stopped.

Data order and dropout are functions of (seed, step), so model, optimiser, scheduler and step are all of it, with the
place in metrics.jsonl that belongs to the step. A file's name carries its step and the sha256 of its bytes,
`checkpoint-500-3f0c9a7be21d4a55.pt`; the newest two are kept, so that a damaged one costs one interval and no more.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from crope.errors import UserError
from crope.record import START, Mark, write_bytes

KEPT = 2
NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")


@dataclass(frozen=True)
class TrainState:
    """The live objects whose state a checkpoint holds."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler


def save_checkpoint(folder: Path, state: TrainState, *, step: int, metrics: Mark, made_with: Mapping[str, str]) -> None:
    """Atomic. `step` is the number of updates done; `made_with` must be equal for the run to go on from here."""
    data = _bytes(
        {
            "step": step,
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scheduler": state.scheduler.state_dict(),
            "metrics": asdict(metrics),
            "made_with": dict(made_with),
        }
    )
    write_bytes(folder / f"checkpoint-{step}-{_digest(data)}.pt", data)
    for path in checkpoints(folder)[KEPT:]:
        path.unlink(missing_ok=True)


def load_checkpoint(folder: Path, state: TrainState, *, made_with: Mapping[str, str]) -> tuple[int, Mark]:
    """Restores `state` from the newest usable checkpoint; returns the updates done and the place in metrics.jsonl.

    (0, START) where there is none. One that cannot be used is said so and removed. No code from a file is run.
    """
    for path in checkpoints(folder):
        found, problem = _read(path, folder / "metrics.jsonl", made_with)
        if found is None:
            print(f"{path}: {problem}; going on from the checkpoint before, or from the start", file=sys.stderr)
            path.unlink()
            continue
        try:
            state.model.load_state_dict(found["model"])
            state.optimizer.load_state_dict(found["optimizer"])
            state.scheduler.load_state_dict(found["scheduler"])
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path}: is of another model than this code makes ({reason}); remove {folder}") from error
        return int(found["step"]), Mark(**found["metrics"])
    return 0, START


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*.pt") if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def remove_checkpoints(folder: Path) -> None:
    for path in checkpoints(folder):
        path.unlink(missing_ok=True)


def save_weights(path: Path, model: nn.Module) -> None:
    """The state dict alone, for what comes after training. Atomic."""
    write_bytes(path, _bytes(model.state_dict()))


def _read(path: Path, metrics: Path, made_with: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """What a checkpoint holds, or None and why it cannot be used."""
    data = path.read_bytes()
    name = NAME.fullmatch(path.name)
    assert name is not None
    if _digest(data) != name[2]:
        return None, "damaged (its bytes do not have the sha256 in its name)"
    try:
        found: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        mark, made_before = Mark(**found["metrics"]), found["made_with"]
    except Exception as error:  # a stranger's file may fail in any way; it runs no code
        return None, f"not a checkpoint of this program ({' '.join(str(error).split())[:120]})"
    for name_, value in made_with.items():
        if made_before.get(name_) != value:
            return None, f"made with another {name_} ({made_before.get(name_)}, now {value})"
    if Mark.of(metrics, mark.size) != mark:
        return None, "metrics.jsonl is not the one it was saved with"
    return found, ""


def _bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
