"""Where each run of a study stands, from its folder alone. Imports no torch, writes nothing, trains nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from crope.compose import Run, build_run, compose_config
from crope.lock import is_taken
from crope.strict import Damage, read_object
from crope.verify import damage_of
from crope.work import run_flops

DONE, RUNNING, BEGUN, FAILED, DAMAGED, MISSING = "done", "running", "begun", "failed", "damaged", "missing"
STATUSES = (DONE, RUNNING, BEGUN, FAILED, DAMAGED, MISSING)
TAIL_BYTES = 16384  # of metrics.jsonl: some fifty lines, more than one logging interval


@dataclass(frozen=True)
class RunState:
    """status   done; running (a process holds its lock); begun (stopped or killed: the same command goes on with it);
             failed; damaged; missing
    step     optimiser updates in metrics.jsonl so far
    why      of a failed or damaged run, in one line
    row      the last values of metrics.jsonl by key, as they stand in its tail
    """

    run: Run
    status: str
    step: int = 0
    why: str = ""
    row: dict[str, Any] | None = None
    total_s: float | None = None

    @property
    def share(self) -> float:
        """Of the run's work, by steps."""
        return 1.0 if self.status == DONE else min(1.0, self.step / self.run.config.train.max_steps)


def find_runs(overrides: Sequence[Sequence[str]]) -> list[Run]:
    """The runs of `study.jobs`. `precision: auto` is what the record says: asking the hardware would need torch.

    A run that has no folder at either precision is named as fp32 would be.
    """
    return [_as_recorded(build_run(compose_config(list(words)))) for words in overrides]


def _as_recorded(run: Run) -> Run:
    if run.config.train.precision != "auto":
        return run
    both = [
        replace(run, config=replace(run.config, train=replace(run.config.train, precision=precision)))
        for precision in ("fp32", "bf16")
    ]
    finished = [one for one in both if (one.path / "summary.json").exists()]
    return next(iter([*finished, *(one for one in both if one.path.exists()), both[0]]))


def read_state(run: Run) -> RunState:
    summary = run.path / "summary.json"
    status, why, total_s = _finished(run.path, summary.stat().st_mtime_ns) if summary.exists() else ("", "", None)
    if status == DONE:
        return RunState(run, DONE, run.config.train.max_steps, total_s=total_s)
    row = read_last(run.path / "metrics.jsonl")
    step = row.get("step", 0)
    if is_taken(run.path):
        return RunState(run, RUNNING, step, row=row)
    if status:
        return RunState(run, status, step, why, row)
    return RunState(run, BEGUN if run.path.exists() else MISSING, step, row=row)


@cache
def _finished(path: Path, modified_ns: int) -> tuple[str, str, float | None]:
    """Status, reason and seconds of a finished run. Checking reads the whole record: once for each summary.json."""
    if damage := damage_of(path):
        return DAMAGED, damage, None
    try:
        summary = read_object(path / "summary.json")
    except Damage as damage:  # it changed between the two readings
        return DAMAGED, str(damage), None
    if summary["status"] == "failed":
        return FAILED, " ".join(str(summary["error"]["message"]).split()), None
    return DONE, "", float(summary["time"]["total_s"])


def read_last(metrics: Path) -> dict[str, Any]:
    """The last value of each key in the end of a metrics.jsonl; empty where there is none. A torn line is left out."""
    try:
        with metrics.open("rb") as file:
            start = max(0, metrics.stat().st_size - TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    merged: dict[str, Any] = {}
    for line in lines[1 if start else 0 : -1]:
        try:
            merged |= json.loads(line)
        except (ValueError, TypeError):  # cut by a resumed run at this moment
            continue
    return merged


def read_scale(path: Path) -> str | None:
    """The scale of a finished run; None where its summary is absent or does not say."""
    try:
        scale = read_object(path / "summary.json").get("scale")
    except Damage:
        return None
    return scale if isinstance(scale, str) else None


def read_states(runs: Sequence[Run]) -> Iterator[RunState]:
    return map(read_state, runs)


def seconds_left(states: Sequence[RunState]) -> float | None:
    """What is left at the mean rate of the finished runs (before one is, of the running ones), all workers together.

    Failed and damaged runs count as still to be made. None where no run says how fast this machine is.
    """
    left = sum(run_flops(state.run) * (1 - state.share) for state in states)
    finished = [state for state in states if state.total_s]
    running = [state for state in states if state.status == RUNNING]
    if finished:
        rate = sum(run_flops(state.run) for state in finished) / sum(state.total_s or 0.0 for state in finished)
    else:
        rates = [_rate(state) for state in running if state.row and "time/step_ms" in state.row]
        if not rates:
            return None
        rate = sum(rates) / len(rates)
    return left / rate / max(1, len(running))


def _rate(state: RunState) -> float:
    assert state.row is not None
    return run_flops(state.run) / state.run.config.train.max_steps / (state.row["time/step_ms"] / 1000)
