"""crope.adapt against least squares, dense weights and the rotation of each family of
`transformers`.
"""

import copy
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn

from crope import adapt
from crope.adapt import check, complexify, layout, load, merge, restore, save
from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear

PAIRINGS = [("interleaved", None), ("half", 4)]


class Attention(nn.Module):
    """Grouped attention with the default names; `rotate` turns queries and keys."""

    def __init__(self, width: int = 8, *, bias: bool = False, head_dim: int = 4) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, 2 * head_dim, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(width, head_dim, bias=bias) for _ in range(2))
        self.o_proj = nn.Linear(2 * head_dim, width)

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        """Half-split pairs, one angle per pair and position."""
        angles = torch.arange(x_BHTK.shape[-2])[:, None] * torch.tensor([1.0, 0.1])
        first, second = x_BHTK.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (
            layer(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in projections
        )
        y_BHTK = F.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True
        )
        return self.o_proj(y_BHTK.transpose(1, 2).flatten(2))


def channel_pairs(outputs: int, pairing: str, head_dim: int | None) -> list[tuple[int, int]]:
    if pairing == "interleaved":
        return [(i, i + 1) for i in range(0, outputs, 2)]
    assert head_dim
    return [
        (h + i, h + i + head_dim // 2)
        for h in range(0, outputs, head_dim)
        for i in range(head_dim // 2)
    ]


def times_i(channels: int, pairing: str, head_dim: int | None = None) -> torch.Tensor:
    """Multiplication by i in the channel pairs: a weight W is complex-linear if W i = i W."""
    matrix = torch.zeros(channels, channels)
    for first, second in channel_pairs(channels, pairing, head_dim):
        matrix[second, first], matrix[first, second] = 1.0, -1.0
    return matrix


def is_complex_linear(layer: nn.Module, pairing: str, head_dim: int) -> bool:
    weight = layer.weight.detach()
    i_in, i_out = times_i(weight.shape[1], "interleaved"), times_i(len(weight), pairing, head_dim)
    return bool(weight.any()) and torch.allclose(weight @ i_in, i_out @ weight)


@pytest.mark.parametrize(("pairing", "head_dim"), PAIRINGS)
def test_outputs_are_complex_multiples_of_interleaved_inputs(
    pairing: Any, head_dim: int | None
) -> None:
    layer = ComplexLinear(6, 8, pairing=pairing, head_dim=head_dim).double()
    torch.manual_seed(0)
    nn.init.normal_(layer.a)
    nn.init.normal_(layer.b)
    x = torch.randn(5, 6, dtype=torch.float64)
    z = (x[:, 0::2] + 1j * x[:, 1::2]) @ (layer.a - 1j * layer.b).T.detach()
    for j, (first, second) in enumerate(channel_pairs(8, pairing, head_dim)):
        found = layer(x).detach()
        assert (found[:, first] + 1j * found[:, second]).numpy() == pytest.approx(
            z[:, j].numpy(), abs=1e-12
        )


@pytest.mark.parametrize(("pairing", "head_dim"), PAIRINGS)
def test_nearest_is_the_least_squares_projection(pairing: Any, head_dim: int | None) -> None:
    """torch.linalg.lstsq on a basis of the complex-linear maps: one column per weight of a and b."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 8, bias=True).double()
    basis = []
    for name in ("a", "b"):
        for place in range(4 * 3):
            unit = ComplexLinear(6, 8, pairing=pairing, head_dim=head_dim).double()
            with torch.no_grad():
                getattr(unit, name).view(-1)[place] = 1.0
            basis.append(unit.weight.detach().flatten())
    matrix = torch.stack(basis, dim=1)
    weights = torch.linalg.lstsq(matrix, linear.weight.detach().flatten()[:, None]).solution
    nearest = ComplexLinear.from_linear(linear, pairing=pairing, head_dim=head_dim)
    torch.testing.assert_close(
        nearest.weight.flatten(), (matrix @ weights)[:, 0], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(nearest.bias, linear.bias)


@pytest.mark.parametrize(
    "bad", [{"pairing": "half"}, {"pairing": "half", "head_dim": 3}, {"pairing": "other"}]
)
def test_a_pairing_needs_heads_of_even_width(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pairing"):
        ComplexLinear(6, 8, **bad)


def test_named_layers_are_replaced_and_the_rest_is_left() -> None:
    model = nn.ModuleDict({"attn": Attention(bias=True)}).to(torch.bfloat16).eval()
    output = model["attn"].o_proj
    sizes = {"attn.q_proj": (72, 40), "attn.k_proj": (36, 20), "attn.v_proj": (36, 20)}
    planned = complexify(model, pairing="half", dry_run=True)
    assert {one.name: (one.before, one.after) for one in planned} == sizes
    assert not layout(model)
    assert complexify(model, pairing="half") == planned
    assert isinstance(model["attn"].q_proj, ComplexLinear) and model["attn"].o_proj is output
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert not model["attn"].q_proj.training
    assert merge(model) == list(sizes)
    linear = model["attn"].q_proj
    assert type(linear) is nn.Linear and linear.weight.dtype == torch.bfloat16
    assert not linear.training
    assert merge(model) == []


@pytest.mark.parametrize(("weight", "bias"), [(False, True), (True, False)])
def test_weight_and_bias_keep_their_own_dtype_and_requires_grad(weight: bool, bias: bool) -> None:
    model = Attention(bias=True)
    layer = model.k_proj
    layer.weight = nn.Parameter(layer.weight.detach().bfloat16(), requires_grad=weight)
    layer.bias.requires_grad_(bias)
    complexify(model, pairing="half")
    parts = {name: (one.dtype, one.requires_grad) for name, one in model.k_proj.named_parameters()}
    halved = (torch.bfloat16, weight)
    assert parts == {"a": halved, "b": halved, "bias": (torch.float32, bias)}
    model.k_proj.a.requires_grad_(False)  # b is still trained, so the dense weight is
    merge(model)
    parts = {name: (one.dtype, one.requires_grad) for name, one in model.k_proj.named_parameters()}
    assert parts == {"weight": halved, "bias": (torch.float32, bias)}


@pytest.mark.parametrize("init", ["nearest", "fresh"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_no_pair_of_a_replaced_layer_straddles_heads(pairing: Any, init: Any) -> None:
    """Two heads of queries, one of keys and values, and another head width in the second layer."""
    widths = {"first": 4, "second": 6}
    model = nn.ModuleDict({name: Attention(head_dim=width) for name, width in widths.items()})
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    replaced = complexify(model, pairing=pairing, init=init)
    assert len(replaced) == 6
    for one in replaced:
        layer, weight = model.get_submodule(one.name), dense[f"{one.name}.weight"]
        width = widths[one.name.partition(".")[0]]
        assert is_complex_linear(layer, pairing, width)
        i_in, i_out = times_i(8, "interleaved"), times_i(len(weight), pairing, width)
        nearest = (weight - i_out @ weight @ i_in) / 2
        assert torch.allclose(layer.weight, nearest, atol=1e-6) == (init == "nearest")
        kept = (nearest.square().sum() / weight.square().sum()).item()
        assert one.kept == pytest.approx(kept if init == "nearest" else 0.0, abs=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("pairing", "head_dim"), PAIRINGS)
def test_activations_is_the_least_squares_fit_of_the_outputs(
    pairing: Any, head_dim: int | None, bias: bool
) -> None:
    """torch.linalg.lstsq on the outputs of each weight of a and b alone (and of a bias)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=bias)).double()
    x = torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) + 1
    with torch.no_grad():
        y = model(x)
    columns = []
    for name in ("a", "b"):
        for index in range(4 * 3):
            unit = ComplexLinear(6, 8, pairing=pairing, head_dim=head_dim).double()
            getattr(unit, name).data.view(-1)[index] = 1.0
            columns.append(unit(x).detach().flatten())
    if bias:
        columns += [row.expand_as(y).flatten() for row in torch.eye(8, dtype=torch.float64)]
    matrix = torch.stack(columns, dim=1)
    fit = matrix @ torch.linalg.lstsq(matrix, y.flatten()[:, None]).solution
    model.train()
    halves = [{"input": x[:30]}, x[30:]]
    replaced = complexify(
        model, names=["0"], pairing=pairing, head_dim=4, init="activations", inputs=halves
    )
    assert model.training
    torch.testing.assert_close(model(x), fit.view_as(y), rtol=0, atol=2e-3)  # the ridge
    centred = y - y.mean(dim=0) if bias else y
    kept = 1 - (y - fit.view_as(y)).square().sum() / centred.square().sum()
    assert replaced[0].kept == pytest.approx(kept.item(), abs=1e-3)


