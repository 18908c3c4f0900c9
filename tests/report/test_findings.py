"""Sentences about results: filled in, and refused once their answer has changed."""

import numpy as np
import pandas as pd
import pytest

from crope.errors import UserError
from crope.report.findings import findings

P1 = {
    "name": "P1",
    "dataset": "",
    "setting": "",
    "complete": True,
    "n": 3,
    "mean": 0.2,
    "low": 0.1,
    "high": 0.3,
}
SLOW = P1 | {"name": "rates", "setting": "train.lr=1"}
FAST = SLOW | {"setting": "train.lr=2", "dataset": "ptb", "mean": -0.1234, "low": -0.2}
FILE = """
- says: "It costs {cost}, at a large rate {fast}."
  rests:
    cost: {from: P1, is: above 0}
    fast: {from: rates, at: train.lr=2, in: ptb, is: open, show: size}
"""


@pytest.fixture
def sentences(tmp_path):
    file = tmp_path / "findings.yaml"
    file.write_text(FILE)
    lines = [SLOW, FAST | {"dataset": "", "mean": 9}, FAST]
    return lambda p1: findings(pd.DataFrame([p1, p1 | {"dataset": "ptb", "mean": 9}, *lines]), file)


def test_numbers_are_filled_in(sentences):
    assert sentences(P1) == ["It costs +0.200 (+0.100 to +0.300)†, at a large rate 0.12."]


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ({"low": -0.1}, "open"),
        ({"low": -0.3, "high": -0.1}, "below 0"),
        ({"complete": False}, "incomplete"),
        ({"low": np.nan}, "incomplete"),
        ({"name": "other"}, "incomplete"),
    ],
)
def test_a_changed_answer_is_refused_with_both(changed, now, sentences):
    with pytest.raises(UserError, match=f"P1 is now {now}, not above 0.*It costs"):
        sentences(P1 | changed)
