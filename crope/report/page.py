"""The report: one page, and its tables as CSV files, from run records. The same records give the
same bytes.
"""

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from crope.errors import InvalidRecord
from crope.files import write_bytes, write_text
from crope.report import agreement, figures, tables
from crope.report.evidence import answers, load_contrasts
from crope.report.findings import findings
from crope.report.frame import PUBLISHED, Runs, by_study, curves_of, load_runs
from crope.report.tables import Table
from crope.runs.study import TABLES, StudyRow, expected_rows, expected_table_rows
from crope.style import render

PUBLISHED_SCALE = "quick"  # of the studies that are published, where their files name none
TEMPLATE = Path(__file__).with_name("page.html")
PROTOCOL_NOTES = (
    "full: loss after the last step on the validation split or, at the smaller scales, on a fixed"
    " part of it; mean ± standard deviation over seeds. n: seeds that RoPE and CRoPE share.",
    "sampled: the paper's protocol; ± is the spread of the validation losses that are sampled in the"
    " last 10 % of the steps. At the quick scale one of them reads 512 tokens, at the paper's 16,384"
    " and more: so the ± is ten times the paper's. All models read the same batches, so that it says"
    " nothing of their difference.",
)


@dataclass(frozen=True)
class Report:
    """What is printed. `differences` are lines of `answers` of the published runs, `own` those of
    the user's.
    """

    runs: Runs
    rows: Sequence[StudyRow]
    joined: pd.DataFrame
    published: pd.DataFrame
    losses: Sequence[Table]
    differences: pd.DataFrame
    own: pd.DataFrame
    sentences: Sequence[str]
    pictures: dict[str, Figure] = field(default_factory=dict)


def collect(runs: Runs) -> Report:
    """Everything of the report but its pictures. Raises UserError if the runs of one row are not
    comparable.
    """
    contrasts = load_contrasts()
    table_rows = expected_table_rows(runs.scale, runs.datasets)
    public_rows = [*expected_table_rows(PUBLISHED_SCALE), *expected_rows(PUBLISHED_SCALE)]
    published = by_study(runs.published, public_rows)
    rows = public_rows
    if runs.scale != PUBLISHED_SCALE:
        rows = [*table_rows, *expected_rows(runs.scale)]
    own = by_study(runs.own, rows)
    joined = own if runs.shown is runs.own else by_study(runs.published, table_rows)
    large = _paper_size(published) if runs.scale != "paper" else published.iloc[:0]
    reasons = tables.missing_reasons(runs, table_rows)
    losses = []
    for name in TABLES:
        of_table = [row for row in table_rows if row.study == name]
        of_runs = joined[joined["study"] == name]
        losses.append(tables.loss_table(name, of_table, of_runs, large, reasons))
    differences = answers(published, contrasts)
    sentences = findings(differences) if len(published) else []
    return Report(
        runs,
        rows,
        joined,
        published,
        losses,
        differences,
        answers(own, contrasts).query("n > 0"),
        sentences,
    )


def _paper_size(published: pd.DataFrame) -> pd.DataFrame:
    """The runs of whole rows at the paper's own size, each once."""
    large = published[published["study"].isin(PAPER_SIZE)]
    return large.drop_duplicates(["run_id", "record_set"])


# Studies of whole rows of Tables 1 and 2 at the paper's own size.
PAPER_SIZE = ("paper_row", "paper_row_xpos", "paper_rows", "paper_ptb")


def build_report(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    out_dir: Path | None = None,
    published: Path = PUBLISHED,
) -> list[InvalidRecord]:
    """Reads the runs of `load_runs`, writes the page and the CSV files, and prints both tables, how
    the runs agree with the published ones, and the page's path.

    `out_dir` defaults to results_dir/report, of the smoke scale report-smoke. Returns the invalid
    records, which enter no number and are named on the page and on stderr. Raises UserError if runs
    of one row are not comparable.
    """
    runs = load_runs(results_dir=results_dir, scale=scale, folders=folders, published=published)
    report = collect(runs)
    if out_dir is None:  # a smoke test leaves the report of other runs
        out_dir = results_dir / ("report-smoke" if runs.scale == "smoke" else "report")
    for name, figure in draw(report).items():
        report.pictures[name] = figure
    files = {f"{table.name}.csv": table.csv() for table in report.losses}
    files["differences.csv"] = difference_csv(report)
    files["runs.csv"] = runs.shown.to_csv(index=False, lineterminator="\n")
    files["index.html"] = render_page(report)
    if "fig4" in report.pictures:
        write_bytes(out_dir / "fig4.png", render(report.pictures["fig4"], "png"))
    for name, content in files.items():  # the page is last: it links to the others
        write_text(out_dir / name, content)
    print_report(report, out_dir / "index.html")
    return list(runs.invalid)


