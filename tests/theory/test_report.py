"""`make theory` at small settings: its files, equal bytes twice, numbers of tables by hand."""

import json
from io import StringIO

import matplotlib
import pandas as pd
import pytest

from crope.style import render
from crope.theory import report as theory
from crope.theory.complex_maps import tied_entries
from crope.theory.figures import draw_entries, draw_function_space
from crope.theory.pointer_task import Task
from crope.theory.recall import Plan
from tests.conftest import contents

TASK = Task(width=16, words=6, max_steps=1, lengths=(32, 64), sequences=2)
PLAN = Plan(pairs=(2, 6), widths=(4, 8))
# Recall at two widths: RoPE reaches 0.9 at 8, or half way to it from 4; CRoPE never; conjugate at
# once, but seed 2 lacks a width; low rank at 8, one seed only.
RUNS = """\
model,width,seed,accuracy_6
rope,4,1,0.8
rope,8,1,0.9
rope,4,2,0.8
rope,8,2,1.0
rope,4,3,0.8
rope,8,3,1.0
crope,4,1,0.1
crope,8,1,0.5
crope,4,2,0.1
crope,8,2,0.5
lowrank,4,1,0.7
lowrank,8,1,0.9
conjugate,4,1,1.0
conjugate,8,1,1.0
conjugate,8,2,1.0
"""
TABLE = """\
| RoPE (n = 3) | > 8 | 5.7 (5.7 to 8.0) | 1.00 |
| CRoPE (n = 2) | > 8 | > 8 | — |
| conjugate Q (n = 1) | > 8 | ≤ 4 | — |
| halved (n = 3) | > 16 | 11.3 (11.3 to 16.0) | 2.00 |
| low rank (n = 1) | > 8 | 8.0 | 1.00 |
"""


def write_runs(file, rows=15):
    runs = pd.read_csv(StringIO(RUNS), nrows=rows)
    runs.assign(accuracy_2=0.0, settings=PLAN.settings, loss_nats=0.5).to_csv(file, index=False)


def make(out, published):
    """theory.md of `make theory` at small settings."""
    theory.make_theory(out, seeds=2, task=TASK, plan=PLAN, published=published)
    return (out / "theory.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """results/theory, made with published runs of recall and none of its own."""
    folder = tmp_path_factory.mktemp("theory")
    (folder / "published").mkdir()
    write_runs(folder / "published" / "recall.csv")
    make(folder / "own", folder / "published")
    return folder


def test_files_are_the_same_twice_whatever_matplotlib_was_set_to(folder, tmp_path):
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        make(tmp_path, folder / "published")
    assert contents(folder / "own") == contents(tmp_path)


def test_theory_md_shows_every_figure_and_states_its_numbers(folder):
    text = (folder / "own" / "theory.md").read_text(encoding="utf-8")
    for picture in (folder / "own").glob("*.svg"):
        assert f"({picture.name})" in text
    assert text.count(".svg)") == 5
    assert "0.974 of the peak at distance 1" in text
    assert "| XPOS (n = 2) | accuracy |" in text


def test_pictures_and_data_stand_under_their_names(folder):
    """RoFormer's Fig. 2 has width 128 and 256 distances."""
    own = folder / "own"
    assert (own / "fig1.svg").read_bytes() == render(draw_entries(tied_entries(6)))
    assert (own / "fig2.svg").read_bytes() == render(draw_function_space())
    decay = json.loads((own / "decay.json").read_text())
    assert decay["width"] == 128
    assert len(decay["distance"]) == 256


def test_the_table_of_the_pointer_task_has_means_and_ranges():
    runs = []
    for seed, weight in enumerate((0.1, 0.2, 0.6)):
        of_length = {"accuracy": 0.25, "weight": weight}
        runs.append({"model": "rope", "seed": seed, "by_length": {"12": of_length}})
    text = theory.pointer_table({"runs": runs, "task": {"lengths": [12]}})
    assert "| RoPE (n = 3) | accuracy | 0.250 |" in text
    assert "| RoPE (n = 3) | weight | 0.300 (0.100 to 0.600) |" in text
    assert "| CRoPE (n = 0) | weight | — |" in text


# Recall


def test_the_section_states_medians_ranges_and_bounds(folder):
    assert TABLE in (folder / "own" / "theory.md").read_text(encoding="utf-8")


def test_published_runs_get_a_section_beside_them_and_stand_in_for_own_ones(folder):
    """They are not copied: they would pass for own runs at the next command."""
    published = contents(folder / "published")
    assert set(published) == {"recall.csv", "recall.md", "recall.svg"}
    assert TABLE in published["recall.md"].decode()
    assert not (folder / "own" / "recall.csv").exists()


def test_own_runs_take_the_place_of_published_ones(folder, tmp_path):
    write_runs(tmp_path / "recall.csv", rows=2)
    text = make(tmp_path, folder / "published")
    assert "| RoPE (n = 1) | > 8 | 8.0 | 1.00 |" in text
    assert TABLE in (folder / "published" / "recall.md").read_text(encoding="utf-8")


def test_without_any_runs_the_section_names_the_command(tmp_path):
    assert "tools.py theory --part recall" in make(tmp_path / "own", tmp_path)
    assert not (tmp_path / "recall.md").exists()


def test_the_recall_part_trains_and_prints_the_section(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(theory, "run_recall", lambda plan, file: write_runs(file))
    theory.make_recall(tmp_path, plan=PLAN)
    assert TABLE in capsys.readouterr().out
