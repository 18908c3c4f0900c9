"""crope.interop.adapt against least squares, dense weights and the rotation of each family of
`transformers`.
"""

import copy
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from init_table import make_low_rank
from torch import distributed, nn

from crope.config import ROOT
from crope.interop import adapt
from crope.interop.adapt import check, complexify, layout, load, merge, restore, save
from crope.model.complex_linear import ComplexLinear
from tests.test_tutorial import blocks


class Attention(nn.Module):
    """Two heads of queries, one of keys and values; a norm and half-split rotary pairs."""

    def __init__(self, width: int = 8, *, bias: bool = False, head_dim: int = 4) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.gain = torch.ones(head_dim)
        self.q_proj = nn.Linear(width, 2 * head_dim, bias=bias)
        self.k_proj = nn.Linear(width, head_dim, bias=bias)
        self.v_proj = nn.Linear(width, head_dim, bias=bias)
        self.o_proj = nn.Linear(2 * head_dim, width)

    def rotate(self, x_BTE: torch.Tensor) -> torch.Tensor:
        """Queries or keys, (B, H, T, K), with one angle per pair and position."""
        x_BHTK = x_BTE.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        first, second = F.rms_norm(x_BHTK, (self.head_dim,), self.gain).chunk(2, dim=-1)
        angles = torch.arange(x_BTE.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        rotated = torch.complex(first, second) * torch.exp(1j * angles)
        return torch.cat((rotated.real, rotated.imag), dim=-1)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        q, k = self.rotate(self.q_proj(x_BTD)), self.rotate(self.k_proj(x_BTD))
        v = self.v_proj(x_BTD)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def times_i(channels: int, pairing: str, head_dim: int = 4) -> torch.Tensor:
    """Multiplication by i in the channel pairs: a weight W is complex-linear if W i = i W."""
    distance = head_dim // 2 if pairing == "half" else 1
    first = torch.arange(channels).unflatten(0, (-1, 2, distance))[:, 0].flatten()
    matrix = torch.zeros(channels, channels)
    matrix[first + distance, first] = 1.0
    matrix[first, first + distance] = -1.0
    return matrix


@pytest.mark.parametrize("head_dim", [None, 3])
def test_half_split_pairs_need_heads_of_even_width(head_dim: int | None) -> None:
    with pytest.raises(ValueError, match="head_dim"):
        ComplexLinear(6, 6, pairing="half", head_dim=head_dim)


def test_named_layers_are_replaced_and_the_rest_is_left() -> None:
    model = nn.ModuleDict({"attn": Attention(bias=True)}).eval()
    attention: Any = model["attn"]
    output = attention.o_proj
    sizes = {"attn.q_proj": (72, 40), "attn.k_proj": (36, 20), "attn.v_proj": (36, 20)}
    planned = complexify(model, pairing="half", dry_run=True)
    assert {layer.name: (layer.before, layer.after) for layer in planned} == sizes
    assert not layout(model)
    assert complexify(model, pairing="half") == planned
    assert type(attention.q_proj) is ComplexLinear and not attention.q_proj.training
    assert attention.o_proj is output
    assert merge(model) == list(sizes)
    assert type(attention.q_proj) is nn.Linear and not attention.q_proj.training
    assert merge(model) == []


@pytest.mark.parametrize(("weight", "bias"), [(False, True), (True, False)])
def test_weight_and_bias_keep_each_its_dtype_and_requires_grad(weight: bool, bias: bool) -> None:
    model = Attention(bias=True)
    model.k_proj.weight.data = model.k_proj.weight.data.bfloat16()
    model.k_proj.weight.requires_grad_(weight)
    model.k_proj.bias.requires_grad_(bias)

    def parameters() -> dict[str, tuple[torch.dtype, bool]]:
        named = model.k_proj.named_parameters()
        return {name: (value.dtype, value.requires_grad) for name, value in named}

    dense = parameters()
    complexify(model, pairing="half")
    expected = {"a": dense["weight"], "b": dense["weight"], "bias": dense["bias"]}
    assert parameters() == expected
    model.k_proj.a.requires_grad_(False)  # b is still trained, so the dense weight is
    merge(model)
    assert parameters() == dense


@pytest.mark.parametrize("init", ["nearest", "fresh"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_replaced_layers_are_the_projection_onto_eq_30_within_heads(
    pairing: Any, init: Any
) -> None:
    """Two heads of queries, one of keys and values, and another head width in the second layer."""
    widths = {"first": 4, "second": 6}
    model = nn.ModuleDict(
        {name: Attention(head_dim=width, bias=True) for name, width in widths.items()}
    )
    dense = copy.deepcopy(model)
    replaced = complexify(model, pairing=pairing, init=init)
    assert len(replaced) == 6
    for name, _, _, kept in replaced:
        layer: Any = model.get_submodule(name)
        linear: Any = dense.get_submodule(name)
        i_in = times_i(8, "interleaved")
        i_out = times_i(len(linear.weight), pairing, widths[name.partition(".")[0]])
        nearest = (linear.weight - i_out @ linear.weight @ i_in) / 2
        if init == "nearest":
            torch.testing.assert_close(layer.weight, nearest)
            assert torch.equal(layer.bias, linear.bias)
            share = nearest.square().sum() / linear.weight.square().sum()
            assert kept == pytest.approx(share.item(), abs=1e-6)
        else:
            torch.testing.assert_close(layer.weight @ i_in, i_out @ layer.weight)
            assert layer.weight.all() and not layer.bias.any() and kept == 0.0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_activations_is_the_least_squares_fit_of_the_outputs(pairing: Any, bias: bool) -> None:
    """torch.linalg.lstsq on the outputs of each weight of a and b alone (and of a bias)."""
    torch.manual_seed(0)
    x = torch.randn(40, 6) @ torch.randn(6, 6) + 1
    model = nn.Sequential(nn.Linear(6, 8, bias=bias))
    y = model(x).detach()
    columns = []
    for weights in torch.eye(24).unflatten(1, (2, 4, 3)):
        unit = ComplexLinear(6, 8, pairing=pairing, head_dim=4)
        unit.a.data, unit.b.data = weights
        columns.append(unit(x).detach().flatten())
    if bias:
        columns += [row.expand_as(y).flatten() for row in torch.eye(8)]
    matrix = torch.stack(columns, dim=1)
    solution = torch.linalg.lstsq(matrix, y.flatten()[:, None]).solution
    fit = (matrix @ solution).view_as(y)
    options: dict[str, Any] = {"names": ["0"], "pairing": pairing, "head_dim": 4}
    batches = [{"input": x[:30]}, x[30:]]
    replaced = complexify(model, init="activations", inputs=batches, **options)
    assert model.training
    torch.testing.assert_close(model(x), fit, rtol=0, atol=2e-3)  # the ridge
    total = (y - y.mean(dim=0) if bias else y).square().sum()
    kept = 1 - (y - fit).square().sum() / total
    assert replaced[0].kept == pytest.approx(kept.item(), abs=1e-3)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ((name for name in ("q_proj", "k_proj")), ["0.k_proj", "0.q_proj", "1.k_proj", "1.q_proj"]),
        (["1.q_proj"], ["1.q_proj"]),
        (r"0\.(q|v)_proj", ["0.q_proj", "0.v_proj"]),
    ],
)
def test_layers_are_chosen_by_the_end_of_their_path_or_a_regular_expression(
    names: Any, chosen: list[str]
) -> None:
    model = nn.Sequential(Attention(), Attention())
    replaced = complexify(model, names=names, pairing="half")
    assert sorted(layer.name for layer in replaced) == sorted(layout(model)) == chosen


@pytest.mark.parametrize(
    ("attributes", "config"),
    [
        ({"qk_head_dim": 4, "head_dim": 2}, {}),
        ({"head_dim": 4}, {"head_dim": 2}),
        ({}, {"head_dim": 4, "hidden_size": 8, "num_attention_heads": 4}),
        ({}, {"hidden_size": 8, "num_attention_heads": 2}),
    ],
)
def test_head_width_of_the_attention_layer_or_of_its_configuration(
    attributes: dict[str, int], config: dict[str, int]
) -> None:
    model = Attention()
    del model.head_dim
    vars(model).update(attributes)
    model.config = SimpleNamespace(**config)
    complexify(model, pairing="half")
    assert {layer["head_dim"] for layer in layout(model).values()} == {4}


@pytest.mark.parametrize(
    ("pairing", "config"),
    [
        ("interleaved", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
        ("half", {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}),
    ],
)
def test_rotations_of_whole_pairs_are_accepted(pairing: Any, config: dict[str, Any]) -> None:
    model = Attention()
    model.config = SimpleNamespace(**config)
    assert len(complexify(model, pairing=pairing)) == 3


def test_fresh_values_have_the_deviation_of_the_replaced_weight() -> None:
    model = Attention(width=2048)
    nn.init.normal_(model.q_proj.weight, std=0.03)
    complexify(model, pairing="half", init="fresh")
    for part in (model.q_proj.a, model.q_proj.b):
        assert part.std().item() == pytest.approx(0.03, rel=0.1)


def test_nearest_does_not_overflow_in_float16() -> None:
    model = Attention().half()
    nn.init.constant_(model.q_proj.weight, 60000.0)
    complexify(model, pairing="half")
    assert model.q_proj.a.eq(60000.0).all()


@pytest.mark.parametrize("init", ["nearest", "fresh"])
def test_within_the_meta_device_weights_stay_where_they_are(init: Any) -> None:
    real = Attention()
    with torch.device("meta"):
        skeleton = Attention()
        complexify(skeleton, pairing="half", init=init)
        complexify(real, pairing="half", init=init)
        merge(real)
    assert skeleton.q_proj.a.is_meta and not real.q_proj.weight.is_meta


class Lora(nn.Linear):
    """A layer that only looks plain."""


def nothing(model: Any) -> None:
    """The model is as it should be; the options are not."""


def configured(**settings: Any) -> Any:
    return lambda model: setattr(model, "config", SimpleNamespace(**settings))


HALF, WHOLE = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (nothing, {"names": ["query"]}, "k_proj, o_proj, q_proj, v_proj"),
    (nothing, {"names": ["q_proj", "kproj"]}, "named kproj"),
    (nothing, {"names": r"layers.*"}, "whole path matches 'layers"),
    (nothing, {"names": []}, "names is empty"),
    (nothing, {"head_dim": 8}, "the width of a head is 4"),
    (lambda m: m.v_proj.to(torch.float8_e4m3fn), {}, "v_proj is a Linear"),
    (lambda m: nn.utils.parametrizations.weight_norm(m.v_proj), {}, "v_proj is a Parametrized"),
    (lambda m: complexify(m, pairing="half"), {}, "q_proj is a ComplexLinear"),
    (lambda m: setattr(m, "q_proj", Lora(8, 8)), {}, "q_proj is a Lora"),
    (lambda m: setattr(m, "k_proj", nn.Linear(8, 6)), {}, "k_proj: 8 inputs and 6 outputs"),
    (lambda m: setattr(m, "k_proj", nn.Linear(7, 4)), {}, "k_proj: 7 inputs"),
    (lambda m: setattr(m.o_proj, "weight", m.q_proj.weight), {}, "held by another layer"),
    (lambda m: delattr(m, "head_dim"), {}, "head_dim="),
    (lambda m: setattr(m, "head_dim", 1), {}, "width 1"),
    (lambda m: m.v_proj.weight.data.fill_(torch.nan), {}, "finite"),
    (lambda m: m.q_proj.register_forward_hook(print), {}, "q_proj has hooks"),
    (lambda m: m.q_proj.weight.register_hook(print), {}, "q_proj has hooks"),
    (lambda m: setattr(m.q_proj, "forward", print), {}, "accelerate"),
    (configured(partial_rotary_factor=0.5), {}, "50%"),
    (configured(rope_parameters=HALF), {}, "50%"),
    (configured(rope_parameters={"full": WHOLE, "sliding": HALF}), {}, "50%"),
    (configured(model_type="llama"), {"pairing": "interleaved"}, "pairing='half'"),
    (nothing, {"pairing": None}, "crope.interop.adapt.check"),
    (nothing, {"pairing": "other"}, "pairing"),
    (nothing, {"init": "zero"}, "init"),
    (nothing, {"init": "activations"}, "inputs="),
    (nothing, {"init": "activations", "inputs": torch.ones(1, 8, 8)}, "8 tokens"),
    (nothing, {"init": "activations", "inputs": torch.zeros(1, 80, 8)}, "not all 0"),
    (nothing, {"init": "activations", "inputs": torch.full((1, 80, 8), torch.inf)}, "finite"),
    (nothing, {"names": "*.q_proj"}, "regular expression"),
]


@pytest.mark.parametrize(("change", "options", "word"), REFUSED)
def test_what_cannot_be_replaced_is_named_and_nothing_is_changed(
    change: Any, options: Any, word: str
) -> None:
    model = Attention()
    change(model)
    before = [type(layer) for layer in model.modules()]
    with pytest.raises(ValueError, match=re.escape(word)):
        complexify(model, **({"pairing": "half"} | options))
    assert [type(layer) for layer in model.modules()] == before


def test_layers_of_several_parts_are_refused() -> None:
    """As the towers of a language model whose own projection is fused."""
    model = nn.ModuleDict({name: Attention() for name in ("vision", "audio")})
    for name, part in model.items():
        part.config = SimpleNamespace(model_type=name)
    with pytest.raises(ValueError, match="several parts"):
        complexify(model, pairing="half")
    assert len(complexify(model, names=r"vision\..*(q|k)_proj", pairing="half")) == 2


def test_an_optimizer_with_the_old_weights_is_refused_while_it_is_alive() -> None:
    model = Attention()
    optimizer: Any = torch.optim.AdamW(model.parameters())
    optimizer.cycle = optimizer  # as with a scheduler: deleting it does not free it at once
    with pytest.raises(ValueError, match="AdamW"):
        complexify(model, pairing="half")
    del optimizer
    with pytest.raises(ValueError, match="learning rate") as caught:
        torch.optim.AdamW(model.parameters(), lr=-1.0)
    assert caught.traceback  # keeps the half-built optimiser
    assert complexify(model, pairing="half")


def test_a_data_parallel_wrapper_is_refused() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = Attention()
        wrapped = nn.parallel.DistributedDataParallel(model)
        for part in (model, wrapped):
            with pytest.raises(ValueError, match="DistributedDataParallel"):
                complexify(part, pairing="half")
        del wrapped
    finally:
        distributed.destroy_process_group()


def test_merge_refuses_a_layer_with_hooks() -> None:
    model = Attention()
    complexify(model, pairing="half")
    model.k_proj.forward = model.k_proj.forward
    with pytest.raises(ValueError, match="k_proj has hooks"):
        merge(model)
    assert isinstance(model.q_proj, ComplexLinear)


@pytest.mark.parametrize(
    ("pairing", "gain", "commutes"),
    [("half", 1.0, True), ("interleaved", 1.0, False), ("half", 2.0, False)],
)
def test_check_accepts_the_rotated_pairs_if_the_norm_has_equal_gains_in_each(
    pairing: Any, gain: float, commutes: bool
) -> None:
    model = nn.Sequential(Attention())
    model[0].gain = torch.tensor([gain, 2.0, 1.0, 2.0])
    complexify(model, pairing=pairing)
    x = torch.zeros(1, 6, 8)
    checked = check(model, x)
    assert [(attention.name, attention.commutes) for attention in checked] == [("0", commutes)]
    assert (checked[0].error > 0.1) == (not commutes)
    assert model.training and model[0].q_proj(x).eq(0).all()  # no noise is left
    model(x[:, :1])  # nor the check, which refuses a single token


@pytest.mark.parametrize(
    ("names", "tokens", "word"),
    [
        (None, 6, "complexify before"),
        (["q_proj"], 6, "both"),
        (["q_proj", "v_proj"], 6, "both"),
        (["k_proj", "v_proj"], 6, "both"),
        (["q_proj", "k_proj"], 1, "two"),
    ],
)
def test_check_refuses_what_it_cannot_compare(names: Any, tokens: int, word: str) -> None:
    model = Attention()
    if names:
        complexify(model, names=names, pairing="half")
    with pytest.raises(ValueError, match=word):
        check(model, torch.zeros(1, tokens, 8))


def test_a_model_of_another_class_is_restored_from_its_layout() -> None:
    model, again = Attention(), Attention()
    complexify(model, pairing="half")
    restore(again, layout(model))
    again.load_state_dict(model.state_dict())
    x = torch.randn(1, 6, 8)
    assert torch.equal(again(x), model(x))
    merge(again)
    again.v_proj = model.v_proj
    with pytest.raises(ValueError, match="dense model"):
        restore(again, layout(model))
    assert list(layout(again)) == ["v_proj"]  # nothing was changed
    for name, head_dim, word in (("w_proj", 4, "missing"), ("o_proj", 16, "head_dim")):
        dense = Attention()
        layers = {"q_proj": {"pairing": "half", "head_dim": 4}}
        with pytest.raises(ValueError, match=word):
            restore(dense, layers | {name: {"pairing": "half", "head_dim": head_dim}})
        assert not layout(dense)


def test_a_named_head_width_overrules_one_that_follows_from_other_sizes() -> None:
    """Of heads that do not fill the hidden size."""
    model = Attention()
    del model.head_dim
    model.config = SimpleNamespace(hidden_size=8, num_attention_heads=1)
    assert complexify(model, pairing="half", head_dim=4)
    assert model.q_proj.head_dim == 4


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}
GPTJ = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED | {"tie_word_embeddings": True},
    "Mistral": GROUPED,
    "Mixtral": EXPERTS,
    "Qwen2": GROUPED,  # biases
    "Qwen3": GROUPED,  # a norm of each head before the rotation
    "Olmo2": GROUPED,  # a norm of all heads before the rotation
    "Gemma": GROUPED | {"num_key_value_heads": 1, "head_dim": 16},
    "Gemma2": GROUPED,
    "Starcoder2": GROUPED,
    "SmolLM3": GROUPED | {"num_hidden_layers": 4},  # one layer is not rotated
    "GptOss": EXPERTS,
    "GPTJ": GPTJ | {"n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
    "Cohere": GROUPED,
    "Ernie4_5": GROUPED,
    "Glm": GROUPED,  # a part of each head is rotated
    "Helium": GROUPED,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
TEXT_MODELS = {  # beside a vision tower, whose rotation in the same module is half-split
    "Glm4vText": GROUPED | {"rope_parameters": ROPE},
    "GlmOcrText": GROUPED | {"rope_parameters": ROPE},
}
REFUSED_FAMILIES = {"Phi": "50%", "StableLm": "25%", "GPTNeoX": "split .*query_key_value"}
INTERLEAVED = ("GPTJ", "Cohere", "Ernie4_5", "Glm", "Helium", *TEXT_MODELS)
INPUTS = torch.arange(3, 51).view(2, 24)


def build(family: str) -> Any:
    """A tiny random model; biases are random too."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    torch.manual_seed(0)
    kind = "Model" if family in TEXT_MODELS else "ForCausalLM"
    model_class = getattr(transformers, family + kind)
    sizes = (FAMILIES | TEXT_MODELS).get(family, SIZES)
    model = model_class(model_class.config_class(**sizes)).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(value)
    return model


@pytest.mark.parametrize("family", [*FAMILIES, *TEXT_MODELS])
def test_the_pairing_of_a_family_commutes_with_its_rotation_and_the_other_does_not(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = build(family), build(family)
    inputs = {"input_ids": INPUTS}
    pairing, wrong = "half", "interleaved"
    if family in INTERLEAVED:
        pairing, wrong = wrong, pairing
    with pytest.raises(ValueError, match=f"pairing='{pairing}'"):
        complexify(other, pairing=wrong)  # type: ignore[arg-type]
    complexify(model)
    assert {layer["pairing"] for layer in layout(model).values()} == {pairing}
    assert all(attention.commutes for attention in check(model, inputs))
    monkeypatch.setattr(adapt, "PAIRINGS", {})
    monkeypatch.setattr(adapt, "_rotated_share", lambda config: 1.0)
    complexify(other, pairing=wrong)  # type: ignore[arg-type]
    rotated = [not attention.commutes for attention in check(other, inputs)]
    assert sum(rotated) == (3 if family == "SmolLM3" else 2)


def test_small_scores_are_told_from_values_with_two_tokens() -> None:
    """As Granite's, which are divided by the width of a head instead of its root."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    config = transformers.GraniteConfig(
        **SIZES | {"head_dim": 128, "attention_multiplier": 1 / 128}
    )
    model = transformers.GraniteForCausalLM(config)
    complexify(model)
    assert all(attention.commutes for attention in check(model, {"input_ids": INPUTS[:, :2]}))


