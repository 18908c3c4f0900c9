"""The report's theory section from made files: what it shows, the same bytes twice, nothing where nothing is."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from crope.config import ROOT
from crope.errors import DataError
from crope.report.style import DARK, LIGHT
from crope.report.theory_section import TheoryItem, build_theory_section
from crope.theory.artefacts import artefacts
from crope.theory.pointer_task import Task
from crope.theory.trained_share import MEASURES

TASK = Task(width=16, words=6, seq_len=12, batch_size=4, max_steps=3, lengths=(12, 24), sequences=2)
NAMES = ["fig1", "fig2", "complex_share", "kernel", "fig3", "pointer_task", "decay", "errata"]


def made_up_run(model: str, dataset: str, seed: int, after: float) -> dict[str, Any]:
    null = {"mean": 0.6, "std": 0.01, "low": 0.58, "high": 0.62}
    return {
        "run_id": f"{model}-{seed}", "model": model, "dataset": dataset, "scale": "quick", "seed": seed,
        "before": dict.fromkeys(MEASURES, 0.7), "after": dict.fromkeys(MEASURES, after),
        "turned": dict.fromkeys(MEASURES, null),
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of `make theory`, with trained runs made up."""
    folder = tmp_path_factory.mktemp("theory")
    for artefact in artefacts([], seeds=2, draws=3, task=TASK):
        data = {"inputs": artefact.inputs, **artefact.build()}
        if artefact.name == "complex_share":
            data["runs"] = [
                made_up_run(model, dataset, seed, after + 0.01 * seed)
                for model, after in (("crope", 0.99), ("rope", 0.65), ("xpos", 0.59))
                for dataset in ("ptb", "pg19")
                for seed in (0, 1)
            ]
        # As written and read: keys of dictionaries become text.
        (folder / f"{artefact.name}.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def items(folder: Path) -> dict[str, TheoryItem]:
    return {item.name: item for item in build_theory_section(folder)}


def test_items_stand_in_reading_order_and_have_what_they_show(items) -> None:
    assert list(items) == NAMES
    for item in items.values():
        headings, rows = item.table
        assert all(len(row) == len(headings) for row in rows)
        assert item.title and item.caption.endswith(".")
        assert rows or item.draw


def test_an_empty_folder_has_no_section(tmp_path: Path) -> None:
    assert build_theory_section(tmp_path / "theory") == []


def test_a_part_of_the_files_is_a_part_of_the_section(folder: Path, tmp_path: Path) -> None:
    for name in ("decay", "constructions"):
        (tmp_path / f"{name}.json").write_bytes((folder / f"{name}.json").read_bytes())
    assert [item.name for item in build_theory_section(tmp_path)] == ["kernel", "decay"]


def test_a_torn_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "decay.json").write_text("{")
    with pytest.raises(DataError, match=r"decay\.json: not JSON .*`make theory` makes it anew"):
        build_theory_section(tmp_path)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_same_bytes_twice_whatever_matplotlib_was_set_to(name: str, items) -> None:
    for file_format in ("svg", "png"):
        first = items[name].render(file_format)
        with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.grid": False}):
            assert items[name].render(file_format) == first
    assert items[name].render("svg", DARK) != items[name].render("svg", LIGHT)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fig1", ("RoPE: 36 free numbers", "CRoPE: 18 free numbers", "−b33")),
        ("fig2", ("σ1: reflection about 45°", "kept by CRoPE", "lost", "complex share 0.00")),
        ("complex_share", ("XPOS", "RoPE", "PG-19", "before training", "Gaussian maps (range)")),
        ("kernel", ("δ, as printed", "D → ∞", "scores / √D", "1,024")),
        ("fig3", ("nexnext (3)", "rotary, by hand", "XPOS, learned", "attention weight")),
        ("pointer_task", ("trained at 12", "weight on the target")),
        ("decay", ("relative upper bound, D = 128", "relative distance (tokens)")),
    ],
)
def test_svg_is_well_formed_and_names_what_it_shows(name: str, words: tuple[str, ...], items) -> None:
    text = items[name].render("svg").decode("utf-8")
    ElementTree.fromstring(text)
    for word in words:
        assert word in text, word  # matplotlib keeps the words of outlined text as comments
    assert "dc:date" not in text and "mathdefault" not in text


def test_models_have_their_colours(items) -> None:
    image = matplotlib.image.imread(io.BytesIO(items["pointer_task"].render("png")))
    values = (image * 255).round().astype(int)
    found = {f"#{v:06x}" for v in np.unique(values[..., 0] << 16 | values[..., 1] << 8 | values[..., 2])}
    assert set(LIGHT.models.values()) <= found


def test_shares_by_hand(items) -> None:
    """Mean over two seeds, lowest to highest; the excess is over the mean of the turned maps, 0.6."""
    headings, rows = items["complex_share"].table
    by_label = {tuple(row[:3]): row for row in rows}
    layer = headings.index("best J: Q, K, V")
    assert by_label["RoPE", "Penn Treebank", "after (n = 2)"][layer] == "0.6550 (0.6500 to 0.6600)"
    assert by_label["RoPE", "Penn Treebank", "after, turned"][layer] == "0.6000 (0.5800 to 0.6200)"
    assert by_label["RoPE", "Penn Treebank", "excess"][layer] == "0.0550 (0.0500 to 0.0600)"
    assert by_label["XPOS", "PG-19", "excess"][layer] == "−0.0050 (−0.0100 to 0.0000)"
    assert [row[0] for row in rows[1::4]] == ["XPOS", "XPOS", "RoPE", "RoPE", "CRoPE", "CRoPE"]  # Table 1's order
    assert [row[1] for row in rows[1:9:4]] == ["PG-19", "Penn Treebank"]


def test_no_trained_run_is_said(folder: Path, tmp_path: Path) -> None:
    data = json.loads((folder / "complex_share.json").read_text())
    (tmp_path / "complex_share.json").write_text(json.dumps(data | {"runs": []}))
    (item,) = build_theory_section(tmp_path)
    assert "No trained run with weights was found." in item.caption
    assert item.render("svg") == b"" and [row[0] for row in item.table[1]] == ["Gaussian"]


def test_pointer_table_by_hand(folder: Path, items) -> None:
    data = json.loads((folder / "pointer_task.json").read_text())
    weights = [run["by_length"]["24"]["weight"] for run in data["runs"] if run["model"] == "rope"]
    (row,) = (row for row in items["pointer_task"].table[1] if row[0] == "RoPE" and row[3] == "weight")
    assert row[-1] == f"{sum(weights) / 2:.3f} ({min(weights):.3f} to {max(weights):.3f})"


def test_captions_hold_the_files_numbers(items) -> None:
    assert "32.5 at distance 0, 20.8 at 5" in items["decay"].caption
    assert "0.974 at distance 1" in items["kernel"].caption
    assert "guess scores 1/6" in items["pointer_task"].caption


def test_the_section_needs_no_torch() -> None:
    code = "import sys, crope.report.theory_section; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
