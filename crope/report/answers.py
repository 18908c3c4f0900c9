"""How a study's question is answered: lower, equivalent, higher, or cannot tell.

A question is a set of differences over seeds: a pair of models on each text, a change of length on each text, or a
pair at each width. Each is tested as comparisons.py does it, and Holm goes over a family: the checks of one question,
or of several that are read as one. A text on which a study was not begun, or on which no run of its own has the seeds
for a test, is no part of a family; a model that is missing where others can be tested counts as p = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import (
    COMPARED_AT,
    EQUIVALENT,
    HIGHER,
    LOWER,
    OPEN,
    Tested,
    adjust,
    pair_label,
    paired,
    with_tests,
)
from crope.report.stats import MANY_SEEDS, MIN_SEEDS, Difference, over_seeds, seeds_needed, seeds_to_show_equivalence
from crope.report.studies import Row, Study


@dataclass(frozen=True)
class Question:
    """`answers` puts into words what each conclusion about `difference` means for it."""

    name: str
    study: str
    text: str
    difference: str
    answers: dict[str, str]


@dataclass(frozen=True)
class Check(Tested):
    """One difference: where (a text, a width), of what, `unit` of its number, and the cells behind it.

    `planned`: the text has the seeds for tests, so that the check counts in its family though its own may be missing.
    """

    where: str
    difference_of: str
    keys: tuple[str, ...]
    unit: str = ""
    planned: bool = True

    @property
    def counts(self) -> bool:
        """Whether Holm counts it. Runs of other studies may allow a test where the study planned none."""
        return self.planned or self.p_different is not None

    @property
    def number(self) -> str:
        found = self.difference
        if found is None:
            return ""
        if found.low_nats is None:
            return f"{format_nats(found.mean_nats)}{self.unit} ({self.reason})"
        interval = format_range(found.low_nats, found.high_nats)
        return f"{format_nats(found.mean_nats)}{self.unit} (95 % {interval}, n = {found.n}{self._wanted(found)})"

    def _wanted(self, found: Difference) -> str:
        """How many seeds could tell, where these cannot."""
        if self.conclusion != OPEN or found.std_nats is None:
            return ""
        seeds = seeds_to_show_equivalence(found.std_nats, self.margin_nats)
        if seeds is not None and seeds <= found.n:  # another test of the family kept this one from it
            return ""
        return f"; {f'{seeds:,}' if seeds else f'more than {MANY_SEEDS:,}'} seeds could tell"


@dataclass(frozen=True)
class Answer:
    """A question at one measure; `at` is `final, best` where both give the same numbers."""

    question: Question
    at: str
    checks: tuple[Check, ...]

    @property
    def tested(self) -> list[Check]:
        return [check for check in self.checks if check.p_different_holm is not None]

    @property
    def text(self) -> str:
        """In words; where the texts or widths differ, each answer with its own."""
        words = {**self.question.answers, OPEN: OPEN}
        found: dict[str, list[str]] = {}
        for check in self.tested:
            found.setdefault(words[check.conclusion], []).append(check.where)
        if not found:
            reasons = dict.fromkeys(check.reason for check in self.checks)
            return next(iter(reasons)) if len(reasons) == 1 else f"{OPEN}: no test"
        if len(found) == 1 and len(self.tested) == len(self.checks):
            return next(iter(found))
        return "; ".join(f"{', '.join(places)}: {text}" for text, places in found.items())

    @property
    def numbers(self) -> str:
        """Every difference with its interval and seeds, or why there is none."""
        return "; ".join(f"{check.where}: {check.number or check.reason}" for check in self.checks)


Values = Mapping[int, float]  # seed -> nats
Difference_of = Callable[[Row, str], tuple[Difference | None, str]]  # at a row and measure: what, and why no test


def of_pair(
    study: Study,
    name: str,
    text: str,
    pair: tuple[str, str],
    words: dict[str, str],
    margin: float,
    *,
    where: Callable[[Row], str] = lambda row: row.label,
) -> list[Answer]:
    """first - second in each row of the study, at the final and at the best loss; not yet adjusted."""
    question = Question(name, study.name, text, pair_label(*pair), words)
    return of_rows(study, question, pair, lambda row, at: of_models(row, pair, at), margin, where=where)


def of_rows(
    study: Study,
    question: Question,
    models: Sequence[str],
    difference_of: Difference_of,
    margin: float,
    *,
    where: Callable[[Row], str] = lambda row: row.label,
) -> list[Answer]:
    """One difference of losses in each row of the study, made of these models; not yet adjusted."""
    answers = []
    for at in COMPARED_AT:
        checks = []
        for row in study.rows:
            difference, reason = difference_of(row, at)
            keys = tuple(row.results[model].cell.key for model in models if model in row.results)
            check = Check(
                where(row), question.difference, keys, planned=row.testable, margin_nats=margin,
                difference=difference, reason=reason,
            )  # fmt: skip
            checks.append(with_tests(check))
        answers.append(Answer(question, at, tuple(checks)))
    return answers


def of_models(row: Row, pair: tuple[str, str], at: str) -> tuple[Difference | None, str]:
    """first - second in a row, and why no test can be made of it."""
    return paired(row.results.get(pair[0]), row.results.get(pair[1]), at)


def judged(answers: Sequence[Answer]) -> list[Answer]:
    """Holm over all planned checks of these questions, at each measure, which are then one family.

    One answer is left where the best loss is the final one in every run.
    """
    found: dict[str, list[Answer]] = {}
    for at in dict.fromkeys(one.at for one in answers):
        family = [one for one in answers if one.at == at]
        checks = iter(adjust([check for one in family for check in one.checks if check.counts]))
        for one in family:
            done = tuple(next(checks) if check.counts else check for check in one.checks)
            found.setdefault(one.question.name, []).append(Answer(one.question, at, done))
    return [answer for group in found.values() for answer in _merged(group)]


def _merged(answers: list[Answer]) -> list[Answer]:
    first, *others = answers
    if others and all(one.checks == first.checks for one in others):
        return [Answer(first.question, ", ".join(COMPARED_AT), first.checks)]
    return answers


def fit_slope(by_width: Mapping[int, Mapping[int, float]]) -> tuple[Difference | None, list[int]]:
    """Least squares of a loss difference (width -> seed -> nats) against log2(width), seed by seed: nats per doubling.

    Over the widths that have a seed, and the seeds that have all of these widths; with the widths. None below two
    widths or without such a seed.
    """
    found = {width: by_seed for width, by_seed in sorted(by_width.items()) if by_seed}
    seeds = sorted(set.intersection(*map(set, found.values()))) if found else []
    if len(found) < 2 or not seeds:
        return None, list(found)
    differences_WS = np.array([[by_seed[seed] for seed in seeds] for by_seed in found.values()])
    steps_W = np.log2(list(found))
    steps_W -= steps_W.mean()
    return over_seeds((steps_W @ differences_WS / (steps_W @ steps_W)).tolist()), list(found)


def too_few(difference: Difference) -> str:
    return "" if difference.n >= MIN_SEEDS else seeds_needed(difference.n)


def words(lower: str, equivalent: str, higher: str) -> dict[str, str]:
    return {LOWER: lower, EQUIVALENT: equivalent, HIGHER: higher}
