"""Each formula against scipy's own tests, values worked out by hand, or a slow definition; then against known truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from crope.report.stats import (
    ALPHA,
    Difference,
    bootstrap_interval,
    holm,
    p_above,
    p_below,
    p_equivalent,
    p_outside,
    p_std_outside,
    p_std_within,
    paired_difference,
    power_of_equivalence,
    seeds_needed,
    seeds_to_show_equivalence,
    std_interval,
    t_interval,
)

MARGIN = 0.02


def draws(*shape: int, mean: float = 0.0, std: float = 0.01, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, std, shape)


def test_paired_difference_by_hand() -> None:
    # Differences 0.1, 0.3, 0.2: mean 0.2, s = 0.1, t(2) = 4.3027, half width 4.3027 * 0.1 / sqrt(3).
    found = paired_difference({0: 1.1, 1: 2.3, 2: 3.2, 7: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.n, found.mean_nats, found.std_nats) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert found.values_nats == pytest.approx((0.1, 0.3, 0.2))
    assert found.high_nats - found.mean_nats == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert found.mean_nats - found.low_nats == pytest.approx(found.high_nats - found.mean_nats)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_seeds_have_a_mean_and_nothing_else(n: int) -> None:
    values = tuple(0.5 + seed for seed in range(n))
    found = paired_difference(dict(enumerate(values)), dict.fromkeys(range(n), 0.0))
    assert found == Difference(sum(values) / n, None, None, n, values_nats=values)
    assert seeds_needed(n) == f"needs at least 3 seeds, has {n}"


def test_t_interval_and_one_sided_tests_are_scipys() -> None:
    values_XN = draws(40, 5, mean=0.004)
    low, high = t_interval(values_XN)
    for i, values in enumerate(values_XN):
        for bound in (-MARGIN, 0.0, MARGIN):
            oracle = scipy.stats.ttest_1samp(values, bound, alternative="greater")
            assert p_above(values_XN, bound)[i] == pytest.approx(oracle.pvalue, rel=1e-9)
            oracle = scipy.stats.ttest_1samp(values, bound, alternative="less")
            assert p_below(values_XN, bound)[i] == pytest.approx(oracle.pvalue, rel=1e-9)
        oracle = scipy.stats.ttest_1samp(values, 0.0)
        assert p_outside(values_XN, 0.0)[i] == pytest.approx(oracle.pvalue, rel=1e-9)
        assert (low[i], high[i]) == pytest.approx(tuple(oracle.confidence_interval(0.95)), rel=1e-9)


def test_tost_by_hand() -> None:
    # Mean 0.005, s = 0.005, standard error 0.005 / sqrt(4) = 0.0025: t = 25 / 2.5 = 10 and -15 / 2.5 = -6 at 3 degrees.
    values = [0.0, 0.0, 0.01, 0.01]
    values = [0.005 + (value - 0.005) * (0.75**0.5) for value in values]
    assert np.std(values, ddof=1) == pytest.approx(0.005)
    assert p_equivalent(values, MARGIN) == pytest.approx(scipy.stats.t.sf(6, 3), rel=1e-9)
    assert p_equivalent(values, 0.005) == pytest.approx(0.5)  # the mean lies at the margin


def test_tests_and_intervals_say_the_same() -> None:
    """TOST rejects where the 90 % interval lies inside the margin, p_outside where the 95 % one lies outside."""
    values_XN = draws(4000, 4, std=0.02) + draws(4000, 1, std=0.03, seed=1)
    low, high = t_interval(values_XN)
    outside = (low > MARGIN) | (high < -MARGIN)
    assert np.array_equal(p_outside(values_XN, MARGIN) < ALPHA, outside)
    half = (high - low) / 2 * scipy.stats.t.ppf(0.95, 3) / scipy.stats.t.ppf(0.975, 3)
    inside = (values_XN.mean(-1) - half > -MARGIN) & (values_XN.mean(-1) + half < MARGIN)
    assert np.array_equal(p_equivalent(values_XN, MARGIN) < ALPHA, inside)
    assert 100 < outside.sum() < 3900 and 100 < inside.sum() < 3900


def test_differences_without_any_spread_do_not_break_the_tests() -> None:
    same = np.zeros(3)
    assert (p_equivalent(same, MARGIN), p_outside(same, 0.0)) == (0.0, 1.0)
    assert p_above(same + 0.5, 0.0) == 0.0 and p_below(same + 0.5, 0.0) == 1.0


def slow_holm(p_values: list[float]) -> list[float]:
    """Holm's procedure at every level: the smallest one at which the step-down rule still rejects the hypothesis."""

    def rejected(level: float) -> set[int]:
        found: set[int] = set()
        for step, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[i] * (len(p_values) - step) > level:
                break
            found.add(i)
        return found

    levels = sorted({min(1.0, p * m) for p in p_values for m in range(1, len(p_values) + 1)} | {1.0})
    return [min((level for level in levels if i in rejected(level)), default=1.0) for i in range(len(p_values))]


