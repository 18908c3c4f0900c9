"""Q, K and V of fused layers: separated, the logits stay the same to the last bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from crope.adapt import check, complexify, load, merge, save, split_qkv
from tests.interop.toys import GROUPED, IDS, SIZES, Adapted, build, logits

GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
# Family, its sizes, class of the fused layer and outputs of K; heads have 8 channels.
FAMILIES: list[tuple[str, dict[str, Any], str, int]] = [
    ("GPT2LMHeadModel", GPT2, "Conv1D", 32),
    ("GPTNeoX", SIZES | {"rotary_pct": 1.0}, "Linear", 32),
    ("Phi3", GROUPED, "Linear", 16),
    ("Falcon", SIZES | {"multi_query": True}, "FalconLinear", 8),
    ("Falcon", SIZES | {"multi_query": False, "bias": True}, "FalconLinear", 32),
    ("Falcon", SIZES | NEW, "FalconLinear", 16),
]
EACH_FAMILY = pytest.mark.parametrize(("family", "sizes", "kind", "width"), FAMILIES)


def split(family: str, sizes: dict[str, Any]) -> tuple[Any, str]:
    model = build(family, **sizes)
    return model, split_qkv(model)[1]


@EACH_FAMILY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_split_layers_give_the_same_bits(
    family: str, sizes: dict[str, Any], kind: str, width: int, dtype: torch.dtype
) -> None:
    model = build(family, **sizes).to(dtype)
    before = logits(model)
    name = split_qkv(model)[1]
    assert torch.equal(logits(model), before)
    merge(model)
    assert type(model.get_submodule(name)).__name__ == kind
    assert torch.equal(logits(model), before)


@EACH_FAMILY
def test_parts_are_q_k_and_v(family: str, sizes: dict[str, Any], kind: str, width: int) -> None:
    """Without V, a token does not depend on those before it."""
    model, name = split(family, sizes)
    parts = model.get_submodule(name)
    assert (parts.q_proj.out_features, parts.k_proj.out_features) == (32, width)
    for path, value in model.named_parameters():
        if "v_proj" in path:
            nn.init.zeros_(value)
    changed = IDS.clone()
    changed[:, 0] = 90
    assert torch.equal(model(changed).logits[:, 1:], model(IDS).logits[:, 1:])


@EACH_FAMILY
def test_parts_have_whole_heads_in_order(
    family: str, sizes: dict[str, Any], kind: str, width: int
) -> None:
    """In other rows the rotation would not commute."""
    model, _ = split(family, sizes)
    pairing: Any = "half" if family == "GPT2LMHeadModel" else None
    complexify(model, pairing=pairing, init="sequential", inputs=torch.randint(3, 90, (8, 24)))
    assert all(attention.commutes for attention in check(model, IDS))


@EACH_FAMILY
def test_split_and_complexified_models_are_saved_loaded_and_merged(
    family: str, sizes: dict[str, Any], kind: str, width: int, tmp_path: Path
) -> None:
    model, _ = split(family, sizes)
    model.save_pretrained(tmp_path / "split")
    reopened = type(model).from_pretrained(tmp_path / "split")
    assert torch.equal(logits(reopened), logits(model))
    complexify(model, pairing="half")
    save(model, tmp_path / "halved")
    assert torch.equal(logits(load(tmp_path / "halved")), logits(model))
    model.save_pretrained(tmp_path / "dense")
    reopened = type(model).from_pretrained(tmp_path / "dense")
    torch.testing.assert_close(logits(reopened), logits(model))
    before = logits(model)
    merge(model)
    torch.testing.assert_close(logits(model), before)


def test_checkpoints_of_the_fused_model_are_loaded() -> None:
    model, _ = split("Phi3", GROUPED)
    other = copy.deepcopy(model)
    nn.init.ones_(other.model.layers[1].self_attn.qkv_proj.v_proj.weight)
    merged = copy.deepcopy(other)
    merge(merged)
    model.load_state_dict(merged.state_dict(), strict=False)
    assert torch.equal(logits(model), logits(other))


def test_gpt_neox_with_partly_rotated_heads_stays_refused() -> None:
    model, _ = split("GPTNeoX", SIZES)
    with pytest.raises(ValueError, match="only 25% of each head is rotated"):
        complexify(model)


def test_adapters_on_a_part_are_merged_first(tmp_path: Path) -> None:
    model, name = split("Phi3", GROUPED)
    part = model.get_submodule(name)
    part.v_proj = Adapted(part.v_proj)
    with pytest.raises(ValueError, match="v_proj is a Adapted; merge it first"):
        merge(model)
    with pytest.raises(ValueError, match="v_proj is a Adapted; merge it first"):
        model.save_pretrained(tmp_path)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="it splits falcon, gpt2, gpt_neox, phi3"):
        split_qkv(build())
    model = build("Phi3")
    attention = model.model.layers[0].self_attn
    attention.qkv_proj = Adapted(attention.qkv_proj)
    with pytest.raises(ValueError, match=r"0.self_attn.qkv_proj is a Adapted"):
        split_qkv(model)
