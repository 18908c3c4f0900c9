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
    "setting": "",
    "complete": True,
    "n": 3,
    "planned": 3,
    "mean": 0.2,
    "std": 0.05,
    "low": 0.1,
    "high": 0.3,
}
SLOW = P1 | {"name": "base/crope - rope", "setting": "train.lr=1"}
FAST = SLOW | {"setting": "train.lr=2", "dataset": "ptb", "mean": -0.1234, "low": -0.2}
FILE = """
differences:
  - {says: the paper's rate, from: P1}
  - {says: another, from: base/crope - rope, at: train.lr=1}
readme:
  - says: "It costs {cost}, on a corpus {ptb}, at a large rate {fast}, spread {spread}."
    rests:
      cost: {from: P1, is: above 0}
      ptb: {from: P1, in: ptb, is: above 0, show: size}
      fast: {from: base/crope - rope, at: train.lr=2, in: ptb, is: open, show: size}
      spread: {from: P1, is: above 0, show: spread}
results: []
meanings:
  P1: {is: above 0, says: It costs.}
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    file = tmp_path / "findings.yaml"
    file.write_text(FILE)
    monkeypatch.setattr(findings_module, "FINDINGS_FILE", file)
    lines = [SLOW, FAST | {"dataset": "", "mean": 9}, FAST]
    return lambda p1: findings(pd.DataFrame([p1, p1 | {"dataset": "ptb", "mean": 9}, *lines]))


def test_numbers_are_filled_in(found):
    """† marks what was planned: all corpora of P1."""
    (text,) = found(P1).readme
    of_p1 = "It costs +0.200 (+0.100 to +0.300)†, on a corpus 9"
    assert text == f"{of_p1}, at a large rate 0.12, spread 0.05."


def test_the_table_of_differences_marks_planned_ones(found):
    assert found(P1).differences.frame.to_numpy().tolist() == [
        ["the paper's rate †", "+0.200 (+0.100 to +0.300)", 3],
        ["another", "+0.200 (+0.100 to +0.300)", 3],
    ]


def test_planned_questions_have_their_meaning(found):
    assert found(P1).meanings == {"P1": "It costs."}


def test_no_line_and_several_of_which_none_is_named_are_refused(found):
    lines = [P1, P1 | {"setting": "train.lr=2"}]
    for name in ("P1", "P2"):
        with pytest.raises(UserError, match=f"{name} has no such line"):
            findings_module._answer_line(pd.DataFrame(lines), {"from": name})


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
