"""The report: tables, figures and a page from run records. The same records give the same bytes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import plotly.io

from crope.errors import InvalidRecord
from crope.record import PUBLISHED, write_bytes
from crope.report import claims, figures, findings, questions, studies, tables
from crope.report.frame import Source, choose_source, mixture
from crope.report.tables import Table, render, runs_table
from crope.study import TABLES, Cell, StudyRow, expected_cells, expected_rows

STALE = (  # files that not every report has
    "study-*", "studies.*", "study_losses.csv", "conversion.*", "gaps.*", "repeats.*",
)  # fmt: skip
Files = dict[str, str | bytes]
TEMPLATE = Path(__file__).with_name("page.html")
DASHES = {"xpos": "dot", "rope": "solid", "crope": "dash"}
CAPTIONS = {
    "fig4": "Validation (top) and training loss (bottom), mean over seeds; band: lowest to highest seed; markers: full"
    " validation loss.",
    "forest": "Bars: 95 % t interval of the mean; dots: seeds; crosses: the paper; shaded: equivalence margin.",
    "gaps": "Sampled validation losses at equal seed and step, averaged over tenths of the run: mean over seeds, 95 %"
    " interval, single seeds.",
    "study": "Bars of differences: 95 % t interval over seeds; bars of losses: ± standard deviation over seeds.",
}
POINTS = 100  # of a curve; more are thinned


@dataclass(frozen=True)
class Section:
    """A folded part of the page: figures by the names of their SVG files, tables, HTML."""

    title: str
    figures: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    html: str = ""


def build_report(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    out_dir: Path | None = None,
    published: Path = PUBLISHED,
) -> list[InvalidRecord]:
    """Reads the runs of `choose_source`, writes the report, and prints both tables, the verdicts
    and the page's path.

    `out_dir` defaults to results_dir/report. Returns the invalid records, which enter no number and
    are named on the page and on stderr. Raises UserError if runs of one table row are not
    comparable.
    """
    source = choose_source(
        results_dir=results_dir, scale=scale, folders=folders, published=published
    )
    cells, out_dir = (
        expected_cells(source.scale, source.datasets),
        out_dir or results_dir / "report",
    )
    losses = [tables.loss_table(source, cells, name) for name in TABLES]
    found = find(source, cells)
    verdicts = claims.verdict_table(found.checks, found.judged, source.scale)
    files: Files = {}
    _add(files, "md csv tex", *losses, verdicts)
    sections = [*_comparisons(files, found, cells, source.scale), *_studies(files, source, found)]
    sections.append(_runs(files, source))
    origin = (
        f"These are published records of {source.machine}."
        if source.machine
        else f"Your runs: {source.place}."
    )
    runs = source.frame[source.frame["scale"] == source.scale]
    commits = {str(commit)[:12] for commit in runs.get("provenance.commit", ())}
    origin += f" Commit: {', '.join(sorted(commits))}." if commits else ""
    files["index.html"] = render_page(
        scale=source.scale, origin=origin, invalid=source.invalid, sections=sections, rule=verdicts.notes[0],
        verdicts=claims.verdicts(found.checks, found.judged), lead=findings.LEAD, statements=found.statements,
        answers=findings.answers(found.answers), savings=tables.savings_line(source, cells), tables=tables.once(losses),
        data=[name for name in files if name.endswith((".csv", ".parquet")) or name == "studies.md"],
    )  # fmt: skip
    for pattern in STALE:
        for path in out_dir.glob(pattern):
            path.unlink()
    for name, content in files.items():  # the page is last: it links to the others
        write_bytes(out_dir / name, content.encode() if isinstance(content, str) else content)
    print(origin, *(files[f"{table.name}.md"] for table in (*losses, verdicts)), sep="\n\n")
    print(*findings.listed(found.answers, found.statements), sep="\n")
    for error in source.invalid:
        print(f"invalid: {error}", file=sys.stderr)
    print(out_dir / "index.html")
    return source.invalid


@dataclass(frozen=True)
class Found:
    """Everything that is drawn from the runs of a source, before it is printed.

    runs         of the tables; `judged` those beside the models that the verdicts need
    studied      of the started studies, one row per run
    statements   sentences for the first screen
    """

    runs: pd.DataFrame
    judged: pd.DataFrame
    checks: pd.DataFrame
    comparisons: pd.DataFrame
    rows: Sequence[StudyRow]
    studied: pd.DataFrame
    answers: pd.DataFrame
    phases: pd.DataFrame
    conversions: pd.DataFrame
    repeats: pd.DataFrame
    statements: list[str]


def find(source: Source, cells: Sequence[Cell]) -> Found:
    """The verdicts, answers and findings of the runs of a source."""
    runs = claims.collect(source.frame, cells)
    rows = expected_rows(source.scale, source.datasets)
    judged = claims.collect(
        source.frame,
        [*cells, *(cell for row in rows if row.study == claims.ABSOLUTE for cell in row.cells)],
    )
    checks, places = (
        claims.judge(judged),
        list(dict.fromkeys((cell.dataset, cell.row) for cell in cells)),
    )
    comparisons = claims.compare(runs, places)
    studied = studies.collect_studies(source.frame, rows, tables={cell.key for cell in cells})
    answers, phases = questions.answer(studied, rows), findings.by_phase(studied)
    converted = studies.conversions(source.frame[source.frame["scale"] == source.scale])
    published = {source.machine: source.frame} if source.machine else {}
    repeats = findings.repeats({**published, **source.others}, source.scale)
    statements = [
        findings.waiting(answers), findings.pooled(comparisons), *findings.growth(phases),
        findings.by_rate(studied), *findings.shown(answers), findings.halved(answers, studied),
        findings.fraction(converted), findings.rounding(repeats), findings.undecided(comparisons),
        "" if source.machine else findings.agreement(source.frame, source.others, source.scale),
    ]  # fmt: skip
    return Found(runs, judged, checks, comparisons, rows, studied, answers, phases, converted, repeats,
                 [text for text in statements if text])  # fmt: skip


def _add(files: Files, kinds: str, *printed: Table) -> None:
    files |= {
        f"{table.name}.{kind}": render(table, kind) for table in printed for kind in kinds.split()
    }


def _comparisons(files: Files, found: Found, cells: Sequence[Cell], scale: str) -> list[Section]:
    """Draws Fig. 4; sections with differences against the step, those of the tables' rows, and
    repeated runs.
    """
    places = list(dict.fromkeys((cell.dataset, cell.row) for cell in cells))
    curves = figures.read_curves(found.runs)
    pairs = (("crope", "rope"), ("nope", "rope"))
    gaps = {
        claims.pair_label(*pair): of for pair in pairs if (of := findings.gaps(found.phases, *pair))
    }
    drawn = {
        "fig4": figures.fig4(curves, [dataset for dataset, row in places if row == "base"]),
        "forest": figures.comparisons(found.comparisons),
    } | ({"gaps": figures.gaps(gaps)} if gaps else {})
    files |= {f"{name}.svg": figures.render(figure) for name, figure in drawn.items()}
    files["fig4.png"] = figures.render(drawn["fig4"], "png")
    table = claims.comparison_table(found.comparisons, scale)
    _add(files, "md csv", table)
    chart = interactive_curves(curves) if len(curves) else ""
    sections = [Section("CRoPE − RoPE against the step", ["gaps"])] if gaps else []
    sections.append(Section("Paired differences, every curve", ["forest"], [table], html=chart))
    if len(found.repeats):
        again = findings.repeats_table(found.repeats, scale)
        _add(files, "md csv", again)
        sections.append(Section("Rounding: the same runs executed again", tables=[again]))
    return sections


def _studies(files: Files, source: Source, found: Found) -> list[Section]:
    """A section for every started study, and one for conversions."""
    sections, answers = [], found.answers
    printed: list[Table] = []
    losses = studies.study_losses(found.studied, found.rows)
    for study, of_study in found.studied.groupby("study", sort=False):
        of = answers[answers["study"] == study]
        both = [questions.answers_table(of, source.scale)] if len(of) else []
        if printed:  # one explanation is enough
            both = [replace(table, notes=[]) for table in both]
        both.append(studies.losses_table(losses, str(study), source.scale))
        both[0] = replace(both[0], notes=[*both[0].notes, *mixture(of_study)])
        printed += both
        figure = figures.study(of_study, of)
        files |= {f"study-{study}.svg": figures.render(figure)} if figure else {}
        sections.append(Section(f"Study: {study}", [f"study-{study}"] if figure else [], both[:1]))
    if sections:
        files["studies.md"] = "\n".join(render(table, "md") for table in printed)
        files["study_losses.csv"] = (
            losses.drop(columns="reference").round(6).to_csv(index=False, lineterminator="\n")
        )
        if len(answers):
            files["studies.csv"] = render(questions.answers_table(answers, source.scale), "csv")
    if len(found.conversions):
        table = studies.conversions_table(found.conversions, source.scale)
        _add(files, "md csv", table)
        sections.append(Section("Conversion of trained models", tables=[table]))
    return sections


def _runs(files: Files, source: Source) -> Section:
    """runs.csv, runs.parquet and the list of runs."""
    found = runs_table(source.frame[source.frame["scale"] == source.scale], source.invalid)
    files["runs.csv"] = found.to_csv(index=False, lineterminator="\n")
    files["runs.parquet"] = found.to_parquet(index=False)
    loss = (
        found["val_full.final_nats"]
        .astype(object)  # without a complete run the column is of integers, which take no status
        .map("{:.4f}".format, na_action="ignore")
        .fillna(found["status"])
    )
    commits = (
        found.reindex(columns=["provenance.commit"], fill_value="")["provenance.commit"]
        .fillna("")
        .str[:7]
    )
    printed = pd.DataFrame({"Run": found["run_id"], "Loss": loss, "Commit": commits})
    return Section(
        "Runs", tables=[Table("runs", "Final full validation loss, nats per token.", printed)]
    )


def render_page(**context: Any) -> str:
    """page.html filled in; text is escaped."""
    loader = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return loader.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        captions=CAPTIONS, **context
    )


def interactive_curves(curves: pd.DataFrame) -> str:
    """The sampled validation loss of every run as a plotly figure with its script; a menu selects
    the table row.
    """
    traces: list[dict[str, Any]] = []
    for place, of in curves.dropna(subset="val/loss_nats").groupby(["dataset", "row"], sort=False):
        row, named = claims.row_label(*map(str, place)), set()
        for (model, seed), run in of.groupby(["model", "seed"], sort=False):
            thin, label = run.iloc[:: max(1, len(run) // POINTS)], claims.model_label(str(model))
            traces.append({
                "type": "scatter", "x": thin["step"].tolist(), "y": thin["val/loss_nats"].round(4).tolist(),
                "name": label, "legendgroup": model, "showlegend": model not in named, "meta": row,
                "line": {"color": figures.COLOURS.get(str(model)), "dash": DASHES.get(str(model), "dashdot"),
                         "width": 1.5},
                "hovertemplate": f"{label}, seed {seed}: %{{y:.4f}} at step %{{x}}<extra></extra>",
                "visible": row == (traces[0]["meta"] if traces else row),
            })  # fmt: skip
            named.add(model)
    buttons = [
        {
            "label": row,
            "method": "update",
            "args": [{"visible": [trace["meta"] == row for trace in traces]}],
        }
        for row in dict.fromkeys(trace["meta"] for trace in traces)
    ]
    layout = {
        "template": plotly.io.templates["plotly_white"].to_plotly_json(), "height": 420,
        "margin": {"l": 55, "r": 10, "t": 60, "b": 90}, "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "sampled validation loss (nats per token)"}},
        "updatemenus": [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.15, "yanchor": "bottom"}],
    }  # fmt: skip
    figure = {
        "data": traces,
        "layout": layout,
    }  # a dict, because plotly's Figure takes long to check its values
    return str(
        plotly.io.to_html(
            figure, {"responsive": True}, full_html=False, div_id="curves", validate=False
        )
    )
