"""Studies: conf/study/*.yaml expanded into runs and table cells, and how far their runs are.

A study file holds the axes of a Hydra multirun (`hydra.sweeper.params`), so `train.py -m
study=table1`, `make reproduce` and the report expand the same list. Imports no torch unless
`train.precision=auto` has to be resolved.
"""

import fcntl
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from crope import paper
from crope.config import DataConfig, ModelConfig
from crope.data.corpora import missing_files
from crope.errors import ConfigError, log_line, one_line
from crope.files import read_json
from crope.runs.compose import (
    Run,
    at_precision,
    build_run,
    check,
    check_label,
    check_overrides,
    compose_config,
    group_files,
    group_values,
    load_run,
    quoted_override,
    typed,
    variant_name,
)
from crope.runs.identity import cell_key
from crope.runs.progress import last_step, tail
from crope.runs.record import UNREADABLE, Record, read_records

# Of scales with equally many runs the first one is reported.
SCALES = ("paper", "medium", "quick", "smoke")
TABLES = ("table1", "table2")
UNAVAILABLE = "unavailable.json"  # in results_dir, written by `make reproduce`


@dataclass(frozen=True)
class Cell:
    """One cell of a table or study: its runs have this `cell_key`, whatever their seed."""

    table: str
    row: str
    dataset: str
    model: str
    scale: str
    key: str


@dataclass(frozen=True)
class StudyRow:
    """The models that a study compares on one dataset at one width D; `settings` are the values of
    its other axes.
    """

    study: str
    dataset: str
    width: int
    cells: tuple[Cell, ...]
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # planned; which ones answer: report.evidence.planned_values


def study_axes(study: str) -> dict[str, list[str]]:
    """Axis -> values, the first axis varying slowest, without the scale.

    Raises ConfigError for no such study or one without axes.
    """
    axes = _axes(study)
    axes.pop("scale", None)
    if not {"data", "model"} <= axes.keys():
        raise ConfigError(
            f"conf/study/{study}.yaml: give the axes data and model in hydra.sweeper.params"
        )
    return axes


def planned_scale(studies: Iterable[str]) -> str | None:
    """The scale that the files of these studies fix; None if none does. Raises ConfigError if they
    differ.
    """
    scales = {study: _axes(study).get("scale", [None])[0] for study in studies}
    if len(set(scales.values())) > 1:
        plans = ", ".join(f"{study} at {scale or 'any scale'}" for study, scale in scales.items())
        raise ConfigError(
            f"these studies are planned at different scales ({plans}); run one after the other"
        )
    return next(iter(scales.values()), None)


def _axes(study: str) -> dict[str, list[str]]:
    file, content = f"conf/study/{study}.yaml", group_values("study", study)
    try:
        params = dict(content["hydra"]["sweeper"]["params"])
    except (KeyError, TypeError, ValueError):
        return {}
    if "# @package _global_" not in group_files("study")[study].read_text(encoding="utf-8"):
        raise ConfigError(f"{file}: give it the first line `# @package _global_`")
    if others := sorted(content.keys() - {"hydra"}):
        raise ConfigError(
            f"{file}: {', '.join(others)}: make it an axis of hydra.sweeper.params, also with one"
            " value; train.py alone would read it here"
        )
    for axis, values in params.items():
        if not isinstance(values, str | int | float):
            raise ConfigError(f"{file}: {axis}: write its values with commas between them: a,b")
    try:
        overrides = [f"{name}={values}" for name, values in params.items()]
        axes = check_overrides(overrides, multirun=True)
    except ConfigError as error:
        raise ConfigError(str(error).replace("command line", file, 1)) from error
    for axis in ("scale", "train.precision"):
        if len(axes.get(axis, ())) > 1:
            raise ConfigError(
                f"{file}: {axis}: give one value, because the runs of a study are compared; write a"
                " file for each"
            )
    return axes


@cache
def planned_seeds(study: str) -> tuple[int, ...]:
    """The seeds of the study's file, which is fixed before its runs. Raises ConfigError."""
    values = study_axes(study).get("seed", ["0"])
    if not all(value.isdecimal() for value in values) or len({*map(int, values)}) < len(values):
        raise ConfigError(
            f"conf/study/{study}.yaml: seed: {','.join(values)} must be integers from 0 with commas"
            " between them, each once"
        )
    return tuple(map(int, values))


