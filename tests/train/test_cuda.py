"""On a GPU: every model against float64, compiled steps, kills and stops, memory.

Without one these tests are skipped; CROPE_TEST_DEVICE=cpu runs them on the CPU as a rehearsal.
"""

import copy
import os
import signal
from functools import partial

import pytest
import torch

from crope.config import RuntimeConfig
from crope.data.batches import resident
from crope.model import attention
from crope.records.store import read_record
from crope.runs import run as run_module
from crope.runs.load import build_model
from crope.runs.run import execute
from crope.runs.sweep import run_all
from crope.train import losses
from crope.train.checkpoint import TrainState
from crope.train.device import prepare_device, set_numerics
from crope.train.graphs import Captured, build_graphs
from crope.train.losses import build_losses
from crope.train.update import Updates, build_optimizer
from tests.conftest import during_step, make_toy_tokens, same_bits, stop, toy_run
from tests.model.oracles import (
    CHOICES,
    build,
    cross_entropy,
    model_config,
    random_tokens,
    randomise,
)
from tests.train.test_loop import by_step, trained

KIND = os.environ.get("CROPE_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    KIND == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)
needs_gpu = pytest.mark.skipif(KIND != "cuda", reason="no rehearsal on a CPU")
WIDTH = 128  # of runs: an attention kernel is chosen by the width of a head
LENGTH = 200  # tokens: more than one tile of an attention kernel, and no multiple of one
TOKENS = random_tokens(length=LENGTH)
TARGETS = TOKENS.roll(-1, dims=1)
# Training as on a GPU, and bit for bit: compiled, with dropout, a checkpoint after every step.
EXACT = (
    "model=crope",
    "model.dropout=0.1",
    f"runtime.device={KIND}",
    "runtime.compile=true",
    "runtime.deterministic=true",
    "runtime.threads=1",
    "runtime.checkpoint_seconds=0",
)


@pytest.fixture(autouse=True)
def kernel_of_torch(monkeypatch):
    """Attention through the kernel that a GPU uses, also in a rehearsal."""
    monkeypatch.setattr(attention, "SHORT", 0)
    yield
    set_numerics(deterministic=False)


def loss_and_gradients(decoder, *, bf16=False):
    device = next(decoder.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = cross_entropy(decoder, TOKENS.to(device), TARGETS.to(device))
    gradients = torch.autograd.grad(loss, list(decoder.parameters()))
    return loss.item(), [gradient.double().cpu() for gradient in gradients]


def random_decoder(name):
    return randomise(build(model_config(name, d_model=WIDTH), max_len=LENGTH))


@pytest.mark.parametrize(
    ("bf16", "loss_error", "gradient_error"),
    [
        (False, 1e-5, 1e-3),
        (True, 1e-2, 0.1),
    ],
)
@pytest.mark.parametrize("name", CHOICES)
def test_each_model_has_the_loss_and_gradients_of_float64(name, bf16, loss_error, gradient_error):
    """The reference is the same module in float64 on the CPU, which tests/model compares with a
    decoder by loops. bf16 keeps 8 bits of each factor.
    """
    prepare_device(RuntimeConfig(device=KIND))
    reference = random_decoder(name)
    exact_loss, exact_gradients = loss_and_gradients(reference)
    decoder = copy.deepcopy(reference).float().to(KIND)
    loss, gradients = loss_and_gradients(decoder, bf16=bf16)
    assert loss == pytest.approx(exact_loss, rel=loss_error)
    for exact, gradient in zip(exact_gradients, gradients, strict=True):
        limit = gradient_error * (exact.norm() + 1e-2)
        assert (gradient - exact).norm() <= limit


@pytest.mark.parametrize("name", CHOICES)
def test_each_model_repeats_its_bits_in_deterministic_mode(name):
    """No operation without a deterministic kernel, which would raise, and the same sums twice."""
    prepare_device(RuntimeConfig(device=KIND, deterministic=True))
    decoder = random_decoder(name).float().to(KIND)
    first_loss, first = loss_and_gradients(decoder, bf16=True)
    again_loss, again = loss_and_gradients(decoder, bf16=True)
    assert first_loss == again_loss
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))


