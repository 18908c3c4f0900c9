"""Which layers are chosen, with which pairs and heads, and what is refused."""

from types import SimpleNamespace

import pytest
from torch import nn

from crope.adapt import complexify, layout
from tests.interop.toys import Attention

NAMES = [
    ((name for name in ("q_proj", "k_proj")), ["0.q_proj", "0.k_proj", "1.q_proj", "1.k_proj"]),
    (["1.q_proj"], ["1.q_proj"]),
    (r"0\.(q|v)_proj", ["0.q_proj", "0.v_proj"]),
]


@pytest.mark.parametrize(("names", "chosen"), NAMES)
def test_layers_are_chosen_by_the_end_of_their_path_or_a_regular_expression(names, chosen):
    model = nn.Sequential(Attention(), Attention())
    complexify(model, names=names, pairing="half")
    assert list(layout(model)) == chosen


OPTIONS = [
    ({"names": ["query"]}, "k_proj, o_proj, q_proj, v_proj"),
    ({"names": "*.q_proj"}, "regular expression"),
    ({"names": []}, "names is empty"),
    ({"head_dim": 8}, "the width of a head is 4"),
    ({"pairing": "other"}, "must be 'interleaved' or 'half'"),
    ({"pairing": None}, "crope.adapt.check"),
    ({"init": "zero"}, "one of nearest, activations"),
    ({"init": "activations"}, "needs calibration batches"),
]


@pytest.mark.parametrize(("options", "word"), OPTIONS)
def test_options_that_do_not_fit_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        complexify(Attention(), **({"pairing": "half"} | options))


FUSED = ["qkv_proj", "query_key_value", "c_attn", "in_proj", "kv_proj", "W_pack"]


@pytest.mark.parametrize("name", FUSED)
def test_a_layer_for_several_of_q_k_and_v_is_refused_by_its_name(name):
    model = nn.ModuleDict({"attention": nn.ModuleDict({name: nn.Linear(8, 24)})})
    with pytest.raises(ValueError, match=f"attention.{name} holds several of Q, K and V"):
        complexify(model, names=[name], pairing="half", head_dim=4)


def test_a_fused_layer_of_another_name_has_more_outputs_than_the_heads():
    model = Attention()
    model.mixer = nn.Linear(8, 24)
    model.config = SimpleNamespace(num_attention_heads=2)
    with pytest.raises(ValueError, match="mixer has more outputs than 2 heads"):
        complexify(model, names=["mixer"], pairing="half")


WIDTHS = [
    ({"qk_head_dim": 4, "head_dim": 2}, {}),
    ({"head_dim": 4}, {"head_dim": 2}),
    ({}, {"head_dim": 4, "hidden_size": 8, "num_attention_heads": 4}),
    ({}, {"hidden_size": 8, "num_attention_heads": 2}),
]


@pytest.mark.parametrize(("attributes", "config"), WIDTHS)
def test_head_width_of_the_attention_layer_or_of_its_configuration(attributes, config):
    model = Attention()
    del model.head_dim
    vars(model).update(attributes)
    model.config = SimpleNamespace(**config)
    complexify(model, pairing="half")
    assert layout(model)["q_proj"]["head_dim"] == 4


def test_a_named_head_width_overrules_one_that_follows_from_other_sizes():
    """Of heads that do not fill the hidden size."""
    model = Attention()
    del model.head_dim
    with pytest.raises(ValueError, match=r"is unknown; name it \(head_dim="):
        complexify(model, pairing="half")
    model.config = SimpleNamespace(hidden_size=16, num_attention_heads=2)
    complexify(model, pairing="half", head_dim=4)
    assert layout(model)["q_proj"]["head_dim"] == 4


PART = {"partial_rotary_factor": 0.5}
SHARES = [
    (PART, False),
    ({"rope_parameters": PART}, False),
    ({"rope_parameters": {"full": {}, "sliding": PART}}, False),
    ({"rope_parameters": PART | {"rope_type": "proportional"}}, True),
]


@pytest.mark.parametrize(("config", "whole"), SHARES)
def test_half_split_pairs_need_heads_that_are_rotated_as_a_whole(config, whole):
    model = Attention()
    model.config = SimpleNamespace(**config)
    if not whole:
        with pytest.raises(ValueError, match="only 50% of each head"):
            complexify(model, pairing="half")
    assert complexify(model, pairing="half" if whole else "interleaved")


def test_layers_of_several_parts_are_refused():
    """As the towers of a language model whose own projection is fused."""
    model = nn.ModuleDict({"vision": Attention(), "audio": Attention()})
    model["vision"].config = SimpleNamespace(model_type="vision")
    with pytest.raises(ValueError, match="several parts"):
        complexify(model, pairing="half")
    assert len(complexify(model, names=r"vision\..*(q|k)_proj", pairing="half")) == 2


def test_half_split_pairs_of_interleaved_families_are_refused():
    model = Attention()
    model.config = SimpleNamespace(model_type="deepseek_v3", rope_interleave=False)
    with pytest.raises(ValueError, match="rope_interleave"):
        complexify(model, names=["q_proj"])
