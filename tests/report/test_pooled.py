"""Random-effects estimates, beside closed forms and a worked example; which runs are units."""

import numpy as np
import pytest

from crope.report import pooled
from crope.report.contrasts import make_contrast
from crope.report.pooled import Pool, Source, random_effects
from tests.report.frames import losses, together

# Deaths of tuberculosis and survivors, vaccinated and not, in 13 trials (Colditz et al. 1994).
BCG = """
4 119 11 128   6 300 29 274   3 228 11 209   62 13536 248 12619   33 5036 47 5761
180 1361 372 1079   8 2537 10 619   505 87886 499 87892   29 7470 45 7232   17 1699 65 1600
186 50448 141 27197   5 2493 3 2338   27 16886 29 17825
"""


def test_equal_variances_give_students_interval_over_the_units():
    """Means 1, 2 and 6: 3 -+ t(2) * sqrt(7 / 3) = 3 -+ 6.5724; tau^2 = 7 - 0.75, Q = 14 / 0.75."""
    found = random_effects(np.array([1.0, 2.0, 6.0]), np.full(3, 0.75))
    assert (found["mean"], found["low"]) == pytest.approx((3, 3 - 6.5724), abs=1e-4)
    assert (found["tau"], found["i2"]) == pytest.approx((2.5, 1 - 2 * 0.75 / 14), abs=1e-6)


def test_units_that_agree_by_chance_make_no_narrower_interval():
    """Equal means, variances 1 and 1/3: weights 1 and 3, 5 -+ t(1) * sqrt(1 / 4)."""
    found = random_effects(np.array([5.0, 5.0]), np.array([1, 1 / 3]))
    assert (found["low"], found["tau"]) == pytest.approx((5 - 12.7062 / 2, 0), abs=1e-4)


def test_the_worked_example_of_the_bcg_vaccine():
    """Log relative risks; by REML, as books and packages print them."""
    cells = np.array(BCG.split(), dtype=float).reshape(13, 4)
    of_risk = [cells[:, at] / (cells[:, at] + cells[:, at + 1]) for at in (0, 2)]
    means = np.log(of_risk[0] / of_risk[1])
    variances = sum(1 / cells[:, at] - 1 / (cells[:, at] + cells[:, at + 1]) for at in (0, 2))
    found = random_effects(means, variances)
    assert (found["tau"] ** 2, found["mean"]) == pytest.approx((0.3132, -0.7145), abs=1e-4)


def source(study="paper_row", row="", one_variance=True, says=""):
    contrast = make_contrast(study, "crope - rope")
    return Source("long", contrast, row, one_variance, says)


SIZE = {"config.train.max_steps": 3200}


def runs(study="paper_row", **options):
    """Seeds from 1 on, which `paper_row` and `medium` plan."""
    place = {"dataset": "pg19", "row": "b2_l512_g09_s1000", "first_seed": 1} | options
    return losses(study=study, **place).assign(**SIZE)


def test_units_with_too_few_pairs_take_the_variance_of_all_pairs_of_their_group():
    """Squares 0.02 and 0.08 of 1 + 1 degrees of freedom: 0.05 a pair. Without one_variance a unit
    has its own.
    """
    table = together(
        runs(rope=[5.0, 5.0], crope=[5.1, 5.3]),
        runs(study="medium", rope=[5.0, 5.0], crope=[5.1, 5.5]),
        runs(study="cost", dataset="ptb", row="base", first_seed=10, rope=[5.0], crope=[5.25]),
    )
    pool = Pool("pooled", "", [source(), source("medium"), source("cost")], ["medium"])
    found = pooled.units(table, pool)
    assert found["study"].tolist() == ["paper_row", "cost"]
    assert found["variance"].tolist() == pytest.approx([0.025, 0.05])
    alone = pooled.units(table, Pool("", "", [source(one_variance=False)], []))
    assert alone["variance"].tolist() == pytest.approx([0.01])


def test_a_unit_is_named_and_has_the_papers_difference_at_the_papers_size():
    """6.584 - 6.607 in Table 2; a named row without a run has a line, too."""
    missing = source("paper_rows", "b2_l512_d64", says="D 64")
    pool = Pool("", "", [source(says="P5 †"), missing, source("medium")], [])
    table = together(runs(rope=[5.0], crope=[5.1]), runs(study="medium", rope=[5.0], crope=[5.1]))
    found = pooled.units(table, pool)
    size = "PG-19, paper's size"
    assert found["label"].tolist() == [f"{size}, P5 †", f"{size}, D 64", "PG-19, 3,200 steps"]
    assert found["of_paper"].tolist() == pytest.approx([-0.023, 0.001, np.nan], nan_ok=True)
    assert found["n"].tolist() == [1, 0, 1]


def test_a_pool_counts_units_pairs_and_units_above_0(monkeypatch):
    other = runs(study="medium", rope=[5.0, 5.0], crope=[4.9, 4.8])
    table = together(runs(rope=[5.0, 5.0, 5.0], crope=[5.1, 5.2, 5.3]), other)
    (line,) = pooled.pooled_lines(
        table, [Pool("p", "both", [source(), source("medium")], [])]
    ).to_dict("records")
    assert [line[name] for name in ("says", "units", "n", "above")] == ["both", 2, 5, 1]


def test_rates_have_all_seeds_of_their_studies_where_both_corpora_have_the_rate():
    """0.1, 0.2 and 0.6 at the rate of the run, whatever axis its study varies; `fair_lr` has no
    warm-up.
    """
    at = {"config.train.lr": 0.004, "config.train.qkv_lr_factor": 1.0}
    parts = [
        losses(study="rates", setting="train.lr=0.004", rope=[5.0, 5.0], crope=[5.1, 5.2]),
        losses(study="qkv_rate_mid", setting="train.qkv_lr_factor=1", rope=[5.0], crope=[5.6]),
        losses(study="fair_lr", setting="train.lr=0.004", rope=[5.0], crope=[9.0]),
        losses(study="rates", dataset="wikitext2", rope=[5.0], crope=[5.5]),
    ]
    lines = pooled.rate_lines(together(*(part.assign(**at) for part in parts)))
    assert lines[["dataset", "rate", "n"]].to_numpy().tolist() == [
        ["ptb", 0.004, 3],
        ["wikitext2", 0.004, 1],
    ]
    assert lines["mean"].tolist() == pytest.approx([0.3, 0.5])
