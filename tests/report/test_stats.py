"""Statistics against values worked out by hand, scipy's distributions and tests, and simulations of
known truth.
"""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from crope.report import stats
from crope.report.stats import ALPHA

MARGIN = 0.02


def draws(*shape: int, mean: float = 0.0, std: float = 0.01, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, std, shape)


def test_mean_and_sample_standard_deviation() -> None:
    mean, std = stats.mean_std([1.0, 2.0, 4.0])
    assert mean == pytest.approx(7 / 3)
    assert std == pytest.approx((((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2) ** 0.5)  # n - 1
    assert stats.mean_std([3.0]) == (3.0, None)


def test_pairing_is_by_seed_and_not_by_place() -> None:
    first = pd.Series({0: 1.0, 2: 3.0, 3: 7.0})
    second = pd.Series({3: 5.0, 0: 0.5, 1: 100.0, 2: 2.0})
    assert stats.paired(first, second).to_dict() == {0: 0.5, 2: 1.0, 3: 2.0}
    assert stats.paired(second, first).to_dict() == {0: -0.5, 2: -1.0, 3: -2.0}
    assert list(stats.paired(second, first).index) == [0, 2, 3]
    assert stats.paired(first, pd.Series({1: 1.0})).empty


def test_t_interval_by_hand() -> None:
    # Mean 0.2, s = 0.1, t(2; 0.975) = 4.302653: half width 4.302653 * 0.1 / sqrt(3).
    low, high = stats.interval([0.1, 0.3, 0.2])
    assert (low + high) / 2 == pytest.approx(0.2)
    assert (high - low) / 2 == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert np.isnan(stats.interval([0.1])).all()


def test_tests_are_the_t_distribution_of_the_t_statistic() -> None:
    for values in draws(20, 5, mean=0.004):
        for bound in (-MARGIN, 0.0, MARGIN):
            t = (values.mean() - bound) / (values.std(ddof=1) / 5**0.5)
            assert stats.p_above(values, bound) == pytest.approx(scipy.stats.t.sf(t, 4), rel=1e-9)
            assert stats.p_below(values, bound) == pytest.approx(scipy.stats.t.cdf(t, 4), rel=1e-9)
        assert stats.p_different(values) == pytest.approx(
            scipy.stats.ttest_1samp(values, 0).pvalue, rel=1e-9
        )


def test_p_values_and_intervals_decide_alike() -> None:
    """Equivalent exactly if the 90 % interval lies inside the margins; different if the 95 % one
    excludes them.
    """
    decided = set()
    for values in itertools.chain(
        draws(60, 4), draws(60, 4, mean=0.02, seed=1), draws(60, 4, mean=-0.06, seed=2)
    ):
        low, high = stats.interval(values, level=0.9)
        equivalent = low > -MARGIN and high < MARGIN
        assert (stats.p_equivalent(values, MARGIN) < ALPHA) == equivalent
        low, high = stats.interval(values)
        outside = low > MARGIN or high < -MARGIN
        assert (stats.p_different(values, MARGIN) < ALPHA) == outside
        assert (stats.p_different(values) < ALPHA) == (low > 0 or high < 0)
        decided |= {(equivalent, outside)}
    assert decided == {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize(
    ("value", "above", "below", "equivalent"),
    [(0.01, 0.0, 1.0, 0.0), (0.0, 1.0, 1.0, 0.0), (0.02, 0.0, 1.0, 1.0)],
)
def test_values_without_spread(value: float, above: float, below: float, equivalent: float) -> None:
    values = [value] * 3
    assert (stats.p_above(values), stats.p_below(values)) == (above, below)
    assert stats.p_equivalent(values, MARGIN) == equivalent


@pytest.mark.parametrize(
    ("mean", "std", "different"),
    [(0.011, 0.0065, True), (0.0, 0.01, False), (0.4416, 0.19, True), (0.003, 0.02, False)],
)
def test_seeds_needed_give_the_power_of_the_likelier_test(
    mean: float, std: float, different: bool
) -> None:
    """Simulated at the true mean and deviation; one seed fewer has less than the power."""
    n = stats.seeds_needed(mean, std, MARGIN, 0.05)
    power = []
    for seeds in (n, n - 1):
        values = draws(4000, seeds, mean=mean, std=std)
        t = scipy.stats.ttest_1samp(values, 0, axis=1)
        low, high = t.confidence_interval(0.9)
        power.append(np.mean(t.pvalue < 0.05 if different else (low > -MARGIN) & (high < MARGIN)))
    assert power[0] >= stats.POWER - 0.03
    assert power[1] <= stats.POWER + 0.03


def test_seeds_needed_are_a_range_and_end_at_a_thousand() -> None:
    values = [0.0, 0.02, 0.04, 0.01, 0.03]
    low, high = stats.seeds_range(values, MARGIN, 0.05)
    std = np.std(values, ddof=1)
    ends = [std * (4 / scipy.stats.chi2.ppf(q, 4)) ** 0.5 for q in (0.9, 0.1)]
    assert (low, high) == tuple(stats.seeds_needed(0.02, end, MARGIN, 0.05) for end in ends)
    assert low < high
    assert stats.seeds_needed(0.0001, 0.9, MARGIN, 0.05) == stats.MAX_SEEDS
    assert stats.seeds_needed(0.1, 0.001, MARGIN, 0.05) == stats.MIN_SEEDS