def draw(report: Report) -> dict[str, Figure]:
    """The figures by name; those without runs are left out."""
    drawn = {}
    of_table = report.joined[report.joined["study"] == TABLES[0]]
    if len(of_table):
        datasets = list(of_table["dataset"].unique())
        drawn["fig4"] = figures.fig4(curves_of(of_table), of_table, datasets)
    published = report.published
    if len(rate_runs := published[published["study"].isin(RATE_STUDIES)]):
        drawn["rates"] = figures.rates(rate_runs, rate_lines(report.differences))
    lines = report.differences[report.differences["name"].isin(beside_rope())]
    lines = lines[(lines["dataset"] == "") & (lines["n"] > 0)]
    if len(lines):
        first = lines["name"].map(lambda name: load_contrasts()[name].first[0])
        title = "After 3,200 steps at the paper's learning rate, 95 % over seeds"
        drawn["models"] = figures.models(lines.assign(first=first), title)
    measured = report.joined[report.joined["study"] == "length"].dropna(subset="lengths")
    if len(measured):
        drawn["length"] = figures.length(measured)
    widths = report.joined[report.joined["study"] == "scaling"]
    if len(widths):
        lines = report.differences
        lines = lines[(lines["name"] == "scaling/crope - rope") & (lines["dataset"] == "ptb")]
        drawn["scaling"] = figures.scaling(widths[widths["dataset"] == "ptb"], lines)
    return drawn


# CRoPE - RoPE at each of their rates is one curve: the same corpus, steps, warm-up and seeds.
RATE_STUDIES = ("tuned_lr", "rate_edge")


def rate_lines(differences: pd.DataFrame) -> pd.DataFrame:
    """CRoPE - RoPE at each learning rate."""
    names = [f"{study}/crope - rope" for study in RATE_STUDIES]
    return differences[differences["name"].isin(names)]


def beside_rope() -> list[str]:
    """The contrasts of the study `cost` that subtract RoPE, P1 among them."""
    names = []
    for name, contrast in load_contrasts().items():
        beside = contrast.studies == ("cost",) and contrast.seconds == (("rope", ""),)
        if beside and contrast.first[0] != "nope":  # ten times as far away
            names.append(name)
    return names


def difference_csv(report: Report) -> str:
    parts = [report.differences.assign(runs="published"), report.own.assign(runs="yours")]
    lines = pd.concat(parts, ignore_index=True).drop(columns="by_seed")
    return lines.to_csv(index=False, lineterminator="\n", float_format="%.6f")


def difference_tables(lines: pd.DataFrame, title: str) -> list[Table]:
    """Planned and exploratory differences."""
    contrasts = load_contrasts()
    planned = lines["name"].map(lambda name: bool(contrasts[name].date))
    parts = []
    for name, chosen in (("planned", planned), ("exploratory", ~planned)):
        if chosen.any():
            caption = f"{title}, {name}"
            parts.append(tables.difference_table(name, caption, lines[chosen], contrasts))
    return parts


def render_page(report: Report) -> str:
    """page.html filled in; text is escaped."""
    runs = report.runs
    cells = [cell.key for row in report.rows if row.study in TABLES for cell in row.cells]
    own = [tables.own_table(runs, cells), tables.other_runs_table(runs, cells, {})]
    loader = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = loader.from_string(TEMPLATE.read_text(encoding="utf-8"))
    images = {}
    for name, figure in report.pictures.items():
        data = base64.b64encode(render(figure)).decode()
        images[name] = f"data:image/svg+xml;base64,{data}"
    return template.render(
        report=report,
        origin=_origin(runs),
        notes=PROTOCOL_NOTES,
        images=images,
        own=[table for table in own if len(table.frame)],
        differences=difference_tables(report.differences, "Differences of the published runs"),
        own_differences=difference_tables(report.own, "Differences of your runs"),
        repeats=agreement.repeats_table(agreement.repeats(runs.published)),
    )


def _origin(runs: Runs) -> str:
    shown = runs.shown[runs.shown["scale"] == runs.scale]
    whose = "your runs" if runs.shown is runs.own else "the published runs"
    return f"{len(shown)} of {whose} at the scale {runs.scale}"


def print_report(report: Report, page: Path) -> None:
    """Both tables without the sampled losses, how the user's runs agree with the published ones,
    and where the page is.
    """
    for table in report.losses:
        print(f"\n{table.caption}")
        shown = table.frame[table.frame.iloc[:, 1] != "sampled"]
        print(shown.to_string(index=False))
    public = report.differences
    lines = public[public["name"] == "table1/crope - rope"]
    print("", *agreement.verdict(report.runs, lines), sep="\n")
    print(f"open {page}")
    for error in report.runs.invalid:
        print(f"invalid: {error}", file=sys.stderr)