@pytest.mark.parametrize("model", ["rope", "crope", "relative_bias", "rope_linear"])
def test_compiled_steps_are_those_of_eager(model, toy_tokens, tmp_path):
    """20 updates in float32; logits far from zero. Dropout draws the same masks."""
    options = [f"model={model}", f"runtime.device={KIND}", "train.max_steps=20", "train.seq_len=64"]
    options.append("model.dropout=0.1")
    rows = []
    for compiled in ("false", "true"):
        more = f"runtime.compile={compiled}"
        rows.append(trained(toy_tokens, tmp_path / compiled, *options, more, enlarge=10)[1])
    for key in ("train/loss_nats", "val/loss_nats", "val_full/loss_nats"):
        assert by_step(rows[1], key) == pytest.approx(by_step(rows[0], key), rel=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_run_has_the_bits_of_an_ordinary_one(
    compiled, toy_tokens, tmp_path, monkeypatch, capsys
):
    """Updates with dropout and a limit of the norm; sampled and full validation. With and without
    compilation.
    """
    monkeypatch.setattr("crope.train.losses.FULL_BATCH_TOKENS", 32)
    options = (*EXACT, f"runtime.compile={compiled}", "train.grad_clip=0.1", "eval.full_tokens=0")
    found = []
    for graph in (False, True):
        more = f"runtime.cuda_graph={graph}"
        model, rows = trained(toy_tokens, tmp_path / str(graph), *options, more)
        kept = [{key: row[key] for key in row if key.endswith("_nats")} for row in rows]
        found.append((kept, [parameter.tolist() for parameter in model.parameters()]))
    assert found[0] == found[1]
    assert "without a CUDA graph" not in capsys.readouterr().err


@needs_gpu
@pytest.mark.parametrize("graph", [False, True])
def test_a_step_does_not_wait_for_the_device(graph, toy_tokens, tmp_path):
    """torch raises for each operation that would, after the warm-up and the capture."""
    config = toy_run(tmp_path, f"runtime.device={KIND}", f"runtime.cuda_graph={graph}").config
    device = prepare_device(config.runtime)
    graphs = build_graphs(config.runtime, device)
    model = build_model(config).to(device)
    state = TrainState(model, build_optimizer(model, config.train), {})
    training, _ = build_losses(model, config, device, graphs)
    updates = Updates(state, training, resident(toy_tokens.train, device), config, graphs=graphs)
    for step in range(5):
        updates.train_step(step=step)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for step in range(5, 8):
            updates.train_step(step=step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not graph or updates.update.replay


@needs_gpu
def test_a_function_that_waits_is_not_captured_and_goes_on(capsys):
    graphs = build_graphs(RuntimeConfig(cuda_graph=True), torch.device(KIND))
    function = Captured(lambda x: x * x.item(), graphs)
    found = [function(torch.tensor(float(value), device=KIND)).item() for value in range(6)]
    assert found == [0, 1, 4, 9, 16, 25]
    assert "without a CUDA graph" in capsys.readouterr().err


def nothing():
    pass


def kill():
    signal.raise_signal(signal.SIGKILL)


def exhaust_memory():
    torch.empty(2**50, dtype=torch.uint8, device=KIND)  # a pebibyte


def execute_and(action, folder, run):
    """`execute` in a process of its own, on the toy corpus, with an action before one update."""
    run_module.load_tokens = lambda *_, **__: make_toy_tokens(folder)
    with during_step(7, action):
        return execute(run)


def train_together(folder, *runs, action=nothing):
    work = partial(execute_and, action, folder)
    return list(run_all(runs, jobs=len(runs), work=work))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run = toy_run(folder, *EXACT)
    (outcome,) = train_together(folder, run)
    assert outcome.status == "complete", outcome.text
    return run


@pytest.mark.parametrize(
    ("action", "status", "word"),
    [
        (kill, "failed", "signal 9"),
        (stop, "stopped", "step 8"),
        (exhaust_memory, "failed", "memory"),
    ],
)
def test_an_interrupted_run_continues_to_the_same_bits(action, status, word, whole, tmp_path):
    """Killed, stopped or out of memory within its eighth update, a replay: one line, and no update is
    lost.
    """
    run = toy_run(tmp_path, *EXACT, "runtime.cuda_graph=true")
    (outcome,) = train_together(tmp_path, run, action=action)
    assert outcome.status == status
    assert word in outcome.text
    assert "\n" not in outcome.text
    (outcome,) = train_together(tmp_path, run)
    assert outcome.status == "complete", outcome.text
    assert same_bits(run, whole)
    assert len(read_record(run.path).provenance["resumed_from"]) == 1


def test_two_runs_at_a_time_have_the_bits_of_one(whole, tmp_path):
    runs = [toy_run(tmp_path, *EXACT, f"seed={seed}") for seed in (0, 1)]
    for outcome in train_together(tmp_path, *runs):
        assert outcome.status == "complete"
    assert same_bits(runs[0], whole)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_masked_head_has_the_loss_and_gradients_of_the_reference(bf16):
    """70 tokens in 128 columns."""
    decoder = random_decoder("crope").float().to(KIND)
    found = []
    for masked in (False, True):
        loss = losses.cross_entropy(
            decoder, TOKENS.to(KIND), TARGETS.to(KIND), bf16=bf16, masked=masked
        )
        found.append([loss, *torch.autograd.grad(loss, list(decoder.parameters()))])
    for reference, gradient in zip(*found, strict=True):
        assert (gradient - reference).norm() <= 1e-2 * (reference.norm() + 1e-2)
