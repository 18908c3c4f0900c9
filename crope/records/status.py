"""Which runs there are and how far they are, from their locks, metrics and records."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crope.errors import InvalidRecord, one_line
from crope.files import read_yaml
from crope.plan.compose import Run
from crope.plan.study import SCALES, load_study, study_runs
from crope.records.locks import is_locked
from crope.records.sources import code_note
from crope.records.store import UNREADABLE, Record, last_values, read_described, read_record

DONE, RUNNING, STOPPED, FAILED, MISSING = STATUSES = (
    "done",
    "running",  # a process holds the run's lock
    "stopped",  # or killed: the same command continues it
    "failed",
    "missing",
)


# What `show` prints of each file.
SHOWN = {
    "run": "model dataset row scale seed settings",
    "summary": "status error val_full val_sampled train time memory_peak_gib parameters",
    "provenance": "device threads command commit dirty started_utc finished_utc",
}


@dataclass(frozen=True)
class RunState:
    """The state of one run.

    step      optimiser updates in metrics.jsonl
    loss      the last full validation loss, nats per token
    minutes   of training, of a complete run
    reason    why it failed or is corrupt; which code of a complete run has changed since
    """

    status: str
    step: int = 0
    loss: float | None = None
    minutes: float | None = None
    reason: str = ""


def state_of(path: Path) -> RunState:
    """Reads the state of the run of this folder, which need not exist."""
    values = last_values(path)
    known: dict[str, Any] = {"step": values["step"], "loss": values.get("val_full/loss_nats")}
    reason = ""
    try:
        if (path / "summary.json").exists():
            record = read_record(path)
            summary = record.summary
            if summary["status"] == "complete":
                minutes, note = summary["time"]["total_s"] / 60, code_note(record.run)
                return RunState(DONE, **known, minutes=minutes, reason=note)
            reason = summary["error"]["message"]
    except InvalidRecord as error:
        reason = error.reason
    if is_locked(path):  # also a failed run, if it is tried again now
        return RunState(RUNNING, **known)
    if reason:
        return RunState(FAILED, **known, reason=one_line(reason))
    return RunState(STOPPED if (path / "run.json").exists() else MISSING, **known)


def list_runs(results_dir: Path, pattern: str = "", *, by_loss: bool = False) -> str:
    """Lists the runs that `pattern` selects (`render_runs`), newest first."""
    folder = results_dir / "runs"
    files = sorted(folder.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    text = render_runs((file.parent for file in files), pattern, by_loss=by_loss)
    return text or f"no runs in {folder}" + f" with '{pattern}' in their line" * bool(pattern)


def render_runs(paths: Iterable[Path], pattern: str = "", *, by_loss: bool = False) -> str:
    """Renders the runs whose name, scale, status, settings or failure contain `pattern`: a line
    each, with the keys that vary among them; below, what all share and why runs failed. Empty
    without a run.
    """
    runs = []
    for path in paths:
        state, described = state_of(path), {"scale": "", "settings": []} | read_described(path)
        scale, settings = described["scale"], described["settings"]
        if pattern in " ".join([path.name, scale, state.status, *settings, state.reason]):
            runs.append((path, scale, state, settings))
    if by_loss:
        runs.sort(key=lambda run: run[2].loss or math.inf)
    counts = Counter(word for *_, settings in runs for word in settings)
    shared = [word for word, count in counts.items() if count == len(runs)]
    varied = list(dict.fromkeys(word.partition("=")[0] for word in counts if word not in shared))
    rows = [["run", "scale", "status", "step", "loss", "min", *varied]]
    for path, scale, state, _ in runs:
        loss = "" if state.loss is None else f"{state.loss:.4f}"
        minutes = "" if state.minutes is None else f"{state.minutes:.1f}"
        values = [_value(path, key) for key in varied]
        rows.append([path.name, scale, state.status, str(state.step), loss, minutes, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"all: {', '.join(shared)}"] if shared else []
    lines += [f"{path.name}: {state.reason}" for path, _, state, _ in runs if state.reason]
    return "\n".join(lines) if runs else ""


def _value(path: Path, key: str) -> str:
    """Reads the value of a run's key, a default too."""
    section, _, name = key.partition(".")
    with suppress(*UNREADABLE):
        return str(read_yaml(path / "config.yaml")[section][name])
    return ""


def show(record: Record) -> str:
    """Prints a finished run as YAML: settings beyond the defaults, losses, time, how it was made."""
    parts: dict[str, Any] = {"folder": str(record.path), "code": code_note(record.run)}
    for part, keys in SHOWN.items():
        content = getattr(record, part)
        parts[part] = {key: content[key] for key in keys.split() if key in content}
    return yaml.safe_dump(parts, sort_keys=False)


def render_status(
    studies: Sequence[str], *, scale: str | None, seeds: int | None, results_dir: Path
) -> str:
    """Counts the runs of each study's plan; a line for each that is running, stopped or failed.

    scale    None: that of the study's file, else the first of SCALES that has a run, else quick
    seeds    how many per study; None: those with at least one run
    """
    files = (results_dir / "runs").glob("*/run.json")
    present = [described for file in files if (described := read_described(file.parent))]
    at = next((name for name in SCALES if name in {run["scale"] for run in present}), "quick")
    lines: list[str] = []
    planned: dict[str, Run] = {}
    state_once = cache(lambda run_id: state_of(results_dir / "runs" / run_id))  # studies share runs
    for study in studies:
        study_scale = scale or load_study(study).scale or at
        runs = {run.run_id: run for run in study_runs([study], scale=study_scale, seeds=seeds)}
        all_seeds = {run.config.seed for run in runs.values()}
        begun = {run.config.seed for key, run in runs.items() if state_once(key).status != MISSING}
        seeds_shown = all_seeds if seeds or not begun else begun
        shown = {run_id: run for run_id, run in runs.items() if run.config.seed in seeds_shown}
        counts = Counter(state_once(run_id).status for run_id in shown)
        parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
        later = len(all_seeds - seeds_shown)
        rest = f"; {later} of the planned seeds not begun" if later else ""
        lines.append(f"{study}, {study_scale}: {len(shown)} runs: {', '.join(parts)}{rest}")
        planned |= shown
    for run_id, run in planned.items():
        state = state_once(run_id)
        if state.status in (RUNNING, STOPPED):
            steps = f"step {state.step:,} of {run.config.train.max_steps:,}"
            lines.append(f"  {state.status:<8}{run_id}  {steps}")
        elif state.status == FAILED:
            lines.append(f"  {state.status:<8}{run_id}: {state.reason}")
    others = {run["run_id"] for run in present} - planned.keys()
    if len(studies) > 1:
        lines.append(f"together {len(planned)} runs, those of two studies counted once")
    lines.append(f"{len(others)} others in {results_dir / 'runs'} (python scripts/tools.py list)")
    return "\n".join(lines)
