"""`make status`: done, running, failed and missing runs of a study, and when it will be over. Imports no torch."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from crope import paper
from crope.compose import Run
from crope.errors import ConfigError
from crope.progress import DIM, GREEN, RED, format_duration, is_terminal, paint
from crope.report import SCALES
from crope.report.sources import load_unavailable
from crope.state import (
    BEGUN,
    DAMAGED,
    DONE,
    FAILED,
    MISSING,
    RUNNING,
    STATUSES,
    RunState,
    find_runs,
    read_scale,
    read_states,
    seconds_left,
)
from crope.study import TABLES, jobs, study_axes

TINY = "tiny"
WATCH_SECONDS = 2.0
COLOURS = {DONE: GREEN, FAILED: RED, DAMAGED: RED, MISSING: DIM}
REMEDIES = {
    FAILED: "the study's command tries failed runs again; `make clean-failed` removes them",
    DAMAGED: "remove a damaged run's folder, and the study's command makes it again",
    BEGUN: "begun runs wait for the study's command, which goes on from their last checkpoint",
}


def study_runs(study: str | None, *, scale: str | None, seeds: int | None, results_dir: Path) -> list[Run]:
    """The runs of one study, or of both tables (None), as `make reproduce` and `train.py -m` would name them.

    scale   None: the first of SCALES that has a finished run, or of which a run of this study is begun; else quick
    seeds   None: those of the study's file, and seed 0 of the tables
    Raises ConfigError for a study that does not exist, or no seed.
    """
    if seeds is not None and seeds < 1:
        raise ConfigError("SEEDS (--seeds) must be at least 1")
    name = scale or _scale_there(study, seeds=seeds, results_dir=results_dir)
    found = find_runs(study_jobs(study, scale=name, seeds=seeds, results_dir=results_dir))
    # The stand-in for data that cannot be had belongs to the tables only once it was used.
    return [run for run in found if run.dataset != TINY or study or run.path.exists()]


def _scale_there(study: str | None, *, seeds: int | None, results_dir: Path) -> str:
    folders = [path for path in (results_dir / "runs").glob("*") if path.is_dir()]
    finished = {read_scale(path) for path in folders}
    for name in SCALES:
        if name in finished:
            return name
    for name in SCALES if folders else ():  # begun runs do not say their scale: ask each what it would be called
        jobs = study_jobs(study, scale=name, seeds=seeds, results_dir=results_dir)
        if any(find_runs([job])[0].path.exists() for job in jobs):
            return name
    return "quick"


def study_jobs(study: str | None, *, scale: str, seeds: int | None, results_dir: Path) -> list[list[str]]:
    """Overrides of each run; the tables without the datasets that the last `make reproduce` could not have."""
    listed = study_axes(study).get("seed", ["0"]) if study else ["0"]
    numbers = [int(text) for text in listed] if seeds is None else list(range(seeds))
    datasets = None
    if study is None:
        missing = load_unavailable(results_dir / "unavailable.json")
        datasets = [name for name in paper.DATASET_LABELS if name not in missing] + ([TINY] if missing else [])
    found = jobs([study] if study else TABLES, scale=scale, seeds=numbers, datasets=datasets)
    return [[*job, f"results_dir={results_dir}"] for job in found]


def render_status(states: Sequence[RunState], *, stream: TextIO | None = None, rows: int | None = None) -> str:
    """What stands where, in lines: counts, time left, then the runs that are not done. `rows` cuts it to a screen."""
    stream = stream or sys.stdout
    if not states:
        return "no runs: the study is empty"
    counts = Counter(state.status for state in states)
    parts = [f"{counts[name]} {name}" for name in STATUSES if counts[name]]
    lines = [f"{states[0].run.scale}: {len(states)} runs: {', '.join(parts)}{_left(states, counts)}"]
    for status in (RUNNING, BEGUN, FAILED, DAMAGED, MISSING):
        lines += [paint(_line(state), COLOURS.get(status, "0"), stream) for state in states if state.status == status]
    lines += [REMEDIES[status] for status in REMEDIES if counts[status]]
    if rows and len(lines) > rows:
        lines = [*lines[: rows - 1], f"... and {len(lines) - rows + 1} lines more"]
    return "\n".join(lines)


def _left(states: Sequence[RunState], counts: Counter[str]) -> str:
    if counts[DONE] == len(states):
        return ""
    left = seconds_left(states)
    if left is None:
        return "; no run says yet how long (`make plan` times a few steps)"
    pace = f"with {counts[RUNNING]} at once" if counts[RUNNING] else "once it is started, one run at a time"
    return f"; about {format_duration(left)} left {pace}"


def _line(state: RunState) -> str:
    total, text = state.run.config.train.max_steps, f"  {state.status:<8} {state.run.run_id}"
    if state.status in (RUNNING, BEGUN):
        text += f"  {100 * state.share:3.0f} %  step {state.step:,} of {total:,}"
        loss = (state.row or {}).get("val/loss_nats")
        text += f"  validation {loss:.4f}" if loss is not None else ""
    return f"{text}: {state.why}" if state.why else text


def watch(runs: Sequence[Run], *, stream: TextIO | None = None, seconds: float = WATCH_SECONDS) -> None:
    """Prints the status again and again in one place, until every run is done or has failed. Needs a terminal."""
    stream = stream or sys.stdout
    if not is_terminal(stream):
        raise ConfigError("--watch needs a terminal; without it the status is printed once")
    shown = 0
    while True:
        states = list(read_states(runs))
        text = render_status(states, stream=stream, rows=shutil.get_terminal_size().lines - 1)
        # Up to the first line of what was shown before, clear to the end of the screen.
        stream.write((f"\x1b[{shown}A" if shown else "") + "\r\x1b[J" + text + "\n")
        stream.flush()
        shown = text.count("\n") + 1
        if all(state.status in (DONE, FAILED, DAMAGED) for state in states):
            return
        time.sleep(seconds)
