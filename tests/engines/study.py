"""The study that every engine runs: three models, toy sizes, long enough to be hit in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from crope.checkpoint import checkpoints
from crope.config import ROOT
from tests.conftest import TOY_OVERRIDES
from tests.faults import first_difference

STEPS = 3000
LIMIT_S = 300  # of one sweep, on a slow and busy machine
STUDY = (
    *(text for text in TOY_OVERRIDES if not text.startswith(("train.max_steps", "runtime.checkpoint_every"))),
    f"train.max_steps={STEPS}",
    "eval.every=500",
    "eval.full_every=1500",
    "runtime.checkpoint_every=100",
    "runtime.log_every=500",
    "runtime.threads=1",
    "scale=smoke",
    "model=xpos,rope,crope",
)


class Sweep:
    """The command line of a sweep, as a process."""

    started: ClassVar[list[Sweep]] = []

    def __init__(self, launcher: str, results: Path, *more: str, environment: dict[str, str] | None = None) -> None:
        self.results = results
        self.started.append(self)
        command = [sys.executable, str(ROOT / "scripts/train.py"), "-m", f"hydra/launcher={launcher}"]
        # The jobs find the package by this, as they would by an installation.
        environment = {**(environment or os.environ), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*command, *STUDY, f"results_dir={results}", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def run_at_work(self) -> Path:
        """A run that has a checkpoint and is not finished."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for path in (self.results / "runs").glob("*"):
                if checkpoints(path) and not (path / "summary.json").exists():
                    return path
            time.sleep(0.05)
        self.process.kill()
        pytest.fail(f"no run was at work:\n{self.process.communicate()[0]}")

    def end(self) -> str:
        """What it said. Fails where it does not end in time."""
        try:
            return self.process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"still at it after {LIMIT_S} s:\n{self.process.communicate()[0]}")


def differences(one: Path, other: Path) -> list[str]:
    """Where two results folders hold other runs or other bits."""
    names = sorted(path.name for path in (one / "runs").iterdir())
    assert len(names) == 3
    if names != (others := sorted(path.name for path in (other / "runs").iterdir())):
        return [f"runs {others}, not {names}"]
    return [text for name in names if (text := first_difference(one / "runs" / name, other / "runs" / name))]
