"""The training loop against closed forms and slow references, on a toy corpus."""

import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from crope.config import TrainConfig
from crope.data.batches import sample_batch
from crope.data.tokens import TokenSet
from crope.files import read_metrics
from crope.model import attention
from crope.model.counting import train_flops_per_token
from crope.model.gpt import GPT
from crope.runs.compose import load_run
from crope.runs.load import build_model
from crope.seeding import torch_seed
from crope.train import loop as trainer
from crope.train.loop import build_losses, build_optimizer, compiles, train
from crope.train.losses import cross_entropy, full_loss
from tests.conftest import TOY_VOCAB, toy_run
from tests.model.oracles import CHOICES, assert_close

CPU = torch.device("cpu")


def trained(
    tokens: TokenSet, folder: Path, *overrides: str, enlarge: float = 1
) -> tuple[GPT, list[dict[str, float]]]:
    """A model after `train`, and the rows of its metrics.jsonl; `enlarge` moves its first logits
    away from zero.
    """
    config = toy_run(folder, "runtime.log_every=1", *overrides).config
    model = build_model(config)
    with torch.no_grad():
        model.embedding.weight.mul_(enlarge)
    train(model, tokens, config, folder)
    return model, read_metrics(folder / "metrics.jsonl")


def by_step(rows: list[dict[str, float]], key: str) -> dict[int, float]:
    return {int(row["step"]): row[key] for row in rows if key in row}


