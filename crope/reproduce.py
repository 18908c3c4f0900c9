"""`make reproduce`: which runs, how long, do them, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from crope.compose import Run, load_run
from crope.data.tokens import unavailable
from crope.errors import ConfigError, UserError
from crope.estimate import estimate_seconds
from crope.execute import Outcome, execute, is_done
from crope.progress import format_seconds
from crope.record import write_json
from crope.report import report_folder
from crope.study import TABLES, jobs

PAPER_DATASETS = ("pg19", "wikitext2", "ptb")


def reproduce(*, scale: str, chosen: bool, seeds: Sequence[int], results_dir: Path) -> int:
    """Returns the exit status: 1 if a run failed or data was damaged. Data that cannot be had is no failure."""
    if len(seeds) < 1:
        raise ConfigError("SEEDS (--seeds) must be at least 1")
    common = [f"results_dir={results_dir}"]
    first = load_run([f"scale={scale}", *common])
    missing = unavailable(
        PAPER_DATASETS, first.config.tokenizer, data_dir=Path(first.config.data_dir)
    )
    datasets = [name for name in PAPER_DATASETS if name not in missing] + (["tiny"] if missing else [])
    runs = [load_run([*job, *common]) for job in jobs(TABLES, scale=scale, seeds=seeds, datasets=datasets)]
    todo = [run for run in runs if not is_done(run.path)]

    why = "" if chosen else " (no CUDA device; SCALE=paper is the paper's)" if scale == "quick" else " (CUDA device found)"
    print(f"scale {scale}{why}: {len(runs)} runs, {len(todo)} to train{_estimate(todo)}", flush=True)
    for name, reason in missing.items():
        print(f"{name}: no runs: {reason}", flush=True)
    write_json(results_dir / "unavailable.json", missing)

    outcomes = [_attempt(run, f"[{number}/{len(todo)}]") for number, run in enumerate(todo, 1)]
    report_folder(results_dir=results_dir, scale=scale)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        print(f"{len(failed)} of {len(todo)} runs failed:", *(f"  {outcome.text}" for outcome in failed), sep="\n")
    return 1 if failed else 0


def _estimate(todo: Sequence[Run]) -> str:
    if not todo:
        return ""
    text = f"; about {format_seconds(estimate_seconds(todo))} (h:mm:ss or m:ss) by timed steps of each shape"
    return text + ", and data preparation once"


def _attempt(run: Run, label: str) -> Outcome:
    try:
        outcome = execute(run)
    except UserError as error:
        outcome = Outcome(run.run_id, "failed", f"{run.run_id}: {error}")
    print(f"{label} {outcome.text}", file=sys.stdout, flush=True)
    return outcome
