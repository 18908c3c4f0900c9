"""Sentences about results: filled in, and refused once their answer has changed."""

import numpy as np
import pandas as pd
import pytest

from crope.errors import UserError
from crope.report import findings as findings_module
from crope.report.findings import findings

P1 = {
    "name": "P1",
    "dataset": "",
    "row": "",
    "setting": "",
    "complete": True,
    "n": 3,
    "planned": 3,
    "there": 3,
    "mean": 0.2,
    "std": 0.05,
    "low": 0.1,
    "high": 0.3,
}
SLOW = P1 | {"name": "base/crope - rope", "setting": "train.lr=1"}
FAST = SLOW | {"setting": "train.lr=2", "dataset": "ptb", "mean": -0.1234, "low": -0.2}
FILE = """
answer: {says: "It costs {cost}, listed {listed}, by {by}.", rests: {
  by: {from: P1, is: above 0, show: by},
  cost: {from: P1, is: above 0, show: cost}, listed: {from: P1, is: above 0, show: listed}}}
below: {says: "{above} of {units}, {n} pairs, tau {tau}.", rests: {
  above: {from: pooled, is: above 0, show: above}, units: {from: pooled, is: above 0, show: units},
  n: {from: pooled, is: above 0, show: n}, tau: {from: pooled, is: above 0, show: tau}}}
readme:
  - says: "It costs {cost}, on a corpus {ptb}, at a large rate {fast} or {mean}."
    rests:
      cost: {from: P1, is: above 0}
      ptb: {from: P1, in: ptb, is: above 0, show: size}
      fast: {from: base/crope - rope, at: train.lr=2, in: ptb, is: open, show: size}
      mean: {from: base/crope - rope, at: train.lr=2, in: ptb, is: open, show: mean}
claims:
  - {claim: none, says: "Refuted, {cost}.", rests: {cost: {from: pooled, is: above 0, show: size}}}
results: {rates: []}
"""
POOLED = P1 | {"name": "pooled", "n": 9, "units": 4.0, "above": 3.0, "tau": 0.0066}


@pytest.fixture
def found(tmp_path, monkeypatch):
    file = tmp_path / "findings.yaml"
    file.write_text(FILE)
    monkeypatch.setattr(findings_module, "FINDINGS_FILE", file)
    lines = [POOLED, SLOW, FAST | {"dataset": "", "mean": 9}, FAST]
    return lambda p1: findings(pd.DataFrame([p1, p1 | {"dataset": "ptb", "mean": 9}, *lines]))


def test_numbers_are_filled_in(found):
    """† marks what was planned: all corpora of P1."""
    filled = found(P1)
    (text,) = filled.readme
    of_p1 = "It costs +0.200 (+0.100 to +0.300)†, on a corpus 9"
    assert text == f"{of_p1}, at a large rate 0.12 or −0.123."
    assert (
        filled.answer
        == "It costs 0.200 (0.100 to 0.300), listed +0.200, +0.100 to +0.300, by 0.200, 0.100 to 0.300."
    )
    assert filled.below == "3 of 4, 9 pairs, tau 0.007."
    assert filled.claims.frame.to_numpy().tolist() == [["none", "Refuted, 0.2.", "`pooled`"]]


def test_no_line_and_several_of_which_none_is_named_are_refused(found):
    for other in ({"setting": "train.lr=2"}, {"row": "b2"}):
        lines = pd.DataFrame([P1, P1 | other])
        for name in ("P1", "P2"):
            with pytest.raises(UserError, match=f"{name} has no such line"):
                findings_module._answer_line(lines, {"from": name})
    assert findings_module._answer_line(lines, {"from": "P1", "row": "b2"})["row"] == "b2"


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ({"low": -0.1}, "open"),
        ({"low": -0.3, "high": -0.1}, "below 0"),
        ({"complete": False}, "incomplete"),
        ({"low": np.nan}, "incomplete"),
    ],
)
def test_a_changed_answer_is_refused_with_both(changed, now, found):
    with pytest.raises(UserError, match=f"P1 is now {now}, not above 0.*It costs"):
        found(P1 | changed)
