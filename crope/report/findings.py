"""What the runs of one scale say, worked out once: the files, the figures and the page only print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crope.fairness import Comparison as RateComparison
from crope.fairness import compare_at_own_best
from crope.record import Record
from crope.report.answers import Answer
from crope.report.choices import Choice, build_choices
from crope.report.comparisons import Comparison, build_comparisons
from crope.report.conversions import Conversion, read_conversions
from crope.report.curves import Points, read_curves
from crope.report.details import Detail, build_details
from crope.report.frame import CellResult, distinct_cells, resolve_cells
from crope.report.judgement import Verdict
from crope.report.questions import build_answers
from crope.report.sources import Source
from crope.report.studies import Study, build_studies
from crope.report.tables import Table, build_table
from crope.report.verdicts import build_verdicts
from crope.study import TABLES, Cell, StudyRow


@dataclass(frozen=True)
class Findings:
    """`source` is what is reported, `committed` the records that its tables stand beside (None: there are none),
    `studied` those that the studies rest on where they are not the source's own.

    shown      the runs of the scale, and those that a cell rests on whatever scale they were made under
    elsewhere  how many runs of other scales the folders hold
    points     every curve of the complete runs of the cells
    """

    source: Source
    committed: Source | None
    studied: Source | None
    margin_nats: float
    shown: list[Record]
    elsewhere: int
    results: list[CellResult]
    committed_results: list[CellResult]
    tables: list[Table]
    comparisons: list[Comparison]
    verdicts: list[Verdict]
    choices: list[Choice]
    fairness: list[RateComparison]
    details: list[Detail]
    studies: list[Study]
    answers: list[Answer]
    conversions: list[Conversion]
    points: dict[Path, dict[str, Points]]

    @property
    def scale(self) -> str:
        return self.source.scale


def find(
    source: Source,
    cells: Sequence[Cell],
    *,
    unavailable: dict[str, str],
    margin: float,
    committed: Source | None = None,
    study_rows: Sequence[StudyRow] = (),
    studied: Source | None = None,
) -> Findings:
    """Reads every metrics.jsonl of the cells once. `study_rows` says what the studies expect.

    Raises UserError where runs of one table row differ in precision, kind of device or data.
    """
    results = resolve_cells(source.runs, cells, unavailable=unavailable, damaged=source.damaged)
    beside = resolve_cells(committed.runs, cells, unavailable={}, damaged=committed.damaged) if committed else []
    tables, asked = {cell.key for cell in cells}, studied or source
    studies = build_studies(asked.runs, study_rows, tables=tables, unavailable=unavailable, damaged=asked.damaged)
    of_studies = [result for study in studies for result in study.results]
    used = {
        run.path for result in (*results, *of_studies) for run in result.runs
    }  # a sweep may have made them under another scale
    shown = [run for run in source.runs if run.summary["scale"] == source.scale or run.path in used]
    machine = committed.machine if committed else ""
    return Findings(
        source=source,
        committed=committed,
        studied=studied,
        margin_nats=margin,
        shown=shown + ([run for run in studied.runs if run.summary["scale"] == source.scale] if studied else []),
        elsewhere=len(source.runs) - len(shown),
        results=results,
        committed_results=beside,
        tables=[build_table(results, name, scale=source.scale, committed=beside, machine=machine) for name in TABLES],
        comparisons=build_comparisons(results, margin),
        verdicts=build_verdicts(results, margin),
        choices=build_choices(shown, results),
        fairness=compare_at_own_best(shown),
        details=build_details(results),
        studies=studies,
        answers=build_answers(studies, margin),
        conversions=read_conversions([run for run in asked.runs if run.summary["scale"] == source.scale]),
        points=read_curves([run for result in distinct_cells(results) for run in result.runs]),
    )
