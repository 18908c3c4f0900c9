"""The table of starts: low rank, what is measured again, what is printed; on a tiny trained model."""

import copy
from argparse import Namespace

import init_table
import pytest
import torch
from init_table import DENSE, Source, make_low_rank, measure, render
from torch import nn

from tests.interop.toys import build

SIZES = {
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def sequences(step, count=8):
    """Each token is the sum of the two before it, with 16 tokens."""
    rows = [torch.randint(16, (count, 2), generator=torch.Generator().manual_seed(step)).T]
    tokens = [*rows[0]]
    while len(tokens) < 24:
        tokens.append((tokens[-1] + tokens[-2]) % 16)
    return torch.stack(tokens, dim=1)


@pytest.fixture(scope="module")
def source():
    model = build(**SIZES)
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
    before, after = (part.model.layers[0] for part in (source.model, model))
    assert not torch.equal(after.self_attn.v_proj.weight, before.self_attn.v_proj.weight)
    assert torch.equal(after.self_attn.o_proj.weight, before.self_attn.o_proj.weight)


FITTED = "complex-linear | activations"


def line(arm, trained, step, loss):
    steps = 8 if trained else 0
    where = {
        "arm": arm,
        "windows": 64,
        "calibration": 24,
        "trained": trained,
    }
    return where | {"steps": steps, "step": step, "loss": loss}


LINES = [
    line(FITTED, None, 0, 3.0),
    line(FITTED, "all", 4, 2.0),
    line(FITTED, "all", 8, 1.0),
    line(DENSE, None, 0, 1.1),
    line(DENSE, "all", 4, 0.9),
    line(DENSE, "all", 8, 0.7),
]


def test_the_table_has_the_loss_right_after_and_at_the_end_of_the_tuning():
    assert render(LINES, calibration=24, sources=1)["init"].splitlines() == [
        "| Q, K and V | start | right after | after 8 steps of all weights |",
        "|---|---|---:|---:|",
        "| dense | unchanged | 1.100 | 0.700 |",
        "| complex-linear | activations | 3.000 | 1.000 |",
    ]


def test_the_curve_has_the_distance_from_the_dense_model_tuned_alike():
    assert render(LINES, calibration=24, sources=1)["healing"].splitlines() == [
        "| Q, K and V | start | all weights, 4 of 8 steps | all weights, 8 of 8 steps |",
        "|---|---|---:|---:|",
        "| complex-linear | activations | 1.100 | 0.300 |",
    ]


def test_means_are_over_runs_that_all_have_the_loss():
    second = [line(DENSE, None, 0, 1.3), line(FITTED, None, 0, 5.0)]
    assert render([*LINES, *second], calibration=24, sources=2)["init"].splitlines() == [
        "| Q, K and V | start | right after |",
        "|---|---|---:|",
        "| dense | unchanged | 1.200 |",
        "| complex-linear | activations | 4.000 |",
    ]


def test_low_rank_is_the_truncated_svd():
    """Eckart-Young: the squared error is the sum of the discarded squared singular values."""
    torch.manual_seed(0)
    x = torch.randn(40, 8) @ torch.randn(8, 8)
    for batches, inputs in (([], torch.eye(8)), ([x], x)):
        model = nn.ModuleDict({"q_proj": nn.Linear(8, 8, bias=False)})
        model.forward = lambda x, model=model: model["q_proj"](x)
        dense = model["q_proj"].weight.detach().clone()
        make_low_rank(model, batches)
        discarded = torch.linalg.svdvals(inputs @ dense.T)[2:]
        lost = inputs @ (dense - model["q_proj"].weight.detach()).T
        torch.testing.assert_close(lost.square().sum(), discarded.square().sum())
