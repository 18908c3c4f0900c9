"""The tables that README.md and docs/results.md have beside the page's."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from crope.report import docs
from crope.report.findings import FINDINGS_FILE
from crope.report.frame import cell_frame
from tests.report.frames import cells, lines, losses, together

# Of the paper, plans, protocols and what no run gives; 0.0076 was fitted once.
TYPED = """
0.001 0.002 0.0076 0.010 0.71 0.8 0.82 0.9 1 1.3 1.41 2601.02728 3.11 7.2 12.5 37.5 95 99
"""


@pytest.mark.parametrize("file", [*docs.DOCS.values(), FINDINGS_FILE], ids=lambda file: file.name)
def test_no_result_is_typed(file):
    """A decimal or a percentage outside of placeholders and code: none follows the records."""
    prose = re.sub(r"\{[^{}]*\}|`[^`]*`", "", file.read_text())
    assert set(re.findall(r"\d+\.\d+|\d+(?= %)", prose)) <= set(TYPED.split())


def test_the_readmes_table_has_full_losses_of_long_runs():
    """XPOS is that of a second study, whose RoPE is left out."""
    first, second = "table1_medium", "table1_medium_xpos"
    of_first = losses(study=first, rope=[4.0], crope=[4.25])
    of_first = of_first.assign(planned=[(0,)] * 2)
    of_second = losses(study=second, rope=[9.0], xpos=[5.0]).assign(planned=[(0,)] * 2)
    every = cells("rope", "crope", study=first) + cells("rope", "xpos", study=second)
    joined = together(of_first, of_second)
    long = docs.long_table1(SimpleNamespace(cells=cell_frame(every), joined=joined))
    assert long.frame.iloc[1, 2:4].tolist() == ["5.0000", "4.0000"]
    assert lines(docs.readme_table1(long)) == [
        ["Penn Treebank", "paper", "4.0212 ± 0.0243", "4.0158 ± 0.0233", "−0.0054"],
        ["", "here", "4.0000", "4.2500", "+0.2500, n\u00a0=\u00a01"],
    ]


def test_intervals_of_99_percent_by_two_rules():
    """P1: corpora with differences 3, 4, 5 and 4, 6, 8: means 4 and 6, variances 1 and 4. As planned
    5 -+ t(2.941) * sqrt(5 / 3) / 2 = 5 -+ 5.958 * 0.6455; today 3.5, 5, 6.5: 5 -+ t(2) * 1.5 / sqrt(3).
    The others, 2 less, hold 0 by both rules: no line.
    """
    first, second = pd.Series([3.0, 4.0, 5.0]), pd.Series([4.0, 6.0, 8.0])
    asked = []
    for name in docs.PLANNED_AT_99:
        for by_seed in ((first + second) / 2, first, second):
            asked.append({"name": name, "by_seed": by_seed - (0 if name == "P1" else 2)})
    assert lines(docs.planned_at_99(pd.DataFrame(asked))) == [
        ["P1", "+5.0000 (+1.1540 to +8.8460)", "+5.0000 (−3.5952 to +13.5952)"]
    ]


def test_step_times_are_compared_within_a_set_and_row():
    runs = together(
        losses(rope=[5.0, 5.0, 5.0], crope=[5.0]).assign(
            **{"time.median_step_ms": [10.0, 20.0, 99.0, 22.0]}
        ),
        losses(row="b2_l512_d64", rope=[5.0], crope=[5.0]).assign(
            **{"time.median_step_ms": [10.0, 10.5]}
        ),
    )
    assert docs.step_ratios(runs) == pytest.approx((1.05, 1.1))


def test_studies_that_lack_seeds_are_listed_and_planned_ones_without_a_run():
    """Of `rates` (W1) and of rows of `paper_rows`; `levels`, not planned, has no run."""
    counted = [("paper_rows/crope - rope", 3), ("paper_rows/crope - rope", 2), ("W1", 0)]
    counted.append(("levels/crope - rope", 0))
    found = pd.DataFrame(counted, columns=["name", "there"]).assign(complete=False, planned=8)
    listed = docs.unfinished(SimpleNamespace(lines=found))
    assert listed == ["`paper_rows` (2 of 8)", "`rates` (0 of 8)"]
