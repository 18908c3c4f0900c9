"""The report: one page, and its tables as CSV files, from run records. The same records give the
same bytes.
"""

import base64
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from crope.errors import InvalidRecord, UserError, log_line, one_line
from crope.files import write_bytes, write_text
from crope.plan.study import TABLES, expected_cells, table_cells
from crope.report import agreement, figures, tables
from crope.report.evidence import answers, load_contrasts
from crope.report.findings import findings
from crope.report.frame import (
    PUBLISHED_SCALE,
    Runs,
    by_study,
    cell_frame,
    common_seeds,
    load_curves,
    load_runs,
)
from crope.report.tables import Table, to_csv
from crope.style import render

TEMPLATE = Path(__file__).with_name("page.html")
PROTOCOL_NOTES = (
    "full: loss after the last step on the validation split (small scales: a fixed part); mean ±"
    " standard deviation over seeds. n: seeds of both RoPE and CRoPE.",
    "sampled: the paper's protocol; ± is the spread of the validation losses that are sampled in the"
    " last 10 % of the steps. At the quick scale one of them reads 128 or 512 tokens, at the paper's"
    " 12,288 and more: so the ± of small runs is larger. All models read the same batches, so that it"
    " says nothing of their difference.",
)
# Studies of whole rows of Tables 1 and 2 at the paper's own size.
PAPER_SIZE = ("paper_row", "paper_row_xpos")
# CRoPE - RoPE at each of their rates is one curve: the same steps and warm-up.
RATE_STUDIES = ("tuned_lr", "rate_edge", "rate_mean")


@dataclass(frozen=True)
class Report:
    """Holds what is printed.

    source        all runs of the user if one is of a cell of the tables, else the published ones
    shown         those of `source` that the tables show, of `by_study`
    published     the published runs, of `by_study`
    differences   the lines of the published runs, of `answers`
    own           the lines of the user's runs
    """

    runs: Runs
    source: pd.DataFrame
    shown: pd.DataFrame
    losses: Sequence[Table]
    published: pd.DataFrame
    differences: pd.DataFrame
    own: pd.DataFrame


def collect(runs: Runs) -> Report:
    """Makes everything of the report but its pictures. Raises UserError if the runs of one row are
    not comparable.
    """
    studies = expected_cells(PUBLISHED_SCALE)
    published = by_study(runs.published, [*table_cells(PUBLISHED_SCALE), *studies])
    if runs.scale != PUBLISHED_SCALE:
        studies = expected_cells(runs.scale)
    cells = table_cells(runs.scale, tiny=runs.tiny)
    own = by_study(runs.own, [*cells, *studies])
    mine = runs.own["cell_key"].isin([cell.cell_key for cell in cells]).any()
    source = runs.own if mine else runs.published
    shown = by_study(source, cells)
    large = paper_size(published) if runs.scale != "paper" else published[:0]
    losses, missing = [], tables.missing_words(source)
    for name in TABLES:
        planned, found = [frame[frame["study"] == name] for frame in (cell_frame(cells), shown)]
        losses.append(tables.loss_table(name, planned, found, large, missing))
    differences, of_own = [answers(frame, load_contrasts()) for frame in (published, own)]
    return Report(runs, source, shown, losses, published, differences, of_own.query("n > 0"))


def paper_size(published: pd.DataFrame) -> pd.DataFrame:
    """Selects the runs of whole rows at the paper's own size, each once."""
    large = published[published["study"].isin(PAPER_SIZE)].drop_duplicates("run_id")
    return common_seeds(large)


def build_report(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    out_dir: Path | None = None,
    studies: Collection[str] = TABLES,
) -> list[InvalidRecord]:
    """Reads the runs of `load_runs`, writes the page and the CSV files, and prints the results of
    `studies` and the page's path.

    `out_dir` defaults to results_dir/report, of the smoke scale report-smoke. Returns the invalid
    records, which enter no number and are named on the page and on stderr. Raises UserError if runs
    of one row are not comparable.
    """
    runs = load_runs(results_dir=results_dir, scale=scale, folders=folders)
    report = collect(runs)
    if out_dir is None:  # a smoke test leaves the report of other runs
        out_dir = results_dir / ("report-smoke" if runs.scale == "smoke" else "report")
    pictures = draw(report)
    sentences = []
    try:
        sentences = findings(report.differences)
    except UserError as error:  # after a change of the numerics, say, when published runs are stale
        log_line(f"{error}; the page has no sentences")
    files = {f"{table.name}.csv": to_csv(table.numbers) for table in report.losses}
    files["differences.csv"] = difference_csv(report)
    files["runs.csv"] = report.source.to_csv(index=False, lineterminator="\n")
    files["index.html"] = render_page(report, pictures, sentences)
    if "fig4" in pictures:
        write_bytes(out_dir / "fig4.png", render(pictures["fig4"], "png"))
    for name, content in files.items():  # the page is last: it links to the others
        write_text(out_dir / name, content)
    print_report(report, out_dir / "index.html", studies)
    return list(runs.invalid)


