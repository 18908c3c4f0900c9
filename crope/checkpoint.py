"""Checkpoints: everything that a run needs to go on as if it had never stopped.

Data order and dropout are functions of (seed, step), so model, optimiser, scheduler and step are all of it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from crope.record import write_bytes


@dataclass(frozen=True)
class TrainState:
    """The live objects whose state a checkpoint holds."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler


def save_checkpoint(path: Path, state: TrainState, *, step: int) -> None:
    """Atomic. `step` is the number of updates done."""
    _save(
        path,
        {
            "step": step,
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scheduler": state.scheduler.state_dict(),
        },
    )


def load_checkpoint(path: Path, state: TrainState) -> int:
    """Restores `state` and returns the updates done; 0 where there is no checkpoint. Runs no code from the file."""
    if not path.exists():
        return 0
    found = torch.load(path, map_location="cpu", weights_only=True)
    state.model.load_state_dict(found["model"])
    state.optimizer.load_state_dict(found["optimizer"])
    state.scheduler.load_state_dict(found["scheduler"])
    return int(found["step"])


def save_weights(path: Path, model: nn.Module) -> None:
    """The state dict alone, for what comes after training. Atomic."""
    _save(path, model.state_dict())


def _save(path: Path, value: Any) -> None:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getvalue())
