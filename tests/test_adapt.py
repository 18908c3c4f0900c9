"""complexify and merge against least squares, dense weights and the rotation of each architecture
of `transformers`.
"""

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from crope.adapt import Replaced, complexify, merge
from crope.config import ROOT
from crope.model.complex_linear import ComplexLinear

PAIRINGS = [("interleaved", None), ("half", 4)]


class Attention(nn.Module):
    """Two layers by the default names, grouped keys, and one that stays."""

    def __init__(self, width: int = 8, *, bias: bool = False, head_dim: int = 4) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, 2 * head_dim, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(width, head_dim, bias=bias) for _ in range(2))
        self.o_proj = nn.Linear(2 * head_dim, width)


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
    model["attn"].k_proj.requires_grad_(False)
    expected = [
        Replaced("attn.q_proj", 72, 40),
        Replaced("attn.k_proj", 36, 20),
        Replaced("attn.v_proj", 36, 20),
    ]
    assert complexify(model) == expected
    assert not model["attn"].k_proj.a.requires_grad and model["attn"].q_proj.a.requires_grad
    assert isinstance(model["attn"].q_proj, ComplexLinear) and model["attn"].o_proj is output
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert not model["attn"].q_proj.training
    assert merge(model) == [one.name for one in expected]
    assert not model["attn"].k_proj.weight.requires_grad and not model["attn"].q_proj.training
    assert (
        type(model["attn"].q_proj) is nn.Linear
        and model["attn"].q_proj.weight.dtype == torch.bfloat16
    )
    assert merge(model) == []


@pytest.mark.parametrize("init", ["nearest", "fresh"])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_no_pair_of_a_replaced_layer_straddles_heads(pairing: Any, init: Any) -> None:
    """Two heads of queries, one of keys and values, and another head width in the second layer."""
    widths = {"first": 4, "second": 6}
    model = nn.ModuleDict({name: Attention(head_dim=width) for name, width in widths.items()})
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    assert len(complexify(model, pairing=pairing, init=init)) == 6
    for name, width in widths.items():
        for child in ("q_proj", "k_proj", "v_proj"):
            layer, weight = getattr(model[name], child), dense[f"{name}.{child}.weight"]
            assert is_complex_linear(layer, pairing, width)
            i_in, i_out = times_i(8, "interleaved"), times_i(len(weight), pairing, width)
            nearest = (weight - i_out @ weight @ i_in) / 2
            assert torch.allclose(layer.weight, nearest, atol=1e-6) == (init == "nearest")


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
    complexify(model)
    assert all(is_complex_linear(getattr(model, name), "half", 4) for name in ["q_proj", "k_proj"])


@pytest.mark.parametrize(
    ("pairing", "config"),
    [
        ("interleaved", {"rotary_dim": 2}),
        ("half", {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5}}),
    ],
)
def test_rotations_of_whole_pairs_are_accepted(pairing: Any, config: dict[str, Any]) -> None:
    model = Attention()
    model.config = SimpleNamespace(**config)
    assert len(complexify(model, pairing=pairing)) == 3


