"""The page's list of runs, grouped by the cell that they stand behind, so that every number leads to its runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from crope import paper
from crope.config import cell_key
from crope.progress import format_duration
from crope.record import Record
from crope.report.comparisons import model_label
from crope.report.frame import DATASET_LABELS, CellResult, distinct_cells, error_line, run_status
from crope.report.tables import PROTOCOLS, format_spread

RUN_FILES = ("config.yaml", "provenance.json", "metrics.jsonl", "summary.json")
MEASURED_LATER = ("extrapolation.json",)
OWN, COMMITTED = "runs", "published"


@dataclass(frozen=True)
class RunRow:
    """One run as text; `links` are (name, target) of its files."""

    run_id: str
    seed: str
    status: str
    final: str
    best: str
    commit: str
    device: str
    time: str
    links: tuple[tuple[str, str], ...]
    error: str


@dataclass(frozen=True)
class RunGroup:
    """The runs of one configuration; `numbers` are the cell's, empty where no table has it."""

    anchor: str
    title: str
    numbers: str
    rows: tuple[RunRow, ...]


def anchor(key: str, whose: str = OWN) -> str:
    """Where on the page the runs of a cell stand."""
    return f"{whose}-{key[:10]}"


def group_runs(
    results: Sequence[CellResult], runs: Sequence[Record], *, out_dir: Path, whose: str = OWN
) -> list[RunGroup]:
    """The cells' groups in the tables' and studies' order, then configurations that neither asks for."""
    cells = {(r.cell.dataset, r.cell.row, r.cell.model, r.cell.key): r for r in distinct_cells(results)}
    found: dict[tuple[str, str, str, str], list[Record]] = {place: [] for place in cells}
    for run in sorted(runs, key=lambda run: (run.summary["seed"], run.path.name)):
        names = (run.summary["dataset"], run.summary["row"], run.summary["model"])
        found.setdefault((*names, cell_key(run.config)), []).append(run)
    groups: list[RunGroup] = []
    for place, members in found.items():
        if members:
            dataset, row, model, key = place
            title = ", ".join([DATASET_LABELS.get(dataset, dataset), _settings(row, members[0]), model_label(model)])
            rows = tuple(_row(run, out_dir) for run in members)
            name = anchor(key, whose) if place in cells else f"{anchor(key, whose)}-{len(groups)}"
            groups.append(RunGroup(name, title, _numbers(cells[place]) if place in cells else "", rows))
    return groups


def _settings(row: str, run: Record) -> str:
    """The row's label; a study of widths leaves the row's own."""
    width = run.config["model"]["d_model"]
    return paper.row_label(row) + (
        "" if paper.ROWS.get(row, {}).get("d_model", width) == width else f", here D={width}"
    )


def _numbers(result: CellResult) -> str:
    decimals = paper.PRINTED_DECIMALS.get(result.cell.table, 4)
    spreads = [(protocol, result.losses(protocol)) for protocol in PROTOCOLS]
    return ", ".join(f"{protocol} {format_spread(spread, decimals)}" for protocol, spread in spreads if spread)


def _row(run: Record, out_dir: Path) -> RunRow:
    summary, facts = run.summary, run.provenance
    complete = summary["status"] == "complete"
    folder = Path(os.path.relpath(run.path, out_dir)).as_posix()
    later = [name for name in MEASURED_LATER if (run.path / name).exists()]
    commit = (facts["commit"] or "unknown")[:10]
    return RunRow(
        run_id=summary["run_id"],
        seed=str(summary["seed"]),
        status=run_status(run),
        final=f"{summary['val_full']['final_nats']:.4f}" if complete else "",
        best=f"{summary['val_full']['best_nats']:.4f}" if complete else "",
        commit=f"{commit} (changed)" if facts["dirty"] else commit,
        device=f"{facts['device']} {summary['precision']}",
        time=format_duration(summary["time"]["total_s"]) if complete else "",
        links=tuple((name, quote(f"{folder}/{name}")) for name in (*RUN_FILES, *later)),
        error=error_line(summary),
    )
