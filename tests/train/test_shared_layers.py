"""A projection whose K is Q, as one layer or as two with one weight: trained, counted, saved, resumed,
loaded and exported as one parameter.
"""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from crope.model.gpt import count_parameters
from crope.model.projections import PROJECTIONS, layers
from crope.records.store import read_record
from crope.runs.load import build_model, load_trained
from crope.runs.run import execute
from crope.train.update import build_optimizer
from tests.conftest import toy_run


def one_layer(model):
    query, _, value = layers(nn.Linear)(model)
    return [query, query, value]


def one_weight(model):
    query, key, value = layers(nn.Linear)(model)
    key.weight = query.weight
    return [query, key, value]


@pytest.fixture(params=[one_layer, one_weight], autouse=True)
def shared(request, monkeypatch, own_conf):
    """The name of the projection, for which conf/model has a file of the same name."""
    monkeypatch.setitem(PROJECTIONS, "shared_qk", request.param)
    text = "position: rotary\nprojection: shared_qk\nattention: softmax\n"
    (own_conf / "model/shared_qk.yaml").write_text(text)


@pytest.fixture
def run(tmp_path, toy_data):
    return toy_run(tmp_path, "model=shared_qk")


def test_it_is_counted_and_optimised_once(run):
    """One block of width 16: 2 x 256 weights in Q, K and V, both in the group of another rate."""
    model = build_model(run.config)
    assert count_parameters(model)["qkv"] == 512
    run.config.train.qkv_lr_factor = 2.0
    _, qkv = build_optimizer(model, run.config.train).param_groups
    assert [parameter.shape for parameter in qkv["params"]] == [(16, 16)] * 2


def test_it_is_saved_once_and_loaded_under_both_names(run):
    assert execute(run).status == "complete"
    saved = load_file(run.path / "weights.safetensors")
    names = [name for name in saved if "_proj" in name and "out" not in name]
    assert sorted(names) == ["blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight"]
    attention = load_trained(read_record(run.path)).blocks[0].attn
    assert torch.equal(attention.q_proj.weight, saved["blocks.0.attn.q_proj.weight"])
    assert attention.k_proj.weight is attention.q_proj.weight
