"""What the paper states and what was run, key by key, from crope/paper.py and the runs' own configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crope import config, paper
from crope.report.comparisons import rows_by_model
from crope.report.frame import CellResult

# Keys that the tables vary: their values are in the rows' labels. Those of MODEL make the models.
VARIED = ("seed", "data.corpus", "train.precision")
MODEL = ("model.position", "model.projection", "model.attention")


@dataclass(frozen=True)
class Value:
    """The paper's value in one row of Table 2 and the one that was run; `here` is empty where nothing was."""

    stated: str
    here: str

    @property
    def differs(self) -> bool:
        return bool(self.here) and self.here != self.stated


@dataclass(frozen=True)
class Stated:
    """A key whose value the paper gives in `section`; a value for each row of Table 2, whose first is Table 1's."""

    key: str
    meaning: str
    section: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Chosen:
    """A key that the paper leaves open, and what was run."""

    key: str
    meaning: str
    here: str


def stated_settings(results: Sequence[CellResult]) -> list[Stated]:
    """Every value that the paper states, row by row."""
    runs: dict[str, Mapping[str, Any]] = {}
    for (_, row), models in rows_by_model(results).items():
        if found := _first(models):
            runs.setdefault(row, found)
    settings = []
    for key, stated in paper.SETTINGS.items():
        values = [
            Value(_text(varied.get(key.partition(".")[2], stated.value)), _text(_at(runs.get(row, {}), key)))
            for row, varied in paper.ROWS.items()
        ]
        settings.append(Stated(key, _meaning(key), f"Sec. {stated.section}", tuple(values)))
    ratio, meaning = paper.FFN_RATIO, "width of the feed-forward layer over d_model"
    here = [_text(config.FFN_RATIO if row in runs else None) for row in paper.ROWS]
    widths = tuple(Value(_text(ratio.value), one) for one in here)
    return [*settings, Stated("ffn_ratio", meaning, f"Sec. {ratio.section}", widths)]


def row_labels() -> list[str]:
    return [paper.row_label(row) for row in paper.ROWS]


def open_settings(results: Sequence[CellResult]) -> list[Chosen]:
    """Every other key that a number can depend on: what this repository chose."""
    runs = [found for row in rows_by_model(results).values() if (found := _first(row))]
    left_out = {*paper.SETTINGS, *VARIED, *MODEL}
    settings = []
    for key in _scientific_keys():
        values = list(dict.fromkeys(_text(value) for run in runs if (value := _at(run, key)) is not None))
        if key not in left_out and values:
            settings.append(Chosen(key, _meaning(key), ", ".join(values)))
    return settings


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value)


def _scientific_keys() -> Iterator[str]:
    known = config.keys()
    return (key for key in known if key.partition(".")[0] in config.SCIENTIFIC)


def _meaning(key: str) -> str:
    text: str = config.keys()[key].metadata["text"]
    return text


def _first(row: Mapping[str, CellResult]) -> dict[str, Any] | None:
    """The models of a row differ in MODEL alone, so that any run speaks for all."""
    return next((result.runs[0].config for result in row.values() if result.runs), None)


def _at(run: Mapping[str, Any], key: str) -> Any:
    value: Any = run
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
