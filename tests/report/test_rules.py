"""Simulations of the whole report: how often its rules draw a false conclusion, and how often
intervals cover.
"""

import math

import numpy as np
import pandas as pd
import pytest

from crope.report.claims import (
    CLAIMS,
    EQUIVALENT,
    HIGHER,
    LEVEL,
    LOWER,
    MARGIN,
    NOT_SUPPORTED,
    RULES,
    SLIGHTLY,
    SUPPORTED,
    conclude,
    describe,
    verdict,
)
from crope.report.questions import QUESTIONS, share
from crope.report.stats import ALPHA, MIN_SEEDS, interval
from crope.study import planned_seeds

REPORTS, STD = 160, 0.008
FIRST_LOOK = 3  # seeds
FALSE = {
    0.0: {LOWER, HIGHER, *SLIGHTLY.values()},
    MARGIN: {EQUIVALENT, LOWER, *SLIGHTLY.values()},
}


def planned_tests() -> list[tuple[int, float]]:
    """Seeds and share of every question that is judged."""
    found = [(len(planned_seeds(one.study)), share(one)) for one in QUESTIONS if one.answers]
    assert min(n for n, _ in found) >= MIN_SEEDS
    return found


def false_verdicts(draw: np.random.Generator) -> int:
    """Verdicts on claims of which every check lies exactly at the border between true and false, at
    either look.
    """
    count, n = 0, len(planned_seeds("table1"))
    for claim in CLAIMS:
        drawn = [
            (RULES[name], draw.normal(0.0 if name == "higher" else MARGIN, STD, n))
            for _ in claim.rows
            for _, _, name in claim.checks
        ]
        for seeds in (FIRST_LOOK, n):
            p = [{"p_for": rule.p_for(values[:seeds]), "p_against": rule.p_against(values[:seeds])}
                 for rule, values in drawn]  # fmt: skip
            count += verdict(pd.DataFrame(p)) in (SUPPORTED, NOT_SUPPORTED)
    return count


@pytest.mark.parametrize("truth", [0.0, MARGIN])
def test_a_report_draws_any_false_conclusion_in_at_most_5_percent(truth: float) -> None:
    """Of models that are equal, or exactly at the margin; most reports would without the
    adjustment.
    """
    draw, tests = np.random.default_rng(0), planned_tests()
    false, unadjusted = 0, 0
    for _ in range(REPORTS):
        values = [pd.Series(draw.normal(truth, STD, n)) for n, _ in tests]
        lines = pd.DataFrame(
            [
                describe(one) | {"share": share}
                for one, (_, share) in zip(values, tests, strict=True)
            ]
        )
        wrong = set(conclude(lines)["conclusion"]) & FALSE[truth]
        false += bool(wrong) or false_verdicts(draw) > 0
        unadjusted += (lines["p_different" if truth == 0 else "p_equivalent"] < ALPHA).any()
    # Three standard errors of the observed rate above the promised one.
    assert false / REPORTS <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / REPORTS)
    assert unadjusted / REPORTS > 0.5, "the simulation must be able to fail"


def test_a_claim_that_one_row_contradicts_is_rarely_supported() -> None:
    """The worst case of an intersection-union test: all other checks hold beyond doubt."""
    draw, level = np.random.default_rng(1), 0.0
    for _ in range(4000):
        p = [RULES["equivalent"].p_for(draw.normal(MARGIN, STD, 5)), 0.0, 0.0]
        level += verdict(pd.DataFrame({"p_for": p, "p_against": [1.0] * 3})) == SUPPORTED
    assert level / 4000 <= LEVEL + 3 * math.sqrt(LEVEL / 4000)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_95_percent_intervals_cover_95_percent(n: int) -> None:
    draws = np.random.default_rng(n).normal(0.01, STD, (6000, n))
    covered = [low <= 0.01 <= high for low, high in map(interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)
