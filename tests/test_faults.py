"""A run killed at any moment and started again ends in the same bits; and the test that says so is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import MUTANTS, PHASES, torment


def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    tally = torment(20, tmp_path, seed=1)
    assert (tally.lost, tally.differing, tally.torn) == ([], [], []), tally.table()
    assert tally.kills.total() == 20
    assert all(tally.kills[phase] for phase in PHASES[1:]), tally.table()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_pipeline_with_a_fault_is_caught(mutant: str, tmp_path: Path) -> None:
    tally = torment(8, tmp_path, seed=2, mutant=mutant)
    assert tally.torn if mutant == MUTANTS[0] else tally.differing, tally.table()


@pytest.mark.on_demand
def test_many_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make faults KILLS=200`."""
    kills = int(os.environ.get("KILLS", "200"))
    tally = torment(kills, tmp_path, seed=kills)
    with capsys.disabled():
        print(f"\n{tally.table()}")
    assert (tally.lost, tally.differing, tally.torn) == ([], [], [])
    assert tally.kills.total() == kills
    assert all(tally.kills[phase] >= kills / 5 for phase in PHASES[1:])
