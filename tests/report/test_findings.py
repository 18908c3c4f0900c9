"""Sentences about results: filled in, and refused once their answer has changed."""

import numpy as np
import pandas as pd
import pytest

from crope.errors import UserError
from crope.report.findings import findings

P1 = {
    "name": "P1",
    "setting": "",
    "complete": True,
    "n": 3,
    "mean": 0.2,
    "low": 0.1,
    "high": 0.3,
}
FAST = P1 | {"name": "rates", "setting": "train.lr=2", "mean": -0.1234, "low": -0.2, "high": 0.1}
LINES = pd.DataFrame([P1, FAST | {"setting": "train.lr=1", "mean": 9.0}, FAST])


def sentences(tmp_path, lines=LINES, now="above 0"):
    file = tmp_path / "findings.yaml"
    file.write_text(
        f"""
        - says: "It costs {{cost}}, at a large rate {{fast}}."
          rests:
            cost: {{from: P1, is: {now}}}
            fast: {{from: rates, at: train.lr=2, is: open, show: size}}
        """
    )
    return findings(lines, file)


def test_numbers_are_filled_in(tmp_path):
    assert sentences(tmp_path) == ["It costs +0.200 (+0.100 to +0.300), at a large rate 0.12."]


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
def test_a_changed_answer_is_refused_with_both(changed, now, tmp_path):
    with pytest.raises(UserError, match=f"P1 is now {now}, not above 0.*It costs"):
        sentences(tmp_path, pd.DataFrame([P1 | changed, FAST]))
