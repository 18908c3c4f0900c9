"""The report: tables, figures and a page from run records. The same records give the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from crope.errors import InvalidRecord
from crope.record import write_bytes
from crope.report import claims, figures, page, studies, tables
from crope.report.frame import Source, choose_source
from crope.report.page import Section
from crope.report.tables import Table, render, runs_table
from crope.study import TABLES, Cell, expected_cells, expected_rows

STALE = ("study-*", "studies.*", "study_losses.csv", "conversion.*", "theory-*")  # files that not every report has
Files = dict[str, str | bytes]


def build_report(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), out_dir: Path | None = None
) -> list[InvalidRecord]:
    """Reads the runs of `choose_source`, writes the report, and prints both tables, the verdicts and the page's path.

    `out_dir` defaults to results_dir/report. Returns the invalid records, which enter no number and are named on the
    page and on stderr. Raises UserError if runs of one table row are not comparable.
    """
    source = choose_source(results_dir=results_dir, scale=scale, folders=folders)
    studied = source.studies or source
    sources = [source] if studied.folders == source.folders else [source, studied]
    cells, out_dir = expected_cells(source.scale, source.datasets), out_dir or results_dir / "report"
    losses = [tables.loss_table(source, cells, name) for name in TABLES]
    runs = claims.collect(source.frame, cells)
    checks = claims.judge(runs)
    verdicts = claims.verdict_table(checks, source.scale)
    files: Files = {}
    _add(files, "md csv tex", *losses, verdicts)
    sections = [
        _comparisons(files, runs, cells, source.scale),
        *_studies(files, studied, {cell.key for cell in cells}),
        *_theory(files, results_dir / "theory"),
        _runs(files, sources),
    ]
    invalid = [error for one in sources for error in one.invalid]
    origin = f"These are published records of {source.machine}." if source.machine else f"Your runs: {source.place}."
    files["index.html"] = page.render_page(
        scale=source.scale, origin=origin, invalid=invalid, verdicts=claims.verdicts(checks), rule=verdicts.notes[0],
        savings=tables.savings_line(source, cells), sections=sections,
        tables=tables.once(losses),
        data=[name for name in files if name.endswith((".csv", ".parquet")) or name == "studies.md"],
    )  # fmt: skip
    for pattern in STALE:
        for path in out_dir.glob(pattern):
            path.unlink()
    for name, content in files.items():  # the page is last: it links to the others
        write_bytes(out_dir / name, content.encode() if isinstance(content, str) else content)
    print(origin, *(files[f"{table.name}.md"] for table in (*losses, verdicts)), sep="\n\n")
    for error in invalid:
        print(f"invalid: {error}", file=sys.stderr)
    print(out_dir / "index.html")
    return invalid


def _add(files: Files, kinds: str, *printed: Table) -> None:
    files |= {f"{table.name}.{kind}": render(table, kind) for table in printed for kind in kinds.split()}


def _comparisons(files: Files, runs: pd.DataFrame, cells: Sequence[Cell], scale: str) -> Section:
    """Draws Fig. 4; a section with the differences in each row of the tables, the other figures, and every curve."""
    places = list(dict.fromkeys((cell.dataset, cell.row) for cell in cells))
    lines, curves = claims.compare(runs, places), figures.read_curves(runs)
    table = claims.comparison_table(lines, scale)
    drawn = {
        "fig4": figures.fig4(curves, [dataset for dataset, row in places if row == "base"]),
        "forest": figures.comparisons(lines),
        "seeds": figures.seeds(runs, places),
        "parameters": figures.parameters(runs),
    }
    files |= {f"{name}.svg": figures.render(figure) for name, figure in drawn.items()}
    files["fig4.png"] = figures.render(drawn.pop("fig4"), "png")
    _add(files, "md csv", table)
    chart = page.interactive_curves(curves) if len(curves) else ""
    return Section("Paired differences, seeds, parameters, every curve", [*drawn], [table], html=chart)


def _studies(files: Files, source: Source, table_keys: set[str]) -> list[Section]:
    """A section for every started study, and one for conversions."""
    rows, sections, printed = expected_rows(source.scale, source.datasets), [], []
    runs = studies.collect_studies(source.frame, rows, tables=table_keys)
    losses, answers = studies.study_losses(runs, rows), studies.answer(runs, rows)
    for study, of_study in runs.groupby("study", sort=False):
        of = answers[answers["study"] == study] if len(answers) else answers
        both = [studies.answers_table(of, source.scale)] if len(of) else []
        both.append(studies.losses_table(losses, str(study), source.scale))
        printed += both
        figure = figures.study(of_study, of)
        files |= {f"study-{study}.svg": figures.render(figure)} if figure else {}
        sections.append(Section(f"Study: {study}", [f"study-{study}"] if figure else [], both[:1]))
    if sections:
        files["studies.md"] = "\n".join(render(table, "md") for table in printed)
        files["study_losses.csv"] = losses.drop(columns="reference").round(6).to_csv(index=False, lineterminator="\n")
        if len(answers):
            files["studies.csv"] = render(studies.answers_table(answers, source.scale), "csv")
    converted = studies.conversions(source.frame[source.frame["scale"] == source.scale])
    if len(converted):
        table = studies.conversions_table(converted, source.scale)
        _add(files, "md csv", table)
        sections.append(Section("Conversion of trained models", tables=[table]))
    return sections


def _theory(files: Files, folder: Path) -> list[Section]:
    """A section with what `make theory` wrote, if it did."""
    if not (folder / "theory.md").exists():
        return []
    drawn = sorted(folder.glob("*.svg"))
    files |= {f"theory-{path.name}": path.read_bytes() for path in drawn}
    lines = (folder / "theory.md").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("!["))
    return [Section("Theory", [f"theory-{path.stem}" for path in drawn], text=text)]


def _runs(files: Files, sources: Sequence[Source]) -> Section:
    """runs.csv, runs.parquet and the list of runs."""
    found = pd.concat([runs_table(one.frame[one.frame["scale"] == one.scale], one.invalid) for one in sources])
    files["runs.csv"] = found.to_csv(index=False, lineterminator="\n")
    files["runs.parquet"] = found.to_parquet(index=False)
    loss = found["val_full.final_nats"].map("{:.4f}".format, na_action="ignore").fillna(found["status"])
    commits = found.reindex(columns=["provenance.commit"], fill_value="")["provenance.commit"].fillna("").str[:7]
    printed = pd.DataFrame({"Run": found["run_id"], "Loss": loss, "Commit": commits})
    return Section("Runs", tables=[Table("runs", "Final full validation loss, nats per token.", printed)])