def draw(report: Report) -> dict[str, Figure]:
    """Draws the figures, by name; those without runs are left out."""
    drawn = {}
    of_table = report.shown[report.shown["study"] == TABLES[0]]
    if len(of_table):
        drawn["fig4"] = figures.fig4(load_curves(of_table), of_table)
    runs, lines = report.published, report.differences
    rate_runs = runs[runs["study"].isin(RATE_STUDIES) & runs["model"].isin(("rope", "crope"))]
    if len(rate_runs):
        names = [f"{study}/crope - rope" for study in RATE_STUDIES]
        drawn["rates"] = figures.rates(rate_runs, lines[lines["name"].isin(names)])
    lines = lines[(lines["dataset"] == "") & lines["mean"].notna()]
    lines = lines.assign(model=lines["name"].map(beside_rope())).dropna(subset="model")
    if len(lines):
        title = "After 3,200 steps at the paper's learning rate, 95 % over seeds"
        drawn["models"] = figures.models(lines, title)
    return drawn


def beside_rope() -> dict[str, str]:
    """Finds the contrasts of the study `cost` that subtract RoPE, P1 among them: contrast -> model."""
    models = {}
    for name, contrast in load_contrasts().items():
        model = contrast.first[0]
        beside = contrast.studies == ("cost",) and contrast.seconds == (("rope", ""),)
        if beside and model != "nope":  # ten times as far away
            models[name] = model
    return models


def difference_csv(report: Report) -> str:
    parts = [report.differences.assign(runs="published"), report.own.assign(runs="yours")]
    return to_csv(pd.concat(parts).drop(columns="by_seed"))


def render_page(report: Report, pictures: Mapping[str, Figure], sentences: Sequence[str]) -> str:
    """Fills in page.html; text is escaped."""
    runs = report.runs
    whose = "your runs" if report.source is runs.own else "the published runs"
    images = {}
    for name, figure in pictures.items():
        data = base64.b64encode(render(figure)).decode()
        images[name] = f"data:image/svg+xml;base64,{data}"
    context = {
        "report": report,
        "sentences": sentences,
        "origin": f"{report.shown['run_id'].nunique()} of {whose}",
        "notes": PROTOCOL_NOTES,
        "images": images,
        "own": tables.own_table(runs),
        "failed": failures(runs.own),
        "differences": tables.difference_tables(
            report.differences, "Differences of the published runs"
        ),
        "own_differences": tables.difference_tables(report.own, "Differences of your runs"),
        "repeats": agreement.repeats_table(runs.published),
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
    return environment.from_string(template.read_text(encoding="utf-8")).render(**context)


def print_report(report: Report, page: Path, studies: Collection[str]) -> None:
    """Prints those of Tables 1 and 2 that are asked for, how runs agree with the published ones, the
    user's differences of other studies, and where the page is.
    """
    for table in report.losses:
        if table.name in studies:
            print(f"\n{table.caption}\n{table.text(['paper', 'full', ''])}")
    public = report.differences
    lines = public[public["name"] == "table1/crope - rope"]
    if set(TABLES) & set(studies):
        print("", *agreement.verdict(report.runs, lines), sep="\n")
    contrasts = load_contrasts()
    for line in report.own.to_dict("records"):
        asked = set(contrasts[line["name"]].studies) & set(studies) - set(TABLES)
        if asked:
            place = tables.place(line)
            print(f"{line['name']}; {place}: {tables.interval_text(line)}, n = {line['n']}")
    print(f"open {page}")
    for error in report.runs.invalid:
        print(f"invalid: {error}", file=sys.stderr)
