"""Captured functions, and training by them, with a stand-in for CUDA's graphs on the CPU."""

import pytest
import torch
from torch.utils import _pytree

from crope.files import read_json
from crope.runs.run import execute
from crope.train.checkpoint import checkpoints
from crope.train.graphs import Captured
from crope.train.update import Updates
from tests.conftest import during_step, same_bits, stop, toy_run


class StandIn:
    """Calls what it has captured. As CUDA's replay does, it writes over what the last one returned."""

    def __init__(self):
        self.warm_ups = self.captures = 0

    def warm_up(self, function):
        self.warm_ups += 1
        return function()

    def capture(self, function):
        self.captures += 1
        kept = []

        def replay():
            outputs = function()
            kept.append(_pytree.tree_map(torch.clone, outputs))
            return _pytree.tree_map(torch.Tensor.copy_, kept[0], outputs)

        return replay


class Refusing(StandIn):
    """As a driver that cannot capture."""

    def capture(self, function):
        try:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


def test_a_capture_that_fails_costs_one_line_with_its_cause(capsys):
    function = Captured(torch.square, Refusing())
    assert [function(torch.tensor(value)).item() for value in range(6)] == [0, 1, 4, 9, 16, 25]
    (line,) = capsys.readouterr().err.splitlines()
    assert "not permitted when" in line


class DeviceUpdates(Updates):
    """With rates in float32, as on a GPU."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.rates = torch.tensor(self.rates)


@pytest.fixture
def attempt(toy_data, step_clock, tmp_path, monkeypatch):
    """An attempt at a run with these graphs: attempt("one", StandIn())."""
    monkeypatch.setattr("crope.train.loop.Updates", DeviceUpdates)

    def make(name, graphs, *more, status="complete"):
        monkeypatch.setattr("crope.train.loop.build_graphs", lambda *_: graphs)
        options = ("model.dropout=0.1", "train.grad_clip=0.1", "train.warmup_steps=6", *more)
        run = toy_run(tmp_path / name, "runtime.checkpoint_seconds=2", *options)
        assert execute(run).status == status
        return run

    return make


def test_captured_steps_have_the_bits_of_ordinary_ones(attempt):
    """12 updates, of which 9 are replays, and sampled validation batches: three calls of each warm up.
    Batch, rate, dropout mask and limit of the norm are those of the step.
    """
    graphs = StandIn()
    assert same_bits(attempt("one", graphs), attempt("other", None))
    assert (graphs.warm_ups, graphs.captures) == (6, 2)


def fail():
    raise MemoryError


@pytest.mark.parametrize("action", [stop, fail])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_an_interrupted_run_warms_up_again_and_ends_with_the_same_bits(action, step, attempt):
    """In the warm-up, before the capture, at it, and between replays. A stop saves the step."""
    whole = attempt("whole", None)
    with during_step(step, action):
        broken = attempt("broken", StandIn(), status="stopped" if action is stop else "failed")
    saved = step + 1 if action is stop else step // 2 * 2
    assert checkpoints(broken.path)[0].name.startswith(f"checkpoint-{saved}-")
    assert same_bits(attempt("broken", StandIn()), whole)


def test_a_replayed_loss_that_is_not_finite_fails_the_run_at_its_step(attempt):
    """Update 8, the first of a rate of 1e57, makes the loss of update 9 infinite; only steps 0 and 10
    have lines.
    """
    rates = ("train.lr_gamma=1e20", "train.lr_step_size=8", "runtime.log_every=10")
    more = ("runtime.checkpoint_seconds=100", *rates)
    run = attempt("run", StandIn(), *more, status="failed")
    assert read_json(run.path / "summary.json")["error"]["step"] == 9
