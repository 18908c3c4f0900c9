"""extrapolation.json as the report reads it: sound, absent, of another measurement, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from crope.report.frame import resolve_cells
from crope.report.lengths import FILE, Lengths, read_lengths, tokens_beyond
from tests.report.study_runs import make_rows, measure, write_one


@pytest.fixture
def read(read_sound: Callable) -> Callable[[str], Lengths | None]:
    def read(model: str) -> Lengths | None:
        (row,) = [row for row in make_rows() if (row.study, row.dataset) == ("length", "pg19")]
        cells = [cell for cell in row.cells if cell.model == model]
        (result,) = resolve_cells(read_sound(), cells, unavailable={})
        return read_lengths(result)

    return read


@pytest.fixture
def paths(runs_dir: Path) -> list[Path]:
    return [write_one(runs_dir, "rope", "pg19", seed) for seed in range(3)]


def test_losses_by_length_and_seed(paths, read) -> None:
    losses = [(5.0, 5.5, 6.0), (5.25, 5.5, 6.5), (4.0, 4.0, 4.0)]
    for path, values in zip(paths, losses, strict=True):
        measure(path, "rope", losses=values)
    found = read("rope")
    assert found.losses == {
        length: dict(enumerate(column))
        for length, column in zip((1024, 2048, 4096), zip(*losses, strict=True), strict=True)
    }
    assert found.change(4096) == pytest.approx({0: 1.0 * 4 / 3, 1: 1.25 * 4 / 3, 2: 0.0})
    assert found.change(2048) == {0: 1.0, 1: 0.5, 2: 0.0}
    assert found.change(8192) == {}
    assert (found.trained, found.tokens, found.left_out) == (1024, 65_536, ())
    first = [json.loads((path / FILE).read_text())["by_position"][0]["loss_nats"] for path in paths]
    assert found.positions[128.0] == fmean(first)


@pytest.mark.parametrize(("tokens", "length"), [(96, 8), (96, 32), (90, 8), (90, 16), (91, 32), (67, 32), (35, 16)])
def test_tokens_beyond_are_those_at_later_positions(tokens: int, length: int) -> None:
    """Counted: spans of 32, each read in pieces, of which the last may be short; trained at 8."""
    spans = [min(32, tokens - first) for first in range(0, tokens, 32)]
    places = [place % length for span in spans for place in range(span)]
    expected = sum(place >= 8 for place in places)
    assert tokens_beyond(8, length, longest=32, tokens=tokens) == expected


def test_where_positions_end_there_is_a_note(runs_dir, read) -> None:
    measure(write_one(runs_dir, "learned", "pg19", 0), "learned")
    found = read("learned")
    assert found.notes == dict.fromkeys((2048, 4096), "not defined: learned positions end at 1024")
    assert (list(found.losses), found.lengths, max(found.positions)) == ([1024], [1024, 2048, 4096], 896.0)


def test_a_run_that_was_not_measured_is_named(paths, read) -> None:
    assert read("rope") is None
    measure(paths[1], "rope")
    found = read("rope")
    assert list(found.losses[4096]) == [1]
    assert [text.partition(":")[0] for text in found.left_out] == [paths[0].name, paths[2].name]
    assert all("not measured beyond its length" in text for text in found.left_out)


def test_other_tokens_do_not_enter_a_mean(paths, read) -> None:
    for path, tokens in zip(paths, (65_536, 65_536, 0), strict=True):
        measure(path, "rope", max_tokens=tokens)
    found = read("rope")
    assert list(found.losses[4096]) == [0, 1]
    assert found.left_out == (
        f"{paths[2].name}: measured at other lengths or on other tokens than the runs of other seeds; remove its"
        " extrapolation.json, scripts/extrapolate.py makes it anew",
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"trained_seq_len": 512},
        lambda data: data | {"lengths": data["lengths"][1:]},
        lambda data: data | {"lengths": [{**row, "loss_nats": float("nan")} for row in data["lengths"]]},
        lambda data: data | {"lengths": [{**row, "loss_nats": "5"} for row in data["lengths"]]},
        lambda data: data | {"by_position": [{"first": 0}]},
        lambda data: [data],
        lambda data: {},
    ],
)
def test_a_damaged_file_is_named_and_enters_nothing(paths, read, change) -> None:
    for path in paths:
        measure(path, "rope")
    file = paths[0] / FILE
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    found = read("rope")
    assert list(found.losses[4096]) == [1, 2]
    (text,) = found.left_out
    assert text.startswith(paths[0].name) and text.endswith(f"remove its {FILE}, scripts/extrapolate.py makes it anew")


def test_a_file_that_was_cut_short_is_named(paths, read) -> None:
    measure(paths[1], "rope")
    (paths[0] / FILE).write_text('{"trained_seq_len": 10')
    assert "makes it anew" in read("rope").left_out[0]
