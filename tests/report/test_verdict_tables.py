"""What a reader of the verdicts sees: every claim, its number, its rule, and what could not be tested."""

from __future__ import annotations

import csv
import io

import pytest

from crope.report.verdict_tables import render_verdicts_csv, render_verdicts_markdown
from crope.report.verdicts import build_verdicts
from tests.report.studies import losses, make_results

MARGIN = 0.02


def render(results, scale="quick") -> str:
    return render_verdicts_markdown(build_verdicts(results, MARGIN), scale=scale)


def line_of(text: str, claim: str, at: str = "final") -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {claim} |") and f"| {at} |" in line)


def test_markdown_line_of_a_verdict(cells) -> None:
    text = render(make_results(cells, losses(xpos=0.3, crope=0.1, spread=0.001)))
    # Five seeds with standard deviation 0.001 around 0.1: half width 2.776 * 0.001 / sqrt(5) = 0.0012.
    assert line_of(text, "CRoPE is within noise of RoPE") == (
        "| CRoPE is within noise of RoPE | Sec. 6.1, Table 1 | final | two one-sided paired t tests (TOST) |"
        " 0 of 3 hold; against it: PG-19: CRoPE − RoPE +0.1000 (95 % +0.0988 to +0.1012), Holm's p &lt; 0.001"
        " | not supported |"
    )
    assert line_of(text, "CRoPE saves 12.5 % of the block weights", "count").endswith(
        "| 6 of 6 hold; weakest: PG-19 12.5 % | supported |"
    )
    for part in text.split("\n\n"):
        widths = {line.replace(r"\|", "").count("|") for line in part.splitlines() if line.startswith("|")}
        assert len(widths) <= 1


def test_rules_are_generated_and_cite_the_paper(cells) -> None:
    text = render(make_results(cells, losses()))
    assert (
        "(Sec. 6.2, Table 2: “the difference between the final losses of RoPE and CRoPE are non-substantial”): not"
        " supported where in some check the difference is outside ±0.02 nats; else supported where in every check the"
        " difference is within ±0.02 nats; else cannot tell (p &lt; 0.05 after Holm over 4)."
    ) in text
    other = render_verdicts_markdown(build_verdicts(make_results(cells, losses()), 0.5), scale="quick")
    assert "±0.5 nats" in other and "±0.02 nats" not in other


def test_the_scale_is_said(cells) -> None:
    results = make_results(cells, losses())
    assert "the paper's claims are about its own setting" in render(results)
    assert "the paper's claims are about its own setting" not in render(results, scale="paper")


def test_missing_data_is_named_in_the_line(cells) -> None:
    text = render(make_results(cells, losses(), seeds=[0], without=lambda cell: cell.model == "xpos"))
    line = line_of(text, "CRoPE is within noise of RoPE")
    assert "no test; not tested: needs at least 3 seeds, has 1 | cannot tell with 1 seed |" in line
    line = line_of(text, "XPOS is worse than RoPE and than CRoPE on all three datasets")
    assert "not tested: XPOS missing | cannot tell: nothing to test |" in line
    assert "| final | all 6 | 0 |  |  |  | XPOS missing |" in text


def test_csv_has_a_line_a_check(cells) -> None:
    verdicts = build_verdicts(make_results(cells, losses(xpos=0.3, crope=0.002)), MARGIN)
    rows = list(csv.DictReader(io.StringIO(render_verdicts_csv(verdicts))))
    assert len(rows) == sum(len(verdict.checks) for verdict in verdicts)
    (row,) = [r for r in rows if (r["claim"], r["at"], r["check"]) == ("xpos_worse", "best", "PG-19: XPOS − CRoPE")]
    assert (row["outcome"], row["finding"], row["n"], row["section"]) == (
        "supported", "for", "5", "Sec. 6.1, Table 1",
    )  # fmt: skip
    assert float(row["value"]) == pytest.approx(0.298)
    assert float(row["p_for"]) <= float(row["p_for_holm"]) < 0.05
    assert {r["reason"] for r in rows if r["claim"] == "spread_of_seeds"} == {
        "spreads of the quick scale do not compare with the paper's"
    }
