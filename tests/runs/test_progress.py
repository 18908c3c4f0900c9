"""Progress bars: what they show, and that a pipe gets none."""

import io

import pytest
from rich.console import Console

from crope.runs import progress
from crope.runs.progress import RunProgress
from tests.conftest import begin, toy_run


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal on stderr would get."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    return shown


@pytest.fixture
def runs(tmp_path):
    """Runs of 100 and 300 equal steps: 25 and 75 % of all tokens."""
    return [toy_run(tmp_path, "model=rope", f"train.max_steps={n}") for n in (100, 300)]


def test_a_run_shows_its_step_and_its_newest_losses(terminal, runs):
    with RunProgress(runs[:1]) as shown:
        shown.show(runs[0], {"step": 20, "val/loss_nats": 5.0, "train/loss_nats": 5.123})
        shown.show(runs[0], {"step": 40, "train/loss_nats": 4.5})
    assert shown.tasks[1].description == "rope tiny base s0, train 4.500, val 5.000"
    assert shown.tasks[1].percentage == 40
    assert "rope tiny base s0" in terminal.getvalue()


def test_a_sweep_shows_all_tokens_and_the_runs_that_train(terminal, runs):
    """60 of 300 steps are 15 % of all tokens; a run that has ended counts whole."""
    begin(runs[1], '{"step": 60, "train/loss_nats": 4.0}\n')
    with RunProgress(runs) as shown:
        shown.poll([runs[1]])
        assert [round(task.percentage) for task in shown.tasks] == [15, 20]
        shown.end(runs[0].run_id)
        assert shown.share_done() == pytest.approx(0.4)
        shown.end(runs[1].run_id)
    assert [task.percentage for task in shown.tasks] == [100]
