"""The training loop against closed forms and slow references, on a toy corpus."""

import shutil
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from crope.data.batches import sample_batch
from crope.files import read_metrics
from crope.plan.compose import load_run
from crope.runs.load import build_model
from crope.seeding import torch_seed
from crope.train import loop
from crope.train.checkpoint import checkpoints
from crope.train.device import compiles
from crope.train.loop import Stopped, train
from crope.train.losses import build_losses, cross_entropy
from crope.train.update import Updates
from tests.conftest import toy_run
from tests.model.oracles import assert_close, slow_losses

CPU = torch.device("cpu")
TOKENS_BT = torch.arange(64).view(4, 16)
BATCH = (TOKENS_BT, TOKENS_BT.flip(1))  # inputs and targets


def trained(tokens, folder, *overrides, enlarge=1, **options):
    """A model after `train`, and the rows of its metrics.jsonl; `enlarge` moves its first logits
    away from zero.
    """
    config = toy_run(folder, "runtime.log_every=1", *overrides).config
    model = build_model(config)
    model.embedding.weight.data.mul_(enlarge)
    train(model, tokens, config, folder, run_id="toy-0", **options)
    return model, read_metrics(folder / "metrics.jsonl")


def by_step(rows, key):
    return {row["step"]: row[key] for row in rows if key in row}


@pytest.fixture
def toy(toy_tokens, tmp_path):
    """`trained` on the toy corpus: toy("train.lr=1")."""
    return partial(trained, toy_tokens, tmp_path)


def test_each_line_has_the_losses_that_are_due(toy):
    """Sampled every 4 steps, full every 6 on 64 tokens, both at the last, with the training
    split's.
    """
    _, rows = toy()
    assert list(by_step(rows, "train/loss_nats")) == list(range(12))
    assert list(by_step(rows, "val/loss_nats")) == [0, 4, 8, 12]
    assert by_step(rows, "val_full/tokens") == {6: 64, 12: 64}
    assert by_step(rows, "train_full/tokens") == {12: 64}


def test_each_update_has_the_rate_of_its_step(toy):
    """0.001 x 0.8 at every fourth step, and (s + 1) / 3 of that in the warm-up."""
    _, rows = toy("train.warmup_steps=3", "train.max_steps=6")
    rates = [0.001 / 3, 0.002 / 3, 0.001, 0.001, 0.0008, 0.0008]
    assert list(by_step(rows, "train/lr").values()) == pytest.approx(rates, rel=1e-12)


def test_the_cosine_falls_from_the_rate_to_nothing(toy):
    """0.001 (1 + cos(pi s / 6)) / 2, and (s + 1) / 3 of that in the warm-up."""
    _, rows = toy("train.schedule=cosine", "train.warmup_steps=3", "train.max_steps=6")
    halves = 3**0.5 / 2  # cos(pi / 6)
    fractions = [1 / 3, (1 + halves) / 3, 0.75, 0.5, 0.25, (1 - halves) / 2]
    rates = [0.001 * fraction for fraction in fractions]
    assert list(by_step(rows, "train/lr").values()) == pytest.approx(rates, rel=1e-12)


