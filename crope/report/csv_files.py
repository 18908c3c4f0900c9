"""Tables as CSV: Unix line ends, numbers at full printed precision, empty where there is none."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from crope import paper
from crope.report.frame import CellResult, group_rows
from crope.report.stats import Spread
from crope.report.tables import PROTOCOLS, results_of

CSV_COLUMNS = (
    "table", "row", "dataset", "model", "scale", "protocol", "mean_nats", "std_nats", "n", "paper_mean_nats",
    "paper_std_nats", "status",
)  # fmt: skip


def render_csv(results: Sequence[CellResult], name: str) -> str:
    """One line per cell and protocol; losses in nats per token with six decimals, empty where there is none."""
    rows = []
    for result in results_of(group_rows(results, name)):
        cell, printed = result.cell, result.printed
        for protocol in PROTOCOLS:
            spread = result.losses(protocol)
            rows.append([
                cell.table, cell.row, cell.dataset, cell.model, cell.scale, protocol,
                *_losses(spread), result.n, *_losses(printed), result.status,
            ])  # fmt: skip
    return to_csv(CSV_COLUMNS, rows)


def _losses(value: Spread | paper.PrintedLoss | None) -> tuple[str, str]:
    if value is None:
        return "", ""
    return f"{value.mean_nats:.6f}", "" if value.std_nats is None else f"{value.std_nats:.6f}"


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([columns, *rows])
    return buffer.getvalue()
