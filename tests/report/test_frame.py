"""Which runs stand behind a cell, and the means and spreads over them, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from crope.config import NUMERICS_VERSION
from crope.errors import UserError
from crope.report.frame import resolve_cells
from crope.report.stats import Spread, spread_over_batches, spread_over_seeds

NAN = {"type": "NonFiniteLoss", "message": "loss is\nnan", "traceback": "...", "step": 17}


def result_of(results, model, dataset, table="table1"):
    (found,) = [r for r in results if (r.cell.table, r.cell.model, r.cell.dataset) == (table, model, dataset)]
    return found


def test_means_and_spreads_by_hand(write_run, cells, read_sound) -> None:
    for seed, final, sampled, std in [(0, 6.0, 6.2, 0.01), (1, 6.1, 6.4, 0.02), (2, 6.3, 6.9, 0.06)]:
        write_run("crope", "pg19", seed=seed, final=final, sampled=sampled, std=std)
    result = result_of(resolve_cells(read_sound(), cells, unavailable={}), "crope", "pg19")
    assert (result.status, result.n) == ("complete", 3)
    # full: mean 18.4 / 3; squared distances (0.4^2 + 0.1^2 + 0.5^2) / 9 = 0.42 / 9, over n - 1 = 2.
    assert result.full.mean_nats == pytest.approx(18.4 / 3)
    assert result.full.std_nats == pytest.approx((0.42 / 9 / 2) ** 0.5)
    # sampled: the mean of the runs' own spreads, not the spread of 6.2, 6.4, 6.9.
    assert result.sampled.mean_nats == pytest.approx(6.5)
    assert result.sampled.std_nats == pytest.approx(0.03)


def test_one_seed_has_no_spread_over_seeds_but_one_over_batches(write_run, cells, read_sound) -> None:
    write_run("rope", "ptb", final=4.25, sampled=4.5, std=0.03)
    result = result_of(resolve_cells(read_sound(), cells, unavailable={}), "rope", "ptb")
    assert result.full == Spread(4.25, None, 1)
    assert result.sampled == Spread(pytest.approx(4.5), pytest.approx(0.03), 1)


def test_spread_over_batches_is_empty_where_a_run_measured_once() -> None:
    assert spread_over_batches([1.0, 3.0], [0.5, None]) == Spread(2.0, None, 2)
    assert spread_over_seeds([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5), 2)


def test_each_status(write_run, cells, read_sound) -> None:
    write_run("xpos", "pg19")
    failed = write_run("rope", "pg19", error=NAN)
    stale = write_run("crope", "pg19", numerics_version=NUMERICS_VERSION + 1)
    results = resolve_cells(read_sound(), cells, unavailable={"ptb": "no network"})
    assert [result_of(results, model, "pg19").status for model in ("xpos", "rope", "crope")] == [
        "complete", "failed", "stale",
    ]  # fmt: skip
    assert result_of(results, "rope", "pg19").reason == f"{failed.name} failed: NonFiniteLoss: loss is nan (step 17)"
    assert result_of(results, "crope", "pg19").reason == (
        f"of numerics version {NUMERICS_VERSION + 1} and left out (the code is at {NUMERICS_VERSION}): {stale.name};"
        " make reproduce SCALE=quick trains them again"
    )
    assert (result_of(results, "crope", "ptb").status, result_of(results, "crope", "ptb").reason) == (
        "missing", "Penn Treebank: no network",
    )  # fmt: skip
    assert "make reproduce SCALE=quick" in result_of(results, "crope", "wikitext2").reason
    # The base row of Table 2 is the same set of runs.
    table2 = [result for result in results if (result.cell.table, result.cell.row) == ("table2", "base")]
    assert [result.status for result in table2] == ["complete", "failed", "stale"]


def test_a_failed_seed_beside_a_complete_one_is_noted_and_not_averaged(write_run, cells, read_sound) -> None:
    write_run("crope", "ptb", final=4.0)
    failed = write_run("crope", "ptb", seed=1, error=NAN)
    result = result_of(resolve_cells(read_sound(), cells, unavailable={}), "crope", "ptb")
    assert (result.status, result.n, result.full.mean_nats) == ("complete", 1, 4.0)
    assert result.notes == (f"{failed.name} failed: NonFiniteLoss: loss is nan (step 17)",)


def test_stale_runs_beside_a_current_one_are_named_and_not_averaged(write_run, cells, read_sound) -> None:
    write_run("crope", "ptb", final=4.0)
    old = [write_run("crope", "ptb", seed=seed, final=9.0, numerics_version=NUMERICS_VERSION + 1) for seed in (1, 2)]
    result = result_of(resolve_cells(read_sound(), cells, unavailable={}), "crope", "ptb")
    assert (result.n, result.full.mean_nats) == (1, 4.0)
    (note,) = result.notes
    version = f"of numerics version {NUMERICS_VERSION + 1} and left out (the code is at {NUMERICS_VERSION})"
    assert note == f"{version}: {old[0].name}, {old[1].name}"


def test_the_same_seed_from_two_folders_is_refused(write_run, cells, read_sound, runs_dir, tmp_path: Path) -> None:
    paths = [write_run("crope", "ptb"), write_run("crope", "ptb", folder=tmp_path / "published")]
    runs = read_sound(runs_dir, tmp_path / "published")
    with pytest.raises(UserError, match="same seed") as caught:
        resolve_cells(runs, cells, unavailable={})
    assert all(str(path) in str(caught.value) for path in paths)


def test_a_run_of_another_row_name_is_no_part_of_the_cell(write_run, cells, read_sound, runs_dir, tmp_path) -> None:
    """A user's sweep can reach a table's configuration from another row: the same computation, the same seed."""
    write_run("crope", "ptb", final=4.5)
    write_run("crope", "ptb", final=9.0, named="mine", folder=tmp_path / "sweep")
    results = resolve_cells(read_sound(runs_dir, tmp_path / "sweep"), cells, unavailable={})
    (found,) = [result for result in results if result.cell.dataset == "ptb" and result.cell.model == "crope"]
    assert (found.n, found.full.mean_nats) == (1, 4.5)
