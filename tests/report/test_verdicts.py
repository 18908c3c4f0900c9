"""Each outcome of each claim, on studies whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crope import paper
from crope.report.judgement import CANNOT_TELL, NOT_SUPPORTED, SUPPORTED, Check, Claim, judge
from crope.report.stats import ALPHA, holm, p_above, p_equivalent, p_outside
from crope.report.verdicts import build_verdicts
from tests.report.studies import losses, make_results

MARGIN = 0.02
NOISE_CLAIMS = ("crope_within_noise", "rows_within_noise")
SAVINGS = ("saves_qkv", "saves_attention", "saves_block")


def judged(results) -> dict[tuple[str, str], object]:
    return {(verdict.claim.name, verdict.at): verdict for verdict in build_verdicts(results, MARGIN)}


def outcomes(results, at: str = "final") -> dict[str, str]:
    return {name: verdict.outcome for (name, measure), verdict in judged(results).items() if measure == at}


def test_every_claim_is_judged_at_each_of_its_measures(cells) -> None:
    assert list(judged(make_results(cells, losses()))) == [
        ("xpos_worse", "final"), ("xpos_worse", "best"),
        ("crope_within_noise", "final"), ("crope_within_noise", "best"),
        ("rows_within_noise", "final"), ("rows_within_noise", "best"),
        ("training_order", "final"),
        ("saves_qkv", "count"), ("saves_attention", "count"), ("saves_block", "count"),
        ("spread_of_seeds", "final"), ("spread_of_batches", "final"),
    ]  # fmt: skip


def test_where_the_paper_is_right_every_claim_is_supported(cells) -> None:
    results = make_results(cells, losses(xpos=0.3, crope=0.002))
    found = outcomes(results)
    assert [found[name] for name in ("xpos_worse", *NOISE_CLAIMS, "training_order")] == [SUPPORTED] * 4
    assert set(outcomes(results, "count").values()) == {SUPPORTED}
    verdict = judged(results)["xpos_worse", "final"]
    assert len(verdict.checks) == 6 and verdict.missing == ()
    assert verdict.numbers.startswith("6 of 6 hold; weakest: ")


def test_where_crope_is_truly_worse(cells) -> None:
    found = judged(make_results(cells, losses(xpos=0.3, crope=0.1)))
    assert [found[name, at].outcome for name in NOISE_CLAIMS for at in ("final", "best")] == [NOT_SUPPORTED] * 4
    assert "against it: " in found["crope_within_noise", "final"].numbers
    assert "+0.1000 (95 % " in found["crope_within_noise", "final"].numbers
    assert found["xpos_worse", "final"].outcome == SUPPORTED  # still worse than both
    assert found["training_order", "final"].outcome == SUPPORTED


def test_where_noise_hides_everything(cells) -> None:
    found = judged(make_results(cells, losses(xpos=0.1, crope=0.05, spread=0.5)))
    for name in ("xpos_worse", *NOISE_CLAIMS, "training_order"):
        assert found[name, "final"].outcome_text == "cannot tell with 5 seeds", name


def test_between_zero_and_the_margin_more_seeds_are_asked_for(cells) -> None:
    """An interval that excludes 0 but reaches into the margin neither supports nor contradicts."""
    found = judged(make_results(cells, losses(crope=0.025, spread=0.012)))["crope_within_noise", "final"]
    assert found.checks[0].low > 0 and found.checks[0].low < MARGIN < found.checks[0].high
    assert found.outcome == CANNOT_TELL


def test_one_seed_tells_nothing_and_says_why(cells) -> None:
    found = judged(make_results(cells, losses(xpos=5.0, crope=-5.0), seeds=[3]))
    for name in ("xpos_worse", *NOISE_CLAIMS, "training_order"):
        verdict = found[name, "final"]
        assert verdict.outcome_text == "cannot tell with 1 seed"
        assert verdict.missing == ("needs at least 3 seeds, has 1",)
        assert all(check.low is None and check.p_for is None for check in verdict.checks)
    assert found["saves_block", "count"].outcome == SUPPORTED  # a count needs no seeds


def test_missing_cells_are_named_and_never_help(cells) -> None:
    def without(cell):
        return (cell.dataset, cell.model) == ("ptb", "rope")

    found = judged(make_results(cells, losses(xpos=0.3, crope=0.002), without=without))
    worse = found["xpos_worse", "final"]
    assert worse.outcome_text == "cannot tell with 5 seeds"
    assert worse.missing == ("Penn Treebank: XPOS − RoPE: RoPE missing",)
    assert found["crope_within_noise", "final"].missing == ("Penn Treebank: CRoPE − RoPE: RoPE missing",)
    assert found["rows_within_noise", "final"].outcome == SUPPORTED  # Table 2 is on PG-19
    assert len(found["saves_qkv", "count"].checks) == 5
    # One cell that contradicts is enough, whatever is missing.
    against = judged(make_results(cells, losses(xpos=0.3, crope=0.1), without=without))
    assert against["crope_within_noise", "final"].outcome == NOT_SUPPORTED
    # The smallest of six p-values is adjusted six-fold though one of them is missing, the smallest of three three-fold.
    tested = [check for check in worse.checks if check.p_for is not None]
    assert min(check.p_for_holm for check in tested) == pytest.approx(6 * min(check.p_for for check in tested))
    tested = [check for check in against["crope_within_noise", "final"].checks if check.p_against is not None]
    assert min(c.p_against_holm for c in tested) == pytest.approx(3 * min(c.p_against for c in tested))


def test_without_any_run_there_is_nothing_to_test(cells) -> None:
    found = judged(make_results(cells, losses(), without=lambda cell: True))
    assert {verdict.outcome_text for verdict in found.values()} == {"cannot tell: nothing to test"}
    assert found["saves_qkv", "count"].missing == ("no row has runs of both RoPE and CRoPE",)


def test_final_and_best_loss_may_disagree(cells) -> None:
    """RoPE overfits at the end: at the best loss the models are equal, at the final one CRoPE is far ahead."""
    final, best = losses(xpos=0.3, crope=-0.1), losses(xpos=0.3, crope=0.002)
    found = judged(make_results(cells, final, best=best))
    for name in NOISE_CLAIMS:
        assert found[name, "final"].outcome == NOT_SUPPORTED
        assert found[name, "best"].outcome == SUPPORTED
    assert "−0.1000" in found["crope_within_noise", "final"].numbers


@pytest.mark.parametrize("xpos", [-0.1, 0.005], ids=["better", "not markedly worse"])
def test_xpos_is_not_worse_on_one_dataset(cells, xpos: float) -> None:
    there, elsewhere = losses(xpos=xpos, spread=0.001), losses(xpos=0.3, spread=0.001)
    results = make_results(cells, lambda cell, seed: (there if cell.dataset == "ptb" else elsewhere)(cell, seed))
    assert outcomes(results)["xpos_worse"] == NOT_SUPPORTED
    assert "Penn Treebank" in judged(results)["xpos_worse", "final"].numbers


def test_a_row_of_table_2_may_differ_alone(cells) -> None:
    small, others = losses(crope=0.1), losses(crope=0.001)
    results = make_results(cells, lambda cell, seed: (small if cell.row == "b2_l512_d64" else others)(cell, seed))
    found = judged(results)
    assert found["crope_within_noise", "final"].outcome == SUPPORTED
    assert found["rows_within_noise", "final"].outcome == NOT_SUPPORTED
    assert "D=64" in found["rows_within_noise", "final"].numbers


def test_training_order(cells) -> None:
    final = losses(xpos=0.3)
    assert outcomes(make_results(cells, final, train=losses(xpos=0.3, crope=-0.1)))["training_order"] == NOT_SUPPORTED
    assert outcomes(make_results(cells, final, train=losses(xpos=-0.1, crope=0.1)))["training_order"] == NOT_SUPPORTED
    assert outcomes(make_results(cells, final, train=losses(xpos=0.3, crope=0.1)))["training_order"] == SUPPORTED
    # Records without the loss on the train split: nothing is invented.
    silent = make_results(cells, final, change=lambda cell, summary: summary.pop("train"))
    assert outcomes(silent)["training_order"] == CANNOT_TELL
    missing = judged(silent)["training_order", "final"].missing
    assert missing[0] == "PG-19: XPOS − CRoPE: no train loss in the records of XPOS and CRoPE" and len(missing) == 6


def test_savings_are_counted_on_the_runs(cells) -> None:
    def change(cell, summary):  # the literal reading of Sec. 5.1 would also halve the output projection
        if (cell.model, cell.dataset) == ("crope", "ptb"):
            summary["parameters"]["qkv"] *= 1.2

    found = judged(make_results(cells, losses(), change=change))
    assert [found[name, "count"].outcome for name in SAVINGS] == [NOT_SUPPORTED] * 3
    # Half of three squares of weights, a fifth more: 1.5 - 0.3 of them are saved.
    numbers = [found[name, "count"].numbers for name in SAVINGS]
    assert numbers == [
        "5 of 6 hold; against it: Penn Treebank 40.0 %",
        "5 of 6 hold; against it: Penn Treebank 30.0 %",
        "5 of 6 hold; against it: Penn Treebank 10.0 %",
    ]


def printed(cell) -> float:
    table = "table1" if cell.row == "base" else "table2"
    return paper.printed_loss(table, cell.row, cell.dataset, cell.model).std_nats


@pytest.mark.parametrize(
    ("factor", "seeds", "outcome"), [(1.0, 25, SUPPORTED), (0.05, 25, NOT_SUPPORTED), (1.0, 5, CANNOT_TELL)]
)
def test_the_printed_spread_against_seeds(cells, factor: float, seeds: int, outcome: str) -> None:
    unit = np.linspace(-1, 1, seeds)
    unit /= unit.std(ddof=1)
    results = make_results(
        [replace(cell, scale="paper") for cell in cells],
        lambda cell, seed: 5 + factor * printed(cell) * unit[seed],
        seeds=range(seeds),
    )
    found = judged(results)["spread_of_seeds", "final"]
    assert (found.outcome, len(found.checks)) == (outcome, 18)
    assert [check.value for check in found.checks] == pytest.approx(
        [factor * printed(result.cell) for result in results[:9] + results[12:]]
    )


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, SUPPORTED), (4.0, NOT_SUPPORTED)])
def test_the_printed_spread_against_sampled_batches(cells, factor: float, outcome: str) -> None:
    def change(cell, summary):
        # Two runs of unequal spread and length, whose pooled variance is the square of what is wanted.
        n, share = [(51, 1.2), (26, 0.4)][summary["seed"]]
        summary["val_sampled"] |= {"std_nats": factor * printed(cell) * share**0.5, "n": n}

    results = make_results([replace(cell, scale="paper") for cell in cells], losses(), seeds=range(2), change=change)
    found = judged(results)["spread_of_batches", "final"]
    pooled = ((50 * 1.2 + 25 * 0.4) / 75) ** 0.5
    assert found.checks[0].value == pytest.approx(factor * pooled * printed(results[0].cell))
    assert found.outcome == outcome


def test_spreads_of_other_scales_are_not_judged(cells) -> None:
    found = judged(make_results(cells, losses()))["spread_of_seeds", "final"]
    assert found.outcome_text == "cannot tell: nothing to test"
    assert found.missing == ("spreads of the quick scale do not compare with the paper's",)


def test_other_corpora_do_not_enter(cells, tiny_cells) -> None:
    """CRoPE fails on tiny alone: no claim of the paper is about it."""
    bad, good = losses(crope=3.0), losses(xpos=0.3, crope=0.002)
    results = make_results([*tiny_cells, *cells], lambda c, seed: (bad if c.dataset == "tiny" else good)(c, seed))
    assert [outcomes(results)[name] for name in NOISE_CLAIMS] == [SUPPORTED] * 2


CLAIM = Claim("c", "", "", "", "", "", "")


def decide(values_SCN: np.ndarray) -> np.ndarray:
    """Outcome of each study on whether all its cells are equivalent."""
    p_for_SC, p_against_SC = p_equivalent(values_SCN, MARGIN), p_outside(values_SCN, MARGIN)
    return np.array([
        judge(CLAIM, "final", [Check("", 5, p_for=p, p_against=q) for p, q in zip(*pair, strict=True)]).outcome
        for pair in zip(p_for_SC, p_against_SC, strict=True)
    ])  # fmt: skip


def test_the_rule_errs_in_at_most_5_per_cent_of_studies() -> None:
    """2,000 studies of three cells: supported though one cell is at the margin, not supported though none is beyond."""
    values_SCN = np.random.default_rng(5).normal(0.0, 0.004, (2000, 3, 5))
    most = ALPHA + 3 * (ALPHA * (1 - ALPHA) / 2000) ** 0.5
    at_margin_C1 = np.array([[0.0], [0.0], [MARGIN]])
    assert np.mean(decide(values_SCN + at_margin_C1) == SUPPORTED) <= most
    assert np.mean(decide(values_SCN + MARGIN) == NOT_SUPPORTED) <= most
    # And it finds what is there, where the spread leaves no doubt.
    assert np.mean(decide(values_SCN / 4) == SUPPORTED) > 0.95
    assert np.mean(decide(values_SCN / 4 + 2 * at_margin_C1) == NOT_SUPPORTED) > 0.95


def test_adjusted_p_values_are_holms_over_the_checks_of_the_claim(cells) -> None:
    verdict = judged(make_results(cells, losses(xpos=0.02, spread=0.02)))["xpos_worse", "final"]
    raw = [check.p_for for check in verdict.checks]
    assert [check.p_for_holm for check in verdict.checks] == pytest.approx(list(holm(raw)))
    first = verdict.checks[0]
    values = [0.02 + 0.02 * unit for unit in (-1.2649, -0.6325, 0.0, 0.6325, 1.2649)]
    assert first.p_for == pytest.approx(float(p_above(values, 0.0)), rel=1e-6)
