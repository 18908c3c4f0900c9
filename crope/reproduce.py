"""`make reproduce`: which runs, how long, do them, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crope import paper
from crope.compose import Run, load_run
from crope.data.tokens import load_tokens, unavailable
from crope.errors import ConfigError, DataError, UserError
from crope.estimate import estimate_seconds
from crope.execute import is_done
from crope.progress import StudyProgress, format_duration
from crope.record import write_json
from crope.report import report_folder
from crope.study import TABLES, jobs
from crope.workers import execute_all, worker_count

EXTRAPOLATES = "length"  # the study whose runs are measured beyond their training length as well


def reproduce(
    *,
    scale: str,
    why: str,
    seeds: Sequence[int],
    results_dir: Path,
    studies: Sequence[str] = TABLES,
    overrides: Sequence[str] = (),
) -> int:
    """Every run of the studies at one scale; `why` says how it was chosen, `overrides` set tracker and runtime.

    Returns the exit status: 1 if a run failed or data was damaged. Data that cannot be had is no failure: `tiny` stands
    in, and the report says why.
    """
    if len(seeds) < 1:
        raise ConfigError("SEEDS (--seeds) must be at least 1")
    for text in overrides:
        if not text.startswith(("tracker=", "tracker.", "runtime=", "runtime.")):
            raise ConfigError(f"'{text}': only tracker and runtime can be set here; scripts/train.py takes every key")
    common = [f"scale={scale}", f"results_dir={results_dir}", *overrides]
    some = load_run(common)
    wanted = [*paper.DATASET_LABELS, "tiny"]
    missing = unavailable(wanted, some.config.tokenizer, data_dir=Path(some.config.data_dir))
    if missing.keys() <= {"tiny"}:  # it stands in only where a dataset of the paper's cannot be had
        wanted.remove("tiny")
    datasets = [name for name in wanted if name not in missing]
    runs = [load_run([*job, *common]) for job in jobs(studies, scale=scale, seeds=seeds, datasets=datasets)]
    todo = [run for run in runs if not _is_done(run)]
    workers = worker_count(some)

    print(f"scale {scale} ({why}): {len(runs)} runs, {len(todo)} to train{_estimate(todo, workers)}", flush=True)
    for reason in missing.values():
        print(f"no runs on {reason}", flush=True)
    damaged = _prepare(todo)
    write_json(results_dir / "unavailable.json", missing | damaged)

    todo = [run for run in todo if run.dataset not in damaged]
    failed = []
    with StudyProgress(todo) as progress:
        for outcome in execute_all(todo, workers=workers):
            progress.report(outcome.text, failed=outcome.status == "failed")
            failed += [outcome.text] if outcome.status == "failed" else []
    unmeasured = []
    if EXTRAPOLATES in studies:
        unmeasured = _extrapolate([run for run in runs if run.run_id in _ids(EXTRAPOLATES, scale, seeds, datasets)])
    _, unsound = report_folder(results_dir=results_dir, scale=scale)
    if failed:
        print(f"{len(failed)} of {len(todo)} runs failed:", *failed, sep="\n  ")
    return 1 if failed or damaged or unmeasured or unsound else 0


def _ids(study: str, scale: str, seeds: Sequence[int], datasets: Sequence[str]) -> set[str]:
    return {load_run(job).run_id for job in jobs([study], scale=scale, seeds=seeds, datasets=datasets)}


def _extrapolate(runs: Sequence[Run]) -> list[str]:
    """Leaves extrapolation.json in each complete run that has none; returns why some could not be measured."""
    from crope.extrapolate import extrapolate

    problems = []
    for run in filter(_is_done, runs):
        try:
            extrapolate(run.path)
        except UserError as error:  # weights that were removed must not cost the others, nor the report
            problems.append(str(error))
            print(f"error: {error}", flush=True)
        else:
            print(f"{run.run_id}: measured beyond its length", flush=True)
    return problems


def _is_done(run: Run) -> bool:
    try:
        return is_done(run.path)
    except DataError:  # a damaged record: its turn ends in a failure that says so
        return False


def _estimate(todo: Sequence[Run], workers: int) -> str:
    if not todo:
        return ""
    seconds = estimate_seconds(todo, threads=1 if workers > 1 else 0) / workers
    return f", about {format_duration(seconds)} of training by timing a few steps of each shape, after preparing data"


def _prepare(todo: Sequence[Run]) -> dict[str, str]:
    """Token files for all runs, made once, before workers would each make them; reason by dataset that is damaged."""
    damaged = {}
    for run in {run.dataset: run for run in todo}.values():
        try:
            load_tokens(run.config.data.corpus, run.config.tokenizer, data_dir=Path(run.config.data_dir))
        except UserError as error:
            damaged[run.dataset] = str(error)
            print(f"error: {error}", flush=True)
    return damaged
