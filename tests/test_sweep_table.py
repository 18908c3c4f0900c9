"""The table at a sweep's end: which columns, which numbers, and what stands for a run without any."""

from __future__ import annotations

import json
from pathlib import Path

from crope.compose import Run, load_run
from crope.execute import execute
from crope.interrupt import Unstoppable
from crope.sweep_table import render_sweep, swept
from tests.conftest import TOY_OVERRIDES
from tests.test_state import fail


def grid(folder: Path, *keys: str) -> list[Run]:
    return [load_run([*TOY_OVERRIDES, f"results_dir={folder}", *key.split()]) for key in keys]


def test_columns_are_what_was_swept(tmp_path: Path) -> None:
    runs = grid(
        tmp_path, *(f"seed={seed} model={name} train.lr=0.002" for seed in (0, 1) for name in ("rope", "crope"))
    )
    assert swept(runs) == {"model": ["rope", "crope"] * 2, "seed": [0, 0, 1, 1]}
    runs = grid(tmp_path, "train.lr=0.002", "train.lr=0.003")
    assert swept(runs) == {"train.lr": [0.002, 0.003]}
    # What a group file sets goes by the file's name: a row of Table 2 is one column, not five.
    assert set(swept(grid(tmp_path, "ablation=base", "ablation=b2_l512_g09_s2000"))) == {"row"}
    assert swept(grid(tmp_path, "seed=3")) == {}


def test_losses_are_those_of_the_records_and_the_rest_is_marked(toy_data, tmp_path: Path, monkeypatch) -> None:
    runs = grid(tmp_path, *(f"model={name} train.lr={lr}" for name in ("rope", "crope") for lr in (0.001, 0.01)))
    execute(runs[0], stop=Unstoppable())
    fail(runs[1], monkeypatch)
    runs[2].path.mkdir(parents=True)
    lines = render_sweep([*runs, runs[0]]).splitlines()  # a run that a sweep names twice stands once
    summary = json.loads((runs[0].path / "summary.json").read_text())
    full = summary["val_full"]
    assert lines[0].split() == ["model", "train.lr", "validation", "best", "seconds"]
    assert lines[1].split()[:4] == ["rope", "0.001", f"{full['final_nats']:.4f}", f"{full['best_nats']:.4f}"]
    assert [line.split(maxsplit=2) for line in lines[2:5]] == [
        ["rope", "0.01", "failed: no such luck"],
        ["crope", "0.001", "begun"],
        ["crope", "0.01", "missing"],
    ]
    assert len(lines) == 6
    assert render_sweep([]) == ""


def test_one_run_has_its_name_for_a_column(tmp_path: Path) -> None:
    (run,) = grid(tmp_path, "seed=4")
    header, line, _ = render_sweep([run]).splitlines()
    assert header.split() == ["run", "validation", "best", "seconds"]
    assert line.split() == [run.run_id, "missing"]
