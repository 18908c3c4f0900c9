"""Layers made complex-linear and dense again; what is saved opens with equal logits."""

import copy
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from crope.adapt import complexify, merge
from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear
from crope.report.docs import saved_share
from tests.interop.families import build, logits
from tests.model.oracles import assert_close
from tests.test_tutorial import blocks

FAMILIES = {
    "gemma2": {},
    "gptj": {},
    "llama": {"tie_word_embeddings": True},
    "mixtral": {},  # the names in its files are not those of its parameters
    "qwen2": {},  # with biases
}


class Attention(nn.Module):
    """Two heads of width 4 of queries, one of keys and values."""

    def __init__(self):
        super().__init__()
        self.head_dim = 4
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 4)
        self.v_proj = nn.Linear(8, 4)


@pytest.fixture(scope="module", params=FAMILIES)
def converted(request):
    model = build(request.param, **FAMILIES[request.param])
    complexify(model, init="fresh")
    return model


# Values


def test_nearest_keeps_the_complex_linear_part_of_each_block():
    """[[3, 0], [0, 1]] becomes [[2, 0], [0, 2]]: of 10, 8 is kept."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    (replaced,) = complexify(model, names=["0"], pairing="interleaved", init="nearest")
    assert model[0].weight.tolist() == [[2, 0], [0, 2]]
    assert replaced == ("0", pytest.approx(0.8))


def test_fresh_values_have_the_deviation_of_the_replaced_weight():
    model = nn.Sequential(nn.Linear(512, 512))
    nn.init.normal_(model[0].weight, std=0.03)
    complexify(model, names=["0"], pairing="half", head_dim=8, init="fresh")
    for part in (model[0].a, model[0].b):
        assert part.std().item() == pytest.approx(0.03, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True])
def test_both_directions_keep_dtype_mode_and_requires_grad(dtype, trained):
    model = Attention().to(dtype).eval()
    model.q_proj.weight.requires_grad_(trained)
    assert len(complexify(model, pairing="half", init="nearest")) == 3
    assert type(model.q_proj) is ComplexLinear and not model.q_proj.training
    assert (model.q_proj.b.dtype, model.q_proj.b.requires_grad) == (dtype, trained)
    assert merge(model) == ["q_proj", "k_proj", "v_proj"]
    assert type(model.q_proj) is nn.Linear and not model.q_proj.training
    assert (model.q_proj.weight.dtype, model.q_proj.weight.requires_grad) == (dtype, trained)


def test_a_merged_model_is_the_original_one_with_equal_logits(converted):
    merged = copy.deepcopy(converted)
    assert len(merge(merged)) == 6
    assert not any(isinstance(layer, ComplexLinear) for layer in merged.modules())
    assert torch.equal(logits(merged), logits(converted))


# Saving and loading


def test_what_is_saved_opens_in_transformers(converted, tmp_path):
    converted.save_pretrained(tmp_path)
    opened = type(converted).from_pretrained(tmp_path)
    assert torch.equal(logits(opened), logits(converted))
    kept = [layer.kept for layer in complexify(opened, init="nearest")]
    assert kept == [1] * 6
    assert torch.equal(logits(opened), logits(converted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_has_the_original_names_and_loads_to_the_last_bit(converted, dtype):
    model, other = copy.deepcopy(converted).to(dtype), copy.deepcopy(converted).to(dtype)
    for value in other.parameters():
        nn.init.ones_(value)
    state = model.state_dict()
    assert state.keys() == type(model)(model.config).state_dict().keys()
    other.load_state_dict(state)
    for name, value in other.named_parameters():
        assert torch.equal(value, model.get_parameter(name)), name


def test_a_state_dict_kept_during_training_is_no_part_of_a_mixture(converted):
    """Its Q, K and V would be of another step than its live parameters."""
    model = copy.deepcopy(converted)
    kept, copied = model.state_dict(), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.5)
    with pytest.raises(RuntimeError, match="deepcopy"):
        model.load_state_dict(kept)
    model.load_state_dict(copied)
    assert torch.equal(logits(model), logits(converted))


def test_a_write_to_the_dense_weight_is_an_error():
    layer = ComplexLinear(4, 4)
    with torch.no_grad(), pytest.raises(RuntimeError, match="Inplace"):
        layer.weight.zero_()


def test_what_is_written_into_a_state_dict_is_loaded_or_an_error(converted):
    """A dense layer would change with it."""
    average, name = copy.deepcopy(converted), "lm_head.weight"
    state = average.state_dict()
    for key, value in state.items():
        value.mul_(0.5 if key.endswith("q_proj.weight") else 1)
    for use in (
        lambda: logits(average),
        average.state_dict,
        lambda: average.load_state_dict({name: state[name]}, strict=False),
        lambda: merge(average),
    ):
        with pytest.raises(RuntimeError, match="AveragedModel"):
            use()
    average.load_state_dict(state)
    for part, value in average.named_parameters():
        factor = 0.5 if part.endswith(("q_proj.a", "q_proj.b")) else 1
        assert torch.equal(value, factor * converted.get_parameter(part)), part


@pytest.mark.parametrize("strict", [True, False])
def test_a_dense_weight_that_is_not_complex_linear_is_not_loaded(strict):
    model = build()
    complexify(model, init="fresh")
    with pytest.raises(RuntimeError, match=r"q_proj.weight is not complex-linear"):
        model.load_state_dict(build().state_dict(), strict=strict)


# Refusals


class Subclass(nn.Linear):
    """As those of bitsandbytes and peft."""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (
            lambda model: setattr(model, "k_proj", Subclass(8, 4)),
            "k_proj is a tests.interop.test_adapt.Subclass. It must",
        ),
        (lambda model: complexify(model, pairing="half", init="fresh"), "q_proj is a .*Complex"),
        (lambda model: setattr(model, "other", model.q_proj), "q_proj is a .* shares"),
        (lambda model: setattr(model, "k_proj", nn.Linear(8, 6)), "divides 6 outputs"),
    ],
)
def test_a_layer_that_cannot_be_replaced_is_named_and_nothing_changed(change, word):
    model = Attention()
    change(model)
    before = list(model.modules())
    with pytest.raises(ValueError, match=word):
        complexify(model, pairing="half", init="fresh")
    assert list(model.modules()) == before


@pytest.mark.parametrize(
    ("family", "options", "word"),
    [
        (
            "llama",
            {"names": "q_proj"},
            "named 'q'. Linear layers of this model: down_proj, .*v_proj",
        ),
        ("stablelm", {}, "pairing is not known"),
        ("stablelm", {"pairing": "half"}, "rotates only 25% of each head"),
        ("laguna", {"pairing": "half"}, "rotates only 50% of each head"),  # of one type of layer
        ("llama", {"pairing": "interleaved"}, "pairing='interleaved', but the model has 'half'"),
        ("llama", {"init": "activations"}, "must be 'fresh' or 'nearest'"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(family, options, word):
    with pytest.raises(ValueError, match=word):
        complexify(build(family), **{"init": "fresh"} | options)


# The package


def test_layers_and_adapter_import_without_the_pipeline():
    """`pip install crope` brings torch and numpy only."""
    code = """if True:
        import sys
        absent = "hydra omegaconf yaml wandb pandas matplotlib scipy pydantic transformers"
        sys.modules.update(dict.fromkeys(absent.split()))
        import crope
        crope.adapt.check, crope.complexify, crope.GPT
        crope.RotaryEmbedding, crope.ComplexLinear, crope.ModelConfig
        """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.fixture
def page():
    return (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}


@pytest.mark.parametrize(
    ("family", "name", "groups", "pairing", "options"),
    [
        ("gpt_neox", "query_key_value", 4, "half", {"rope_parameters": ROPE}),
        ("gpt2", "c_attn", 1, "interleaved", {}),
    ],
)
def test_the_pages_split_of_a_fused_layer_keeps_logits(
    family, name, groups, pairing, options, page, capsys
):
    """Of 12 D^2 weights of a block complexify leaves 10.5."""
    space = {}
    exec(blocks(page)[1], space)
    assert capsys.readouterr().out.count("commutes with the rotation: True") == 2
    model = build(family, **options)
    before, counted = logits(model), model.num_parameters()
    found = [module for module in model.modules() if hasattr(module, name)]
    for attention in found:
        space["split"](attention, name, groups)
    assert_close(logits(model), before, atol=1e-5)
    complexify(model, pairing=pairing, head_dim=8, init="fresh")
    assert counted - model.num_parameters() == 2 * 3 * 32 * 32 // 2
    assert logits(model).isfinite().all()


def test_the_page_states_what_is_saved(page):
    """Of a block: Q and output D^2 each, K and V by their heads, GPT-2's two or Llama's three
    feed-forward matrices.
    """
    rows = re.findall(r"^\|(.+)\|([\d,]+)\|([\d,]+)\|(\d+), (\d+)\|([\d.]+) %\|$", page, re.M)
    assert len(rows) == 3
    for name, *numbers, saved in rows:
        width, ffn, heads, kv_heads = (int(number.replace(",", "")) for number in numbers)
        ffn *= 2 if name == "GPT-2" else 3
        assert f"{saved_share(width, width * kv_heads / heads, ffn):.1f}" == saved


def test_the_page_runs(page, capsys):
    exec(blocks(page)[0], {})
    printed = capsys.readouterr().out
    assert "106,816 parameters, complex-linear 98,624" in printed
    assert printed.count("commutes with the rotation: True") == 2
    assert "opened again: logits differ by 0.0" in printed
