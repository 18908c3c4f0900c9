"""A run that is killed at any moment and started again ends in the same bits."""

import os
from pathlib import Path

import pytest

from tests.faults import PHASES, torment


def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    tally = torment(16, tmp_path, seed=1)
    assert (tally.lost, tally.differing, tally.torn) == ([], [], []), tally.table()
    assert all(tally.kills[phase] for phase in PHASES[1:]), tally.table()


@pytest.mark.on_demand
def test_many_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make faults KILLS=200`."""
    kills = int(os.environ.get("KILLS", "200"))
    tally = torment(kills, tmp_path, seed=kills)
    with capsys.disabled():
        print(f"\n{tally.table()}")
    assert (tally.lost, tally.differing, tally.torn) == ([], [], [])
    assert all(tally.kills[phase] >= kills / 6 for phase in PHASES[1:])