def test_holm_is_its_definition() -> None:
    # By hand: 0.01 * 4, 0.02 * 3 = 0.06, 0.03 * 2 = 0.06, 0.04 * 1 raised to 0.06.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    generator = np.random.default_rng(0)
    p_values_XC = generator.random((50, 6)) ** 3
    p_values_XC[::3, 2] = p_values_XC[::3, 4]  # ties
    p_values_XC[::4, 1] = 1.0  # a test that could not be made
    assert holm(p_values_XC) == pytest.approx(np.array([slow_holm(list(row)) for row in p_values_XC]))


def test_bootstrap_is_the_percentile_of_all_resamples() -> None:
    """With four seeds there are 4^4 resamples: their exact quantiles, up to the error of 10,000 drawn ones."""
    values = [0.0, 0.1, 0.25, 0.7]
    means = np.array([np.mean(drawn) for drawn in itertools.product(values, repeat=4)])
    low, high = bootstrap_interval(values, generator=np.random.default_rng(0))
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.03)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.03)
    # With three, all-equal resamples are 1 in 27, more than 2.5 %: the interval is the lowest and the highest seed.
    assert bootstrap_interval([3.0, 1.0, 2.0], generator=np.random.default_rng(1)) == pytest.approx((1.0, 3.0))


def test_bootstrap_reaches_the_normal_limit_and_repeats_itself() -> None:
    values = draws(400, mean=0.3)
    low, high = bootstrap_interval(values, generator=np.random.default_rng(0))
    half = 1.959964 * values.std(ddof=1) / 400**0.5
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05 * half)
    assert bootstrap_interval(values, generator=np.random.default_rng(0)) == (low, high)


@pytest.mark.parametrize(("n", "share"), [(3, 0.4), (10, 0.8)])
def test_bootstrap_is_narrower_than_t_by_the_stated_share(n: int, share: float) -> None:
    values_XN = draws(200, n)
    generator = np.random.default_rng(0)
    widths = [np.subtract(*bootstrap_interval(row, generator=generator, resamples=1000)) for row in values_XN]
    low, high = t_interval(values_XN)
    assert np.mean(widths) / np.mean(low - high) == pytest.approx(share, abs=0.03)


