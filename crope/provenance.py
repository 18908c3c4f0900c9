"""Where a number came from: code, command, versions, device, data, times."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from crope.config import ROOT
from crope.device import device_name, resolve_device

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "datasets", "tokenizers", "wandb", "pandas", "triton")


def now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect(device_choice: str, data_meta: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known when a run starts."""
    device, sweep = resolve_device(device_choice), multiprocessing.parent_process()
    status = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "command": shlex.join(sys.argv),
        "pid": os.getpid() if sweep is None else sweep.pid,  # of the command: its workers have others
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "device": device_name(device),
        "device_kind": device.type,
        "driver": _driver() if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "data": data_meta,
        "started_utc": now_utc(),
    }


def earlier_attempts(path: Path) -> list[dict[str, Any]]:
    """What the provenance of a run that is resumed says of the attempts before, the oldest first."""
    before = json.loads(path.read_text(encoding="utf-8"))
    kept = {name: before[name] for name in ("commit", "dirty", "command", "device", "started_utc")}
    return [*before.get("resumed_from", []), kept]


def _driver() -> str | None:
    versions = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return versions.splitlines()[0] if versions else None  # a line per GPU, all of one driver


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """Standard output of a command; None where it is absent or fails (no git checkout, no driver)."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
