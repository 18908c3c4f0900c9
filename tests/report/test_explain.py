"""`make explain`: the printed arithmetic leads from the runs to the number of the table."""

import re
import shutil
from pathlib import Path

import pytest

from crope.errors import UserError
from crope.record import PUBLISHED
from crope.report.explain import explain

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


def test_a_wrong_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="table1/ptb/crope"):
        explain("table1/ptb/crop", results_dir=NOWHERE)


def test_without_a_name_all_cells_are_listed() -> None:
    lines = explain(None, results_dir=NOWHERE, folders=[BF16]).splitlines()
    assert len(lines) == 1 + 9 + 12
    assert all(line.endswith("complete, n = 3") for line in lines[1:])