@pytest.mark.parametrize("clip", [0, 0.1, 100])
def test_the_loop_is_a_plain_one(clip, toy, toy_tokens, tmp_path):
    """torch's AdamW for every parameter at the configured values, none of them a default, on the
    batches of seed 3; torch's limit of the gradient's norm, which is logged before it.
    """
    options = """
        seed=3 model.tied_head=false train.lr=0.02 train.lr_gamma=0.5
        train.beta1=0.7 train.beta2=0.9 train.eps=0.001 train.weight_decay=0.3
    """
    found_model, rows = toy(*options.split(), f"train.grad_clip={clip}")
    config = toy_run(tmp_path, *options.split()).config
    model = build_model(config)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.7, 0.9), eps=0.001, weight_decay=0.3)
    for step in range(12):
        optimizer.param_groups[0]["lr"] = 0.02 * 0.5 ** (step // 4)
        batch = sample_batch(toy_tokens.train, config=config, step=step, purpose="train")
        loss = cross_entropy(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip or torch.inf)
        optimizer.step()
        assert rows[step]["train/loss_nats"] == pytest.approx(loss.item(), rel=1e-6)
        assert rows[step]["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert_close(found_model.state_dict(), model.state_dict(), atol=1e-5)


def test_q_k_and_v_have_a_rate_of_their_own(toy, tmp_path):
    """Adam's first update of a weight is its rate times the sign of the gradient (and the decay)."""
    options = ("train.max_steps=1", "model=rope", "train.qkv_lr_factor=1.5")
    before = build_model(toy_run(tmp_path, *options).config).blocks[0].attn
    after = toy(*options)[0].blocks[0].attn
    changes = []
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        changes.append((new - old).abs().max().item())
    # Q, K, V; weight and bias of the output projection.
    assert changes == pytest.approx([0.0015, 0.0015, 0.0015, 0.001, 0.001], rel=1e-2)


def test_final_losses_are_those_of_the_saved_weights(toy, toy_tokens, tmp_path):
    """Measured again, one window at a time; the training split in as many whole windows of 16 as
    the 299 targets of the validation split fill: 18.
    """
    model, rows = toy("eval.full_tokens=0")
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    nats = slow_losses(model.eval(), toy_tokens.validation, 16).mean()
    assert rows[-1]["val_full/loss_nats"] == pytest.approx(nats, rel=1e-6)
    assert rows[-1]["val_full/tokens"] == 299
    assert rows[-1]["train_full/tokens"] == 288


@pytest.fixture
def clock(monkeypatch):
    """A clock that step s moves by s + 1 seconds, every validation by 50, every checkpoint by 20."""
    clock = SimpleNamespace(now=0.0)

    def slow(owner, name, seconds):
        real = getattr(owner, name)

        def timed(*args, step, **more):
            clock.now += seconds(step)
            return real(*args, step=step, **more)

        monkeypatch.setattr(owner, name, timed)

    monkeypatch.setattr("crope.train.loop.time", SimpleNamespace(perf_counter=lambda: clock.now))
    slow(Updates, "train_step", lambda step: step + 1)
    slow(loop, "validate", lambda step: 50)
    slow(loop, "save_checkpoint", lambda step: 20)


def test_speeds_are_those_of_the_steps_without_validation(toy, clock):
    """A line has the mean of the steps since the last one: 1; 2 to 4; 5 to 7; 8 to 10 seconds. A
    step has 2 x 16 tokens.
    """
    _, rows = toy("runtime.log_every=3")
    assert by_step(rows, "time/step_ms") == {0: 1000, 3: 3000, 6: 6000, 9: 9000}
    assert by_step(rows, "speed/tokens_per_s")[9] == pytest.approx(32 / 9)


def test_the_time_of_a_run_is_all_of_it(clock, toy_tokens, tmp_path):
    """Steps 1 + ... + 12 = 78; validations at 0, 4, 6, 8 and 12 = 250; checkpoints at 0 to 12 = 260."""
    config = toy_run(tmp_path, "runtime.checkpoint_seconds=0").config
    assert train(build_model(config), toy_tokens, config, tmp_path, run_id="toy-0") == 588


def test_lines_are_on_the_disk_before_the_checkpoint_that_counts_on_them(toy, monkeypatch):
    order = []
    monkeypatch.setattr("os.fsync", lambda descriptor: order.append("fsync"))
    monkeypatch.setattr(loop, "save_checkpoint", lambda *_, **__: order.append("checkpoint"))
    toy("runtime.checkpoint_seconds=0", "train.max_steps=2")
    assert order[:4] == ["fsync", "checkpoint", "fsync", "checkpoint"]


def test_a_stop_within_a_full_pass_is_not_kept_waiting(toy, tmp_path, monkeypatch):
    """Asked at the start of steps 0 to 6, and before each of the ten batches at step 6: the third is
    not read.
    """
    monkeypatch.setattr("crope.train.losses.FULL_BATCH_TOKENS", 32)
    answers = iter([False] * 9 + [True])
    with pytest.raises(Stopped, match="step 6"):
        toy("eval.full_tokens=0", stop_requested=lambda: next(answers))
    assert checkpoints(tmp_path)[0].name.startswith("checkpoint-6-")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_have_the_precision_of_the_configuration(precision, tmp_path):
    """With logits far from zero, fp32 agrees with float64 to 1e-6 and bf16 does not."""
    config = toy_run(tmp_path, f"train.precision={precision}").config
    model = build_model(config).eval()
    model.embedding.weight.data.mul_(40)
    with torch.no_grad():
        training, validation = build_losses(model, config, CPU)
        found = [training(*BATCH).item(), validation(*BATCH)["loss_nats"].mean().item()]
        exact = cross_entropy(model.double(), *BATCH).item()
    for nats in found:
        error = abs(nats / exact - 1)
        assert error < 0.02
        assert (error < 1e-6) == (precision == "fp32")


def test_dropout_is_off_in_validation(toy, toy_tokens, tmp_path):
    _, (plain, _) = toy("train.max_steps=1")
    options = ("train.max_steps=1", "model.dropout=0.3")
    _, (dropped, _) = trained(toy_tokens, tmp_path / "dropped", *options)
    assert dropped["val/loss_nats"] == plain["val/loss_nats"]
    assert dropped["train/loss_nats"] != plain["train/loss_nats"]


def test_dropout_masks_are_those_of_the_seed_and_the_step(toy, monkeypatch):
    seeds = []
    monkeypatch.setattr("torch.manual_seed", seeds.append)
    toy("seed=3", "model.dropout=0.1", "train.max_steps=2")
    assert seeds == [torch_seed(3, "dropout", 0), torch_seed(3, "dropout", 1)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_training_gives_the_same_losses(toy_tokens, tmp_path):
    """float32: they may differ by the order of sums, and by far less than bf16 would make of these
    logits. Dropout draws the same masks.
    """
    rows = []
    for compiled in ("false", "true"):
        options = ("model.dropout=0.1", f"runtime.compile={compiled}")
        rows.append(trained(toy_tokens, tmp_path / compiled, *options, enlarge=40)[1])
    for eager, compiled in zip(*rows, strict=True):
        for key in (key for key in eager if key.endswith("loss_nats")):
            assert compiled[key] == pytest.approx(eager[key], rel=1e-5)


@pytest.mark.parametrize(
    "parts",
    [
        "rotary complex linear",
        "rotary complex_misaligned softmax",
        "sinusoidal multi_query softmax",
        "learned lowrank softmax",
        "relative_bias blockdiag softmax",
        "alibi conjugate softmax",
    ],
)
def test_each_part_is_one_graph_through_the_kernel_of_torch(parts, tmp_path, monkeypatch):
    """Each class of position, projection and attention: training and validation under autocast,
    without a graph break (fullgraph), with the losses of the eager step.
    """
    monkeypatch.setattr("crope.model.attention.SHORT", 0)
    monkeypatch.setattr("crope.train.device.can_compile", lambda kind: True)
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    options = ["train.precision=bf16", "train.batch_size=4"]
    for part, name in zip(("position", "projection", "attention"), parts.split(), strict=True):
        options.append(f"model.{part}={name}")
    found = []
    for compiled in ("false", "true"):
        config = toy_run(tmp_path, *options, f"runtime.compile={compiled}").config
        training, validation = build_losses(build_model(config), config, CPU)
        loss = training(*BATCH)
        loss.backward()
        with torch.no_grad():
            found.append([loss.item(), *validation(*BATCH)["loss_nats"].tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def blocked():
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_no_signal_reaches_a_compiler_and_only_a_shorter_last_batch_is_read_eagerly(
    tmp_path, monkeypatch
):
    """Batches of 2 are trained on and sampled, of 256 (4,096 tokens) those of a full pass: each as a
    whole. A process that a call starts inherits the blocked signals.
    """
    compiled = []

    def compile_nothing(function, **options):
        def noted(inputs_BT, targets_BT):
            compiled.append((len(inputs_BT), blocked() - before))
            return function(inputs_BT, targets_BT)

        return noted

    monkeypatch.setattr("crope.train.device.can_compile", lambda kind: True)
    monkeypatch.setattr("torch.compile", compile_nothing)
    config = toy_run(tmp_path, "runtime.compile=true").config
    training, validation = build_losses(build_model(config), config, CPU)
    before = blocked()
    training(*BATCH)
    for rows in (2, 3, 256):
        x_BT = torch.arange(16).expand(rows, 16)
        assert validation(x_BT, x_BT)["loss_nats"].shape == (rows,)
    both = {signal.SIGINT, signal.SIGTERM}
    assert compiled == [(4, both), (2, both), (256, both)]
    assert blocked() == before


@pytest.mark.parametrize(
    ("device", "overrides", "expected"),
    [
        ("cuda", "scale=paper", True),
        ("cuda", "scale=quick", False),
        ("cuda", "scale=paper runtime.compile=false", False),
        ("cpu", "scale=quick train.max_steps=2929", False),  # of 512 tokens: 1.5 million
        ("cpu", "scale=quick train.max_steps=2930", True),
        ("meta", "scale=paper runtime.compile=true", False),
    ],
)
def test_a_run_compiles_where_its_length_pays(device, overrides, expected, monkeypatch):
    """And where it can: not on a device of the kind `meta`."""
    monkeypatch.setattr("crope.train.device.can_compile", lambda kind: kind != "meta")
    config = load_run(overrides.split()).config
    assert compiles(config, torch.device(device)) == expected
