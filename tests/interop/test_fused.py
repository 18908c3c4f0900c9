"""Q, K and V of fused layers: separated, the logits stay the same to the last bit."""

import pytest
import torch
from torch import nn

from crope.adapt import check, complexify, load, merge, save, split_qkv
from tests.interop.toys import GROUPED, IDS, SIZES, Adapted, build, logits, same_logits

NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
FAMILIES = [
    ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    ("GPTNeoXForCausalLM", SIZES | {"rotary_pct": 1.0}),
    ("Phi3ForCausalLM", GROUPED),
    ("FalconForCausalLM", SIZES | {"multi_query": True}),
    ("FalconForCausalLM", SIZES | {"multi_query": False, "bias": True}),
    ("FalconForCausalLM", SIZES | NEW),
]


@pytest.fixture(params=FAMILIES, ids=str)
def model(request):
    family, sizes = request.param
    return build(family, **sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_split_layers_give_the_same_bits(model, dtype):
    model.to(dtype)
    before, layers = logits(model), list(map(type, model.modules()))
    split_qkv(model)
    assert torch.equal(logits(model), before)
    merge(model)
    assert list(map(type, model.modules())) == layers
    assert torch.equal(logits(model), before)


def test_without_v_a_token_does_not_depend_on_those_before_it(model):
    split_qkv(model)
    for path, value in model.named_parameters():
        if "v_proj" in path:
            nn.init.zeros_(value)
    changed = IDS.clone()
    changed[:, 0] = 90
    assert torch.equal(model(changed).logits[:, 1:], model(IDS).logits[:, 1:])


def test_parts_have_whole_heads_in_order(model):
    """In other rows the rotation would not commute."""
    split_qkv(model)
    pairing = "half" if model.config.model_type == "gpt2" else None
    complexify(model, pairing=pairing, init="sequential", inputs=torch.randint(3, 90, (8, 24)))
    assert all(attention.commutes for attention in check(model, IDS))


def test_split_and_complexified_models_are_saved_and_loaded(model, tmp_path):
    split_qkv(model)
    model.save_pretrained(tmp_path / "split")
    reopened = type(model).from_pretrained(tmp_path / "split")
    assert same_logits(reopened, model)
    complexify(model, pairing="half")
    save(model, tmp_path / "halved")
    assert same_logits(load(tmp_path / "halved"), model)
    model.save_pretrained(tmp_path / "dense")
    reopened = type(model).from_pretrained(tmp_path / "dense")
    torch.testing.assert_close(logits(reopened), logits(model))


def trained(layer):
    return [name for name, value in layer.named_parameters() if value.requires_grad]


@pytest.mark.parametrize(("frozen", "kept"), [("weight", "bias"), ("bias", "weight")])
def test_parts_are_trained_as_the_fused_layer_was(frozen, kept):
    model = build("GPT2LMHeadModel", **FAMILIES[0][1])
    attention = model.transformer.h[0].attn
    attention.c_attn.get_parameter(frozen).requires_grad_(False)
    split_qkv(model)
    assert trained(attention.c_attn.k_proj) == [kept]
    merge(model)
    assert trained(attention.c_attn) == [kept]


def test_checkpoints_of_the_fused_model_are_loaded():
    model, merged = build("Phi3ForCausalLM"), build("Phi3ForCausalLM")
    split_qkv(model)
    nn.init.ones_(merged.model.layers[1].self_attn.qkv_proj.weight[40:])
    model.load_state_dict(merged.state_dict(), strict=False)
    assert same_logits(model, merged)


def test_adapters_on_a_part_are_merged_first(tmp_path):
    model = build("Phi3ForCausalLM")
    part = model.get_submodule(split_qkv(model)[0])
    part.v_proj = Adapted(part.v_proj)
    with pytest.raises(ValueError, match="v_proj is a Adapted; merge it first"):
        merge(model)
    with pytest.raises(ValueError, match="v_proj is a Adapted; merge it first"):
        model.save_pretrained(tmp_path)


def test_what_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match="it splits falcon, gpt2, gpt_neox, phi3"):
        split_qkv(build())
    model = build("Phi3ForCausalLM")
    attention = model.model.layers[0].self_attn
    attention.qkv_proj = Adapted(attention.qkv_proj)
    with pytest.raises(ValueError, match=r"0.self_attn.qkv_proj is a Adapted"):
        split_qkv(model)