def test_wrong_pairs_of_a_slow_rotation_are_noticed_with_few_tokens(monkeypatch) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    rope = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}
    config = transformers.LlamaConfig(**SIZES | {"head_dim": 128, "rope_parameters": rope})
    monkeypatch.setattr(adapt, "PAIRINGS", {})
    model = transformers.LlamaForCausalLM(config)
    complexify(model, pairing="interleaved")
    assert not any(attention.commutes for attention in check(model, {"input_ids": INPUTS[:, :8]}))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_saved_loaded_merged_and_generates(family: str, tmp_path: Path) -> None:
    model = build(family)
    replaced = complexify(model)
    with torch.no_grad():
        logits = model(input_ids=INPUTS).logits
    options = {"input_ids": INPUTS[:, :4], "max_new_tokens": 6, "min_new_tokens": 6}
    generated = model.generate(**options, do_sample=False)
    save(model, tmp_path / "halved")
    loaded = load(tmp_path / "halved").eval()
    assert type(loaded) is type(model) and layout(loaded) == layout(model)
    torch.testing.assert_close(loaded(input_ids=INPUTS).logits, logits, rtol=0, atol=0)
    with pytest.raises(OSError, match="no file named"):  # instead of random Q, K and V
        type(model).from_pretrained(tmp_path / "halved")
    merge(loaded)
    loaded.save_pretrained(tmp_path / "merged")
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(input_ids=INPUTS).logits, logits, rtol=0, atol=1e-5)
    assert torch.equal(merged.generate(**options, do_sample=False), generated)
    difference = sum(layer.before - layer.after for layer in replaced)
    assert merged.num_parameters() - model.num_parameters() == difference > 0
    halved_file = tmp_path / "halved" / "model.complex.safetensors"
    merged_file = tmp_path / "merged" / "model.safetensors"
    saved_bytes = merged_file.stat().st_size - halved_file.stat().st_size
    assert saved_bytes == pytest.approx(4 * difference, abs=2048)  # headers of the files


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_family_with_checkpointing_and_its_logits_in_bfloat16(family: str) -> None:
    model = build(family).train()
    complexify(model)

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(input_ids=INPUTS, labels=INPUTS, use_cache=False).loss.backward()
        return {name: value.grad for name, value in model.named_parameters()}

    stored = gradients()
    assert all(stored[f"{name}.a"].any() for name in layout(model))
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients(), stored, rtol=0, atol=1e-6)
    model.to(torch.bfloat16).eval()
    with torch.no_grad():
        logits = model(input_ids=INPUTS).logits
        merge(model)
        assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
        torch.testing.assert_close(model(input_ids=INPUTS).logits, logits, rtol=0, atol=0)


