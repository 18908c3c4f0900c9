"""The table of starts: low rank, what is measured again, what is printed; on a tiny trained model."""

import copy
from argparse import Namespace

import init_table
import pytest
import torch
from init_table import DENSE, Source, make_low_rank, measure, render
from torch import nn

from tests.interop.toys import build


def sequences(step):
    """8 of 24 tokens, each the sum of the two before it, modulo 16."""
    generator = torch.Generator().manual_seed(step)
    tokens = [*torch.randint(16, (2, 8), generator=generator)]
    while len(tokens) < 24:
        tokens.append((tokens[-1] + tokens[-2]) % 16)
    return torch.stack(tokens, dim=1)


@pytest.fixture(scope="module")
def source():
    model = build()
    made = Source(
        name="tiny",
        model=model,
        pairs={},
        output="o_proj",
        calibration=[sequences(1000), sequences(1001)],
        validation=sequences(2000),
        batch=sequences,
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        rate=lambda step, steps: 3e-3,
    )
    for _ in init_table.tune(model, made, "all", 200):
        pass
    return made


def converted_loss(source, arm):
    model = copy.deepcopy(source.model)
    init_table.convert(model, arm, source)
    return init_table.validation_loss(model, source)


@pytest.mark.parametrize("init", ["activations", "sequential", "aligned, activations"])
def test_fits_to_activations_keep_what_the_nearest_layers_lose(source, init):
    dense = converted_loss(source, DENSE)
    assert converted_loss(source, "complex-linear | nearest") > dense + 0.5
    assert converted_loss(source, f"complex-linear | {init}") < dense + 0.1


def test_what_is_measured_is_not_measured_again(source, tmp_path, monkeypatch):
    """After 0, 1, 2, 4 and 8 steps: five lines."""
    file, options = tmp_path / "losses.jsonl", Namespace(trained="qkv", steps=8)
    measure(source, DENSE, file, options)
    measured = file.read_text()
    assert measured.count("\n") == 5
    monkeypatch.setattr(init_table, "convert", None)
    measure(source, DENSE, file, options)
    assert file.read_text() == measured


def test_only_q_k_and_v_are_trained_if_so_asked(source):
    model = copy.deepcopy(source.model)
    assert list(init_table.tune(model, source, "qkv", 1)) == [0, 1]
    before, after = (part.model.layers[0].self_attn for part in (source.model, model))
    assert not torch.equal(after.v_proj.weight, before.v_proj.weight)
    assert torch.equal(after.o_proj.weight, before.o_proj.weight)


FITTED = "complex-linear | activations"


def lines(arm, *losses):
    """Right after, and after 4 and 8 of 8 steps."""
    found = []
    for step, loss in zip((0, 4, 8), losses, strict=False):
        line = {"arm": arm, "windows": 64, "calibration": 24, "step": step, "loss": loss}
        line["trained"], line["steps"] = ("all", 8) if step else (None, 0)
        found.append(line)
    return found


LINES = lines(FITTED, 3.0, 2.0, 1.0) + lines(DENSE, 1.1, 0.9, 0.7)


def test_the_table_has_the_loss_right_after_and_at_the_end_of_the_tuning():
    assert render(LINES, calibration=24, sources=1)["init"].splitlines() == [
        "| Q, K and V | start | right after | after 8 steps of all weights |",
        "|---|---|---:|---:|",
        "| dense | unchanged | 1.100 | 0.700 |",
        "| complex-linear | activations | 3.000 | 1.000 |",
    ]


def test_the_curve_has_the_distance_from_the_dense_model_tuned_alike():
    header, _, row = render(LINES, calibration=24, sources=1)["healing"].splitlines()
    assert header == "| Q, K and V | start | trained | after 4 | after 8 |"
    assert row == "| complex-linear | activations | all weights, 8 steps | 1.100 | 0.300 |"


def test_means_are_over_runs_that_all_have_the_loss():
    second = lines(DENSE, 1.3) + lines(FITTED, 5.0)
    header, _, *rows = render(LINES + second, calibration=24, sources=2)["init"].splitlines()
    assert header == "| Q, K and V | start | right after |"
    assert rows == ["| dense | unchanged | 1.200 |", "| complex-linear | activations | 4.000 |"]


@pytest.mark.parametrize("calibrated", [False, True])
def test_low_rank_is_the_truncated_svd(calibrated):
    """Eckart-Young: the squared error is the sum of the discarded squared singular values."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 8) @ torch.randn(8, 8) if calibrated else torch.eye(8)
    model = nn.Sequential()
    model.add_module("q_proj", nn.Linear(8, 8, bias=False))
    dense = model.q_proj.weight.detach().clone()
    make_low_rank(model, [inputs] if calibrated else [])
    discarded = torch.linalg.svdvals(inputs @ dense.T)[2:]
    lost = inputs @ (dense - model.q_proj.weight.detach()).T
    torch.testing.assert_close(lost.square().sum(), discarded.square().sum())


def test_low_rank_keeps_the_bias():
    model = nn.ModuleDict({"q_proj": nn.Linear(8, 8)})
    before = model["q_proj"].bias
    make_low_rank(model, [])
    assert model["q_proj"].bias.equal(before)
