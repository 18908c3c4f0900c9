"""Conversions in the report: against the numbers of the files, and scipy's paired test."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from crope.report.conversions import ARMS, FILE, conversions_sheet, read_conversions, render_conversions_csv
from tests.report.page import read_page
from tests.report.study_runs import write_one

AFTER = {  # arm -> tuned loss of each seed
    "rope": (4.90, 5.01, 5.12), "best": (4.95, 5.07, 5.16), "random": (5.05, 5.20, 5.24), "fresh": (5.3, 5.5, 5.6),
}  # fmt: skip


def convert(path: Path, seed: int, **changes: object) -> None:
    found = {
        "steps": 200, "lr": 0.0001,
        "kept_share": {"best": 0.7 + 0.01 * seed, "random": 0.5, "by_layer": [0.8], "best_by_chance": [0.66, 0.68]},
        "parameters": {},
        "loss_nats": {"trained": 5.0 + 0.1 * seed} | dict.fromkeys(ARMS, 6.0 + 0.1 * seed),
        "tuned_loss_nats": {arm: values[seed] for arm, values in AFTER.items()},
    } | changes  # fmt: skip
    (path / FILE).write_text(json.dumps(found))


@pytest.fixture
def paths(runs_dir: Path) -> list[Path]:
    found = [write_one(runs_dir, "rope", "pg19", seed) for seed in range(3)]
    for seed, path in enumerate(found):
        convert(path, seed)
    return found


def test_a_line_holds_the_means_and_the_paired_differences(paths, read_sound) -> None:
    sheet = conversions_sheet(read_conversions(read_sound()), scale="quick")
    (row,) = sheet.rows
    cells = dict(zip(sheet.headings, row, strict=False))
    assert row[:5] == ("PG-19", "128", "3", "200", "5.1000 ± 0.1000")
    assert cells["best structure"] == f"6.1000 → {np.mean(AFTER['best']):.4f}"
    at = sheet.headings.index("Best − random")
    for place, other in ((at, "random"), (at + 2, "rope")):
        test = scipy.stats.ttest_rel(AFTER["best"], AFTER[other])
        low, high = test.confidence_interval(0.95)
        mean = np.mean(AFTER["best"]) - np.mean(AFTER[other])
        assert row[place] == f"{mean:+.4f}".replace("-", "−")
        assert row[place + 1] == f"{low:+.4f} to {high:+.4f}".replace("-", "−")
    assert (cells["Kept"], cells["by chance"]) == ("0.710", "0.670")


def test_tunings_that_differ_share_no_mean(paths, read_sound) -> None:
    convert(paths[2], 2, steps=0)
    rows = conversions_sheet(read_conversions(read_sound()), scale="quick").rows
    assert [row[2:4] for row in rows] == [("2", "200"), ("1", "0")]


@pytest.mark.parametrize("text", ["{", "[]", '{"lr": 1}'])
def test_a_damaged_file_is_named_and_enters_nothing(paths, read_sound, text: str) -> None:
    (paths[0] / FILE).write_text(text)
    sheet = conversions_sheet(read_conversions(read_sound()), scale="quick")
    assert [row[2] for row in sheet.rows] == ["2"]
    assert sheet.notes[-1].startswith(f"{paths[0].name}: ") and sheet.notes[-1].endswith("makes it anew")


def test_csv_and_page(paths, read_sound, build, no_pictures) -> None:
    rows = list(csv.DictReader(io.StringIO(render_conversions_csv(read_conversions(read_sound())))))
    assert len(rows) == 3 * len(ARMS)
    (row,) = [row for row in rows if (row["seed"], row["arm"]) == ("1", "random")]
    assert (float(row["loss_nats"]), float(row["tuned_loss_nats"])) == (6.1, 5.2)
    out_dir = build()
    assert "brought onto the complex subspace" in read_page(out_dir).text
    assert {"conversion.md", "conversion.csv"} < {path.name for path in out_dir.iterdir()}
    for path in paths:
        (path / FILE).unlink()
    assert "conversion" not in read_page(build()).ids
    assert not (out_dir / "conversion.md").exists()
