"""`make theory`: files that say what they are of, made once for the same inputs, the same bytes each time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.theory import artefacts
from crope.theory.artefacts import make_theory
from crope.theory.pointer_task import Task

TASK = Task(width=64, words=6, seq_len=12, batch_size=4, max_steps=3, lengths=(12, 24), sequences=2)
NAMES = {"function_space", "decay", "errata", "constructions", "complex_share", "pointer_task"}


@pytest.fixture(autouse=True)
def keep_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "write_equations", lambda: False)


def make(folder: Path, *, seeds: int = 1, task: Task = TASK) -> dict[str, bytes]:
    make_theory(results_dir=folder, seeds=seeds, draws=2, task=task)
    return {path.stem: path.read_bytes() for path in (folder / "theory").glob("*.json")}


def test_files_are_made_once_and_the_same_in_another_folder(tmp_path: Path, capsys) -> None:
    first = make(tmp_path / "a")
    assert set(first) == NAMES
    assert "no complete run with weights" in capsys.readouterr().out
    assert make(tmp_path / "b") == first
    capsys.readouterr()
    assert make(tmp_path / "a") == first
    out = capsys.readouterr().out
    assert out.count("as before") == len(NAMES) + 1 and ": made" not in out


def test_what_changed_is_made_again_and_nothing_else(tmp_path: Path, capsys) -> None:
    first = make(tmp_path)
    (tmp_path / "theory" / "decay.json").write_text("torn {")
    capsys.readouterr()
    second = make(tmp_path, seeds=2)
    made = {Path(line.split(":")[0]).stem for line in capsys.readouterr().out.splitlines() if line.endswith(": made")}
    assert made == {"pointer_task", "decay"}
    assert second["decay"] == first["decay"]
    assert len(json.loads(second["pointer_task"])["runs"]) == 2 * 3


def test_inputs_change_with_the_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theory, model = tmp_path / "crope" / "theory", tmp_path / "crope" / "model"
    for folder, name in ((theory, "artefacts"), (theory, "kernel"), (theory, "roformer"), (model, "gpt")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("1")
    monkeypatch.setattr(artefacts, "ROOT", tmp_path)
    before = artefacts._inputs("kernel", seeds=1)
    (theory / "roformer.py").write_text("2")
    assert artefacts._inputs("kernel", seeds=1) == before
    for changed in (theory / "kernel.py", model / "gpt.py"):
        changed.write_text("2")
        assert artefacts._inputs("kernel", seeds=1) != before
        changed.write_text("1")
    assert artefacts._inputs("kernel", seeds=2) != before


def test_contents_hold_what_the_text_says(tmp_path: Path) -> None:
    made = {name: json.loads(text) for name, text in make(tmp_path).items()}
    points = made["constructions"]
    assert all(weight > 0.999 for least in points["least_weight"].values() for weight in least.values())
    assert points["kernel"]["limit"][1] == pytest.approx(0.97396, abs=1e-5)
    for missed in (points["missed_by_width"]["scores"], points["missed_by_gain"]["scores / √D"]):
        assert missed[0] > 0.5 and missed[-1] < 1e-6
    entries = made["function_space"]["entries"]
    assert len({abs(n) for row in entries["crope"] for n in row}) == 18 == len(entries["rope"]) ** 2 // 2
    maps = {picture["name"]: picture for picture in made["function_space"]["maps"]}
    marked = made["function_space"]["marked"]
    assert maps["complex"]["image"][marked] == pytest.approx(maps["mirrored"]["image"][marked], abs=1e-12)
    assert (maps["complex"]["share"], maps["kept"]["share"]) == pytest.approx((1, 1), abs=1e-12)
    assert maps["mirrored"]["share"] == pytest.approx(0, abs=1e-12)
    assert made["complex_share"]["runs"] == []


def test_the_script_says_what_it_takes() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "theory.py"), "--seeds", "0"], capture_output=True, text=True, cwd=ROOT
    )
    assert found.returncode == 2 and "--seeds must be at least 1" in found.stderr
