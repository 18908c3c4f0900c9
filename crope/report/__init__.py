"""Tables, figures and a page from run records: the same records give the same bytes.

Neither torch nor wandb is imported below this package, so a report can be made where nothing can be trained.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crope.record import write_bytes
from crope.verify import DamagedRun

if TYPE_CHECKING:
    from crope.report.figures import Plot
    from crope.report.findings import Findings
    from crope.report.sources import Source
    from crope.study import Cell, StudyRow

SCALES = ("paper", "quick", "smoke")
PAGE = "index.html"
# Columns of the LaTeX tables; a width, in parts of the text's, for those that break their lines.
COMPARISON_COLUMNS = {0: "", 1: "", 2: "", 3: "", 4: "", 5: "", 6: "", 7: "", 8: "0.12"}
ANSWER_COLUMNS = {1: "0.28", 2: "", 3: "0.22", 4: "0.36"}
VERDICT_COLUMNS = {0: "0.24", 1: "0.11", 2: "", 4: "0.34", 5: "0.16"}
OPTIONAL = (
    "choices.md",
    "choices.csv",
    "choices.svg",
    "choices.png",
    "fairness.md",
    "fairness.csv",
    "studies.md",
    "studies.csv",
    "studies.tex",
    "study_losses.csv",
    "conversion.md",
    "conversion.csv",
    *(f"{study}.{kind}" for study in ("controls", "schemes", "length", "scaling") for kind in ("svg", "png")),
)  # made where there is more than the tables' cells


def build_report(
    source: Source,
    cells: Sequence[Cell],
    *,
    unavailable: dict[str, str],
    out_dir: Path,
    committed: Source | None = None,
    theory: Path | None = None,
    study_rows: Sequence[StudyRow] = (),
    studied: Source | None = None,
) -> tuple[list[Path], Findings]:
    """Writes the report of one scale into `out_dir`; returns its files, index.html last, and what they say.

    `source` may hold runs of any scale, status and age; `cells` says what the tables expect, `study_rows` what the
    studies do. `unavailable` maps a dataset to why it could not be had. `committed` are the records that the tables
    also show, `studied` those that the studies rest on in the place of the source, `theory` the folder of
    `make theory`. Damaged runs are named and enter no number. Of OPTIONAL, what only
    an earlier report had is removed.
    Raises UserError where runs of one table row differ in precision, kind of device or data.
    """
    from crope.report.comparisons import load_margin
    from crope.report.figures import render_files
    from crope.report.findings import find
    from crope.report.frame import printable
    from crope.report.html import render_page
    from crope.report.runs_frame import render_runs_parquet
    from crope.report.theory import load_theory

    findings = find(
        source, cells, unavailable=unavailable, margin=load_margin(), committed=committed, study_rows=study_rows,
        studied=studied,
    )  # fmt: skip
    plots = build_plots(findings)
    items, files = load_theory(theory)
    files |= {"runs.parquet": render_runs_parquet(findings.shown, source.damaged)}
    for plot in plots:
        files |= render_files(plot, scale=source.scale)
    files |= {name: printable(text).encode("utf-8") for name, text in render_texts(findings).items()}
    files[PAGE] = render_page(findings, plots, out_dir=out_dir, theory=items).encode("utf-8")
    names = sorted(files, key=PAGE.__eq__)  # the page last: it links to the others
    for name in names:
        write_bytes(out_dir / name, files[name])
    for name in OPTIONAL:
        if name not in files:
            (out_dir / name).unlink(missing_ok=True)
    return [out_dir / name for name in names], findings


def build_plots(findings: Findings) -> list[Plot]:
    """In the order of the page."""
    from crope.report.budget import build_budget_figure
    from crope.report.choices import build_choices_figure
    from crope.report.fig4 import build_fig4
    from crope.report.forest import build_forest
    from crope.report.seeds_figure import build_seeds_figure
    from crope.report.study_figures import build_study_figures

    plots = [build_fig4(findings.results, findings.points), build_forest(findings.comparisons)]
    if findings.choices:
        plots.append(build_choices_figure(findings.choices, findings.margin_nats))
    plots += [build_seeds_figure(findings.results), build_budget_figure(findings.results)]
    return [*plots, *build_study_figures(findings.studies, findings.margin_nats)]


def render_texts(findings: Findings) -> dict[str, str]:
    """Every file of words and numbers but the page: name -> text."""
    from crope.fairness import render_csv as render_csv_of_rates
    from crope.fairness import render_markdown as render_markdown_of_rates
    from crope.report.answer_tables import answer_checks_sheet, answers_sheet, render_answers_csv
    from crope.report.choices import choices_sheet, render_choices_csv
    from crope.report.comparison_tables import comparisons_sheet, render_comparisons_csv
    from crope.report.conversions import conversions_sheet, render_conversions_csv
    from crope.report.csv_files import render_csv
    from crope.report.details import details_sheet, render_details_csv
    from crope.report.markdown import render_markdown, render_sheet
    from crope.report.runs_frame import render_columns_csv, render_runs_csv
    from crope.report.study_tables import render_losses_csv, study_sheet
    from crope.report.tables import build_table
    from crope.report.tex import render_sheet_tex, render_tex
    from crope.report.verdict_tables import render_verdicts_csv, render_verdicts_markdown, verdicts_sheet

    scale, results = findings.scale, findings.results
    texts = {"runs.csv": render_runs_csv(findings.shown, findings.source.damaged), "columns.csv": render_columns_csv()}
    for table in findings.tables:
        texts[f"{table.name}.md"] = render_markdown(table)
        texts[f"{table.name}.csv"] = render_csv(results, table.name)
        texts[f"{table.name}.tex"] = render_tex(build_table(results, table.name, scale=scale))
    details = details_sheet(findings.details, scale=scale)
    compared = comparisons_sheet(findings.comparisons, results, scale=scale)
    texts |= {"details.md": render_sheet(details), "details.csv": render_details_csv(findings.details)}
    texts |= {"comparisons.md": render_sheet(compared), "comparisons.csv": render_comparisons_csv(findings.comparisons)}
    texts["comparisons.tex"] = render_sheet_tex(compared, COMPARISON_COLUMNS)
    texts["verdicts.md"] = render_verdicts_markdown(findings.verdicts, scale=scale)
    texts["verdicts.csv"] = render_verdicts_csv(findings.verdicts)
    texts["verdicts.tex"] = render_sheet_tex(verdicts_sheet(findings.verdicts, scale=scale), VERDICT_COLUMNS)
    if findings.choices:
        texts["choices.md"] = render_sheet(choices_sheet(findings.choices, scale=scale))
        texts["choices.csv"] = render_choices_csv(findings.choices)
    if findings.answers:
        asked = answers_sheet(
            findings.answers, scale=scale, machine=findings.studied.machine if findings.studied else ""
        )
        sheets = [asked, *(study_sheet(study) for study in findings.studies if study.rows)]
        sheets.append(answer_checks_sheet(findings.answers))
        texts["studies.md"] = "\n".join(map(render_sheet, sheets))
        texts["studies.csv"] = render_answers_csv(findings.answers)
        texts["studies.tex"] = render_sheet_tex(asked, ANSWER_COLUMNS)
        texts["study_losses.csv"] = render_losses_csv(findings.studies)
    if findings.conversions:
        texts["conversion.md"] = render_sheet(conversions_sheet(findings.conversions, scale=scale))
        texts["conversion.csv"] = render_conversions_csv(findings.conversions)
    if findings.fairness:
        texts["fairness.md"] = render_markdown_of_rates(findings.fairness)
        texts["fairness.csv"] = render_csv_of_rates(findings.fairness)
    return texts


def report_folder(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), out_dir: Path | None = None
) -> tuple[Path, list[DamagedRun]]:
    """Reads run directories, writes the report, prints both tables, the verdicts and where the page is.

    `scale` defaults to the first of SCALES that has a run, `folders` to results_dir/runs, `out_dir` to
    results_dir/report. Without a run there, the committed records are shown, and that is said; without these, every
    cell says missing. Returns the page and the damaged runs, which stop nothing: each is named on the page and in a
    line on stderr.
    """
    from crope.report.frame import one_line
    from crope.report.sources import choose_source, expected, expected_of_studies, load_published, load_unavailable
    from crope.report.verdict_tables import render_verdicts_text

    source = choose_source(results_dir=results_dir, scale=scale, folders=folders)
    out_dir = out_dir or results_dir / "report"
    there = {run.summary["scale"] for run in source.runs} | {run.scale for run in source.damaged}
    if source.machine:
        whose = f"the published records of {source.machine}"
        print(f"no run in {results_dir / 'runs'}: these are {whose}; `make reproduce` makes your own\n")
    elif not there & {source.scale, None}:
        make = f"`make reproduce SCALE={source.scale}` makes them"
        print(f"no run of the {source.scale} scale in {source.places}: {make}\n")
    beside = None if source.machine else load_published(source.scale)
    if beside and {folder.resolve() for folder in source.folders} & {folder.resolve() for folder in beside.folders}:
        beside = None
    studied = load_published(source.scale, of_studies=True) if source.machine else None
    if studied and studied.machine == source.machine:
        studied = None
    files, findings = build_report(
        source,
        expected(source),
        unavailable=load_unavailable(results_dir / "unavailable.json"),
        out_dir=out_dir,
        committed=beside,
        theory=results_dir / "theory",
        study_rows=expected_of_studies(studied or source),
        studied=studied,
    )
    for name in ("table1.md", "table2.md"):
        print((out_dir / name).read_text(encoding="utf-8"))
    print(render_verdicts_text(findings.verdicts, scale=source.scale))
    for run in source.damaged:
        print(one_line(f"damaged: {run.path}: {run.advice}"), file=sys.stderr)
    print(files[-1])
    return files[-1], source.damaged