@pytest.mark.parametrize(("family", "word"), REFUSED_FAMILIES.items())
def test_families_that_cannot_be_converted_are_refused(family: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        complexify(build(family))


def test_queries_of_latent_attention_are_interleaved() -> None:
    """Only part of a query head is rotated, by its own function: multiplying queries and keys by i
    leaves the scores.
    """
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as code

    config = transformers.DeepseekV3Config(
        **SIZES,
        q_lora_rank=None,
        kv_lora_rank=16,
        v_head_dim=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=8,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
    )
    model = transformers.DeepseekV3ForCausalLM(config)
    with pytest.raises(ValueError, match="pairing='interleaved'"):
        complexify(model, names=["q_proj"], pairing="half")
    assert len(complexify(model, names=["q_proj"])) == 2
    q, k = torch.randn(2, 1, 4, 6, 8)
    cos, sin = model.model.rotary_emb(q, torch.arange(6)[None])

    def scores(i: torch.Tensor) -> torch.Tensor:
        queries, keys = code.apply_rotary_pos_emb_interleave(q @ i.T, k @ i.T, cos, sin)
        return queries @ keys.mT

    torch.testing.assert_close(scores(times_i(8, "interleaved")), scores(torch.eye(8)))
    assert not torch.allclose(scores(times_i(8, "half", 8)), scores(torch.eye(8)), atol=0.1)
    config.rope_interleave = False
    with pytest.raises(ValueError, match="rope_interleave"):
        complexify(transformers.DeepseekV3ForCausalLM(config), names=["q_proj"])


def test_load_and_save_need_a_complexified_model(tmp_path: Path) -> None:
    model = build("Llama")
    with pytest.raises(ValueError, match="save_pretrained"):
        save(model, tmp_path)
    with pytest.raises(ValueError, match="missing"):
        load(tmp_path)
    model.__class__ = type("Own", (type(model),), {})
    complexify(model)
    with pytest.raises(ValueError, match="Own is no class"):
        save(model, tmp_path)
    assert not any(tmp_path.iterdir())


def test_save_keeps_away_from_weights_that_from_pretrained_would_open(tmp_path: Path) -> None:
    """A second `save` into the same folder is fine."""
    model = build("Llama")
    model.save_pretrained(tmp_path / "dense")
    complexify(model)
    with pytest.raises(ValueError, match="dense weights"):
        save(model, tmp_path / "dense")
    for _ in range(2):
        save(model, tmp_path / "own", max_shard_size="20KB")


def test_lora_on_a_and_b_stays_complex_linear() -> None:
    peft = pytest.importorskip("peft", reason="not a dependency; docs/own-model.md")
    model = build("Llama")
    complexify(model)
    targets = [f"{name}_proj.{part}" for name in "qkv" for part in "ab"]
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], target_parameters=targets)
    adapted = peft.get_peft_model(model, config)
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(value)
    with torch.no_grad():
        logits = adapted.eval()(input_ids=INPUTS).logits
        merged = adapted.merge_and_unload()
        assert len(layout(merged)) == 6
        torch.testing.assert_close(merged(input_ids=INPUTS).logits, logits, rtol=0, atol=1e-3)


