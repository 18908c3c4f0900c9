"""The table of starts: low rank, what is measured again, what is printed; on a tiny trained model."""

import copy
from argparse import Namespace
from pathlib import Path
from typing import Any

import init_table
import pytest
import torch
from init_table import ARMS, Arm, Source, Store, make_low_rank, measure_arm, render
from torch import nn

from crope.model.complex_linear import ComplexLinear
from tests.interop.toys import build

SIZES = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def sequences(step: int, count: int = 8) -> torch.Tensor:
    """Each token is the sum of the two before it, with 16 tokens."""
    rows = [torch.randint(16, (count, 2), generator=torch.Generator().manual_seed(step)).T]
    tokens = [*rows[0]]
    while len(tokens) < 24:
        tokens.append((tokens[-1] + tokens[-2]) % 16)
    return torch.stack(tokens, dim=1)


@pytest.fixture(scope="module")
def source() -> Source:
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


def converted_loss(source: Source, arm: Arm) -> float:
    model = copy.deepcopy(source.model)
    init_table.convert(model, arm, source)
    return init_table.validation_loss(model, source)


@pytest.mark.parametrize("init", ["activations", "sequential", "aligned, sequential"])
def test_fits_to_activations_keep_what_the_nearest_layers_lose(source: Source, init: str) -> None:
    dense = init_table.validation_loss(source.model, source)
    assert converted_loss(source, Arm("complex-linear", "nearest")) > dense + 0.5
    assert converted_loss(source, Arm("complex-linear", init)) < dense + 0.1


def test_arms_of_some_layers_leave_the_others(source: Source) -> None:
    model = copy.deepcopy(source.model)
    init_table.convert(model, Arm("complex-linear", "nearest", init_table.V), source)
    attention = model.model.layers[0].self_attn
    assert type(attention.q_proj) is nn.Linear
    assert type(attention.v_proj) is ComplexLinear


def test_what_is_measured_is_not_measured_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Namespace(trained="qkv", steps=8, untuned=False)
    store = Store(tmp_path / "losses.jsonl")
    measure_arm(source, ARMS[0], store, options)
    assert [line["step"] for line in store.lines] == [0, 1, 2, 4, 8]
    again = Store(tmp_path / "losses.jsonl")
    monkeypatch.setattr(init_table, "convert", None)
    measure_arm(source, ARMS[0], again, options)
    assert again.lines == store.lines


def test_only_q_k_and_v_are_trained_if_so_asked(source: Source) -> None:
    model = copy.deepcopy(source.model)
    list(init_table.tune(model, source, "qkv", 1))
    before, after = (part.model.layers[0] for part in (source.model, model))
    assert not torch.equal(after.self_attn.v_proj.weight, before.self_attn.v_proj.weight)
    assert torch.equal(after.self_attn.o_proj.weight, before.self_attn.o_proj.weight)


def line(arm: Arm, trained: str | None, step: int, loss: float) -> dict[str, Any]:
    where = {"arm": arm.label, "windows": 64, "calibration": 24, "trained": trained}
    return where | {"steps": 8 if trained else 0, "step": step, "loss": loss}


def test_tables_have_the_loss_right_after_and_after_tuning_and_its_distance_from_dense() -> None:
    dense, fitted = ARMS[0], ARMS[3]
    lines = [
        line(dense, None, 0, 1.0),
        line(dense, "all", 4, 0.9),
        line(dense, "all", 8, 0.7),
        line(fitted, None, 0, 3.0),
        line(fitted, "all", 4, 2.0),
        line(fitted, "all", 8, 1.0),
    ]
    tables = render([lines], windows=64, calibration=24)
    assert tables["init"].splitlines()[0].endswith("| right after | after 8 steps of all weights |")
    assert tables["init"].splitlines()[2:] == [
        "| dense | unchanged | 1.000 | 0.700 |",
        "| complex-linear | activations | 3.000 | 1.000 |",
    ]
    assert "| complex-linear | activations | 1.100 | 0.300 |" in tables["healing"]
    assert tables["calibration"].splitlines()[-1] == "| complex-linear | activations | 3.000 |"


def test_low_rank_is_the_truncated_svd() -> None:
    """Eckart-Young: the squared error is the sum of the discarded squared singular values."""
    torch.manual_seed(0)
    x = torch.randn(40, 8) @ torch.randn(8, 8)
    for batches, inputs in (([], torch.eye(8)), ([x], x)):
        model = nn.ModuleDict({"q_proj": nn.Linear(8, 8, bias=False)})
        model.forward = lambda x, model=model: model["q_proj"](x)  # type: ignore[misc]
        dense = model["q_proj"].weight.detach().clone()
        make_low_rank(model, batches)
        discarded = torch.linalg.svdvals(inputs @ dense.T)[2:]
        lost = inputs @ (dense - model["q_proj"].weight.detach()).T
        torch.testing.assert_close(lost.square().sum(), discarded.square().sum())
