"""Layers made complex-linear and dense again, and nothing changed on refusal."""

import copy
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import crope
from crope.adapt import complexify, layout, merge
from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear
from tests.interop.toys import Adapted, Attention, Quantised, times_i
from tests.test_tutorial import blocks


def test_named_layers_are_replaced_and_the_rest_is_left():
    model = Attention(bias=True).eval()
    output = model.o_proj
    planned = complexify(model, pairing="half", dry_run=True)
    assert planned[0][:3] == ("q_proj", 72, 40)
    assert not layout(model)
    assert crope.complexify(model, pairing="half") == planned
    assert type(model.q_proj) is ComplexLinear and not model.q_proj.training
    assert model.o_proj is output
    assert merge(model) == ["q_proj", "k_proj", "v_proj"]
    assert type(model.q_proj) is nn.Linear and not model.q_proj.training


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        (False, True),
        (True, False),
    ],
)
def test_weight_and_bias_keep_each_its_dtype_and_requires_grad(weight, bias):
    model = Attention(bias=True)
    dense = model.k_proj
    dense.weight.data = dense.weight.data.bfloat16()
    dense.weight.requires_grad_(weight)
    dense.bias.requires_grad_(bias)
    complexify(model, pairing="half")
    layer = model.k_proj
    assert (layer.a.dtype, layer.bias.dtype) == (torch.bfloat16, torch.float32)
    assert (layer.b.requires_grad, layer.bias.requires_grad) == (weight, bias)
    layer.a.requires_grad_(False)  # b is still trained, so the dense weight is
    merge(model)
    linear = model.k_proj
    assert (linear.weight.requires_grad, linear.bias.requires_grad) == (weight, bias)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_nearest_is_the_projection_onto_eq_30_within_heads(pairing):
    dense = Attention(head_dim=6, bias=True)
    model = copy.deepcopy(dense)
    [replaced] = complexify(model, names=["q_proj"], pairing=pairing)
    i_in, i_out = times_i(8, "interleaved"), times_i(12, pairing, 6)
    weight = dense.q_proj.weight
    nearest = (weight - i_out @ weight @ i_in) / 2
    torch.testing.assert_close(model.q_proj.weight, nearest)
    assert torch.equal(model.q_proj.bias, dense.q_proj.bias)
    share = nearest.square().sum() / weight.square().sum()
    assert replaced.kept == pytest.approx(share.item(), abs=1e-6)


def test_fresh_values_have_the_deviation_of_the_replaced_weight():
    model = nn.Sequential(nn.Linear(512, 512))
    nn.init.normal_(model[0].weight, std=0.03)
    complexify(model, names=["0"], pairing="half", head_dim=8, init="fresh")
    for part in (model[0].a, model[0].b):
        assert part.std().item() == pytest.approx(0.03, rel=0.1)
    assert not model[0].bias.any()


def test_nearest_does_not_overflow_in_float16():
    model = Attention().half()
    nn.init.constant_(model.q_proj.weight, 60000.0)
    complexify(model, pairing="half")
    assert model.q_proj.a.eq(60000.0).all()


def test_a_model_without_values_is_converted_too():
    with torch.device("meta"):
        skeleton = Attention()
    complexify(skeleton, pairing="half")
    assert skeleton.q_proj.a.is_meta


def test_what_fails_midway_leaves_the_model_as_it_was():
    """The second layer's inputs are all 0."""
    model = Attention()
    before = list(model.modules())
    model.forward = lambda x: (model.q_proj(x), model.k_proj(0 * x), model.v_proj(x))
    with pytest.raises(ValueError, match=r"k_proj: 80 tokens .* not all 0"):
        complexify(model, pairing="half", init="activations", inputs=torch.randn(80, 8))
    assert list(model.modules()) == before
    assert model.training and not model.q_proj._forward_hooks


def put(name, layer):
    return lambda model: setattr(model, name, layer)


def tie(model):
    model.o_proj.weight = model.q_proj.weight


ZERO3 = nn.Linear(8, 4)  # as it leaves a layer
ZERO3.weight = nn.Parameter(torch.empty(0))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda m: m.v_proj.to(torch.float8_e4m3fn), "v_proj is a Linear"),
        (put("q_proj", Quantised(8, 8)), "q_proj is a Quantised"),
        (put("k_proj", nn.Linear(8, 6)), "k_proj: 8 inputs and 6 outputs"),
        (put("k_proj", ZERO3), "k_proj: its weight is only a part"),
        (tie, "held by another layer"),
        (lambda m: m.v_proj.weight.data.fill_(torch.nan), "v_proj has weights that are NaN"),
        (lambda m: m.q_proj.register_forward_hook(print), "q_proj has hooks"),
    ],
)
def test_layers_that_cannot_be_replaced_are_named(change, word):
    model = Attention()
    change(model)
    before = list(model.modules())
    with pytest.raises(ValueError, match=word):
        complexify(model, pairing="half")
    assert list(model.modules()) == before


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda m: setattr(m.k_proj, "forward", print), "k_proj has hooks"),
        (lambda m: setattr(m, "k_proj", Adapted(m.k_proj)), "k_proj.base_layer is wrapped"),
        (lambda m: setattr(m.k_proj, "a", ZERO3.weight), "k_proj: its a is only a part"),
    ],
)
def test_merge_refuses_layers_that_something_else_needs(change, word):
    model = Attention()
    complexify(model, pairing="half")
    change(model)
    with pytest.raises(ValueError, match=word):
        merge(model)
    assert isinstance(model.q_proj, ComplexLinear)


def test_layers_and_adapter_import_without_the_pipeline():
    """`pip install crope` brings torch and numpy only."""
    code = """if True:
        import sys
        absent = "hydra omegaconf yaml wandb pandas matplotlib scipy pydantic"
        sys.modules.update(dict.fromkeys(absent.split()))
        import crope
        crope.adapt.check, crope.complexify, crope.GPT
        crope.RotaryEmbedding, crope.ComplexLinear, crope.ModelConfig
        """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_page_runs(capsys):
    code, *_ = blocks((ROOT / "docs" / "own-model.md").read_text(encoding="utf-8"))
    exec(code, {})
    printed = capsys.readouterr().out
    assert float(re.search(r"logits differ by (\S+)", printed)[1]) < 1e-6
    assert "2,048 -> 1,024" in printed
