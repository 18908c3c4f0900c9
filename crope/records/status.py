"""How far the runs of studies are, from their locks, metrics and records. Imports no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crope.data.corpora import find_corpus
from crope.errors import InvalidRecord, one_line
from crope.files import read_json
from crope.plan.compose import Run, load_run, quoted_override
from crope.plan.study import SCALES, planned_scale, study_runs, unavailable_datasets
from crope.records.locks import is_locked
from crope.records.store import UNREADABLE, last_values, read_record

DONE, RUNNING, STARTED, FAILED, MISSING = STATUSES = (
    "done",
    "running",  # a process holds the run's lock
    "started",  # stopped or killed: the same command continues it
    "failed",
    "missing",
)


@dataclass(frozen=True)
class RunState:
    """The state of one run.

    step      optimiser updates in metrics.jsonl
    reason    of a failed or corrupt run, in one line
    """

    run: Run
    status: str
    step: int = 0
    reason: str = ""


def study_states(
    studies: Sequence[str], *, scale: str | None, seeds: int | None, results_dir: Path
) -> dict[str, list[RunState]]:
    """The states of each study's runs, by the study's name and scale.

    scale    None: that of the study's file, else the first of SCALES that has a run, else quick
    seeds    of each study, as in `study.first_seeds`
    """
    overrides = [quoted_override("results_dir", results_dir)]
    missing = _missing_datasets(results_dir)
    found = {}
    for study in studies:
        at = scale or planned_scale([study]) or _first_scale(results_dir)
        runs = study_runs([study], scale=at, seeds=seeds, missing=missing, overrides=overrides)
        found[f"{study}, {at}"] = states(runs)
    return found


def states(runs: Iterable[Run]) -> list[RunState]:
    return [_state(run) for run in runs]


def _state(run: Run) -> RunState:
    step, reason = last_values(run.path)["step"], ""
    try:
        if (run.path / "summary.json").exists():
            summary = read_record(run.path).summary
            if summary["status"] == "complete":
                return RunState(run, DONE, step)
            reason = summary["error"]["message"]
    except InvalidRecord as error:
        reason = error.reason
    if is_locked(run):  # also a failed run, if it is tried again now
        return RunState(run, RUNNING, step)
    if reason:
        return RunState(run, FAILED, step, one_line(reason))
    return RunState(run, STARTED if (run.path / "run.json").exists() else MISSING, step)


def render(studies: Mapping[str, Sequence[RunState]]) -> str:
    """Counts each study's runs; a line for each run that is running, started or failed."""
    lines, by_id = [], {}
    for name, of_study in studies.items():
        counts = Counter(state.status for state in of_study)
        parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
        lines.append(f"{name}: {len(of_study)} runs: {', '.join(parts)}")
        for state in of_study:
            by_id[state.run.run_id] = state
    for state in sorted(by_id.values(), key=lambda state: STATUSES.index(state.status)):
        if state.status in (RUNNING, STARTED):
            steps = f"step {state.step:,} of {state.run.config.train.max_steps:,}"
            lines.append(f"  {state.status:<8}{state.run.run_id}  {steps}")
        elif state.status == FAILED:
            lines.append(f"  {state.status:<8}{state.run.run_id}: {state.reason}")
    return "\n".join(lines)


def _first_scale(results_dir: Path) -> str:
    """The first of SCALES that has a run, finished or not; quick if none has."""
    present = set()
    for path in (results_dir / "runs").glob("*/run.json"):
        with suppress(*UNREADABLE):
            present.add(read_json(path)["scale"])
    return next((scale for scale in SCALES if scale in present), "quick")


def _missing_datasets(results_dir: Path) -> list[str]:
    """Datasets that the last `make reproduce` could not have, and whose text is not there now."""
    data_dir = Path(load_run().config.data_dir)
    known = unavailable_datasets(results_dir)
    return [name for name in known if find_corpus(name).missing(data_dir)]
