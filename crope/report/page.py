"""The report: one page, and its tables as CSV files, from run records. The same records give the
same bytes.
"""

import base64
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from crope.errors import InvalidRecord, UserError, log_line, one_line
from crope.files import write_bytes, write_text
from crope.plan.study import TABLES, Cell, expected_cells, table_cells
from crope.report import agreement, compare, figures, losses, tables
from crope.report.evidence import answers, load_contrasts, subjects
from crope.report.findings import Findings, findings
from crope.report.frame import (
    PUBLISHED_SCALE,
    Runs,
    by_study,
    cell_frame,
    load_curves,
    load_runs,
)
from crope.report.losses import LossTable
from crope.report.pooled import load_pools, pooled_lines, rate_lines, units
from crope.report.tables import Table, to_csv
from crope.style import render

TEMPLATE = Path(__file__).with_name("page.html")
PROTOCOL_NOTES = (
    "full: loss after the last step on the validation split (small scales: a fixed part); ± is the"
    " standard deviation over seeds, n the seeds of both RoPE and CRoPE.",
    "lowest: the lowest of a run's full losses, where a later one is higher: the run ends overfitted.",
    "sampled: the paper's protocol; ± is the spread of the validation losses that are sampled in the"
    " last 10 % of the steps. All models read the same batches, so that it says nothing of their"
    " difference.",
)
MOST_CURVES = 20


