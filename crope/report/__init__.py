"""Tables, figures and a page from run records: the same records give the same bytes.

Neither torch nor wandb is imported below this package, so a report can be made where nothing can be trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crope.errors import DataError
from crope.record import Record, read_records, write_bytes

if TYPE_CHECKING:
    from crope.study import Cell

SCALES = ("paper", "quick", "smoke")


def build_report(
    runs: list[Record], cells: list[Cell], *, unavailable: dict[str, str], out_dir: Path, scale: str, runs_link: str
) -> list[Path]:
    """Writes the report of one scale into `out_dir` and returns its files, index.html last.

    `runs` may hold runs of any scale, status and age; `cells` says what the tables expect. `unavailable` maps a dataset
    to why it could not be had. `runs_link` leads from `out_dir` to the folder of run directories; where it is empty,
    each run is linked to where it lies.
    Raises UserError where a cell's runs differ in precision or kind of device.
    """
    from crope.report.details import build_details, render_details_csv, render_details_markdown
    from crope.report.figures import build_columns, render_figure
    from crope.report.frame import build_runs_frame, resolve_cells
    from crope.report.html import Page, render_page
    from crope.report.markdown import render_markdown
    from crope.report.tables import build_table, render_csv
    from crope.report.tex import render_tex

    results = resolve_cells(runs, cells, unavailable=unavailable)
    shown = [run for run in runs if run.summary.get("scale") == scale]
    details = build_details(results)
    columns = build_columns(results)
    tables = [build_table(results, name, scale=scale) for name in ("table1", "table2")]
    page = Page(scale, shown, len(runs) - len(shown), results, tables, details, columns, out_dir, runs_link)

    texts = {"runs.csv": build_runs_frame(shown).to_csv(index=False, lineterminator="\n")}
    for table in tables:
        texts[f"{table.name}.md"] = render_markdown(table)
        texts[f"{table.name}.csv"] = render_csv(results, table.name)
        texts[f"{table.name}.tex"] = render_tex(table)
    texts["details.md"] = render_details_markdown(details, scale=scale)
    texts["details.csv"] = render_details_csv(details)
    figures = {f"fig4.{kind}": render_figure(columns, scale=scale, file_format=kind) for kind in ("svg", "png")}
    texts["index.html"] = render_page(page)

    files = {name: text.encode("utf-8") for name, text in texts.items()} | figures
    for name in sorted(files, key="index.html".__eq__):  # the page last: it links to the others
        write_bytes(out_dir / name, files[name])
    return [out_dir / name for name in sorted(files, key="index.html".__eq__)]


def report_folder(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), out_dir: Path | None = None
) -> Path:
    """Reads run directories, writes the report, prints both tables and where the page is; returns the page.

    `scale` defaults to the first of SCALES that has a run, `folders` to results_dir/runs, `out_dir` to
    results_dir/report. No run at all is no error: every cell says missing.
    """
    from crope.report.frame import DATASET_LABELS, TINY
    from crope.study import expected_cells

    folders, out_dir = list(folders) or [results_dir / "runs"], out_dir or results_dir / "report"
    runs = [run for folder in folders for run in load_runs(folder)]
    found = {(run.summary.get("scale"), run.summary.get("dataset")) for run in runs}
    scales = {name for name, _ in found}
    scale = scale or next((name for name in SCALES if name in scales), "quick")
    if scale not in scales:
        where = ", ".join(map(str, folders))
        print(f"no run of the {scale} scale in {where}: `make reproduce SCALE={scale}` makes them\n")
    files = build_report(
        runs,
        expected_cells(scale, datasets=list(DATASET_LABELS) if (scale, TINY) in found else None),
        unavailable=load_unavailable(results_dir / "unavailable.json"),
        out_dir=out_dir,
        scale=scale,
        # With several folders, each link is worked out from where its run lies.
        runs_link=Path(os.path.relpath(folders[0], out_dir)).as_posix() if len(folders) == 1 else "",
    )
    for name in ("table1.md", "table2.md"):
        print((out_dir / name).read_text(encoding="utf-8"))
    print(files[-1])
    return files[-1]


def load_runs(folder: Path) -> list[Record]:
    """Every finished run below `folder`. Raises DataError for one that cannot be read."""
    import yaml

    try:
        return read_records(folder)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{folder}: a run cannot be read ({reason}); remove its directory and make it again") from error


def load_unavailable(path: Path) -> dict[str, str]:
    """Why datasets could not be had, as the last `make reproduce` wrote it; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        reasons: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove it, `make reproduce` writes it anew") from error
    return reasons
