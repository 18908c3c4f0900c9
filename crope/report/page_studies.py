"""The page's section of the studies: the questions on top, then each study's table and figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crope.report.answer_tables import answer_checks_sheet
from crope.report.answers import Answer, Question
from crope.report.figures import Picture, Plot
from crope.report.findings import Findings
from crope.report.sheets import Sheet
from crope.report.study_tables import TITLES, study_sheet
from crope.study import STUDIES


@dataclass(frozen=True)
class Asked:
    """A question with its answer at each measure; every check of it, with links, in one sheet."""

    question: Question
    answers: tuple[Answer, ...]
    checks: Sheet


@dataclass(frozen=True)
class Section:
    """One study; `sheet` is None where it was not begun, and `command` then says how it is."""

    name: str
    title: str
    command: str
    asked: tuple[Asked, ...]
    sheet: Sheet | None
    figures: tuple[tuple[Plot, list[Picture]], ...]


def study_sections(findings: Findings, figures: Sequence[tuple[Plot, list[Picture]]]) -> list[Section]:
    return [
        Section(
            name=study.name,
            title=TITLES[study.name],
            command=study.command,
            asked=_ask([answer for answer in findings.answers if answer.question.study == study.name]),
            sheet=study_sheet(study) if study.rows else None,
            figures=tuple((plot, pictures) for plot, pictures in figures if plot.name == study.name),
        )
        for study in findings.studies
    ]


def _ask(answers: Sequence[Answer]) -> tuple[Asked, ...]:
    """The answers by question, in their order."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.question.name, []).append(answer)
    return tuple(Asked(group[0].question, tuple(group), answer_checks_sheet(group)) for group in found.values())


def is_of_study(plot: Plot) -> bool:
    return plot.name in STUDIES
