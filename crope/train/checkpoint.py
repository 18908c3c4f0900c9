"""Checkpoints, from which a run continues as if it had never stopped, and trained weights.

Data order, dropout and learning rate are functions of (seed, step), so model, optimiser, step and
the size of metrics.jsonl suffice. A file's name has its step and SHA-256,
`checkpoint-500-3f0c9a7be21d4a55.pt`; the newest two are kept.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from torch.optim import Optimizer

from crope.errors import UserError, log_line
from crope.files import sha256, write_bytes
from crope.model.gpt import GPT

KEPT = 2


@dataclass(frozen=True)
class TrainState:
    """The live objects whose state a checkpoint holds.

    made_with   what must be equal for a run to continue from a checkpoint
    """

    model: GPT
    optimizer: Optimizer
    made_with: dict[str, str]


def save_checkpoint(
    folder: Path, state: TrainState, *, step: int, seconds: float, metrics_size: int
) -> None:
    """Writes a checkpoint atomically, after `step` updates and `seconds` of the run."""
    metrics = (folder / "metrics.jsonl").read_bytes()[:metrics_size]
    content = {
        "step": step,
        "seconds": seconds,
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "metrics_size": metrics_size,
        "metrics_sha256": sha256(metrics),
        "made_with": state.made_with,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    write_bytes(folder / f"checkpoint-{step}-{sha256(data)[:16]}.pt", data)
    remove_checkpoints(folder, keep=KEPT)


def load_checkpoint(folder: Path, state: TrainState) -> tuple[int, float, int]:
    """Restores `state` from the newest intact checkpoint; returns (updates done, their seconds,
    bytes of metrics.jsonl to keep), zeros if there is none.

    A corrupt checkpoint is reported on stderr and deleted. No code from a file runs. Raises
    UserError for a checkpoint of another run, device or corpus, and keeps it.
    """
    metrics = folder / "metrics.jsonl"
    logged = metrics.read_bytes() if metrics.exists() else b""
    for path in checkpoints(folder):
        content = _read(path, logged)
        if content is None:
            path.unlink()
            continue
        # Bits could not be equal, or the curve would be of two experiments.
        for key, value in state.made_with.items():
            found = content["made_with"].get(key)
            if found != value:
                raise UserError(
                    f"{path}: made with another {key} ({found}, now {value}); continue it with that"
                    f" one, or remove {folder} to start again"
                )
        state.model.load_state_dict(content["model"])
        # The options of its groups follow from the configuration.
        own = {"param_groups": state.optimizer.state_dict()["param_groups"]}
        state.optimizer.load_state_dict(content["optimizer"] | own)
        log_line(f"{folder.name} continues from step {content['step']}")
        return content["step"], content["seconds"], content["metrics_size"]
    return 0, 0.0, 0


def _read(path: Path, logged: bytes) -> dict[str, Any] | None:
    """Reads a checkpoint. Returns None, and says so, if its SHA-256 is not that in its name, or
    `logged` does not begin with the metrics it was saved with.
    """
    data = path.read_bytes()
    problem = "corrupt"
    if sha256(data)[:16] in path.name:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if sha256(logged[: content["metrics_size"]]) == content["metrics_sha256"]:
            return content
        problem = "metrics.jsonl is not the one it was saved with"
    log_line(f"{path}: {problem}; continuing from the previous checkpoint or from the start")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Lists the checkpoint files of a run, the newest first."""
    files = folder.glob("checkpoint-[0-9]*-*.pt")
    return sorted(files, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def remove_checkpoints(folder: Path, *, keep: int = 0) -> None:
    """Deletes all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:  # the newest are kept, whatever their dates
        path.unlink(missing_ok=True)


def weights_bytes(model: nn.Module, *, run_id: str) -> bytes:
    """Returns the state dict alone as safetensors, for use on any machine.

    A parameter of two layers is written once, under its first name. Raises RuntimeError for two
    parameters that share memory.
    """
    state = model.state_dict(keep_vars=True)  # the parameters themselves, not views of them
    first_names = {id(tensor): name for name, tensor in reversed(state.items())}
    tensors = {name: state[name].detach() for name in first_names.values()}
    # One key: more would be written in any order, and the same weights have the same bytes.
    return safetensors.torch.save(tensors, {"run_id": run_id})
