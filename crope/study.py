"""Studies: conf/study/*.yaml expanded into runs and into the cells of the tables.

A study file holds the axes of a Hydra multirun (`hydra.sweeper.params`), so `train.py -m study=table1`, `make
reproduce` and the report read one and the same list. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from crope.compose import CONF_DIR, build_run, compose_config, group_files, plain_model
from crope.config import cell_key

TABLES = ("table1", "table2")
STUDIES = ("controls", "schemes", "length", "scaling")  # what the report judges beside the tables, in its order


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
    """The models of a study that are compared: on one text, at one width D, at the base row's settings otherwise."""

    study: str
    dataset: str
    width: int
    cells: tuple[Cell, ...]


def study_axes(study: str) -> dict[str, list[str]]:
    """Axis -> values, the first axis varying slowest. Raises ConfigError for a study that does not exist."""
    return _parse_axes(compose_config([f"study={study}"]).hydra.sweeper.params or {})


def _parse_axes(params: Mapping[str, Any]) -> dict[str, list[str]]:
    parse = OverridesParser.create().parse_override
    axes = {}
    for name, values in params.items():
        override = parse(f"{name}={values}")
        axes[name] = list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(override.value())]
    return axes


def with_datasets(axes: dict[str, list[str]], datasets: Sequence[str]) -> dict[str, list[str]]:
    """The axes restricted to `datasets`, and `tiny` joined where it is among them."""
    wanted = [name for name in axes["data"] if name in datasets]
    return {**axes, "data": wanted + (["tiny"] if "tiny" in datasets else [])}


def jobs(
    studies: Sequence[str], *, scale: str, seeds: Sequence[int], datasets: Sequence[str] | None = None
) -> list[list[str]]:
    """Overrides of each run, seeds outermost over all studies; a run that two studies share stands once."""
    found: dict[tuple[str, ...], None] = {}
    for seed in seeds:
        for study in studies:
            axes = study_axes(study) | {"seed": [str(seed)]}
            for choice in _grid(with_datasets(axes, datasets) if datasets is not None else axes):
                # Sorted and with the base row written out: the same run is the same tuple in every study.
                found[tuple(sorted({"ablation=base", *choice} if not _has_row(choice) else choice))] = None
    return [[*choice, f"scale={scale}"] for choice in found]


def expected_cells(scale: str, datasets: Sequence[str] | None = None) -> list[Cell]:
    """Cells of Tables 1 and 2 in the paper's order. `datasets` replaces the paper's three (`tiny` may join)."""
    cells = []
    for table in TABLES:
        axes = {name: values for name, values in study_axes(table).items() if name != "seed"}
        for choice in _grid(with_datasets(axes, datasets) if datasets is not None else axes):
            run = build_run(compose_config([*choice, f"scale={scale}"]))
            cells.append(Cell(table, run.row, run.dataset, run.model, run.scale, cell_key(run.container)))
    return cells


def expected_rows(scale: str, datasets: Sequence[str] | None = None) -> list[StudyRow]:
    """The rows of STUDIES; `datasets` as in `expected_cells`.

    A report asks for a hundred cells, and composing each takes many seconds: what a study varies is read from its own
    file and conf/model, and set in one composed run.
    """
    base = build_run(compose_config(["model=rope", f"scale={scale}"]))
    rows = []
    for study in STUDIES:
        axes = _parse_axes(_load(f"study/{study}")["hydra"]["sweeper"]["params"])
        axes = with_datasets(axes, datasets) if datasets is not None else axes
        widths = list(map(int, axes.get("model.d_model", [base.config.model.d_model])))
        for dataset, width in itertools.product(axes["data"], widths):
            cells = tuple(
                Cell(study, base.row, dataset, model, scale, _key(base.container, model, dataset, width))
                for model in axes["model"]
            )
            rows.append(StudyRow(study, dataset, width, cells))
    return rows


def _key(base: Mapping[str, Any], model: str, dataset: str, width: int) -> str:
    chosen = {**base["model"], **_choices(model), "d_model": width}
    return cell_key({**base, "model": chosen, "data": {**base["data"], **_load(f"data/{dataset}")}})


@cache
def _choices(model: str) -> Mapping[str, Any]:
    return plain_model(model) if group_files("model")[model].suffix == ".py" else _load(f"model/{model}")


@cache
def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def _grid(axes: dict[str, list[str]]) -> Iterator[list[str]]:
    for values in itertools.product(*axes.values()):
        yield [f"{name}={value}" for name, value in zip(axes, values, strict=True)]


def _has_row(choice: Sequence[str]) -> bool:
    return any(text.startswith("ablation=") for text in choice)
