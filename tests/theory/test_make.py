"""`make theory` at small settings: its files, equal bytes twice, numbers of tables by hand, which runs are measured."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from scipy.stats import beta

from crope.checkpoint import save_weights
from crope.compose import load_run
from crope.run import build_model
from crope.theory import make
from crope.theory.complex_maps import MEASURES
from crope.theory.figures import function_space
from crope.theory.pointer_task import Task

TASK = Task(width=16, words=6, seq_len=12, batch_size=4, max_steps=3, lengths=(12, 24), sequences=2)
FIGURES = ["fig1.svg", "fig2.svg", "fig3.svg", "decay.svg"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theory")
    make.make_theory(folder, seeds=2, draws=3, task=TASK)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> SimpleNamespace:
    """A record with the weights of a small CRoPE model, those of another seed."""
    options = ["scale=smoke", "data=ptb", "model=crope", "seed=5", "model.n_layers=2", "model.n_heads=2"]
    config = load_run([*options, "model.d_model=16", "train.seq_len=8"]).config
    save_weights(tmp_path / "weights.pt", build_model(replace(config, seed=99)))
    summary = {"run_id": "run", "model": "crope", "dataset": "ptb", "scale": "quick", "seed": 5}
    return SimpleNamespace(path=tmp_path, config=asdict(config), summary=summary)


def test_files_are_the_same_twice_whatever_matplotlib_was_set_to(folder: Path, tmp_path: Path) -> None:
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
        make.make_theory(tmp_path, seeds=2, draws=3, task=TASK)
    first, second = ({path.name: path.read_bytes() for path in one.iterdir()} for one in (folder, tmp_path))
    assert first == second
    assert {*FIGURES, "theory.md", "complex_fraction.json", "pointer_task.json"} < set(first)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_svg_that_theory_md_shows(name: str, folder: Path) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "dc:date" not in text and f"({name})" in (folder / "theory.md").read_text(encoding="utf-8")


def test_figures_1_and_2_show_half_a_function_space() -> None:
    data = function_space()
    assert len({abs(n) for row in data["entries"]["crope"] for n in row}) == 18 == len(data["entries"]["rope"]) ** 2 / 2
    assert [picture["fraction"] for picture in data["bases"]] == [1, 0, 1, 0]
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
    gaussian = json.loads((folder / "complex_fraction.json").read_text(encoding="utf-8"))["gaussian"]
    spread = beta(4 * 3 * 64 * 64, 4 * 3 * 64 * 64).std()  # of the 2x2 blocks' energies: two Gaussians of four
    assert abs(gaussian["fractions"]["given"]["mean"] - 0.5) < 4 * spread / np.sqrt(3)


def test_a_run_is_measured_and_its_excess_is_over_its_own_turned_maps(run: SimpleNamespace) -> None:
    found = make.measure_run(run, draws=3)
    assert found["run_id"] == "run" and found["seed"] == 5
    assert (found["before"]["given"], found["after"]["given"]) == pytest.approx((1, 1), abs=1e-12)
    assert found["before"]["layer"] != found["after"]["layer"]  # weights.pt, not the seed's initial values
    assert found["turned"]["given"]["high"] < 0.8
    summaries = {name: {"mean": 0.6, "low": 0.58, "high": 0.62} for name in MEASURES}
    assert found["excess"]["layer"] == found["after"]["layer"] - found["turned"]["layer"]["mean"]
    runs = [found | {"after": dict.fromkeys(MEASURES, 0.65 + 0.01 * k), "turned": summaries} for k in (0, 1)]
    *_, after, turned, _ = make._fraction_rows({"runs": runs, "gaussian": {"fractions": summaries}})
    assert after[:3] == ["CRoPE, Penn Treebank, quick (n = 2)", "after", "0.6550 (0.6500 to 0.6600)"]
    assert turned[1:3] == ["turned", "0.6000 (0.5800 to 0.6200)"]


def test_complete_runs_of_table_1_with_weights_are_found_at_the_largest_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(name: str, key: str, *, status: str = "complete", weights: bool = True) -> SimpleNamespace:
        (tmp_path / name).mkdir()
        if weights:
            (tmp_path / name / "weights.pt").touch()
        return SimpleNamespace(path=tmp_path / name, config={"key": key}, summary={"status": status})

    records = [record("c", "table1/quick"), record("a", "table1/quick"), record("b", "table1/smoke")]
    records += [record("d", "table2/quick"), record("e", "table1/paper", status="failed")]
    records += [record("f", "table1/paper", weights=False), record("g", "no table's")]
    tables = ("table1", "table2")
    cells = {scale: [SimpleNamespace(table=t, key=f"{t}/{scale}") for t in tables] for scale in make.SCALES}
    monkeypatch.setattr(make, "expected_cells", lambda scale, datasets: cells[scale])
    monkeypatch.setattr(make, "cell_key", lambda config: config["key"])
    monkeypatch.setattr(make, "read_records", lambda folder: (records, []))
    monkeypatch.setattr(make, "run_status", lambda record: record.summary["status"])
    assert [record.path.name for record in make.find_trained([tmp_path])] == ["a", "c"]
    assert make.find_trained([]) == []