@pytest.mark.parametrize(("name", "partner"), [("rotate_half", 2), ("rotate_every_two", 1)])
def test_pairs_are_those_of_the_function_that_rotates(
    name: str, partner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `transformers`: a function of this name in the module of the attention layer."""
    monkeypatch.setattr(
        sys.modules[__name__], name, lambda x: -x.roll(-partner, dims=-1), raising=False
    )
    right, wrong = ("half", "interleaved") if partner == 2 else ("interleaved", "half")
    with pytest.raises(ValueError, match=f"pairing='{right}'"):
        complexify(Attention(), pairing=wrong)  # type: ignore[arg-type]
    assert len(complexify(Attention(), pairing=right)) == 3  # type: ignore[arg-type]


def test_fresh_values_have_the_deviation_of_the_replaced_weight() -> None:
    model = Attention(width=2048)
    nn.init.normal_(model.q_proj.weight, std=0.03)
    complexify(model, init="fresh")
    for part in (model.q_proj.a, model.q_proj.b):
        assert part.std().item() == pytest.approx(0.03, rel=0.1)


class Lora(nn.Linear):
    """A layer that only looks plain."""


HALF, WHOLE = {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}
PARTIAL: list[dict[str, Any]] = [  # configurations that rotate a part of each head, in some layers
    {"rotary_pct": 0.5},
    HALF,
    {"rotary_dim": 2},
    {"qk_rope_head_dim": 2},
    {"rope_parameters": HALF},
    {"rope_parameters": {"full_attention": HALF, "sliding_attention": WHOLE}},
    {"rope_parameters": {"full_attention": WHOLE, "sliding_attention": HALF}},
]


@pytest.mark.parametrize(
    ("change", "options", "word"),
    [
        (lambda m: None, {"names": ["query"]}, "k_proj, o_proj, q_proj, v_proj"),
        (lambda m: None, {"names": ["q_proj", "kproj"]}, "named kproj"),
        (lambda m: None, {"names": "q_proj"}, "a sequence"),
        (lambda m: None, {"head_dim": 8}, "the width of a head is 4"),
        (
            lambda m: setattr(m, "v_proj", m.v_proj.to(torch.float8_e4m3fn)),
            {},
            "v_proj is a Linear",
        ),
        (lambda m: nn.utils.parametrizations.weight_norm(m.v_proj), {}, "v_proj is a Parametrized"),
        (lambda m: complexify(m), {}, "q_proj is a ComplexLinear"),
        (lambda m: setattr(m, "q_proj", Lora(8, 8)), {}, "q_proj is a Lora"),
        (lambda m: setattr(m, "k_proj", nn.Linear(8, 6)), {}, "k_proj: 8 inputs and 6 outputs"),
        (lambda m: setattr(m, "k_proj", nn.Linear(7, 4)), {}, "k_proj: 7 inputs"),
        (lambda m: setattr(m.o_proj, "weight", m.q_proj.weight), {}, "q_proj shares"),
        (lambda m: delattr(m, "head_dim"), {}, "head_dim="),
        (lambda m: setattr(m, "head_dim", 1), {}, "width 1"),
        *(
            (lambda m, c=c: setattr(m, "config", SimpleNamespace(**c)), {}, "2 of 4 channels")
            for c in PARTIAL
        ),
        (lambda m: None, {"init": "zero"}, "init"),
        (lambda m: None, {"pairing": "other"}, "pairing"),
    ],
)
def test_what_cannot_be_replaced_is_named_and_nothing_is_changed(
    change: Any, options: Any, word: str
) -> None:
    model = Attention()
    change(model)
    before = [type(layer) for layer in model.modules()]
    with pytest.raises(ValueError, match=re.escape(word)):
        complexify(model, **options)
    assert [type(layer) for layer in model.modules()] == before


def test_a_fused_projection_is_named() -> None:
    model = nn.ModuleDict({"attn": nn.ModuleDict({"query_key_value": nn.Linear(8, 24)})})
    with pytest.raises(ValueError, match="query_key_value holds"):
        complexify(model)


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "attn_implementation": "eager"}
ARCHITECTURES: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": (GROUPED, "half"),
    "Qwen2": (GROUPED, "half"),
    "Gemma": (GROUPED | {"num_key_value_heads": 1, "head_dim": 16}, "half"),
    "GPTJ": ({"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64,
              "bos_token_id": 0, "eos_token_id": 0}, "interleaved"),
}  # fmt: skip


def build(architecture: str) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**ARCHITECTURES[architecture][0])
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(value)
    return model, ARCHITECTURES[architecture][1]


def attention_of(model: Any) -> Any:
    return next(layer for layer in model.modules() if hasattr(layer, "q_proj"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_and_complexified_models_have_equal_logits(
    architecture: str, tmp_path: Path
) -> None:
    model, pairing = build(architecture)
    dense = sum(value.numel() for value in model.parameters())
    replaced = complexify(model, pairing=pairing)
    assert len(replaced) == 6
    biases = sum(
        layer.bias.numel()
        for layer in model.modules()
        if isinstance(layer, ComplexLinear) and layer.bias is not None
    )
    assert (
        2 * (sum(one.after for one in replaced) - biases)
        == sum(one.before for one in replaced) - biases
    )
    assert dense - sum(value.numel() for value in model.parameters()) == sum(
        one.before - one.after for one in replaced
    )
    inputs = torch.arange(48).view(2, 24)
    before = model(input_ids=inputs).logits
    again, _ = build(architecture)
    complexify(again, pairing=pairing, init="fresh")
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(input_ids=inputs).logits, before, rtol=0, atol=0)
    merge(model)
    torch.testing.assert_close(model(input_ids=inputs).logits, before, rtol=0, atol=1e-6)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=inputs).logits, before, rtol=0, atol=1e-6)


def rotated(model: Any, x_BTHK: torch.Tensor) -> torch.Tensor:
    """The rotation of the architecture's own code, (batch, tokens, heads, head width)."""
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama

    tokens, width = x_BTHK.shape[1], x_BTHK.shape[-1]
    angles = torch.arange(tokens)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    if "GPTJ" in type(model).__name__:
        return modeling_gptj.apply_rotary_pos_emb(x_BTHK, angles.sin()[None], angles.cos()[None])
    module = __import__(type(model).__module__, fromlist=["apply_rotary_pos_emb"])
    function = getattr(module, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)
    cos, sin = (torch.cat([part, part], dim=-1)[None] for part in (angles.cos(), angles.sin()))
    return function(x_BTHK.transpose(1, 2), x_BTHK.transpose(1, 2), cos, sin)[0].transpose(1, 2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_projection_commutes_with_the_architectures_own_rotation(architecture: str) -> None:
    """One angle per pair and position: rotating W x is multiplying the complex outputs by a phase.
    By linearity this is so for all x exactly if the pairs of the layer are those of the
    rotation."""
    model, right = build(architecture)
    width = attention_of(model).head_dim
    angle = torch.arange(24)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    for pairing in ("interleaved", "half"):
        layer = ComplexLinear(32, 2 * width, pairing=pairing, head_dim=width)  # type: ignore[arg-type]
        torch.manual_seed(1)
        nn.init.normal_(layer.a)
        nn.init.normal_(layer.b)
        x = torch.randn(1, 24, 32)
        found = rotated(model, layer(x).unflatten(-1, (2, width))).flatten(-2).detach().numpy()[0]
        z = ((x[0, :, 0::2] + 1j * x[0, :, 1::2]) @ (layer.a - 1j * layer.b).T).detach()
        z = (z * torch.exp(1j * angle).repeat(1, 2)).numpy()
        pairs = channel_pairs(2 * width, pairing, width)
        error = max(
            np.abs(found[:, i] + 1j * found[:, k] - z[:, j]).max() for j, (i, k) in enumerate(pairs)
        )
        assert (error < 1e-4) == (pairing == right), pairing


def test_partial_rotation_of_half_split_pairs_is_refused() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra `transformers`")
    model = transformers.PhiForCausalLM(transformers.PhiConfig(**SIZES, partial_rotary_factor=0.5))
    with pytest.raises(ValueError, match="4 of 8 channels"):
        complexify(model)
    gptj, _ = build("GPTJ")
    with pytest.raises(ValueError, match="pairing='interleaved'"):
        complexify(gptj, pairing="half")
    for wrong in ("StableLm", "Llama"):  # StableLM also rotates a part of each head only
        model = getattr(transformers, f"{wrong}ForCausalLM")(
            getattr(transformers, f"{wrong}Config")(**SIZES)
        )
        with pytest.raises(ValueError, match="pairing='half'"):
            complexify(model, pairing="interleaved")
    cohere = transformers.CohereForCausalLM(transformers.CohereConfig(**SIZES))
    with pytest.raises(ValueError, match="pairing='interleaved'"):
        complexify(cohere)
    fused = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES))
    with pytest.raises(ValueError, match="query_key_value"):
        complexify(fused)


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
