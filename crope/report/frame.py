"""Run records -> one result a table cell. Everything the report prints starts here.

A run belongs to the cell whose `cell_key` its configuration has. Complete runs of the current NUMERICS_VERSION count;
without one the cell says why it is empty: failed, damaged, stale (only runs of other numerics are there) or missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crope import config, paper
from crope.record import Record
from crope.report.mixing import check_unmixed
from crope.report.stats import Spread, spread_over_batches, spread_over_seeds
from crope.verify import DamagedRun

if TYPE_CHECKING:
    from crope.study import Cell

TINY = "tiny"
DATASET_LABELS = paper.DATASET_LABELS | {TINY: "tiny (Python's help texts)"}


@dataclass(frozen=True)
class CellResult:
    """One cell as found. `status` is complete, failed, damaged, stale or missing; `runs` are its complete runs by seed.

    `reason` says in one line why an empty cell is empty; `notes` name the runs that were left out beside complete ones.
    """

    cell: Cell
    status: str
    runs: tuple[Record, ...] = ()
    sampled: Spread | None = None
    full: Spread | None = None
    reason: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def printed(self) -> paper.PrintedLoss | None:
        return paper.printed_loss(self.cell.table, self.cell.row, self.cell.dataset, self.cell.model)

    def losses(self, protocol: str) -> Spread | None:
        return {"sampled": self.sampled, "full": self.full}[protocol]


def one_line(text: object) -> str:
    return printable(" ".join(str(text).split()))


def printable(text: str) -> str:
    """Control characters, lone surrogates and marks that turn the direction of text become U+FFFD; line ends stay."""
    bad = {ord(character): "\ufffd" for character in set(text) if not character.isprintable() and character != "\n"}
    return text.translate(bad)


def error_line(summary: Mapping[str, Any]) -> str:
    """A failed run's error without its traceback; empty for a run without one."""
    error = summary.get("error")
    if not error:
        return ""
    step = error.get("step")
    at = "" if step is None else f" (step {step})"
    return one_line(f"{error.get('type', 'error')}: {error.get('message', '')}{at}")


def run_status(record: Record) -> str:
    """complete, failed, or stale: complete under another NUMERICS_VERSION."""
    status: str = record.summary["status"]
    return "stale" if status == "complete" and not _is_current(record) else status


def resolve_cells(
    runs: Sequence[Record],
    cells: Sequence[Cell],
    *,
    unavailable: Mapping[str, str],
    damaged: Sequence[DamagedRun] = (),
) -> list[CellResult]:
    """One result a cell, in the order of `cells`.

    Raises UserError where the complete runs of a table row differ in precision, kind of device or data, or where two of
    a cell share a seed.
    """
    # By name as well: a sweep of the user's may compute what a cell of the table computes, under another name.
    found: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        names = (run.summary["model"], run.summary["dataset"], run.summary["row"])
        found.setdefault((*names, config.cell_key(run.config)), []).append(run)
    results = [
        _resolve(
            cell,
            found.get((cell.model, cell.dataset, cell.row, cell.key), []),
            [run for run in damaged if _was_made_for(cell, run)],
            unavailable,
        )
        for cell in cells
    ]
    for table in dict.fromkeys(cell.table for cell in cells):
        for row in group_rows(results, table):
            check_unmixed(row)
    return results


def _resolve(
    cell: Cell, runs: Sequence[Record], damaged: Sequence[DamagedRun], unavailable: Mapping[str, str]
) -> CellResult:
    current = sorted(filter(_is_current, runs), key=_seed)
    complete = [run for run in current if run.summary["status"] == "complete"]
    failed = [run for run in current if run.summary["status"] == "failed"]
    left_out = {
        "failed": [f"{run.summary['run_id']} failed: {error_line(run.summary)}" for run in failed],
        "damaged": [f"{run.path.name} is damaged: {run.advice}" for run in damaged],
        "stale": _describe_stale([run for run in runs if not _is_current(run)]),
    }
    notes = tuple(one_line(text) for texts in left_out.values() for text in texts)
    if complete:
        sampled = [run.summary["val_sampled"] for run in complete]
        return CellResult(
            cell=cell,
            status="complete",
            runs=tuple(complete),
            sampled=spread_over_batches([one["mean_nats"] for one in sampled], [one["std_nats"] for one in sampled]),
            full=spread_over_seeds([run.summary["val_full"]["final_nats"] for run in complete]),
            notes=notes,
        )
    again = f"make reproduce SCALE={cell.scale}"
    if notes:
        status = next(status for status, texts in left_out.items() if texts)
        ending = f"; {again} trains them again" if status == "stale" else ""
        return CellResult(cell, status, reason="; ".join(notes) + ending)
    label = DATASET_LABELS.get(cell.dataset, cell.dataset)
    why = one_line(unavailable.get(cell.dataset, f"no finished run; {again} trains it"))
    why = why.removeprefix(f"{cell.dataset}: ")  # the label says it
    return CellResult(cell, "missing", reason=f"{label}: {why}")


def _was_made_for(cell: Cell, run: DamagedRun) -> bool:
    """By its name, and as far as its files can still be read by its configuration or scale."""
    named = re.compile(re.escape(f"{cell.model}-{cell.dataset}-{cell.row}-s") + r"\d+-")
    if not any(named.match(name) for name in run.names):
        return False
    return run.scale in (None, cell.scale) if run.key is None else run.key == cell.key


def _describe_stale(runs: Sequence[Record]) -> list[str]:
    """Nothing, or one line that names runs of other numerics."""
    if not runs:
        return []
    versions = ", ".join(sorted({str(run.summary["numerics_version"]) for run in runs}))
    names = ", ".join(run.summary["run_id"] for run in runs)
    return [f"of numerics version {versions} and left out (the code is at {config.NUMERICS_VERSION}): {names}"]


def _is_current(run: Record) -> bool:
    return bool(run.summary["numerics_version"] == config.NUMERICS_VERSION)


def _seed(run: Record) -> int:
    return int(run.summary["seed"])


def group_rows(results: Sequence[CellResult], table: str) -> list[list[CellResult]]:
    """The cells of one table, row by row in the paper's order; rows of other corpora come after the paper's."""
    rows: dict[tuple[str, str], list[CellResult]] = {}
    for result in results:
        if result.cell.table == table:
            rows.setdefault((result.cell.dataset, result.cell.row), []).append(result)
    return [rows[key] for key in sorted(rows, key=lambda key: key[0] not in paper.DATASET_LABELS)]


def distinct_cells(results: Sequence[CellResult]) -> list[CellResult]:
    """Each configuration once: the base row stands in both tables and is one set of runs."""
    found: dict[str, CellResult] = {}
    for result in results:
        found.setdefault(result.cell.key, result)
    return list(found.values())
