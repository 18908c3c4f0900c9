"""`make explain`: the printed arithmetic leads from the runs to the number of the table."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from crope.errors import UserError
from crope.report import explain as explain_module
from crope.report.evidence import Comparison, source_comparisons
from crope.report.explain import explain
from crope.report.frame import choose_source
from crope.runs.record import PUBLISHED
from tests.report.records import write_run

NOWHERE, BF16 = Path("nowhere"), PUBLISHED / "cpu-bf16"


@pytest.fixture(scope="module")
def text() -> str:
    return explain("table1/ptb/crope", results_dir=NOWHERE, folders=[BF16])


def test_every_run_is_named_with_its_folder_and_commit(text: str) -> None:
    runs = sorted(BF16.glob("crope-ptb-base-s*"))
    assert len(runs) == 3
    for run in runs:
        assert f"results/published/cpu-bf16/{run.name}\n" in text
    assert text.count("bd6411a3867e083277345076f51679cc6a116c91") == 3


def test_every_printed_mean_is_that_of_its_terms(text: str) -> None:
    sums = re.findall(r"\(([\d. +]+)\) / (\d+) = ([\d.]+)", text)
    assert len(sums) == 3  # full; sampled mean and standard deviation
    for terms, n, mean in sums:
        values = [float(term) for term in terms.split("+")]
        assert len(values) == int(n)
        assert sum(values) / len(values) == pytest.approx(float(mean), abs=1.5e-6)
    squares, n, std = re.findall(r"sqrt\(\((.*)\) / (\d+)\) = ([\d.]+)", text)[0]
    values = [float(term.strip("()²")) for term in squares.split(" + ")]
    assert (sum(value**2 for value in values) / int(n)) ** 0.5 == pytest.approx(
        float(std), abs=2e-6
    )


def test_it_ends_at_the_numbers_of_the_table_and_of_the_paper(text: str) -> None:
    """The sampled losses are taken from the curves, so that this also checks summary.json against
    them.
    """
    assert re.findall("in the table: (.*)", text) == ["4.9990 ± 0.0066", "5.0616 ± 0.1504"]
    assert "(5.025132 + 5.187645 + 4.972134) / 3 = 5.061637" in text
    assert text.count("5 losses at steps 720 to 800") == 3
    assert "paper: 4.0158 ± 0.0233" in text


def test_an_empty_cell_is_explained_by_its_reason(tmp_path: Path) -> None:
    text = explain(
        "table2/b2_l512_d64/pg19/rope", results_dir=tmp_path, folders=[tmp_path], scale="paper"
    )
    assert "missing" in text and "make reproduce SCALE=paper" in text
    assert "paper: 6.699 ± 0.111" in text


def test_seeds_that_another_model_lacks_are_named(tmp_path: Path) -> None:
    for name in ("rope-ptb-base-s0", "rope-ptb-base-s1", "crope-ptb-base-s1"):
        (run,) = BF16.glob(f"{name}-*")
        shutil.copytree(run, tmp_path / run.name)
    text = explain("table1/ptb/rope", results_dir=tmp_path, folders=[tmp_path])
    assert "seeds [0]" in text and "  seed 0  " not in text and "  seed 1  " in text


@pytest.fixture(scope="module")
def published_comparisons() -> list[Comparison]:
    return source_comparisons(choose_source(results_dir=NOWHERE))


@pytest.fixture
def compared_once(published_comparisons: list[Comparison], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparisons of the published records, which take seconds to make, are made once."""
    monkeypatch.setattr(explain_module, "source_comparisons", lambda source: published_comparisons)


@pytest.mark.usefixtures("compared_once")
def test_a_primary_difference_leads_from_its_runs_to_the_printed_interval() -> None:
    """Two corpora: scipy's test of two samples (Welch), of which one is negated, has the interval
    of the sum of their means.
    """
    p1 = explain("P1", results_dir=NOWHERE)
    corpora = []
    for part in p1.split("\n\n")[:2]:
        lines = re.findall(r"seed \d+  (\S+)  rope (\S+) \((\S+)\), crope (\S+) \((\S+)\)", part)
        for difference, *losses in lines:
            rope, crope = (
                json.loads((PUBLISHED / f"plan-bf16/{run}/summary.json").read_text())
                for run in losses[1::2]
            )
            finals = [run["val_full"]["final_nats"] for run in (rope, crope)]
            assert finals == pytest.approx([float(loss) for loss in losses[::2]], abs=1e-6)
            assert finals[1] - finals[0] == pytest.approx(float(difference), abs=1e-6)
        corpora.append([float(difference) for difference, *_ in lines])
        assert "plan-bf16, c3b1230" in part and "cpu-fp32" not in part
    assert [len(differences) for differences in corpora] == [10, 10]
    ends = ttest_ind(corpora[0], np.negative(corpora[1]), equal_var=False).confidence_interval(0.99)
    expected = "{:+.4f} ({:+.4f} to {:+.4f})".format(np.mean(corpora), *np.array(ends) / 2)
    assert f"printed: {expected}, 99 %: higher".replace("-", "−") in p1.split("\n\n")[2]


def test_what_stands_in_for_an_incomplete_primary_difference_is_explained_too() -> None:
    planned, stand_in = explain("P3", results_dir=NOWHERE, folders=[BF16]).split("\n\n")[::3]
    assert "0 of 10 planned seeds" in planned and "study cost" in planned
    assert "study controls" in stand_in and "95 %" in stand_in


@pytest.mark.usefixtures("compared_once")
def test_differences_of_other_models_and_of_other_values_are_explained() -> None:
    parts = explain("cost/nope-rope", results_dir=NOWHERE).split("\n\n")
    assert len(parts) == 3 and all("higher" in part for part in parts)
    beyond = explain("length/rope", results_dir=NOWHERE)
    assert len(re.findall(r"seed \d  [+-]0\.\d{6}$", beyond, flags=re.MULTILINE)) == 5


def test_a_study_of_another_scale_is_no_empty_answer(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", scale="smoke")
    with pytest.raises(UserError, match="scale smoke"):
        explain("medium/crope-rope", results_dir=NOWHERE, folders=[tmp_path])
    assert "study base" in explain("P1", results_dir=NOWHERE, folders=[tmp_path])


def test_without_any_run_a_difference_is_missing(tmp_path: Path) -> None:
    text = explain("base/crope-rope", results_dir=NOWHERE, folders=[tmp_path])
    assert text.count(": missing") == 3


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("table1/ptb/crop", "table1/ptb/crope"), ("cost/xpos-rope", "cost")],  # no model of that study
)
def test_a_wrong_name_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=nearest):
        explain(name, results_dir=NOWHERE)


def test_without_a_name_all_cells_and_differences_are_listed() -> None:
    text = explain(None, results_dir=NOWHERE, folders=[BF16])
    cells, differences = (part.splitlines()[1:] for part in text.split("\n\n"))
    assert len(cells) == 9 + 12
    assert all(line.endswith("complete, n = 3") for line in cells)
    assert {"P1", "P5", "tuned_lr/crope-rope"} <= set(differences)
