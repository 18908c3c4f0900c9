"""The page: one self-contained file that asks no network for anything. All text from records is escaped by Jinja."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2

from crope.config import ROOT
from crope.fairness import fairness_sheet
from crope.record import Record
from crope.report.answer_tables import answer_notes
from crope.report.choices import choices_sheet
from crope.report.comparison_tables import comparisons_sheet
from crope.report.conversions import conversions_sheet
from crope.report.details import details_sheet, savings_line
from crope.report.figures import Plot, render_pictures
from crope.report.findings import Findings
from crope.report.frame import one_line, printable
from crope.report.interactive import MEASURES, chart_data, embed_json, plotly_script
from crope.report.judgement import Claim, Verdict
from crope.report.page_runs import COMMITTED, OWN, anchor, group_runs
from crope.report.page_studies import is_of_study, study_sections
from crope.report.protocol import open_settings, row_labels, stated_settings
from crope.report.sheets import Sheet
from crope.report.statements import can_say, cannot_say, describe_runs
from crope.report.theory import TheoryItem
from crope.report.verdict_tables import NOTES, checks_sheet, number_text, scale_note

FOLDER = Path(__file__).parent
README = ROOT / "README.md"
PLOTLY = '<script id="plotly"></script>'


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict at each measure; every check of them, with links, in one sheet."""

    claim: Claim
    verdicts: tuple[Verdict, ...]
    rules: tuple[str, ...]
    checks: Sheet


def render_page(findings: Findings, plots: Sequence[Plot], *, out_dir: Path, theory: Sequence[TheoryItem] = ()) -> str:
    """`plots` in the order of the page. Links are relative to `out_dir`."""
    strict = jinja2.StrictUndefined  # a name that the template misspells is an error, not an empty string
    environment = jinja2.Environment(autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True)
    environment.loader = jinja2.FileSystemLoader(FOLDER)
    results = [*findings.results, *(result for study in findings.studies for result in study.results)]
    groups = group_runs(results, findings.shown, out_dir=out_dir)
    committed = [run for result in findings.committed_results for run in result.runs]
    beside = group_runs(findings.committed_results, _distinct(committed), out_dir=out_dir, whose=COMMITTED)
    used = {run.path for result in results for run in result.runs}
    charts = chart_data(findings)
    figures = [(plot, render_pictures(plot)) for plot in plots]
    page = environment.get_template("page.html").render(
        findings=findings,
        scale=findings.scale,
        runs_text=describe_runs(findings),
        can_say=can_say(findings),
        cannot_say=cannot_say(findings),
        savings=savings_line(findings.results),
        judged=judge_claims(findings),
        verdict_notes=(*scale_note(findings.scale), *NOTES),
        figures=[(plot, shown) for plot, shown in figures if not is_of_study(plot)],
        sections=study_sections(findings, figures),
        answer_notes=answer_notes(findings.answers, findings.studied.machine if findings.studied else ""),
        charts=embed_json(charts) if charts["panels"] else "",
        panels=[panel["title"] for panel in charts["panels"]],
        measures=MEASURES,
        script=(FOLDER / "page.js").read_text(encoding="utf-8"),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        comparisons=comparisons_sheet(findings.comparisons, findings.results, scale=findings.scale),
        details=details_sheet(findings.details, scale=findings.scale),
        choices=choices_sheet(findings.choices, scale=findings.scale) if findings.choices else None,
        conversion=conversions_sheet(findings.conversions, scale=findings.scale) if findings.conversions else None,
        fairness=[fairness_sheet(comparison) for comparison in findings.fairness],
        groups=groups,
        committed=beside,
        damaged=[
            (one_line(run.path.name), one_line(run.advice))
            for source in (findings.source, findings.studied)
            if source
            for run in source.damaged
        ],
        unused=sum(run.path not in used for run in findings.shown),
        stated=stated_settings(findings.results),
        row_labels=row_labels(),
        chosen=open_settings(findings.results),
        readme=quote(Path(os.path.relpath(README, out_dir)).as_posix()),
        theory=theory,
        anchors={group.anchor for group in (*groups, *beside)},
        anchor_of=lambda result, whose: anchor(result.cell.key, whose),
        link_parts=link_parts,
        number_text=number_text,
        own=OWN,
        beside=COMMITTED,
    )
    # Last: a script's own control characters may not be replaced. No text of a record can be this element.
    return printable(page).replace(PLOTLY, PLOTLY.replace("><", f">{plotly_script()}<"), 1)


def _distinct(runs: Sequence[Record]) -> list[Record]:
    return list({run.path: run for run in runs}.values())


def judge_claims(findings: Findings) -> list[Judged]:
    """The verdicts by claim, in their order."""
    keys = {(r.cell.dataset, r.cell.row, r.cell.model): r.cell.key for r in findings.results}
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in findings.verdicts:
        by_claim.setdefault(verdict.claim.name, []).append(verdict)
    return [
        Judged(
            claim=verdicts[0].claim,
            verdicts=tuple(verdicts),
            rules=tuple(dict.fromkeys(verdict.rule for verdict in verdicts)),
            checks=checks_sheet(verdicts, keys),
        )
        for verdicts in by_claim.values()
    ]


def link_parts(text: str, keys: Sequence[str], anchors: Collection[str]) -> list[tuple[str, str]]:
    """`text` in parts, each with the anchor of its runs: both models of `A − B`, else the whole; empty without runs."""
    found = [anchor(key) for key in keys]
    found = [name if name in anchors else "" for name in found]
    first, sign, second = text.rpartition(" − ")
    if sign and len(found) == 2:
        return [(first, found[0]), (sign, ""), (second, found[1])]
    if len(found) > 1:  # one number of several cells: the name stands once, a link each
        return [(text, ""), *((f" [{number}]", name) for number, name in enumerate(found, 1))]
    return [(text, found[0] if found else "")]
