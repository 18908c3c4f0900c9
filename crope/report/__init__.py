"""Tables, figures and a page from run records: the same records give the same bytes.

Neither torch nor wandb is imported below this package, so a report can be made where nothing can be trained.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crope.errors import DataError
from crope.record import Record, write_bytes
from crope.verify import DamagedRun, read_runs

if TYPE_CHECKING:
    from crope.study import Cell

SCALES = ("paper", "quick", "smoke")


def build_report(
    runs: list[Record],
    cells: list[Cell],
    *,
    unavailable: dict[str, str],
    out_dir: Path,
    scale: str,
    runs_link: str,
    damaged: Sequence[DamagedRun] = (),
) -> list[Path]:
    """Writes the report of one scale into `out_dir` and returns its files, index.html last.

    `runs` may hold runs of any scale, status and age; `cells` says what the tables expect. `unavailable` maps a dataset
    to why it could not be had. `runs_link` leads from `out_dir` to the folder of run directories; where it is empty,
    each run is linked to where it lies. `damaged` runs are named and enter no number.
    Raises UserError where runs of one table row differ in precision, kind of device or data.
    """
    from crope.report.details import build_details, render_details_csv, render_details_markdown
    from crope.report.figures import build_columns, render_figure
    from crope.report.frame import build_runs_frame, printable, resolve_cells
    from crope.report.html import Page, render_page
    from crope.report.markdown import render_markdown
    from crope.report.tables import build_table, render_csv
    from crope.report.tex import render_tex

    results = resolve_cells(runs, cells, unavailable=unavailable, damaged=damaged)
    used = {run.path for result in results for run in result.runs}  # a sweep may have made them under another scale
    shown = [run for run in runs if run.summary["scale"] == scale or run.path in used]
    details = build_details(results)
    columns = build_columns(results)
    tables = [build_table(results, name, scale=scale) for name in ("table1", "table2")]
    page = Page(scale, shown, len(runs) - len(shown), damaged, results, tables, details, columns, out_dir, runs_link)

    texts = {"runs.csv": build_runs_frame(shown, damaged).to_csv(index=False, lineterminator="\n")}
    for table in tables:
        texts[f"{table.name}.md"] = render_markdown(table)
        texts[f"{table.name}.csv"] = render_csv(results, table.name)
        texts[f"{table.name}.tex"] = render_tex(table)
    texts["details.md"] = render_details_markdown(details, scale=scale)
    texts["details.csv"] = render_details_csv(details)
    figures = {f"fig4.{kind}": render_figure(columns, scale=scale, file_format=kind) for kind in ("svg", "png")}
    texts["index.html"] = render_page(page)

    files = {name: printable(text).encode("utf-8") for name, text in texts.items()} | figures
    for name in sorted(files, key="index.html".__eq__):  # the page last: it links to the others
        write_bytes(out_dir / name, files[name])
    return [out_dir / name for name in sorted(files, key="index.html".__eq__)]


def report_folder(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), out_dir: Path | None = None
) -> tuple[Path, list[DamagedRun]]:
    """Reads run directories, writes the report, prints both tables and where the page is.

    `scale` defaults to the first of SCALES that has a run, `folders` to results_dir/runs, `out_dir` to
    results_dir/report. No run at all is no error: every cell says missing. Returns the page and the damaged runs, which
    stop nothing: each is named on the page and in a line on stderr.
    """
    from crope.report.frame import DATASET_LABELS, TINY, one_line
    from crope.study import expected_cells

    folders, out_dir = list(folders) or [results_dir / "runs"], out_dir or results_dir / "report"
    found = [read_runs(folder) for folder in folders]
    runs, damaged = [run for sound, _ in found for run in sound], [run for _, broken in found for run in broken]
    there = {(run.summary["scale"], run.summary["dataset"]) for run in runs}
    there |= {(run.scale, name) for run in damaged for name in DATASET_LABELS if f"-{name}-" in run.path.name}
    scales = {name for name, _ in there}
    scale = scale or next((name for name in SCALES if name in scales), "quick")
    if scale not in scales:
        where = ", ".join(map(str, folders))
        print(f"no run of the {scale} scale in {where}: `make reproduce SCALE={scale}` makes them\n")
    files = build_report(
        runs,
        expected_cells(scale, datasets=list(DATASET_LABELS) if (scale, TINY) in there else None),
        unavailable=load_unavailable(results_dir / "unavailable.json"),
        out_dir=out_dir,
        scale=scale,
        # With several folders, each link is worked out from where its run lies.
        runs_link=Path(os.path.relpath(folders[0], out_dir)).as_posix() if len(folders) == 1 else "",
        damaged=damaged,
    )
    for name in ("table1.md", "table2.md"):
        print((out_dir / name).read_text(encoding="utf-8"))
    for run in damaged:
        print(one_line(f"damaged: {run.path}: {run.advice}"), file=sys.stderr)
    print(files[-1])
    return files[-1], damaged


def load_unavailable(path: Path) -> dict[str, str]:
    """Why datasets could not be had, as the last `make reproduce` wrote it; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        reasons: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove it, `make reproduce` writes it anew") from error
    return reasons
