"""CRoPE - RoPE in every configuration that both were trained in: does a choice that the paper leaves open decide?

Two runs share a configuration where their scientific part agrees in all but the seed and what makes the model. The
cells of the tables are among them; a pilot's runs, which differ from a table's row in dropout, say, are more.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crope import paper
from crope.config import cell_key, scientific
from crope.record import Record
from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import COMPARED_AT, MEASURES, pair_label
from crope.report.csv_files import to_csv
from crope.report.figures import Plot
from crope.report.forest import ForestRow, forest_label, pair_panel, plot_forest
from crope.report.frame import DATASET_LABELS, CellResult, one_line, run_status
from crope.report.mixing import data_of
from crope.report.sheets import Sheet
from crope.report.stats import Difference, paired_difference

PAIR = ("crope", "rope")
MAKES_THE_MODEL = ("model.position", "model.projection", "model.attention")
CSV_COLUMNS = ("dataset", "configuration", "in_tables", "at", "n", "mean_nats", "t_low_nats", "t_high_nats")
HEADINGS = (
    "Dataset",
    "Configuration",
    "Difference",
    "n",
    *(text for at in COMPARED_AT for text in (at.capitalize(), "95 % (t)")),
)


@dataclass(frozen=True)
class Choice:
    """One configuration: how it differs from the table's, both models' cell keys, and a difference at each measure."""

    dataset: str
    label: str
    in_tables: bool
    keys: tuple[str, str]
    differences: tuple[Difference, ...]


def build_choices(runs: Sequence[Record], results: Sequence[CellResult]) -> list[Choice]:
    """Every configuration with a seed that CRoPE and RoPE share, the tables' cells first; none where these are all."""
    rows = {result.cell.key: result.cell.row for result in results}
    groups: dict[str, dict[str, dict[int, Record]]] = {}
    counted = (run for run in runs if run_status(run) == "complete" and run.summary["model"] in PAIR)
    for run in sorted(counted, key=lambda run: (cell_key(run.config) not in rows, run.path.name)):
        by_model = groups.setdefault(_shared_part(run), {})
        by_model.setdefault(run.summary["model"], {}).setdefault(run.summary["seed"], run)
    pairs = [(group["crope"], group["rope"]) for group in groups.values() if len(group) == len(PAIR)]
    pairs = [(crope, rope) for crope, rope in pairs if crope.keys() & rope.keys()]
    configs = [_any(rope).config for _, rope in pairs]
    references = [config for config in configs if cell_key(config) in rows] or configs[:1]
    choices = [_build(crope, rope, references, rows) for crope, rope in pairs]
    return choices if any(not choice.in_tables for choice in choices) else []


def _shared_part(run: Record) -> str:
    """Equal for runs that differ in seed and model alone; what may not be mixed stays apart."""
    leaves = {name: value for name, value in _leaves(scientific(run.config)) if name not in ("seed", *MAKES_THE_MODEL)}
    return json.dumps([leaves, run.summary["device_kind"], data_of(run)], sort_keys=True)


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _any(by_seed: Mapping[int, Record]) -> Record:
    return next(iter(by_seed.values()))


def _build(
    crope: Mapping[int, Record],
    rope: Mapping[int, Record],
    references: Sequence[Mapping[str, Any]],
    rows: Mapping[str, str],
) -> Choice:
    differences = []
    for at in COMPARED_AT:
        part, name = MEASURES[at]
        losses = [{seed: run.summary[part][name] for seed, run in by_seed.items()} for by_seed in (crope, rope)]
        found = paired_difference(*losses)
        assert found is not None  # a seed is shared
        differences.append(found)
    config, dataset = _any(rope).config, _any(rope).summary["dataset"]
    keys = (cell_key(_any(crope).config), cell_key(config))
    return Choice(dataset, one_line(_label(config, references, rows)), keys[1] in rows, keys, tuple(differences))


def _label(config: Mapping[str, Any], references: Sequence[Mapping[str, Any]], rows: Mapping[str, str]) -> str:
    """The row of the nearest table cell, and the keys in which a configuration differs from it."""
    own = _compared(config)
    different = [
        [f"{key}={value}" for key, value in own.items() if found.get(key) != value]
        for found in map(_compared, references)
    ]
    nearest = min(range(len(references)), key=lambda index: len(different[index]))
    row = rows.get(cell_key(dict(references[nearest])), "base")
    return ", ".join([*([] if row == "base" and different[nearest] else [paper.row_label(row)]), *different[nearest]])


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ("seed", "data.corpus", *MAKES_THE_MODEL)
    return {key: value for key, value in _leaves(scientific(dict(config))) if key not in left_out}


def build_choices_figure(choices: Sequence[Choice], margin: float) -> Plot:
    rows = [ForestRow(_two_lines(choice), choice.differences) for choice in choices]
    return plot_forest("choices", "CRoPE − RoPE under every choice", [pair_panel(PAIR, rows)], margin=margin)


def _two_lines(choice: Choice) -> str:
    if choice.label == paper.row_label("base"):
        return forest_label(choice.dataset, "base")
    dataset = DATASET_LABELS.get(choice.dataset, choice.dataset)
    return textwrap.fill(textwrap.shorten(f"{dataset}, {choice.label}", 80), 40)


def render_choices_csv(choices: Sequence[Choice]) -> str:
    """One line a configuration and measure, CRoPE - RoPE in nats per token."""
    rows = []
    for choice in choices:
        for at, found in zip(COMPARED_AT, choice.differences, strict=True):
            numbers = (found.mean_nats, found.low_nats, found.high_nats)
            texts = ["" if number is None else f"{number:.6f}" for number in numbers]
            rows.append([choice.dataset, choice.label, choice.in_tables, at, found.n, *texts])
    return to_csv(CSV_COLUMNS, rows)


def choices_sheet(choices: Sequence[Choice], *, scale: str) -> Sheet:
    return Sheet(
        name="choices",
        caption=f"{pair_label(*PAIR)} at equal seed in every configuration found, nats per token. Scale: {scale}.",
        headings=HEADINGS,
        rows=tuple(_printed(choice) for choice in choices),
        text_columns=(0, 1, 2),
        keys=tuple(choice.keys for choice in choices),
        link_column=HEADINGS.index("Difference"),
    )


def _printed(choice: Choice) -> tuple[str, ...]:
    numbers = [
        text
        for found in choice.differences
        for text in (format_nats(found.mean_nats), format_range(found.low_nats, found.high_nats))
    ]
    dataset = DATASET_LABELS.get(choice.dataset, choice.dataset)
    return (dataset, choice.label, pair_label(*PAIR), str(choice.differences[0].n), *numbers)