def test_activations_of_white_inputs_is_nearest() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8, bias=False)).double()]
    models.append(copy.deepcopy(models[0]))
    options: dict[str, Any] = {"names": ["0"], "pairing": "half", "head_dim": 4}
    white = torch.eye(6, dtype=torch.float64)
    kept = [
        complexify(models[0], init="activations", inputs=white, **options)[0].kept,
        complexify(models[1], **options)[0].kept,
    ]
    assert kept[0] == pytest.approx(kept[1])
    torch.testing.assert_close(models[0][0].weight, models[1][0].weight)


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
    assert sorted(one.name for one in replaced) == sorted(layout(model)) == chosen


@pytest.mark.parametrize(
    ("attributes", "config"),
    [
        ({"qk_head_dim": 4, "head_dim": 2}, {}),
        ({"head_dim": 4}, {"hidden_size": 8, "num_attention_heads": 4}),
        ({}, {"head_dim": 4, "hidden_size": 8, "num_attention_heads": 4}),
        ({}, {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ],
)
def test_head_width_of_the_attention_layer_or_of_its_configuration(
    attributes: dict[str, int], config: dict[str, int]
) -> None:
    model = Attention()
    del model.head_dim
    for name, value in attributes.items():
        setattr(model, name, value)
    model.config = SimpleNamespace(**config)
    complexify(model, pairing="half")
    assert all(is_complex_linear(getattr(model, name), "half", 4) for name in ["q_proj", "k_proj"])


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


def set_nan(model: Any) -> None:
    model.v_proj.weight.data[0, 0] = float("nan")


def set_config(**settings: Any) -> Any:
    return lambda model: setattr(model, "config", SimpleNamespace(**settings))


HALF, WHOLE = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (lambda m: None, {"names": ["query"]}, "k_proj, o_proj, q_proj, v_proj"),
    (lambda m: None, {"names": ["q_proj", "kproj"]}, "named kproj"),
    (lambda m: None, {"names": r"layers.*"}, "named layers"),
    (lambda m: None, {"names": []}, "names is empty"),
    (lambda m: None, {"head_dim": 8}, "the width of a head is 4"),
    (lambda m: m.v_proj.to(torch.float8_e4m3fn), {}, "v_proj is a Linear"),
    (lambda m: nn.utils.parametrizations.weight_norm(m.v_proj), {}, "v_proj is a Parametrized"),
    (lambda m: complexify(m, pairing="half"), {}, "q_proj is a ComplexLinear"),
    (lambda m: setattr(m, "q_proj", Lora(8, 8)), {}, "q_proj is a Lora"),
    (lambda m: setattr(m, "k_proj", nn.Linear(8, 6)), {}, "k_proj: 8 inputs and 6 outputs"),
    (lambda m: setattr(m, "k_proj", nn.Linear(7, 4)), {}, "k_proj: 7 inputs"),
    (lambda m: setattr(m.o_proj, "weight", m.q_proj.weight), {}, "held by another layer"),
    (lambda m: delattr(m, "head_dim"), {}, "head_dim="),
    (lambda m: setattr(m, "head_dim", 1), {}, "width 1"),
    (set_nan, {}, "finite"),
    (lambda m: m.q_proj.register_forward_hook(print), {}, "q_proj has hooks"),
    (lambda m: m.q_proj.weight.register_hook(print), {}, "q_proj has hooks"),
    (lambda m: setattr(m.q_proj, "forward", print), {}, "accelerate"),
    (set_config(partial_rotary_factor=0.5), {}, "50%"),
    (set_config(rope_parameters=HALF), {}, "50%"),
    (set_config(rope_parameters={"full": HALF, "sliding": WHOLE}), {}, "50%"),
    (set_config(rope_parameters={"full": WHOLE, "sliding": HALF}), {}, "50%"),
    (set_config(model_type="llama"), {"pairing": "interleaved"}, "pairing='half'"),
    (set_config(model_type="glm4v_text"), {"pairing": "half"}, "pairing='interleaved'"),
    (set_config(model_type="unheard_of"), {"pairing": None}, "crope.adapt.check"),
    (lambda m: None, {"pairing": None}, "crope.adapt.check"),
    (lambda m: None, {"pairing": "other"}, "pairing"),
    (lambda m: None, {"init": "zero"}, "init"),
    (lambda m: None, {"init": "activations"}, "inputs="),
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


def test_a_fused_projection_is_named() -> None:
    model = nn.ModuleDict({"attn": nn.ModuleDict({"query_key_value": nn.Linear(8, 24)})})
    with pytest.raises(ValueError, match="split.*query_key_value"):
        complexify(model)


def test_an_optimizer_with_the_old_weights_is_refused_while_it_is_alive() -> None:
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # a cycle of references
    with pytest.raises(ValueError, match="AdamW"):
        complexify(model, pairing="half")
    del optimizer, scheduler
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


def test_check_accepts_the_pairs_of_the_rotation_only() -> None:
    x = torch.zeros(1, 6, 8)
    for pairing, right in (("half", True), ("interleaved", False)):
        model = nn.Sequential(Attention())
        complexify(model, pairing=pairing)  # type: ignore[arg-type]
        checked = check(model, x)
        assert [(one.name, one.commutes) for one in checked] == [("0", right)]
        assert (checked[0].error > 0.1) == (not right)
        assert model[0].q_proj(x).eq(0).all()  # no hook is left


def test_check_sees_unequal_gains_between_projection_and_rotation() -> None:
    class Normed(Attention):
        gain = torch.tensor([1.0, 2.0, 1.0, 2.0])

        def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
            return super().rotate(F.rms_norm(x_BHTK, (4,), self.gain))

    model = Normed()
    complexify(model, pairing="half")
    assert check(model, torch.zeros(1, 6, 8))[0].commutes
    model.gain = torch.tensor([1.0, 2.0, 2.0, 2.0])
    assert not check(model, torch.zeros(1, 6, 8))[0].commutes


@pytest.mark.parametrize(
    ("names", "tokens", "word"),
    [(None, 6, "complexify before"), (["q_proj"], 6, "both"), (["q_proj", "k_proj"], 1, "two")],
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
    with pytest.raises(ValueError, match="dense model"):
        restore(again, layout(model))


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
INTERLEAVED = ("GPTJ", "Cohere", "Ernie4_5", "Glm", "Helium")
INPUTS = torch.arange(3, 51).view(2, 24)


def build(family: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(value)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pairing_of_a_family_commutes_with_its_rotation_and_the_other_does_not(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = build(family), build(family)
    inputs = {"input_ids": INPUTS}
    right, wrong = "half", "interleaved"
    if family in INTERLEAVED:
        right, wrong = wrong, right
    with pytest.raises(ValueError, match=f"pairing='{right}'"):
        complexify(other, pairing=wrong)  # type: ignore[arg-type]
    complexify(model)
    assert {one["pairing"] for one in layout(model).values()} == {right}
    assert all(one.commutes for one in check(model, inputs))
    monkeypatch.setattr(adapt, "PAIRINGS", {})
    monkeypatch.setattr(adapt, "_rotated_share", lambda config: 1.0)
    complexify(other, pairing=wrong)  # type: ignore[arg-type]
    rotated = [not one.commutes for one in check(other, inputs)]
    assert sum(rotated) == (3 if family == "SmolLM3" else 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_saved_loaded_merged_and_generates(family: str, tmp_path: Path) -> None:
    model = build(family)
    dense = sum(value.numel() for value in model.parameters())
    replaced = complexify(model)
    saved = sum(one.before - one.after for one in replaced)
    assert dense - sum(value.numel() for value in model.parameters()) == saved > 0
    with torch.no_grad():
        logits = model(input_ids=INPUTS).logits
    options = {"input_ids": INPUTS[:, :4], "max_new_tokens": 6, "min_new_tokens": 6}
    generated = model.generate(**options, do_sample=False, use_cache=True)
    uncached = model.generate(**options, do_sample=False, use_cache=False)
    assert torch.equal(generated, uncached)
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
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / name).glob("*.safetensors"))
        for name in ("merged", "halved")
    ]
    assert abs(sizes[0] - sizes[1] - 4 * saved) < 2048  # headers of the files


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_family_with_checkpointing_and_its_logits_in_bfloat16(family: str) -> None:
    model = build(family).train()
    complexify(model)
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(input_ids=INPUTS, labels=INPUTS, use_cache=False).loss.backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    layer = next(iter(layout(model)))
    assert gradients[0][f"{layer}.a"].any()
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-6)
    model = model.to(torch.bfloat16).eval()
    with torch.no_grad():
        before = model(input_ids=INPUTS).logits
        merge(model)
        assert before.dtype == torch.bfloat16 and before.isfinite().all()
        torch.testing.assert_close(model(input_ids=INPUTS).logits, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "word"), [("Phi", "50%"), ("StableLm", "25%"), ("GPTNeoX", "split.*query_key_value")]
)
def test_families_that_cannot_be_converted_are_refused(family: str, word: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    config = getattr(transformers, f"{family}Config")(**SIZES)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with pytest.raises(ValueError, match=word):
        complexify(model)


@pytest.mark.parametrize(("package", "family"), [("glm4v", "Glm4v"), ("glm_ocr", "GlmOcr")])
def test_text_models_beside_a_vision_tower_of_other_pairs(
    package: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their modules have a half-split rotation for the tower and an interleaved one for the text."""
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    code = import_module(f"transformers.models.{package}.modeling_{package}")
    text_model = getattr(code, f"{family}TextModel")
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = text_model.config_class(**GROUPED, rope_parameters=rope)
    model, other = text_model(config), text_model(config)
    with pytest.raises(ValueError, match="pairing='interleaved'"):
        complexify(other, pairing="half")
    complexify(model)
    assert all(one.commutes for one in check(model, {"input_ids": INPUTS}))
    monkeypatch.setattr(adapt, "PAIRINGS", {})
    complexify(other, pairing="half")
    assert not any(one.commutes for one in check(other, {"input_ids": INPUTS}))


def test_queries_of_latent_attention_are_interleaved() -> None:
    """Only part of a query head is rotated, by its own function: multiplying queries and keys by i
    leaves the scores."""
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as code

    latent = {"q_lora_rank": None, "kv_lora_rank": 16, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    widths = {"qk_nope_head_dim": 4, "qk_rope_head_dim": 8, "moe_intermediate_size": 16}
    config = transformers.DeepseekV3Config(**SIZES | latent | experts | widths)
    model = transformers.DeepseekV3ForCausalLM(config)
    with pytest.raises(ValueError, match="pairing='interleaved'"):
        complexify(model, names=["q_proj"], pairing="half")
    complexify(model, names=["q_proj"])
    assert {one["pairing"] for one in layout(model).values()} == {"interleaved"}
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 4, 6, 8)
    cos, sin = model.model.rotary_emb(q, torch.arange(6)[None])
    scores = []
    for turn in (torch.eye(8), times_i(8, "interleaved"), times_i(8, "half", 8)):
        rotated = code.apply_rotary_pos_emb_interleave(q @ turn.T, k @ turn.T, cos, sin)
        scores.append(rotated[0] @ rotated[1].mT)
    torch.testing.assert_close(scores[0], scores[1])
    assert not torch.allclose(scores[0], scores[2], atol=0.1)


def test_load_and_save_need_a_complexified_model(tmp_path: Path) -> None:
    model = build("Llama")
    with pytest.raises(ValueError, match="save_pretrained"):
        save(model, tmp_path)
    with pytest.raises(ValueError, match="missing"):
        load(tmp_path)


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


def test_low_rank_baseline_is_the_truncated_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eckart-Young: the squared error is the sum of the discarded squared singular values."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from init_table import make_low_rank

    torch.manual_seed(0)
    x = torch.randn(1, 40, 8) @ torch.randn(8, 8)
    for batches in ([], [x]):
        model = Attention()
        dense = model.q_proj.weight.detach().clone()
        make_low_rank(model, batches)  # type: ignore[arg-type]
        inputs = x[0] if batches else torch.eye(8)
        values = torch.linalg.svdvals(inputs @ dense.T)
        error = (inputs @ (dense - model.q_proj.weight.detach()).T).square().sum().item()
        assert error == pytest.approx(values[2:].square().sum().item(), rel=1e-4)


def test_layers_and_adapter_import_without_the_pipeline() -> None:
    """`pip install crope` brings torch and numpy only."""
    absent = ["hydra", "omegaconf", "yaml", "wandb", "pandas", "matplotlib", "scipy", "pydantic"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "import crope.adapt; from crope import GPT, ComplexLinear, ModelConfig, RotaryEmbedding"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    code = re.search(
        r"```python\n(.*?)```", (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8"), re.S
    )
    assert code
    (tmp_path / "page.py").write_text(code[1])
    runpy.run_path(str(tmp_path / "page.py"))
    printed = capsys.readouterr().out
    difference = float(re.search(r"logits differ by (\S+)", printed)[1])  # type: ignore[index]
    assert difference < 1e-6 and "2,048 -> 1,024" in printed