def test_low_rank_baseline_is_the_truncated_svd() -> None:
    """Eckart-Young: the squared error is the sum of the discarded squared singular values."""
    torch.manual_seed(0)
    x = torch.randn(40, 8) @ torch.randn(8, 8)
    cases: list[tuple[list[torch.Tensor], torch.Tensor]] = [([], torch.eye(8)), ([x[None]], x)]
    for batches, inputs in cases:
        model = Attention()
        dense = model.q_proj.weight.detach().clone()
        make_low_rank(model, batches)  # type: ignore[arg-type]
        discarded = torch.linalg.svdvals(inputs @ dense.T)[2:]
        lost = inputs @ (dense - model.q_proj.weight.detach()).T
        torch.testing.assert_close(lost.square().sum(), discarded.square().sum())


def test_layers_and_adapter_import_without_the_pipeline() -> None:
    """`pip install crope` brings torch and numpy only."""
    absent = ["hydra", "omegaconf", "yaml", "wandb", "pandas", "matplotlib", "scipy", "pydantic"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "import crope.interop.adapt; from crope import GPT, ComplexLinear, ModelConfig, RotaryEmbedding"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    code, *_ = blocks((ROOT / "docs" / "own-model.md").read_text(encoding="utf-8"))
    exec(code, {})
    printed = capsys.readouterr().out
    difference = float(re.search(r"logits differ by (\S+)", printed)[1])  # type: ignore[index]
    assert difference < 1e-6 and "2,048 -> 1,024" in printed
