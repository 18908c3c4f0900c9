"""The report: one page, and its tables as CSV files, from run records. The same records give the
same bytes.
"""

import base64
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from crope.errors import InvalidRecord, UserError, log_line, one_line
from crope.files import write_bytes, write_text
from crope.plan.study import TABLES
from crope.report import agreement, tables
from crope.report.content import Report, collect
from crope.report.contrasts import load_contrasts
from crope.report.findings import Findings, findings
from crope.report.frame import OWN_SET, load_runs
from crope.report.pictures import draw
from crope.report.tables import to_csv
from crope.style import render

TEMPLATE = Path(__file__).with_name("page.html")
PROTOCOL_NOTES = (
    "full: loss after the last step on the validation split (small scales: perhaps a part); ± the"
    " standard deviation over seeds, n seeds of both RoPE and CRoPE.",
    "lowest: the lowest full loss of a run that ends overfitted, whose last says which model"
    " memorises less.",
    "sampled: the paper's protocol; ± is the spread of the validation losses sampled in the last 10 %"
    " of the steps, in batches that all models share: it says nothing of their difference.",
)


def build_report(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    out_dir: Path | None = None,
    studies: Collection[str] | None = None,
) -> list[InvalidRecord]:
    """Reads the runs of `load_runs`, writes the page and the CSV files, and prints the results of
    `studies` (None: `Results.studies_with_a_complete_seed`, as on the page) and the page's path.

    `out_dir` defaults to results_dir/report, of the smoke scale report-smoke. Returns the invalid
    records, which enter no number. Raises UserError if runs of one row are not comparable.
    """
    runs = load_runs(results_dir=results_dir, scale=scale, folders=folders)
    report = collect(runs, studies)
    if out_dir is None:  # a smoke test leaves the report of other runs
        out_dir = results_dir / ("report-smoke" if runs.scale == "smoke" else "report")
    pictures = draw(report)
    found = None
    try:
        found = findings(report.published.stated)
    except UserError as error:  # after a change of the numerics, say, when published runs are stale
        log_line(f"{error}; the page does not say what was found")
    source = runs.own if len(runs.own) else runs.published
    files = {f"{table.name}.csv": to_csv(table.numbers) for table in report.losses}
    files["differences.csv"] = difference_csv(report)
    files["runs.csv"] = source.to_csv(index=False, lineterminator="\n")
    files["index.html"] = render_page(report, pictures, found, out_dir)
    if "fig4" in pictures:
        write_bytes(out_dir / "fig4.png", render(pictures["fig4"], "png"))
    for name, content in files.items():  # the page is last: it links to the others
        write_text(out_dir / name, content)
    print_report(report, out_dir / "index.html", studies)
    return list(runs.invalid)


def difference_csv(report: Report) -> str:
    public = report.published.lines.query("complete")  # no plan is looked at before its end
    parts = [public.assign(runs="published"), report.own.answered.assign(runs="yours")]
    return to_csv(pd.concat(parts).drop(columns=["by_seed", "there"]))


def render_page(
    report: Report, pictures: Mapping[str, Figure], found: Findings | None, out_dir: Path
) -> str:
    """Fills in page.html for `out_dir`, from which it links to the runs' folders; text is escaped."""
    images = {}
    for name, figure in pictures.items():
        data = base64.b64encode(render(figure)).decode()
        images[name] = f"data:image/svg+xml;base64,{data}"
    links = {}
    for run in report.runs.of_scale.to_dict("records"):
        if run["record_set"] == OWN_SET:  # a published set has no folders
            links[run["run_id"]] = os.path.relpath(Path(run["folder"]) / run["run_id"], out_dir)
    caption = "Differences of your runs after the last step"
    public = tables.planned_lines(report.published.lines)
    context = {
        "report": report,
        "found": found,
        "count": report.shown["run_id"].nunique(),
        "notes": PROTOCOL_NOTES,
        "images": images,
        "own": tables.own_table(report.runs),
        "links": links,
        "failed": failures(report.runs.of_scale),
        "own_differences": replace(
            tables.difference_table(report.differences, caption), name="own_differences"
        ),
        "differences": tables.difference_table(public, "Planned differences of the published runs"),
        "repeats": agreement.repeats_table(report.runs.published),
    }
    return render_template(TEMPLATE, context, autoescape=True)


def failures(own: pd.DataFrame) -> list[str]:
    """Lists the user's failed runs: `<run id>: ValueError: loss is nan (step 20)`."""
    lines = []
    for run in own[own["status"] == "failed"].to_dict("records"):
        at = "" if pd.isna(run["error.step"]) else f" (step {run['error.step']:.0f})"
        lines.append(f"{run['run_id']}: {run['error.type']}: {run['error.message']}{at}")
    return list(map(one_line, lines))


def render_template(template: Path, context: Mapping[str, Any], *, autoescape: bool) -> str:
    environment = jinja2.Environment(
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    # The page has no Markdown: of links and code the text alone.
    environment.filters["plain"] = lambda text: re.sub(r"\[(.*?)\]\(.*?\)|`", r"\1", str(text))
    return environment.from_string(template.read_text(encoding="utf-8")).render(**context)


def print_report(report: Report, page: Path, studies: Collection[str] | None) -> None:
    """Prints the losses and differences of the user's studies, Tables 1 and 2 if asked for, how
    these agree with the published runs, and the page's path.
    """
    contrasts = load_contrasts()
    for table in report.studies:
        if studies and table.name not in studies:
            continue
        print(f"\n{table.caption}\n{table.frame.to_string(index=False)}")
        for line in report.differences.to_dict("records"):
            contrast = contrasts[line["name"]]
            if table.name in contrast.studies:
                print(tables.line_text(contrast, line))
    for of_paper in report.losses:
        # Published losses stand on the page; here they would look like the user's.
        own = report.whose == "your runs" or report.runs.own.empty
        if own and of_paper.name in (studies or TABLES):
            print(f"\n{fill(of_paper.caption)}\n{of_paper.text()}")
    if report.whose != "your runs" and len(report.runs.own) and not report.studies:
        print("\nyour runs make no whole study yet: python scripts/tools.py list")
    print("", *map(fill, report.verdict), f"open {page}", sep="\n")
    for error in report.runs.invalid:
        print(f"invalid: {error}", file=sys.stderr)
