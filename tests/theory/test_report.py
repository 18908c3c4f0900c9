"""`make theory` at small settings: its files, equal bytes twice, numbers of tables by hand."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from crope.theory import report as make
from crope.theory.pointer_task import Task
from tests.conftest import contents

TASK = Task(width=16, words=6, seq_len=12, batch_size=4, max_steps=3, lengths=(12, 24), sequences=2)
FIGURES = ["fig1.svg", "fig2.svg", "fig3.svg", "decay.svg"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theory")
    make.make_theory(folder, seeds=2, task=TASK)
    return folder


def test_files_are_the_same_twice_whatever_matplotlib_was_set_to(
    folder: Path, tmp_path: Path
) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        make.make_theory(tmp_path, seeds=2, task=TASK)
    first = contents(folder)
    assert first == contents(tmp_path)
    assert {*FIGURES, "theory.md", "pointer_task.json"} < set(first)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_svg_that_theory_md_shows(name: str, folder: Path) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "dc:date" not in text and f"({name})" in (folder / "theory.md").read_text(
        encoding="utf-8"
    )


def test_figures_1_and_2_show_half_a_function_space() -> None:
    data = make.function_space()
    assert len(np.unique(np.abs(data["entries"]["crope"]))) == 18 == 6**2 / 2
    assert [row[:2] for row in data["entries"]["crope"][:2]] == [[1, 10], [-10, 1]]  # Eq. 30
    maps = {picture["name"]: picture for picture in data["maps"]}
    corners = [maps[name]["image"][data["marked"]] for name in ("complex", "mirrored")]
    assert corners[0] == pytest.approx(corners[1], abs=1e-12)
    found = [maps[name]["fraction"] for name in ("complex", "mirrored", "kept")]
    assert found == pytest.approx([1, 0, 1], abs=1e-12)


def test_tables_hold_the_files_numbers(folder: Path) -> None:
    text = (folder / "theory.md").read_text(encoding="utf-8")
    runs = json.loads((folder / "pointer_task.json").read_text(encoding="utf-8"))["runs"]
    weights = [run["by_length"]["24"]["weight"] for run in runs if run["model"] == "rope"]
    (row,) = (line for line in text.splitlines() if line.startswith("| RoPE (n = 2) | weight |"))
    assert row.endswith(f"| {sum(weights) / 2:.3f} ({min(weights):.3f} to {max(weights):.3f}) |")
    assert "0.974 of the peak" in text
