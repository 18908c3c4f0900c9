"""Provenance of a run: code, command, versions, device, data, times."""

import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from crope.config import ROOT, RuntimeConfig
from crope.errors import log_line
from crope.machine import cpu_info
from crope.records.run_json import Execution, Provenance
from crope.records.store import UNREADABLE

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "tokenizers", "wandb", "pandas", "triton")
# A run of a study whose file is not committed would name a commit without its plan.
SOURCE = ("crope/", "scripts/", "conf/")


def now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect(
    runtime: RuntimeConfig, device: torch.device, data_meta: dict[str, Any]
) -> dict[str, Any]:
    """Collects what provenance.json says when a run starts."""
    return {
        **code_state(ROOT),
        "command": shlex.join([_program(Path(sys.argv[0])), *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _versions(),
        "device": device_name(device),
        "driver": _driver() if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        # The run sets the configured number only when it trains.
        "threads": runtime.threads or torch.get_num_threads(),
        "data": data_meta,
        "started_utc": now_utc(),
    }


@cache
def code_state(root: Path) -> dict[str, Any]:
    """Asks git, once, which commit the code is of and whether it differs from it: what is edited
    or committed while runs train does not train them.
    """
    return {"commit": _git_output(root, "rev-parse", "HEAD"), "dirty": is_dirty(root)}


@cache
def say_unknown_commit() -> None:
    """Prints, once, that runs made here cannot be published: better before they are trained."""
    if (dirty := is_dirty(ROOT)) is None:
        log_line("git does not tell the commit of this code; `publish` will refuse these runs")
    elif dirty:
        log_line(
            f"{', '.join(SOURCE)}: uncommitted changes; commit before runs that are to be published"
        )


def is_dirty(root: Path) -> bool | None:
    """Tells whether the code differs from the commit, by a changed or untracked file in SOURCE;
    None without a git checkout.
    """
    # Elsewhere lie documents, notes and results of a user, which change no number.
    changed = _git_output(root, "diff", "--name-only", "HEAD", "--", *SOURCE)
    added = _git_output(root, "ls-files", "--others", "--exclude-standard", *SOURCE)
    if changed is None or added is None:
        return None
    return bool(changed or added)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = cpu_info("model name") or platform.machine()
    return f"{name} ({os.cpu_count()} cores)"


def earlier_attempts(path: Path) -> list[dict[str, Any]]:
    """Reads the earlier attempts at a run, oldest first, from its provenance.json.

    If that is missing or corrupt, one attempt is unknown, and the run is not published.
    """
    try:
        last = Provenance.model_validate_json(path.read_bytes())
    except UNREADABLE as error:
        log_line(f"{path}: corrupt or missing ({type(error).__name__}); earlier attempts unknown")
        return [dict.fromkeys(Execution.model_fields)]
    known = set(Execution.model_fields)
    return [attempt.model_dump(include=known) for attempt in (*last.resumed_from, last)]


def _git_output(root: Path, *command: str) -> str | None:
    """Asks git about the checkout of this code, never about one around it."""
    return _output("git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "-C", root, *command)


def _program(path: Path) -> str:
    """Names the program without the user's folders, because records are published."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _driver() -> str | None:
    versions = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return versions.splitlines()[0] if versions else None  # one line per GPU


def _versions() -> dict[str, str]:
    """Lists the installed versions of PACKAGES."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # triton comes with CUDA only
            versions[name] = metadata.version(name)
    return versions


def _output(*command: str | Path) -> str | None:
    """Returns a command's output; None if it is absent or fails (no git checkout, no driver)."""
    try:
        # git can wait for a network file system, nvidia-smi for a broken driver.
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
