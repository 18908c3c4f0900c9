"""Run records -> one row a run, and one result a table cell. Everything the report prints starts here.

A run belongs to the cell whose `cell_key` its configuration has. Complete runs of the current NUMERICS_VERSION count;
without one the cell says why it is empty: failed, stale (only runs of other numerics are there) or missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from crope import config, paper
from crope.errors import UserError
from crope.record import Record
from crope.report.stats import Difference, Spread, paired_difference, spread_over_batches, spread_over_seeds

if TYPE_CHECKING:
    from crope.study import Cell

TINY = "tiny"
DATASET_LABELS = paper.DATASET_LABELS | {TINY: "tiny (Python's help texts)"}


@dataclass(frozen=True)
class CellResult:
    """One cell as found. `status` is complete, missing, failed or stale; `runs` are its complete runs by seed.

    `reason` says in one line why an empty cell is empty; `notes` name failed seeds beside complete ones.
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
    return " ".join(str(text).split())


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
    current = record.summary.get("numerics_version") == config.NUMERICS_VERSION
    return "stale" if status == "complete" and not current else status


def build_runs_frame(runs: Sequence[Record]) -> pd.DataFrame:
    """One row a run: identity, status, losses (nats per token), times (seconds). Absent values are None."""
    return pd.DataFrame([_run_row(run) for run in runs], columns=list(_run_row(_EMPTY)), dtype=object)


def _run_row(run: Record) -> dict[str, Any]:
    summary, provenance = run.summary, run.provenance
    sampled, full, time = (summary.get(part) or {} for part in ("val_sampled", "val_full", "time"))
    return {
        "run_id": summary["run_id"],
        "status": run_status(run),
        **{name: summary.get(name) for name in ("model", "dataset", "row", "scale", "seed", "numerics_version")},
        **{name: summary.get(name) for name in ("precision", "device_kind")},
        **{name: provenance.get(name) for name in ("device", "commit", "dirty")},
        **{name: summary.get(name) for name in ("steps", "train_tokens", "train_passes")},
        "val_sampled_mean_nats": sampled.get("mean_nats"),
        "val_sampled_std_nats": sampled.get("std_nats"),
        "val_full_final_nats": full.get("final_nats"),
        "val_full_best_nats": full.get("best_nats"),
        "val_full_best_step": full.get("best_step"),
        **{name: summary.get(name) for name in ("train_val_gap_nats", "val_nats_per_byte", "unigram_nats")},
        **{name: time.get(name) for name in ("total_s", "median_step_ms", "tokens_per_s")},
        "memory_peak_gib": summary.get("memory_peak_gib"),
        "error": error_line(summary),
    }


# A run of nothing, for the column names of an empty frame.
_EMPTY = Record(path=config.ROOT, config={}, summary={"run_id": "", "status": ""}, provenance={})


def resolve_cells(runs: Sequence[Record], cells: Sequence[Cell], *, unavailable: Mapping[str, str]) -> list[CellResult]:
    """One result a cell, in the order of `cells`.

    Raises UserError where the complete runs of a cell differ in precision or kind of device, or share a seed.
    """
    # By name as well: a sweep of the user's may compute what a cell of the table computes, under another name.
    found: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        names = (run.summary["model"], run.summary["dataset"], run.summary["row"])
        found.setdefault((*names, config.cell_key(run.config)), []).append(run)
    return [
        _resolve(cell, found.get((cell.model, cell.dataset, cell.row, cell.key), []), unavailable) for cell in cells
    ]


def _resolve(cell: Cell, runs: Sequence[Record], unavailable: Mapping[str, str]) -> CellResult:
    current = [run for run in runs if run.summary.get("numerics_version") == config.NUMERICS_VERSION]
    complete = sorted((run for run in current if run.summary["status"] == "complete"), key=_seed)
    failed = sorted((run for run in current if run.summary["status"] == "failed"), key=_seed)
    failures = tuple(f"{run.summary['run_id']} failed: {error_line(run.summary)}" for run in failed)
    if complete:
        _check_unmixed(cell, complete)
        sampled = [run.summary["val_sampled"] for run in complete]
        return CellResult(
            cell=cell,
            status="complete",
            runs=tuple(complete),
            sampled=spread_over_batches([one["mean_nats"] for one in sampled], [one["std_nats"] for one in sampled]),
            full=spread_over_seeds([run.summary["val_full"]["final_nats"] for run in complete]),
            notes=failures,
        )
    if failed:
        return CellResult(cell, "failed", reason="; ".join(failures))
    again = f"make reproduce SCALE={cell.scale}"
    if runs:
        found = ", ".join(sorted({str(run.summary.get("numerics_version")) for run in runs}))
        current_version = f"the code is at {config.NUMERICS_VERSION}"
        reason = f"only runs of numerics version {found}, {current_version}; {again} trains them again"
        return CellResult(cell, "stale", reason=reason)
    label = DATASET_LABELS.get(cell.dataset, cell.dataset)
    why = one_line(unavailable.get(cell.dataset, f"no finished run; {again} trains it"))
    why = why.removeprefix(f"{cell.dataset}: ")  # the label says it
    return CellResult(cell, "missing", reason=f"{label}: {why}")


def _seed(run: Record) -> int:
    return int(run.summary["seed"])


def _check_unmixed(cell: Cell, runs: Sequence[Record]) -> None:
    where = f"{cell.table}/{cell.row}/{cell.dataset}/{cell.model}"
    kinds = {(run.summary["precision"], run.summary["device_kind"]) for run in runs}
    if len(kinds) > 1:
        named = ", ".join(f"{r.summary['run_id']} ({r.summary['precision']}, {r.summary['device_kind']})" for r in runs)
        problem = "runs of different precision or device do not share a mean"
        raise UserError(f"{where}: {problem}: {named}; move one kind to a folder of its own and name it with --runs")
    if len({_seed(run) for run in runs}) < len(runs):
        named = ", ".join(str(run.path) for run in runs)
        raise UserError(f"{where}: two runs have the same seed: {named}; give --runs folders that hold each run once")


def losses_by_seed(result: CellResult) -> dict[int, float]:
    return {_seed(run): run.summary["val_full"]["final_nats"] for run in result.runs}


def crope_minus_rope(row: Sequence[CellResult]) -> Difference | None:
    """Paired difference of the `full` losses at equal seed within one table row; None unless both models are there."""
    by_model = {result.cell.model: result for result in row if result.status == "complete"}
    if not {"crope", "rope"} <= by_model.keys():
        return None
    return paired_difference(losses_by_seed(by_model["crope"]), losses_by_seed(by_model["rope"]))


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