def first_seeds(study: str, count: int | None) -> tuple[int, ...]:
    """The first `count` planned seeds (None: all); beyond these, the integers after the largest."""
    planned = planned_seeds(study)
    if count is None:
        return planned
    after = max(planned) + 1
    return (*planned, *range(after, after + count))[:count]


def study_runs(
    studies: Sequence[str] = TABLES,
    *,
    scale: str,
    seeds: int | None = None,
    datasets: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> list[Run]:
    """Runs of the studies, seeds outermost; a run of two studies is listed once. Precision may
    still be `auto`.

    seeds       of each study, as in `first_seeds`
    datasets    restricts the paper's datasets on the data axis; `tiny`, if listed, joins them
    overrides   of runtime, tracker and paths

    Raises ConfigError if two studies have the same runs at different precisions: a results folder
    holds runs of one.
    """
    runs: dict[tuple[object, ...], Run] = {}
    for study in studies:
        axes = study_axes(study)
        axes.pop("seed", None)
        for run in _compose(study, _grid(axes, datasets), [f"scale={scale}", *overrides]):
            precision = run.config.train.precision
            for seed in first_seeds(study, seeds):
                key = (seed, run.model, run.dataset, run.row, cell_key(run.container))
                same = runs.setdefault(key, replace(run, config=replace(run.config, seed=seed)))
                if same.config.train.precision != precision:
                    raise ConfigError(
                        f"conf/study/{study}.yaml: train.precision={precision}: another study has"
                        " the same runs in another precision; give each a --results-dir of its own"
                    )
    return sorted(runs.values(), key=lambda run: run.config.seed)


def expected_cells(scale: str, datasets: Sequence[str] | None = None) -> list[Cell]:
    """Cells of Tables 1 and 2 in the paper's order. `datasets` restricts the paper's three (`tiny`
    may join).
    """
    return [cell for row in expected_table_rows(scale, datasets) for cell in row.cells]


def expected_rows(scale: str, datasets: Sequence[str] | None = None) -> list[StudyRow]:
    """Rows of every study of conf/study except the two tables; `datasets` as in `expected_cells`.

    A file that is no study is reported on stderr and left out.
    """
    rows = []
    for study in group_files("study"):
        try:
            rows += _rows(study, scale, datasets) if study not in TABLES else []
        except ConfigError as error:
            log_line(f"{error}; left out")
    return rows


def expected_table_rows(scale: str, datasets: Sequence[str] | None = None) -> list[StudyRow]:
    """Rows of Tables 1 and 2, with their planned seeds."""
    return [row for table in TABLES for row in _rows(table, scale, datasets)]


def _rows(study: str, scale: str, datasets: Sequence[str] | None) -> list[StudyRow]:
    """One row per combination of the axes other than seed and model, at the scale that the study's
    file fixes, else at `scale`; a smoke test shows no study of another scale.
    """
    planned = planned_scale([study])
    if scale == "smoke" and planned not in (None, scale):
        return []
    scale = planned or scale
    axes = study_axes(study)
    models = axes.pop("model")
    axes.pop("seed", None)
    rows = []
    for choice in _grid(axes, datasets):
        choices = [choice | {"model": model} for model in models]
        runs = _compose(study, choices, [f"scale={scale}"])
        cells = tuple(
            Cell(study, run.row, run.dataset, run.model, run.scale, cell_key(run.container))
            for run in runs
        )
        settings = tuple(
            f"{axis}={value}"
            for axis, value in choice.items()
            if axis not in ("data", "model.d_model")
        )
        width, seeds = runs[0].config.model.d_model, planned_seeds(study)
        rows.append(StudyRow(study, runs[0].dataset, width, cells, settings, seeds))
    return rows


def _grid(
    axes: Mapping[str, list[str]], datasets: Sequence[str] | None
) -> Iterator[dict[str, str]]:
    if datasets is not None:
        kept = [
            name for name in axes["data"] if name in datasets or name not in paper.DATASET_LABELS
        ]
        joins = "tiny" in datasets and any(name in paper.DATASET_LABELS for name in axes["data"])
        axes = {**axes, "data": list(dict.fromkeys([*kept, *["tiny"] * joins]))}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _compose(
    study: str, choices: Iterable[Mapping[str, str]], overrides: Sequence[str]
) -> list[Run]:
    try:
        return compose_runs(choices, overrides)
    except ConfigError as error:
        raise ConfigError(f"conf/study/{study}.yaml: {error}") from error


def compose_runs(choices: Iterable[Mapping[str, str]], overrides: Sequence[str]) -> list[Run]:
    """One run per choice (axis -> value), equal to Hydra's composition of `overrides` and the
    choice.

    Hydra needs 0.2 s per composition, so it composes once per combination of the axes that are not
    of the model or the data; the sections `model` and `data`, on which no other key depends, are
    replaced.
    """
    runs = []
    for choice in choices:
        model_keys, others = [], []
        for axis, value in choice.items():
            if axis.startswith("model."):
                model_keys.append((axis.removeprefix("model."), value))
            elif axis not in ("model", "data"):
                others.append(f"{axis}={value}")
        base = _compose_base((*overrides, *sorted(others)))
        name, dataset = choice.get("model", base.model), choice.get("data", base.dataset)
        width = base.config.ablation.d_model
        plain = asdict(_model(base.model.partition("+")[0], width, ()))
        changed = asdict(base.config.model).items() - plain.items()  # by the scale or the row
        model = _model(name, width, (*changed, *model_keys))
        config = replace(base.config, model=model, data=_data(dataset))
        check(config)
        variant = variant_name(name, model)
        runs.append(replace(base, config=config, model=variant, dataset=dataset))
    return runs


@cache
def _model(name: str, d_model: int, keys: tuple[tuple[str, Any], ...]) -> ModelConfig:
    return typed(ModelConfig, {"d_model": d_model, **group_values("model", name), **dict(keys)})


@cache
def _data(name: str) -> DataConfig:
    data = typed(DataConfig, group_values("data", name))
    check_label(name, data)
    return data


@cache
def _compose_base(overrides: tuple[str, ...]) -> Run:
    cfg = compose_config(overrides)
    return build_run(cfg, cfg.hydra.runtime.choices)


DONE, RUNNING, STARTED, FAILED, MISSING = STATUSES = (
    "done",
    "running",
    "started",
    "failed",
    "missing",
)


@dataclass(frozen=True)
class RunState:
    """The state of one run."""

    run: Run
    status: str  # running: a process holds its lock; started: stopped or killed, the same command continues it
    step: int = 0  # optimiser updates in metrics.jsonl
    reason: str = ""  # of a failed or corrupt run, in one line


def study_status(
    studies: Sequence[str], *, scale: str | None, seeds: int | None, results_dir: Path
) -> str:
    """Counts of each study's runs, one line per run that is running, started or failed, and the
    time left; a run that several studies share counts there once.

    scale    None: that of the study's file, else the first of SCALES that has a finished or started
             run, else quick
    seeds    of each study, as in `first_seeds`
    """
    records, invalid = read_records(results_dir / "runs")
    scales = {record.summary["scale"] for record in records}
    default = scale or _first_scale(scales, results_dir)
    complete = [record for record in records if record.summary["status"] == "complete"]
    complete.sort(key=lambda record: record.summary["finished_utc"])
    precision = complete[-1].summary["precision"] if complete else "fp32"
    reasons = {error.path.name: error.reason for error in invalid}
    reasons |= {
        record.path.name: str(record.summary["error"]["message"])
        for record in records
        if record.summary["status"] == "failed"
    }
    done = {record.path.name for record in complete}
    data_dir = Path(load_run(["train.precision=fp32"]).config.data_dir)
    datasets = _available_datasets(results_dir, data_dir)
    lines = []
    states: dict[str, RunState] = {}
    for study in studies:
        overrides = [quoted_override("results_dir", results_dir)]
        at = scale or planned_scale([study]) or default
        runs = study_runs([study], scale=at, seeds=seeds, datasets=datasets, overrides=overrides)
        study_states = {}
        for run in runs:
            run = _recorded(run, precision)
            study_states[run.run_id] = _state(run, done, reasons)
        states.update(study_states)
        counts = Counter(state.status for state in study_states.values())
        parts = [f"{counts[name]} {name}" for name in STATUSES if counts[name]]
        lines.append(f"{study}, {at}: {len(study_states)} runs: {', '.join(parts)}")
    for state in sorted(states.values(), key=lambda state: STATUSES.index(state.status)):
        if state.status in (RUNNING, STARTED):
            steps = f"step {state.step:,} of {state.run.config.train.max_steps:,}"
            lines.append(f"  {state.status:<8}{state.run.run_id}  {steps}")
        elif state.status == FAILED:
            lines.append(f"  {state.status:<8}{state.run.run_id}: {state.reason}")
    return "\n".join(lines + _render_left(list(states.values()), complete))


def _first_scale(finished: set[str], results_dir: Path) -> str:
    """The first of SCALES that has a finished or a started run; quick if none has."""
    present = set(finished)
    for path in (results_dir / "runs").glob("*/provenance.json"):
        with suppress(*UNREADABLE):
            present.add(read_json(path)["scale"])
    return next((name for name in SCALES if name in present), "quick")


def unavailable_datasets(results_dir: Path) -> dict[str, str]:
    """Those of the paper's datasets that the last `make reproduce` could not have, and why.

    Reports a corrupt file on stderr and counts it as none.
    """
    path = results_dir / UNAVAILABLE
    try:
        reasons = dict(read_json(path)) if path.exists() else {}
    except UNREADABLE as error:
        log_line(f"{path}: corrupt ({type(error).__name__}); `make reproduce` makes it again")
        return {}
    return {name: str(reasons[name]) for name in paper.DATASET_LABELS if name in reasons}


def _available_datasets(results_dir: Path, data_dir: Path) -> list[str] | None:
    """The paper's datasets after a `make reproduce` that could not have all of them, and those whose
    text is there now: `tiny` joins.

    None: all.
    """
    unavailable = unavailable_datasets(results_dir)
    missing = {name for name in unavailable if missing_files(name, data_dir)}
    if missing:
        return [name for name in paper.DATASET_LABELS if name not in missing] + ["tiny"]
    return None


def _recorded(run: Run, default: str) -> Run:
    """`run` with precision `auto` resolved to that of its folder, or to `default`: asking the
    device needs torch.
    """
    if run.config.train.precision != "auto":
        return run
    for precision in (default, "bf16", "fp32"):
        resolved = at_precision(run, precision)
        if (resolved.path / "config.yaml").exists():
            return resolved
    return at_precision(run, default)


def _state(run: Run, complete: set[str], reasons: Mapping[str, str]) -> RunState:
    if run.run_id in complete:
        return RunState(run, DONE, run.config.train.max_steps)
    step = last_step(tail(run.path / "metrics.jsonl"))
    if is_locked(run):
        return RunState(run, RUNNING, step)
    if run.run_id in reasons:
        return RunState(run, FAILED, step, one_line(reasons[run.run_id]))
    return RunState(run, STARTED if (run.path / "config.yaml").exists() else MISSING, step)


def is_locked(run: Run) -> bool:
    """Whether a process trains the run now; it may end or start a moment later."""
    try:
        with run.lock.open() as file:  # only read: status of a folder that others write
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def seconds_left(states: Sequence[RunState], complete: Sequence[Record]) -> tuple[float, int]:
    """Seconds of training steps left, one run at a time, and the number of runs without an
    estimate.

    A run's step time is the median over complete runs of the same shape and precision on the device
    of the newest one; validation is not counted. complete: sorted by end.
    """
    times: dict[tuple[object, ...], list[float]] = {}
    for record in complete:
        if record.provenance["device"] == complete[-1].provenance["device"]:
            times.setdefault(_shape(record.config), []).append(
                record.summary["time"]["median_step_ms"]
            )
    seconds, unknown = 0.0, 0
    for state in states:
        step_ms = times.get(_shape(state.run.container), [])
        if step_ms:
            steps = state.run.config.train.max_steps - state.step
            seconds += statistics.median(step_ms) / 1000 * steps
        unknown += state.status != DONE and not step_ms
    return seconds, unknown


def _shape(config: Mapping[str, Any]) -> tuple[object, ...]:
    """What the time of a step depends on, besides the device."""
    model, train = config["model"], config["train"]
    return (
        *(train[key] for key in ("precision", "batch_size", "seq_len")),
        *(model[key] for key in ("attention", "n_layers", "n_heads", "d_model")),
        config["tokenizer"]["vocab_size"],
    )


def _render_left(states: Sequence[RunState], complete: Sequence[Record]) -> list[str]:
    seconds, unknown = seconds_left(states, complete)
    at_once = max(1, sum(state.status == RUNNING for state in states))
    parts = []
    if seconds:
        left = timedelta(seconds=round(seconds / at_once))
        parts.append(f"about {left} (h:min:s) of steps left, {at_once} at a time")
    if unknown:
        parts.append(f"no step time yet for {unknown} runs")
    return ["; ".join(parts)] if parts else []
