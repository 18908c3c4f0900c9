"""How far the runs of studies are, from their locks, metrics and records. Imports no torch."""

import fcntl
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from crope.data.corpora import find_corpus
from crope.errors import InvalidRecord, one_line
from crope.files import read_json
from crope.runs.compose import Run, at_precision, load_run, quoted_override
from crope.runs.progress import last_values
from crope.runs.record import UNREADABLE, read_record
from crope.runs.study import SCALES, planned_scale, study_runs, unavailable_datasets

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
    step_ms   median time of a step, of a run that is done
    """

    run: Run
    status: str
    step: int = 0
    reason: str = ""
    step_ms: float = 0.0


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
    """The state of each run; precision `auto` becomes that of its folder."""
    return [_state(_recorded(run)) for run in runs]


def _recorded(run: Run) -> Run:
    """Asking the device for the precision would import torch."""
    if run.config.train.precision != "auto":
        return run
    bf16 = at_precision(run, "bf16")
    return bf16 if bf16.path.exists() else at_precision(run, "fp32")


def _state(run: Run) -> RunState:
    step, reason = last_values(run)["step"], ""
    try:
        if (run.path / "summary.json").exists():
            summary = read_record(run.path).summary
            if summary["status"] == "complete":
                return RunState(run, DONE, step, step_ms=summary["time"]["median_step_ms"])
            reason = summary["error"]["message"]
    except InvalidRecord as error:
        reason = error.reason
    if is_locked(run):  # also a failed run, if it is tried again now
        return RunState(run, RUNNING, step)
    if reason:
        return RunState(run, FAILED, step, one_line(reason))
    return RunState(run, STARTED if (run.path / "config.yaml").exists() else MISSING, step)


def is_locked(run: Run) -> bool:
    """Whether a process trains the run now; it may end or start a moment later."""
    try:
        with run.lock.open() as file:  # only read: status of a folder that others write
            # Shared, so that two that look do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def step_shape(run: Run) -> tuple[object, ...]:
    """What the code of a training step and its time depend on, besides precision and device."""
    train = run.config.train
    sizes = (train.batch_size, train.seq_len, run.config.tokenizer.vocab_size)
    return (*vars(run.config.model).values(), *sizes)


def render(studies: Mapping[str, Sequence[RunState]]) -> str:
    """Counts of each study's runs, a line for each run that is running, started or failed, and the
    time left; a run that several studies share counts there once.
    """
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
    return "\n".join([*lines, *_render_left(list(by_id.values()))])


def _render_left(states: Sequence[RunState]) -> list[str]:
    """The line of the time left: training steps, without validation."""
    step_ms = {}
    for state in states:
        if state.status == DONE:
            step_ms[step_shape(state.run)] = state.step_ms  # a median: one run of a shape will do
    seconds, unknown = 0.0, 0
    for state in states:
        if known := step_ms.get(step_shape(state.run)):
            seconds += known / 1000 * (state.run.config.train.max_steps - state.step)
        else:
            unknown += 1
    parts = []
    if seconds:
        # Step times are those of runs that shared the machine, as these do.
        at_once = max(1, [state.status for state in states].count(RUNNING))
        left = timedelta(seconds=round(seconds / at_once))
        parts.append(f"about {left} (h:min:s) of steps left, {at_once} at a time")
    if unknown:
        parts.append(f"no step time yet for {unknown} runs")
    return ["; ".join(parts)] if parts else []


def _first_scale(results_dir: Path) -> str:
    """The first of SCALES that has a run, finished or not; quick if none has."""
    present = set()
    for path in (results_dir / "runs").glob("*/provenance.json"):
        with suppress(*UNREADABLE):
            present.add(read_json(path)["scale"])
    return next((scale for scale in SCALES if scale in present), "quick")


def _missing_datasets(results_dir: Path) -> list[str]:
    """Datasets that the last `make reproduce` could not have, and whose text is not there now."""
    data_dir = Path(load_run(["train.precision=fp32"]).config.data_dir)
    known = unavailable_datasets(results_dir)
    return [name for name in known if find_corpus(name).missing(data_dir)]
