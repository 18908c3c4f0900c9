"""The report: tables, figures and a page from run records. The same records give the same bytes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from crope.errors import InvalidRecord
from crope.files import write_bytes
from crope.report import agreement as repeats
from crope.report import figures, tables
from crope.report.evidence import (
    CONTRASTS,
    PRIMARY,
    Comparison,
    Evidence,
    build_evidence,
    source_comparisons,
)
from crope.report.frame import Source, choose_source
from crope.report.tables import Table, render
from crope.runs.progress import print_grid
from crope.runs.record import PUBLISHED
from crope.runs.study import TABLES, Cell, expected_cells

# Files that not every report has: removed first, so that none is left of an earlier one.
STALE = (
    *(f"{name}.{kind}" for name in ("evidence", "conversion", "repeats") for kind in ("md", "csv")),
    *(f"{name}.svg" for name in ("forest", "training", "length", "scaling")),
)
Files = dict[str, str | bytes]
TEMPLATE = Path(__file__).with_name("page.html")
CAPTIONS = {
    "fig4": "Validation (top) and training loss (bottom), mean over seeds; band: lowest to highest seed; markers: full"
    " validation loss.",
    "training": "CRoPE − RoPE of sampled validation losses at equal seed and step, by tenths of the run: mean"
    " over seeds, single seeds (thin), 95 % interval once all planned seeds are there. Upper axis: RoPE's loss then.",
    "length": "Error bars of losses: ± standard deviation over seeds; dashed: the training length.",
    "scaling": "Error bars of losses: ± standard deviation over seeds; of differences: 95 % intervals.",
}


@dataclass(frozen=True)
class Section:
    """A folded part of the page: figures by the names of their SVG files, and tables."""

    title: str
    figures: Sequence[str] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is printed, from the runs of one source and, beside published ones, those of
    `planned` studies in folders of their own.
    """

    source: Source
    planned: pd.DataFrame
    cells: list[Cell]
    comparisons: list[Comparison]
    evidence: Evidence
    losses: list[Table]
    lead: str
    primary: Table
    claims: Table
    others: list[str]


def collect(source: Source) -> Report:
    """The report of a source. Raises UserError if runs of one table or study row are not
    comparable.
    """
    cells = expected_cells(source.scale, source.datasets)
    paper_cells = expected_cells("paper") if source.scale != "paper" else []
    losses = [tables.loss_table(source, cells, name, paper_cells=paper_cells) for name in TABLES]
    runs = source.all_runs
    comparisons = source_comparisons(source)
    compared = pd.concat([comparison.runs["path"] for comparison in comparisons])
    added = runs["path"].isin(compared) & ~runs["path"].isin(_of_scale(source)["path"])
    planned = runs[added & (runs["status"] == "complete")]
    evidence = build_evidence(comparisons)
    headline = tables.headline(evidence.primary)
    medium = tables.medium_sentence(evidence.exploratory)
    yardsticks = tables.yardsticks(evidence.exploratory, comparisons)
    others = [yardsticks, *tables.other_lines(evidence.exploratory)]
    return Report(
        source,
        planned,
        cells,
        comparisons,
        evidence,
        losses,
        lead=" ".join(filter(None, [headline, medium])),
        primary=tables.primary_table(evidence.primary),
        claims=tables.claims_table(evidence.claims),
        others=[line for line in others if line],
    )


def build_report(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    out_dir: Path | None = None,
    published: Path = PUBLISHED,
) -> list[InvalidRecord]:
    """Reads the runs of `choose_source`, writes the report, and prints both tables, CRoPE − RoPE
    in Table 1, the commands that answer more, and the page's path.

    `out_dir` defaults to results_dir/report, of the smoke scale report-smoke. Returns the invalid
    records, which enter no number and are named on the page and on stderr. Raises UserError if runs
    of one table row are not comparable.
    """
    source = choose_source(
        results_dir=results_dir, scale=scale, folders=folders, published=published
    )
    report = collect(source)
    if out_dir is None:  # a smoke test leaves the report of other runs
        out_dir = results_dir / ("report-smoke" if source.scale == "smoke" else "report")
    files: Files = {}
    sections = _sections(files, report)
    _add(files, "md csv tex", *report.losses)
    _add(files, "md csv", report.primary, report.claims)
    runs = pd.concat([_of_scale(source), report.planned], ignore_index=True)
    table = tables.runs_table(runs, source.invalid)
    files["runs.csv"] = table.to_csv(index=False, lineterminator="\n")
    files["index.html"] = render_page(
        report=report,
        origin=_origin(report),
        sections=sections,
        savings=tables.savings_line(report.evidence.exploratory),
        tables=tables.without_repeated_notes(report.losses),
        data=[name for name in files if name.endswith(".csv")],
        captions=CAPTIONS
        | {"forest": figures.forest_caption(report.evidence.forest, report.evidence.paper_row)},
    )
    for name in STALE:
        (out_dir / name).unlink(missing_ok=True)
    for name, content in files.items():  # the page is last: it links to the others
        write_bytes(out_dir / name, content.encode() if isinstance(content, str) else content)
    print_report(report, out_dir / "index.html")
    return source.invalid


