"""Studies: conf/study/*.yaml expanded into runs and table cells, and how far their runs are.

A study file holds the axes of a Hydra multirun (`hydra.sweeper.params`), so `train.py -m study=table1`, `make
reproduce` and the report expand the same list. Imports no torch unless `train.precision=auto` has to be resolved.
"""

from __future__ import annotations

import copy
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from crope.compose import Run, build_run, compose_config, group_files, resolve_precision
from crope.config import Config, cell_key
from crope.errors import ConfigError, InvalidRecord
from crope.record import Record, read_metrics, read_records

TABLES = ("table1", "table2")
SECTIONS = ("model", "data", "ablation")  # groups whose files fill one section of the schema


@dataclass(frozen=True)
class Cell:
    """One cell of a table: the runs that belong to it have this `cell_key`, whatever their seed."""

    table: str
    row: str
    dataset: str
    model: str
    scale: str
    key: str


@dataclass(frozen=True)
class StudyRow:
    """The models that a study compares on one dataset at one width D; `settings` are the values of its other axes."""

    study: str
    dataset: str
    width: int
    cells: tuple[Cell, ...]
    settings: tuple[str, ...] = ()


@cache
def _yaml(group: str, name: str) -> Any:
    """Content of conf/<group>/<name>.yaml. Raises ConfigError if there is no such file."""
    files = group_files(group)
    if name not in files:
        raise ConfigError(f"there is no conf/{group}/{name}.yaml; there are: {', '.join(files)}")
    return yaml.safe_load(files[name].read_text(encoding="utf-8"))


def study_axes(study: str) -> dict[str, list[str]]:
    """Axis -> values, the first axis varying slowest. Raises ConfigError for a study that does not exist."""
    params, parse = _yaml("study", study)["hydra"]["sweeper"]["params"], OverridesParser.create().parse_override
    parsed = {name: parse(f"{name}={values}") for name, values in params.items()}
    return {
        name: list(axis.sweep_string_iterator()) if axis.is_sweep_override() else [str(axis.value())]
        for name, axis in parsed.items()
    }


def study_runs(
    studies: Sequence[str] = TABLES,
    *,
    scale: str,
    seeds: Iterable[int] | None = None,
    datasets: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> list[Run]:
    """Runs of the studies, seeds outermost; a run of two studies is listed once. Precision may still be `auto`.

    seeds       None: those of each study's file
    datasets    restricts the data axis; `tiny` may join it
    overrides   of runtime, tracker and paths
    """
    found: dict[tuple[object, ...], tuple[int, Run]] = {}
    for study in studies:
        axes = study_axes(study)
        own = axes.pop("seed", ["0"])
        for run in compose_runs(_grid(axes, datasets), [f"scale={scale}", *overrides]):
            for seed in map(int, own) if seeds is None else seeds:
                key = (seed, run.model, run.dataset, run.row, cell_key(run.container))
                found.setdefault(key, (seed, replace(run, config=replace(run.config, seed=seed))))
    return [run for _, run in sorted(found.values(), key=lambda item: item[0])]


def expected_cells(scale: str, datasets: Sequence[str] | None = None) -> list[Cell]:
    """Cells of Tables 1 and 2 in the paper's order. `datasets` restricts the paper's three (`tiny` may join)."""
    return [cell for table in TABLES for row in _rows(table, scale, datasets) for cell in row.cells]


def expected_rows(scale: str, datasets: Sequence[str] | None = None) -> list[StudyRow]:
    """Rows of every study of conf/study except the two tables; `datasets` as in `expected_cells`."""
    return [row for study in group_files("study") if study not in TABLES for row in _rows(study, scale, datasets)]


def _rows(study: str, scale: str, datasets: Sequence[str] | None) -> list[StudyRow]:
    """One row per combination of the axes other than seed and model."""
    axes = study_axes(study)
    models = axes.pop("model")
    axes.pop("seed", None)
    choices = list(_grid(axes, datasets))
    runs = iter(compose_runs(({**choice, "model": model} for choice in choices for model in models), [f"scale={scale}"]))
    rows = []
    for choice in choices:
        group = [next(runs) for _ in models]
        cells = [Cell(study, run.row, run.dataset, run.model, run.scale, cell_key(run.container)) for run in group]
        settings = [f"{axis}={value}" for axis, value in choice.items() if axis not in ("data", "model.d_model")]
        rows.append(StudyRow(study, group[0].dataset, group[0].config.model.d_model, tuple(cells), tuple(settings)))
    return rows


def _grid(axes: Mapping[str, list[str]], datasets: Sequence[str] | None) -> Iterator[dict[str, str]]:
    if datasets is not None:
        kept = [name for name in axes["data"] if name in datasets]
        axes = {**axes, "data": kept + (["tiny"] if "tiny" in datasets else [])}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def compose_runs(choices: Iterable[Mapping[str, str]], overrides: Sequence[str]) -> list[Run]:
    """One run per choice (axis -> value), equal to Hydra's composition of `overrides` and the choice.

    Hydra needs 0.2 s per composition. So `overrides` are composed once, and each choice replaces sections and keys in
    the unresolved result; interpolations are resolved afterwards, by `build_run`.
    """
    composed = compose_config(overrides)
    names = dict(composed.hydra.runtime.choices)
    plain = OmegaConf.to_container(OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]))
    defaults = OmegaConf.to_container(OmegaConf.structured(Config))
    assert isinstance(plain, dict) and isinstance(defaults, dict)
    runs = []
    for choice in choices:
        chosen = {group: choice[group] for group in SECTIONS if group in choice}
        sections = {group: defaults[group] | _yaml(group, name) for group, name in chosen.items()}
        cfg = OmegaConf.create({**plain, **sections})
        for key in choice.keys() - chosen.keys():
            OmegaConf.update(cfg, key, choice[key])
        texts = [*overrides, *(f"{axis}={value}" for axis, value in choice.items())]
        cfg.hydra = {"runtime": {"choices": {**names, **chosen}}, "overrides": {"task": texts}}
        runs.append(build_run(cfg))
    return runs