@dataclass(frozen=True)
class Results:
    """What follows from the runs of one origin.

    cells    of all studies
    joined   runs that count for a study, of `by_study`
    lines    the differences, of `answers`
    """

    cells: pd.DataFrame
    joined: pd.DataFrame
    lines: pd.DataFrame

    @property
    def answered(self) -> pd.DataFrame:
        """Selects the differences that have a seed at least."""
        return self.lines[self.lines["n"] > 0]

    @cached_property
    def stated(self) -> pd.DataFrame:
        """Gives what a sentence can rest on: differences, pooled estimates, rates."""
        return pd.concat([self.lines, pooled_lines(self.joined), rate_lines(self.joined)])

    def differences_of(self, studies: Collection[str]) -> pd.DataFrame:
        """Selects the differences of these studies, in the order of conf/contrasts.yaml; those of
        Tables 1 and 2 come last, as on the page.
        """
        contrasts = load_contrasts()
        names = [name for name in contrasts if not set(studies).isdisjoint(contrasts[name].studies)]
        names.sort(key=lambda name: contrasts[name].studies[0] in TABLES)
        found = self.answered[self.answered["name"].isin(names)]
        order = found["name"].map(names.index)
        return found.loc[order.sort_values(kind="stable").index]

    def whole_seeds(self) -> pd.Series:
        """Counts by study the seeds that have all of its runs."""
        sizes = self.joined.groupby(["study", "seed"], as_index=False).size()
        whole = sizes["size"] == sizes["study"].map(Counter(self.cells["study"]))
        return sizes[whole].groupby("study").size()

    def told(self) -> set[str]:
        """Names Tables 1 and 2 and the studies that have a whole seed, unless all their runs are of
        the tables: others share single runs with these.
        """
        runs = self.joined.groupby("study")["run_id"].agg(set)
        of_tables = set().union(*(runs.get(name, set()) for name in TABLES))
        whole = [name for name in self.whole_seeds().index if not runs[name] <= of_tables]
        return {*TABLES, *whole}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report.

    shown    the runs in Tables 1 and 2: the user's if one is of their cells, else published ones
    whose    says which
    losses   Tables 1 and 2
    studies  the tables of the user's other studies, which come first
    differences   of the user's studies, these and Tables 1 and 2
    verdict  how the user's runs agree with the published ones, and `card` in one line
    """

    runs: Runs
    own: Results
    published: Results
    shown: pd.DataFrame
    whose: str
    losses: Sequence[LossTable]
    studies: Sequence[Table]
    differences: pd.DataFrame
    verdict: Sequence[str]
    card: str


def results(runs: pd.DataFrame, cells: Sequence[Cell]) -> Results:
    """Joins the runs with the cells. Raises UserError if runs of one row are not comparable."""
    joined = by_study(runs, cells)
    return Results(cell_frame(cells), joined, answers(joined))


def collect(runs: Runs, studies: Collection[str] | None = None) -> Report:
    """Makes everything of the report but its pictures; `studies` as in `build_report`. Raises
    UserError if runs of one row are not comparable.
    """
    every = [*table_cells(PUBLISHED_SCALE), *expected_cells(PUBLISHED_SCALE)]
    cells = table_cells(runs.scale)
    own = results(runs.own, [*cells, *expected_cells(runs.scale)])
    planned = cell_frame(cells)
    source, whose = runs.published, "published runs"
    if runs.own["cell_key"].isin(planned["cell_key"]).any():
        source, whose = runs.own, "your runs"
    shown = by_study(source, cells)
    large = shown[:0]
    if runs.scale != "paper":
        large = by_study(runs.published, table_cells("paper"))
    missing = losses.missing_words(source)
    told = own.told() | set(studies or ())
    with_runs = [name for name in own.joined["study"].unique() if name in told - set(TABLES)]
    return Report(
        runs=runs,
        own=own,
        published=results(runs.published, every),
        shown=shown,
        whose=whose,
        losses=[losses.loss_table(name, planned, shown, large, missing) for name in TABLES],
        studies=[losses.study_table(name, own.joined) for name in with_runs],
        differences=own.differences_of(told),
        verdict=agreement.verdict(runs),
        card=agreement.card(runs),
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
    `studies` (None: those of `Results.told`, which the page always has) and the page's path.

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


def draw(report: Report) -> dict[str, Figure]:
    """Draws the figures, by name; those without runs are left out."""
    drawn = {}
    own, joined = report.runs.of_scale, report.own.joined
    complete = own[own["status"] == "complete"]
    if report.studies:
        of_studies = joined["study"].isin([table.name for table in report.studies])
        complete = report.runs.own[report.runs.own["run_id"].isin(joined.loc[of_studies, "run_id"])]
    curves: dict[str, pd.DataFrame] = {}
    for table in report.studies:
        curves |= compare.study_curves(joined, table.name)
    if curves:
        drawn["differences"] = compare.draw_differences(curves)
    if len(complete):
        newest = complete.sort_values("finished_utc").tail(MOST_CURVES)
        drawn["own"] = figures.own_curves(load_curves(newest), newest)
    of_table = report.shown[report.shown["study"] == TABLES[0]]
    if len(of_table):
        drawn["fig4"] = figures.fig4(load_curves(of_table), of_table)
    drawn |= draw_published(report.published)
    return drawn


def draw_published(published: Results) -> dict[str, Figure]:
    """Draws what the published runs say, by name; README and docs/results.md show these, too."""
    drawn, joined, lines = {}, published.joined, published.lines
    estimates = pooled_lines(joined)
    best = lines[lines["name"] == subjects()["best"]]
    if len(estimates) and len(best):
        estimates = estimates.set_index("name").loc[["pooled/long", "pooled/short", "pooled"]]
        drawn["forest"] = figures.forest(units(joined, load_pools()["pooled"]), estimates, best)
    rates = rate_lines(joined)
    if len(rates):
        drawn["rates"] = figures.rates(rates)
        drawn["curves"] = compare.rate_curves(joined)
    overall = lines.query("dataset == ''").dropna(subset="mean")
    models = overall.assign(model=overall["name"].map(beside_rope())).dropna(subset="model")
    if len(models):
        title = "After 3,200 steps at the paper's learning rate, 95 % over seeds"
        drawn["models"] = figures.models(models, title)
    return drawn


def beside_rope() -> dict[str, str]:
    """Finds the contrasts that subtract RoPE in the study of `shown.models`: contrast -> model."""
    models = {}
    for name, contrast in load_contrasts().items():
        model = contrast.first[0]
        beside = contrast.studies == (subjects()["models"],) and contrast.of == "loss"
        # nope is ten times as far away
        if beside and contrast.seconds == (("rope", ""),) and model != "nope":
            models[name] = model
    return models


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