def print_report(report: Report, page: Path) -> None:
    """Both tables with the reasons of empty cells, what was found, where the page is, and what
    would answer more.
    """
    print(_origin(report))
    for table in report.losses:
        print()
        rows = table.frame.itertuples(index=False)
        print_grid(table.caption, table.frame.columns, rows, text_columns=table.text)
        for note in table.notes:
            if note.startswith("["):
                print(note)
    print()
    lines = closing_lines(report)
    source = report.source
    if not source.machine:  # the user's own runs
        complete = _of_scale(source)["status"] == "complete"
        others = complete.sum() - len(_table_runs(report))
        if others:
            lines.append(
                f"{others} run(s) in no cell of Tables 1 and 2: {page.with_name('runs.csv')}"
            )
        lines.append(repeats.agreement(source.frame, source.others, source.scale))
    print(*filter(None, lines), page, sep="\n")
    for error in source.invalid:
        print(f"invalid: {error}", file=sys.stderr)


def closing_lines(report: Report) -> list[str]:
    """CRoPE - RoPE in Table 1, or of how many runs it lacks, and the commands that answer more."""
    cost = report.evidence.claims.query("family == 'Table 1' and first == 'crope'")
    parts = [f"{line['where']} {tables.estimate(line, 3)}" for line in cost.to_dict("records")]
    lines = [f"CRoPE − RoPE (nats): {', '.join(parts)}"] if parts else []
    more = []
    if cost["reason"].any():
        more.append(f"make reproduce SCALE={report.source.scale}")
    primary = report.evidence.primary
    waiting = set(primary.loc[~primary["planned"], "family"])
    studies = [planned.study for planned, _ in PRIMARY if planned.family in waiting]
    more += [f"make reproduce STUDY={study}" for study in dict.fromkeys(studies)]
    return [*lines, f"More answers: {'; '.join(more)}"] if more else lines


def _of_scale(source: Source) -> pd.DataFrame:
    return source.frame[source.frame["scale"] == source.scale]


def _origin(report: Report) -> str:
    source, runs = report.source, _of_scale(report.source)
    origin = f"published records of {source.machine}" if source.machine else source.origin
    text = f"{len(runs)} runs: {origin}.{_commits(runs)}"
    if len(report.planned):
        folders = sorted({path.parent.name for path in map(Path, report.planned["path"])})
        text += f" Planned studies: {len(report.planned)} runs of {', '.join(folders)}.{_commits(report.planned)}"
    return text


def _commits(runs: pd.DataFrame) -> str:
    if runs.empty:
        return ""
    stated = runs["provenance.commit"].dropna()
    commits = {str(commit)[:12] for commit in stated} or {"unknown"}
    text = f" Commit: {', '.join(sorted(commits))}."
    return text + (
        " Some runs are of uncommitted code." if runs["provenance.dirty"].eq(True).any() else ""
    )


def _add(files: Files, kinds: str, *printed: Table) -> None:
    for table, kind in product(printed, kinds.split()):
        files[f"{table.name}.{kind}"] = render(table, kind)


def _sections(files: Files, report: Report) -> list[Section]:
    """The folded parts of the page; draws all figures."""
    evidence, source = report.evidence, report.source
    sections = []

    def fold(title: str, *parts: Table, **drawn: Figure) -> None:
        for name, figure in drawn.items():
            files[f"{name}.svg"] = figures.render(figure)
        _add(files, "md csv", *parts)
        sections.append(Section(title, list(drawn), parts))

    curves = figures.read_curves(_table_runs(report))
    datasets = dict.fromkeys(cell.dataset for cell in report.cells if cell.table == TABLES[0])
    fig4 = figures.fig4(curves, list(datasets))
    files["fig4.svg"] = figures.render(fig4)
    files["fig4.png"] = figures.render(fig4, "png")
    if len(evidence.forest):
        files["forest.svg"] = figures.render(figures.forest(evidence.forest, evidence.paper_row))
    if evidence.training:
        fold("CRoPE − RoPE while they are trained", training=figures.training(evidence.training))
    if len(evidence.exploratory):
        fold("All other differences", tables.exploratory_table(evidence.exploratory))
    measured = [
        comparison
        for comparison in report.comparisons
        if comparison.row.study == "length" and comparison.runs["lengths"].notna().any()
    ]
    if measured:
        fold("Beyond the training length", length=figures.length(measured))
    lines = evidence.exploratory[evidence.exploratory["study"] == "scaling"]
    if len(lines):
        narrowest, *_ = (part for part in report.comparisons if part.row.study == "scaling")
        of_dataset = lines[lines["dataset"] == narrowest.row.dataset]
        beside_rope = of_dataset[~of_dataset["difference"].str.contains("size")]
        fold("Width", scaling=figures.scaling(narrowest, beside_rope))
    losses = tables.losses_table(report.comparisons)
    _add(files, "csv", losses)
    asked = {contrast.study for contrast in (*CONTRASTS, *(planned for planned, _ in PRIMARY))}
    unasked = losses.frame[~losses.frame["Study"].isin(asked)]
    if len(unasked):
        title = "Losses of studies without a contrast"
        sections.append(Section(title, tables=[replace(losses, frame=unasked)]))
    converted = tables.conversions(_of_scale(source))
    if len(converted):
        fold("Conversion of trained models", tables.conversions_table(converted))
    published = {source.machine: source.frame} if source.machine else {}
    again = repeats.repeats(published | dict(source.others), source.scale)
    if len(again):
        title = "Rounding: the same runs executed again"
        fold(title, repeats.repeats_table(again, source.scale))
    return sections


def _table_runs(report: Report) -> pd.DataFrame:
    """The complete runs of the tables, one row per run; a run that is in both tables once."""
    keys = {cell.key for cell in report.cells}
    frame = report.source.frame
    return frame[frame["cell_key"].isin(keys) & (frame["status"] == "complete")]


def render_page(**context: Any) -> str:
    """page.html filled in; text is escaped."""
    loader = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = loader.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(**context)
