"""Fused head and loss, and steps replayed as CUDA graphs: values and gradients against the reference loss."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from crope.checkpoint import TrainState
from crope.compose import load_run
from crope.config import Config
from crope.errors import ConfigError
from crope.fused_loss import PACKAGES, fused_cross_entropy, kernels_here, load_kernel
from crope.loss import cross_entropy
from crope.model.gpt import GPT
from crope.optim import build_optimizer
from crope.trainer import build_loss, build_training_loss, prepare_device, train_step

VOCAB_SIZE, LENGTH = 1000, 48  # no multiple of 64: the head has 24 padding rows
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="its kernels need a CUDA device")
SINCE_2_13 = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has none")
KERNELS = [pytest.param("torch", marks=SINCE_2_13), *(pytest.param(name, marks=ON_GPU) for name in PACKAGES)]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def built(device: torch.device, *overrides: str) -> tuple[GPT, Config]:
    run = load_run(["model=crope", "data=tiny", "scale=smoke", "runtime.compile=false", *overrides])
    model = GPT(run.config.model, vocab_size=VOCAB_SIZE, max_len=LENGTH, seed=0).to(device)
    return model, run.config


def batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randint(VOCAB_SIZE, (3, LENGTH), generator=draw).to(device) for _ in range(2))


def gradients(model: GPT, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False])
def test_value_and_gradients_are_those_of_the_reference(
    name: str, precision: str, tied: bool, device: torch.device
) -> None:
    """Against the plain loss of the same model in float64; bf16 may be as far off as the plain loss in bf16 is."""
    if name in PACKAGES and find_spec(PACKAGES[name].replace("-", "_")) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    if (name, precision) == ("cut_cross_entropy", "fp32"):
        pytest.skip("its backward takes 16 bits alone; the configuration refuses fp32")
    model, _ = built(device, f"model.tied_head={str(tied).lower()}")
    inputs, targets = batch(device)
    exact_model = built(device, f"model.tied_head={str(tied).lower()}")[0].double()
    exact = cross_entropy(exact_model, inputs, targets)
    expected = gradients(exact_model, exact)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        plain = cross_entropy(model, inputs, targets)
    of_plain = gradients(model, plain)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        fused = fused_cross_entropy(load_kernel(name, device), model(inputs), model, targets)
    found = gradients(model, fused)
    slack = 1e-5 if precision == "fp32" else 5e-3
    assert abs(fused.item() - exact.item()) < 2 * abs(plain.item() - exact.item()) + slack
    for parameter, gradient in expected.items():
        size = gradient.norm()
        off, off_plain = (found[parameter] - gradient).norm(), (of_plain[parameter] - gradient).norm()
        assert off < 2 * off_plain + slack * size, parameter
    head = "embedding.weight" if tied else "head.weight"
    assert found[head].shape[0] > VOCAB_SIZE and not found[head][VOCAB_SIZE:].any()


def curve(device: torch.device, *overrides: str) -> torch.Tensor:
    """Losses of 20 steps."""
    model, config = built(device, "train.precision=fp32", "train.batch_size=2", *overrides)
    config.train.seq_len = LENGTH
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=5000).astype(np.uint16)
    prepare_device(config)
    state, loss = TrainState(model, *build_optimizer(model, config.train)), build_training_loss(model, config, device)
    steps = [train_step(state, loss, tokens, config=config, step=step, device=device) for step in range(20)]
    return torch.stack(steps).cpu()


@SINCE_2_13
def test_training_with_a_kernel_follows_training_without(device: torch.device) -> None:
    plain, fused = curve(device), curve(device, "runtime.loss=torch")
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=0)
    assert plain[-1] < plain[0] - 0.05


@ON_GPU
def test_cuda_graphs_give_the_losses_of_the_plain_steps(device: torch.device) -> None:
    compiled = curve(device, "runtime.compile=true")
    replayed = curve(device, "runtime.compile=true", "runtime.cuda_graphs=true")
    torch.testing.assert_close(replayed, compiled, rtol=1e-4, atol=0)


def test_validation_stays_with_the_reference_loss(device: torch.device) -> None:
    model, config = built(device, "runtime.loss=torch", "train.precision=fp32")
    inputs, targets = batch(device)
    assert torch.equal(build_loss(model, config, device)(inputs, targets), cross_entropy(model, inputs, targets))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_kernel_that_cannot_run_is_refused_with_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=rf"runtime\.loss={name}: .* CUDA devices alone; runtime\.loss=plain runs"):
        load_kernel(name, torch.device("cpu"))
    monkeypatch.setattr("crope.fused_loss.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"{PACKAGES[name]} is not installed: pip install -e '\.\[fused\]'"):
        load_kernel(name, torch.device("cuda"))


def test_an_older_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.nn.functional.linear_cross_entropy", raising=False)
    with pytest.raises(ConfigError, match="has no linear_cross_entropy"):
        load_kernel("torch", torch.device("cpu"))
    assert "torch" not in kernels_here(torch.device("cpu"))


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["runtime.cuda_graphs=true", "runtime.accumulate=2", "train.batch_size=4"], r"runtime\.accumulate"),
        (["runtime.cuda_graphs=true", "runtime.compile=false"], r"runtime\.compile"),
        (["runtime.cuda_graphs=true", "model.dropout=0.1"], r"model\.dropout"),
        (["runtime.loss=cut_cross_entropy", "runtime.deterministic=true", "train.precision=bf16"], r"runtime\.loss"),
        (["runtime.loss=cut_cross_entropy", "train.precision=fp32"], r"train\.precision"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_run(["model=rope", "data=tiny", "scale=smoke", *overrides])


def test_rows_of_a_shape_that_is_not_compiled_have_the_mean_of_the_batch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rows where two and the full pass's batch are compiled: as the reference gives them all at once."""
    model, config = built(device, "runtime.compile=true", "train.precision=fp32", "train.batch_size=2")
    monkeypatch.setattr("torch.compile", lambda *_, **__: None)  # what is compiled cannot be called
    inputs, targets = batch(device)
    loss = build_loss(model, config, device)(inputs, targets)
    torch.testing.assert_close(loss, cross_entropy(model, inputs, targets), rtol=1e-6, atol=0)
