"""Checkpoints: everything a run needs to continue as if it had never stopped; and trained weights.

Data order, dropout and learning rate are functions of (seed, step), so model, optimiser and step
are all of it, with the size of metrics.jsonl at that step. A file's name carries its step and the
SHA-256 of its bytes, `checkpoint-500-3f0c9a7be21d4a55.pt`; the newest two are kept, so that a
corrupt one costs one interval.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import nn
from torch.optim import Optimizer

from crope.errors import UserError, log_line
from crope.files import write_bytes
from crope.model.gpt import GPT

KEPT = 2
NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")


class CorruptCheckpoint(ValueError):
    """A checkpoint, or the metrics.jsonl it was saved with, without the SHA-256 recorded for it."""


@dataclass(frozen=True)
class TrainState:
    """The live objects whose state a checkpoint holds."""

    model: GPT
    optimizer: Optimizer


def save_checkpoint(
    folder: Path,
    state: TrainState,
    *,
    step: int,
    seconds: float,
    metrics_size: int,
    made_with: dict[str, str],
) -> None:
    """Writes a checkpoint atomically. `step` is the number of updates done and `seconds` their time;
    `made_with` must be equal for the run to continue from here.
    """
    metrics = (folder / "metrics.jsonl").read_bytes()[:metrics_size]
    content = {
        "step": step,
        "seconds": seconds,
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "metrics_size": metrics_size,
        "metrics_sha256": hashlib.sha256(metrics).hexdigest(),
        "made_with": made_with,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    write_bytes(folder / f"checkpoint-{step}-{_digest(data)}.pt", data)
    remove_checkpoints(folder, keep=KEPT)


def load_checkpoint(
    folder: Path, state: TrainState, *, made_with: dict[str, str]
) -> tuple[int, float, int]:
    """Restores `state` from the newest checkpoint that is not corrupt; returns (updates done, their
    seconds, bytes of metrics.jsonl to keep), zeros if there is none.

    A corrupt checkpoint is reported on stderr and deleted. No code from a file runs. Raises
    UserError for a checkpoint of another run, device or corpus, and keeps it.
    """
    metrics = folder / "metrics.jsonl"
    for path in checkpoints(folder):
        data = path.read_bytes()
        logged = metrics.read_bytes() if metrics.exists() else b""
        try:
            if _digest(data) not in path.name:
                raise CorruptCheckpoint("corrupt (its bytes do not have the SHA-256 in its name)")
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            size = content["metrics_size"]
            if hashlib.sha256(logged[:size]).hexdigest() != content["metrics_sha256"]:
                raise CorruptCheckpoint("metrics.jsonl is not the one it was saved with")
            # Bits could not be equal, or the curve would be of two experiments.
            for key, value in made_with.items():
                found = content["made_with"].get(key)
                if found != value:
                    raise UserError(
                        f"{path}: made with another {key} ({found}, now {value}); continue it with"
                        f" that one, or remove {folder} to start again"
                    )
            state.model.load_state_dict(content["model"])
            state.optimizer.load_state_dict(content["optimizer"])
        except CorruptCheckpoint as error:
            log_line(f"{path}: {error}; continuing from the previous checkpoint or from the start")
            path.unlink()
        else:
            return content["step"], content["seconds"], size
    return 0, 0.0, 0


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a run, the newest first."""
    by_step = []
    for path in folder.glob("checkpoint-*.pt"):
        if match := NAME.fullmatch(path.name):
            by_step.append((int(match[1]), path))
    return [path for _, path in sorted(by_step, reverse=True)]


def remove_checkpoints(folder: Path, *, keep: int = 0) -> None:
    """Deletes all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:  # the newest are kept, whatever their dates
        path.unlink(missing_ok=True)


def weights_bytes(model: nn.Module, *, run_id: str) -> bytes:
    """Returns the state dict alone as safetensors, for use after training on any machine.

    A parameter of two layers is written once, under its first name. Raises RuntimeError for two
    parameters that share memory.
    """
    state = model.state_dict(keep_vars=True)  # the parameters themselves, not views of them
    first_names = {id(tensor): name for name, tensor in reversed(state.items())}
    tensors = {name: state[name].detach() for name in first_names.values()}
    # One key: more would be written in any order, and the same weights have the same bytes.
    return safetensors.torch.save(tensors, {"run_id": run_id})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