def test_each_line_has_what_is_due_and_the_rate_of_every_update(
    toy_tokens: TokenSet, tmp_path: Path
) -> None:
    """Update s + 1 uses lr * gamma^(s // step_size), step_size is 4, and in the warm-up of 5 updates
    (s + 1) / 5 of that.
    """
    _, rows = trained(toy_tokens, tmp_path, "train.warmup_steps=5")
    assert list(by_step(rows, "val/loss_nats")) == [0, 4, 8, 12]
    assert list(by_step(rows, "val_full/loss_nats")) == [6, 12]
    assert list(by_step(rows, "train_full/loss_nats")) == [12]
    rates = {step: 0.001 * min(1, (step + 1) / 5) * 0.8 ** (step // 4) for step in range(12)}
    assert by_step(rows, "train/lr") == pytest.approx(rates, rel=1e-12)


def test_the_loop_is_a_plain_one(toy_tokens: TokenSet, tmp_path: Path) -> None:
    """torch's AdamW for every parameter at the configured values, none of them a default, on the
    batches of seed 3.
    """
    values = ("lr=0.02", "lr_gamma=0.5", "beta1=0.7", "beta2=0.9", "eps=0.001", "weight_decay=0.3")
    options = [
        "seed=3",
        "model=crope",
        "model.tied_head=false",
        *(f"train.{value}" for value in values),
    ]
    trained_model, rows = trained(toy_tokens, tmp_path, *options)
    model, losses, norms = build_model(toy_run(tmp_path, *options).config), {}, {}
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.7, 0.9), eps=0.001, weight_decay=0.3)
    for step in range(12):
        optimizer.param_groups[0]["lr"] = 0.02 * 0.5 ** (step // 4)
        inputs_BT, targets_BT = sample_batch(
            toy_tokens.train, seed=3, step=step, batch_size=2, seq_len=16, purpose="train"
        )
        loss = cross_entropy(model, inputs_BT, targets_BT)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        norms[step] = sum(float(p.grad.square().sum()) for p in model.parameters()) ** 0.5
    assert by_step(rows, "train/loss_nats") == pytest.approx(losses, rel=1e-6)
    assert by_step(rows, "train/grad_norm") == pytest.approx(norms, rel=1e-4)
    states = (dict(each.state_dict()) for each in (trained_model, model))
    assert_close(*states, atol=1e-5)


def test_q_k_and_v_have_a_rate_of_their_own(toy_tokens: TokenSet, tmp_path: Path) -> None:
    """Adam's first update of a weight is its rate times the sign of the gradient (and the decay)."""
    before = build_model(toy_run(tmp_path, "model=rope").config).state_dict()
    after, _ = trained(
        toy_tokens, tmp_path, "train.max_steps=1", "model=rope", "train.qkv_lr_factor=1.5"
    )
    for name, rate in (("q_proj", 1.5), ("k_proj", 1.5), ("v_proj", 1.5), ("out_proj", 1)):
        key = f"blocks.0.attn.{name}.weight"
        moved = (after.state_dict()[key] - before[key]).abs().max().item()
        assert moved == pytest.approx(0.001 * rate, rel=1e-2)


def test_final_losses_are_those_of_the_saved_weights(toy_tokens: TokenSet, tmp_path: Path) -> None:
    """Both splits measured again from weights.safetensors; the training split in as many whole windows as the
    299 targets of the validation split fill: 18.
    """
    options = ("model=crope", "eval.full_tokens=0")
    _, rows = trained(toy_tokens, tmp_path, *options)
    config = toy_run(tmp_path, *options).config
    model = build_model(config)
    model.load_state_dict(torch.load(tmp_path / "weights.safetensors", weights_only=True))
    model.eval()
    for split, key, tokens in (("train", "train_full", 18 * 16), ("validation", "val_full", 299)):
        with torch.no_grad():
            loss, count, window_nats = full_loss(
                lambda x, y: cross_entropy(model, x, y, reduction="none").view_as(y).mean(dim=-1),
                getattr(toy_tokens, split),
                config=config,
                device=CPU,
                max_tokens=tokens,
            )
        assert rows[-1][f"{key}/loss_nats"] == pytest.approx(loss, rel=1e-6)
        assert rows[-1][f"{key}/tokens"] == count == tokens
    assert abs(rows[-1]["train_full/loss_nats"] - rows[-1]["val_full/loss_nats"]) > 1e-3
    stored = np.load(tmp_path / "val_windows.npy")
    np.testing.assert_allclose(stored, window_nats, rtol=1e-6)


def test_speeds_are_those_of_the_steps_without_validation(
    toy_tokens: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    """By a clock that step s moves by s + 1 seconds, every validation by 50 and every checkpoint by
    20; a line has the mean of the steps since the last line: 1; 2 to 4; 5 to 7; 8 to 10 seconds.
    """
    clock, real_step, real_validate = SimpleNamespace(now=0.0), trainer.train_step, trainer.validate

    def step(*args: object, step: int, **kwargs: object) -> torch.Tensor:
        clock.now += step + 1
        return real_step(*args, step=step, **kwargs)

    def validate(*args: object) -> dict[str, float]:
        line = real_validate(*args)
        clock.now += 50 if line else 0
        return line

    def save(*args: object, **kwargs: object) -> None:
        clock.now += 20

    monkeypatch.setattr(trainer, "save_checkpoint", save)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(trainer, "train_step", step)
    monkeypatch.setattr(trainer, "validate", validate)
    monkeypatch.setattr(trainer, "peak_flops", lambda device, precision: 1e6)
    config = toy_run(tmp_path).config
    train(build_model(config), toy_tokens, config, tmp_path)
    rows, seconds = read_metrics(tmp_path / "metrics.jsonl"), {0: 1.0, 3: 3.0, 6: 6.0, 9: 9.0}
    flops = 2 * 16 * train_flops_per_token(config.model, vocab_size=TOY_VOCAB, seq_len=16)
    for key, of_a_second in (
        ("time/step_ms", lambda s: 1000 * s),
        ("speed/tokens_per_s", lambda s: 2 * 16 / s),
        ("speed/mfu_pct", lambda s: 100 * flops / s / 1e6),
    ):
        expected = {step: pytest.approx(of_a_second(s)) for step, s in seconds.items()}
        assert by_step(rows, key) == expected


@pytest.mark.parametrize("deterministic", [False, True])
def test_runtime_options_are_set_before_training(
    deterministic: bool, toy_tokens: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    """Also where an earlier run of the process had set the opposite."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that monkeypatch restores it
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    threads, seen, real = [], [], trainer.train_step

    def step(*args: object, **kwargs: object) -> torch.Tensor:
        seen.append((torch.are_deterministic_algorithms_enabled(), threads.copy()))
        return real(*args, **kwargs)

    monkeypatch.setattr(trainer, "train_step", step)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)  # a second one would be slow
    options = (f"runtime.deterministic={deterministic}", "runtime.threads=2", "train.max_steps=1")
    try:
        torch.use_deterministic_algorithms(not deterministic)
        trained(toy_tokens, tmp_path, *options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [(deterministic, [2])]
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    assert workspace == (":4096:8" if deterministic else None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_have_the_precision_of_the_configuration(
    precision: str, toy_tokens: TokenSet, tmp_path: Path
) -> None:
    """With logits far from zero, fp32 agrees with float64 to 1e-6 and bf16 does not."""
    config = toy_run(tmp_path, f"train.precision={precision}").config
    model = build_model(config)
    with torch.no_grad():
        model.embedding.weight.mul_(40)
        x_BT = torch.from_numpy(toy_tokens.validation[:64].astype(np.int64)).view(4, 16)
        training, validation = build_losses(model, config, CPU)
        losses = [training(x_BT, x_BT.flip(1)).item()]
        model.eval()
        losses.append(validation(x_BT, x_BT.flip(1)).mean().item())
        exact = cross_entropy(model.double(), x_BT, x_BT.flip(1)).item()
    for loss in losses:
        assert (abs(loss / exact - 1) < 1e-6) == (precision == "fp32")
        assert loss == pytest.approx(exact, rel=0.02)


def test_dropout_is_off_in_validation(toy_tokens: TokenSet, tmp_path: Path) -> None:
    plain, dropped = (
        trained(toy_tokens, tmp_path / str(rate), f"model.dropout={rate}")[1][0]
        for rate in (0.0, 0.3)
    )
    assert plain["val/loss_nats"] == dropped["val/loss_nats"]
    assert plain["train/loss_nats"] != dropped["train/loss_nats"]


def test_dropout_masks_are_those_of_the_seed_and_the_step(
    toy_tokens: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    trained(toy_tokens, tmp_path, "seed=3", "model.dropout=0.1")
    assert seeds == [torch_seed(3, "dropout", step) for step in range(12)]


def test_batches_are_drawn_for_the_split_the_seed_and_the_step(
    toy_tokens, tmp_path: Path, monkeypatch
) -> None:
    """Equal for all models; the length of the tokens tells the split."""
    real, seen = trainer.sample_batch, []

    def note(tokens: np.ndarray, *, seed: int, step: int, purpose: str, **sizes: int) -> object:
        seen.append((len(tokens), seed, step, purpose))
        return real(tokens, seed=seed, step=step, purpose=purpose, **sizes)

    monkeypatch.setattr(trainer, "sample_batch", note)
    monkeypatch.setattr("crope.train.losses.sample_batch", note)
    expected = {(900, 3, step, "train") for step in range(12)}
    expected |= {
        (300, 3, step, f"validation/{index}") for step in (0, 4, 8, 12) for index in (0, 1)
    }
    for model in ("xpos", "crope"):
        seen.clear()
        trained(toy_tokens, tmp_path / model, f"model={model}", "seed=3", "eval.batches=2")
        assert len(seen) == len(expected) and set(seen) == expected


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
def test_compiled_training_gives_the_same_losses(toy_tokens: TokenSet, tmp_path: Path) -> None:
    """float32: they may differ by the order of sums, and by far less than bf16 would make of these
    logits. Dropout draws the same masks.
    """
    options = ("model=crope", "model.dropout=0.1")
    _, eager = trained(toy_tokens, tmp_path / "a", *options, enlarge=40)
    _, compiled = trained(toy_tokens, tmp_path / "b", *options, "runtime.compile=true", enlarge=40)
    for key in ("train/loss_nats", "val/loss_nats", "val_full/loss_nats", "train_full/loss_nats"):
        assert by_step(compiled, key) == pytest.approx(by_step(eager, key), rel=1e-5)


@pytest.mark.parametrize("model", CHOICES)
def test_each_model_is_one_graph_through_the_kernel_of_torch(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but for the code generator: training and validation under autocast, without a
    graph break (fullgraph), with the losses of the eager step.
    """
    monkeypatch.setattr(attention, "SHORT", 0)
    monkeypatch.setattr(trainer, "can_compile", lambda kind: True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    x_BT = torch.arange(32).view(2, 16)
    losses = []
    for compiled in ("false", "true"):
        options = (f"model={model}", "train.precision=bf16", f"runtime.compile={compiled}")
        config = toy_run(tmp_path, *options).config
        decoder = build_model(config)
        training, validation = build_losses(decoder, config, CPU)
        loss = training(x_BT, x_BT.flip(1))
        loss.backward()
        assert all(parameter.grad is not None for parameter in decoder.parameters())
        with torch.no_grad():
            losses.append([loss.item(), *validation(x_BT, x_BT.flip(1)).tolist()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize(
    ("device", "overrides", "expected"),
    [
        ("cuda", "scale=paper", True),
        ("cuda", "scale=paper ablation=b2_l512_g09_s1000", True),
        ("cuda", "scale=smoke", False),
        ("cuda", "scale=quick", False),
        ("cuda", "scale=smoke runtime.compile=true", True),
        ("cuda", "scale=smoke runtime.cuda_graphs=true", True),
        ("cuda", "scale=paper runtime.compile=false", False),
        ("cpu", "scale=paper", True),
        ("cpu", "scale=quick", False),
    ],
)
def test_a_run_compiles_where_its_length_pays_for_it(
    device: str, overrides: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run(overrides.split()).config
    for possible in (True, False):
        monkeypatch.setattr(trainer, "can_compile", lambda kind, answer=possible: answer)
        assert compiles(config, torch.device(device)) == (expected and possible)


@pytest.mark.usefixtures("step_clock")
@pytest.mark.parametrize(
    ("seconds", "expected"), [(5, [5, 10]), (5.5, [6, 12]), (60, []), (0, range(1, 13))]
)
def test_checkpoints_are_made_by_time(
    seconds: float, expected: list[int], toy_tokens: TokenSet, tmp_path: Path, monkeypatch
) -> None:
    """By a clock of one second per update."""
    saved: list[int] = []
    monkeypatch.setattr(trainer, "save_checkpoint", lambda *_, step, **__: saved.append(step))
    trained(toy_tokens, tmp_path, f"runtime.checkpoint_seconds={seconds}")
    assert saved == list(expected)


def test_defaults_are_those_of_torch() -> None:
    config = TrainConfig(batch_size=1, seq_len=1, max_steps=1, lr_gamma=0.8, lr_step_size=1000)
    optimizer = build_optimizer(nn.Linear(1, 1), config)
    reference = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    for name in ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"):
        assert optimizer.defaults[name] == reference.defaults[name]
