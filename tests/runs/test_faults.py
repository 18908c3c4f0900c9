"""A run that is killed at any moment and started again ends in the same bits."""

import os

import pytest

from tests.runs.faults import LAST_OCCURRENCE, SIGNALS, torment


def test_killed_runs_end_in_the_same_bits(tmp_path):
    tally = torment(10, tmp_path, seed=1)
    assert not tally.problems, tally.table()
    assert all(map(tally.in_phase, LAST_OCCURRENCE)), tally.table()


@pytest.mark.on_demand
def test_many_kills(tmp_path, capsys):
    """`make faults KILLS=200`."""
    kills = int(os.environ.get("KILLS", "200"))
    tally = torment(kills, tmp_path, seed=kills)
    with capsys.disabled():
        print(f"\n{tally.table()}")
    assert not tally.problems
    for phase in LAST_OCCURRENCE:  # the phases that are aimed at
        assert tally.in_phase(phase) >= kills // 10
        assert all(tally.kills[phase, number] >= kills // 50 for number in SIGNALS)