def test_interval_and_tests_of_a_standard_deviation_by_hand() -> None:
    # chi2(4) has 2.5 % below 0.484419 and above 11.143287.
    low, high = std_interval(0.03, 4)
    assert (low, high) == pytest.approx((0.03 * (4 / 11.143287) ** 0.5, 0.03 * (4 / 0.484419) ** 0.5), rel=1e-6)
    # Half the printed value and twice it bound what is held to be the same; the 95 % interval decides outside it.
    assert p_std_outside(0.03, 4, low / 2, 2.0) == pytest.approx(ALPHA)
    assert p_std_outside(0.03, 4, high * 2, 2.0) == pytest.approx(ALPHA)
    assert p_std_outside(0.03, 4, 0.03, 2.0) == 1.0
    # Equal to the reference: nu s^2 / sigma^2 = nu / 4 under twice it and 4 nu under half of it.
    expected = max(scipy.stats.chi2.cdf(1.0, 4), scipy.stats.chi2.sf(16.0, 4))
    assert p_std_within(0.03, 4, 0.03, 2.0) == pytest.approx(expected)


STUDIES, CELLS = 2000, 6
NOISE = 3 * (ALPHA * (1 - ALPHA) / STUDIES) ** 0.5  # three standard errors of a rate of 5 %


@pytest.mark.parametrize("n", [3, 5])
def test_the_interval_covers_the_truth_in_95_per_cent_of_studies(n: int) -> None:
    low, high = t_interval(draws(STUDIES, n, mean=0.013, seed=n))
    assert 0.93 <= np.mean((low <= 0.013) & (high >= 0.013)) <= 0.97


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("side", [1, -1])
def test_equivalence_at_the_margin_is_claimed_in_5_per_cent_of_studies(n: int, side: int) -> None:
    at_margin = np.mean(p_equivalent(draws(STUDIES, n, mean=side * MARGIN, std=0.004, seed=10 + n), MARGIN) < ALPHA)
    assert abs(at_margin - ALPHA) <= NOISE  # exact where the other bound is far
    wide = np.mean(p_equivalent(draws(STUDIES, n, mean=side * MARGIN, std=0.05, seed=20 + n), MARGIN) < ALPHA)
    assert wide <= ALPHA + NOISE
    inside = np.mean(p_equivalent(draws(STUDIES, n, std=0.002, seed=30 + n), MARGIN) < ALPHA)
    assert inside > 0.9  # and it does find what is there


@pytest.mark.parametrize("shared", [0.0, 0.9], ids=["independent", "correlated"])
def test_holm_keeps_the_error_of_the_family(shared: float) -> None:
    """Six cells without any difference, also where the seeds of all cells go up and down together."""
    own, common = draws(STUDIES, CELLS, 5, seed=3), draws(STUDIES, 1, 5, seed=4)
    values_SCN = (1 - shared) ** 0.5 * own + shared**0.5 * common
    p_SC = p_outside(values_SCN, 0.0)
    assert np.mean((holm(p_SC) < ALPHA).any(-1)) <= ALPHA + NOISE
    assert np.mean((p_SC < ALPHA).any(-1)) > 1.5 * ALPHA  # the correction has something to correct
    at_margin = holm(p_equivalent(values_SCN + MARGIN, MARGIN))
    assert np.mean((at_margin < ALPHA).any(-1)) <= ALPHA + NOISE


@pytest.mark.parametrize(("n", "std"), [(3, 0.013), (3, 0.041), (5, 0.01), (12, 0.021)])
def test_power_is_the_share_of_simulated_studies_that_find_equal_models_equal(n: int, std: float) -> None:
    values = np.random.default_rng(0).normal(0.0, std, size=(100_000, n))
    found = (p_equivalent(values, MARGIN) < ALPHA).mean()
    assert power_of_equivalence(n, std, MARGIN) == pytest.approx(found, abs=4 * np.sqrt(0.25 / 100_000))


def test_the_fewest_seeds_have_the_power_and_one_less_has_not() -> None:
    for std in (0.013, 0.021, 0.041):
        seeds = seeds_to_show_equivalence(std, MARGIN)
        assert power_of_equivalence(seeds, std, MARGIN) >= 0.8 > power_of_equivalence(seeds - 1, std, MARGIN)
    assert seeds_to_show_equivalence(0.0, MARGIN) == 3
    assert seeds_to_show_equivalence(1.0, MARGIN) is None
