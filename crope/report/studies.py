"""The studies' runs among the records: one result a model, as the tables' cells have, row by row.

A row is one text at one width. What its models are compared on is the base row in all but the model itself, so RoPE's
and CRoPE's runs are Table 1's where the width is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from crope.errors import UserError
from crope.record import Record
from crope.report.frame import DATASET_LABELS, CellResult, resolve_cells
from crope.report.lengths import Lengths, read_lengths
from crope.report.stats import MIN_SEEDS
from crope.study import StudyRow
from crope.verify import DamagedRun

MIXED = "mixed"  # the status of cells whose runs may not stand beside each other (mixing.py)
BEYOND = "length"  # the study that measures its runs beyond their training length


@dataclass(frozen=True)
class Row:
    """`results` by model, in the study's order; `lengths` of those that were measured beyond their training length.

    `testable`: on this text the study has runs of its own with the seeds for a test. Where it has not, no test of the
    text was planned, whatever runs of other studies are there.
    """

    dataset: str
    width: int
    results: dict[str, CellResult]
    lengths: dict[str, Lengths]
    testable: bool = True

    @property
    def label(self) -> str:
        return DATASET_LABELS.get(self.dataset, self.dataset)


@dataclass(frozen=True)
class Study:
    """`rows` are those that were begun: a run is there that neither the tables nor another study ask for (of
    the length study, a measurement).

    `idle` names the texts of which nothing was begun. They are no part of the study's questions; a model that is
    missing on a text that was begun is.
    """

    name: str
    scale: str
    rows: tuple[Row, ...]
    idle: tuple[str, ...]

    @property
    def command(self) -> str:
        """What makes its runs."""
        return f"make reproduce STUDY={self.name} SCALE={self.scale} SEEDS=3"

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for row in self.rows for model in row.results))

    @property
    def results(self) -> list[CellResult]:
        return [result for row in self.rows for result in row.results.values()]


def build_studies(
    runs: Sequence[Record],
    expected: Sequence[StudyRow],
    *,
    tables: Collection[str],
    unavailable: Mapping[str, str],
    damaged: Sequence[DamagedRun] = (),
) -> list[Study]:
    """One a study of `expected`, in its order; `tables` are the keys of the tables' cells."""
    studies = []
    for name in dict.fromkeys(row.study for row in expected):
        asked = [row for row in expected if row.study == name]
        shared = {cell.key for row in expected if row.study != name for cell in row.cells} | set(tables)
        begun: list[Row] = []
        for dataset in dict.fromkeys(row.dataset for row in asked):
            found = _resolve([row for row in asked if row.dataset == dataset], runs, unavailable, damaged)
            if own := [n for row in found for n in _own_seeds(row, shared, beyond=name == BEYOND)]:
                begun += [replace(row, testable=max(own) >= MIN_SEEDS) for row in found]
        idle = dict.fromkeys(row.dataset for row in asked) - {row.dataset: None for row in begun}.keys()
        order = [row.dataset for row in asked if row.dataset in idle]
        studies.append(Study(name, asked[0].cells[0].scale, tuple(begun), tuple(dict.fromkeys(order))))
    return studies


def _own_seeds(row: Row, shared: Collection[str], *, beyond: bool) -> list[int]:
    """How many seeds each of the study's own results has; empty where it was not begun."""
    if beyond:
        return [max((len(by_seed) for by_seed in one.losses.values()), default=0) for one in row.lengths.values()]
    own = [result for result in row.results.values() if result.cell.key not in shared]
    return [result.n for result in own if result.status != "missing"]


def _resolve(
    rows: Sequence[StudyRow], runs: Sequence[Record], unavailable: Mapping[str, str], damaged: Sequence[DamagedRun]
) -> list[Row]:
    """The rows of one text. Runs that share no mean take the numbers from all of them, and are named as the reason."""
    cells = [cell for row in rows for cell in row.cells]
    try:
        results = resolve_cells(runs, cells, unavailable=unavailable, damaged=damaged)
    except UserError as error:
        results = [CellResult(cell, MIXED, reason=str(error)) for cell in cells]
    by_key = {result.cell.key: result for result in results}
    found = []
    for row in rows:
        of_row = {cell.model: by_key[cell.key] for cell in row.cells}
        lengths = {model: read_lengths(result) for model, result in of_row.items()} if row.study == BEYOND else {}
        measured = {model: one for model, one in lengths.items() if one is not None}
        found.append(Row(row.dataset, row.width, of_row, measured))
    return found
