"""The page: one self-contained file, without scripts and without network. All text from records is escaped by Jinja."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from crope import paper
from crope.progress import format_duration
from crope.record import Record
from crope.report.details import HEADINGS, NOTES, Detail, details_caption, printed_rows, savings_line
from crope.report.figures import FULL, Column, describe_figure, render_figure
from crope.report.frame import CellResult, build_runs_frame, crope_minus_rope, group_rows, one_line
from crope.report.stats import Difference
from crope.report.style import DARK, LIGHT, Theme
from crope.report.tables import Table
from crope.verify import DamagedRun

TEMPLATE = Path(__file__).with_name("page.html")
RUN_FILES = ("summary.json", "config.yaml", "provenance.json")


@dataclass(frozen=True)
class Page:
    """Everything the page shows; `runs` are those of `scale`, `elsewhere` counts the runs of other scales, `damaged`
    are of any scale."""

    scale: str
    runs: list[Record]
    elsewhere: int
    damaged: Sequence[DamagedRun]
    results: list[CellResult]
    tables: list[Table]
    details: list[Detail]
    columns: list[Column]
    out_dir: Path
    runs_link: str


def render_page(page: Page) -> str:
    strict = jinja2.StrictUndefined  # a name that the template misspells is an error, not an empty string
    environment = jinja2.Environment(autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    rows = run_rows(page)
    used = {run.path for result in page.results for run in result.runs}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        scale=page.scale,
        complete=sum(result.status == "complete" for result in page.results),
        cells=len(page.results),
        tables=page.tables,
        differences=difference_rows(page.results, page.tables),
        savings=savings_line(page.results),
        pictures=[_picture(column, page.scale) for column in page.columns],
        figure_note=describe_figure(page.columns),
        details_caption=details_caption(page.details, page.scale),
        details_headings=HEADINGS,
        details_rows=printed_rows(page.details),
        details_notes=NOTES,
        runs=rows,
        damaged=[(one_line(run.path.name), one_line(run.advice)) for run in page.damaged],
        failures=[row for row in rows if row["status"] == "failed"],
        unused=sum(run.path not in used for run in page.runs),
        elsewhere=page.elsewhere,
    )


def difference_rows(results: Sequence[CellResult], tables: Sequence[Table]) -> list[dict[str, str]]:
    """CRoPE - RoPE at equal seed for every row of both tables, beside the difference of the paper's printed means."""
    rows = []
    for table in tables:
        decimals = paper.PRINTED_DECIMALS[table.name]
        for group, row in zip(table.groups, group_rows(results, table.name), strict=True):
            printed = {result.cell.model: result.printed for result in row}
            crope, rope = printed.get("crope"), printed.get("rope")
            theirs = format_signed(crope.mean_nats - rope.mean_nats, decimals) if crope and rope else ""
            ours = crope_minus_rope(row)
            rows.append(
                {
                    "label": f"Table {table.name.removeprefix('table')}: {group.label}",
                    "ours": format_signed(ours.mean_nats, decimals) if ours else "",
                    "interval": format_interval(ours, decimals) if ours else "",
                    "n": str(ours.n) if ours else "0",
                    "paper": theirs,
                }
            )
    return rows


def format_interval(difference: Difference, decimals: int) -> str:
    if difference.low_nats is None or difference.high_nats is None:
        return ""
    return f"{format_signed(difference.low_nats, decimals)} to {format_signed(difference.high_nats, decimals)}"


def format_signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


def run_rows(page: Page) -> list[dict[str, Any]]:
    """Runs in the order of the cells they belong to, by seed, then those that no table needs."""
    order = {record.path: index for index, record in enumerate(run for result in page.results for run in result.runs)}
    runs = sorted(page.runs, key=lambda run: (order.get(run.path, len(order)), run.summary["run_id"]))
    return [_run_row(run, row, page) for run, row in zip(runs, build_runs_frame(runs).to_dict("records"), strict=True)]


def _run_row(run: Record, row: dict[Any, Any], page: Page) -> dict[str, Any]:
    found = Path(os.path.relpath(run.path, page.out_dir)).as_posix()
    folder = f"{page.runs_link}/{run.path.name}" if page.runs_link else found
    commit = str(row["commit"] or "")[:10]
    loss = row["val_full_final_nats"]
    return row | {
        "links": [(name, quote(f"{folder}/{name}")) for name in RUN_FILES],
        "commit": f"{commit} (changed)" if commit and row["dirty"] else commit,
        "final": "" if loss is None else f"{loss:.4f}",
        "device": " ".join(str(row[name]) for name in ("device", "precision") if row[name]),
        "time": "" if row["total_s"] is None else format_duration(row["total_s"]),
    }


def _picture(column: Column, scale: str) -> dict[str, str]:
    labels = {model: paper.MODEL_LABELS.get(model, model) for model in column.curves[FULL]}
    losses = [f"{labels[model]} ends at {curve.mean[-1]:.4f}" for model, curve in column.curves[FULL].items()]
    shown = ", ".join(losses) or "no complete run"
    text = f"{column.title}, validation loss above, training loss below, scale {scale}: {shown}."
    return {"text": text} | {theme.name: _data_uri(column, scale, theme) for theme in (LIGHT, DARK)}


def _data_uri(column: Column, scale: str, theme: Theme) -> str:
    svg = render_figure([column], scale=scale, file_format="svg", theme=theme, headed=False)
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
