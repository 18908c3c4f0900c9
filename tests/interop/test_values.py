"""Another basis of V: the same model, of which a complex-linear V keeps more."""

import pytest
import torch

from crope.adapt import align_values, complexify
from tests.interop.toys import build, logits
from tests.model.oracles import assert_close, random_tokens

INPUTS = random_tokens(batch=8, length=24, vocab=96)


def kept(model):
    options = {"names": ["1.self_attn.v_proj"], "init": "activations"}
    return complexify(model, inputs=INPUTS, dry_run=True, **options)[0].kept


@pytest.mark.parametrize("family", ["Qwen2ForCausalLM", "CohereForCausalLM"])
def test_the_model_stays_the_same_and_more_of_v_is_kept(family):
    """With biases and with interleaved pairs; a head of V is for two of queries."""
    model = build(family)
    before, kept_before = logits(model), kept(model)
    align_values(model, INPUTS)
    assert_close(logits(model), before, atol=1e-5)
    assert kept(model) > kept_before + 0.02


def test_no_other_basis_of_a_head_keeps_more():
    """Of 200 random rotations of the two heads of V, each undone in the output projection."""
    model = build()
    align_values(model, INPUTS)
    layer = model.model.layers[1].self_attn.v_proj
    best, weight = kept(model), layer.weight.detach().clone()
    torch.manual_seed(0)
    for _ in range(200):
        rotations = [torch.linalg.qr(torch.randn(8, 8)).Q for _ in range(2)]
        layer.weight.data = torch.block_diag(*rotations) @ weight
        assert kept(model) <= best


def test_a_model_with_a_norm_before_the_output_projection_is_left_as_it_was():
    model = build("BitNetForCausalLM")
    model.model.layers[1].self_attn.attn_sub_norm.weight.data = torch.linspace(0, 2, 32)
    before = logits(model)
    with pytest.raises(ValueError, match=r"1.self_attn.o_proj cannot undo a rotation"):
        align_values(model, INPUTS)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize(
    ("names", "inputs", "word"),
    [
        (("v_proj", "dense"), INPUTS, "no layer is named dense"),
        (("v_proj", "down_proj"), INPUTS, "0.self_attn.down_proj is missing"),
        (("v_proj", "o_proj"), [], "needs calibration batches"),
    ],
)
def test_what_is_missing_is_named(names, inputs, word):
    with pytest.raises(ValueError, match=word):
        align_values(build(), inputs, names=names)


def test_an_error_leaves_the_weights_as_they_were():
    """The inputs of the second layer are zeros, to which nothing can be fitted."""
    model = build()
    torch.nn.init.zeros_(model.model.layers[1].input_layernorm.weight)
    before = model.model.layers[0].self_attn.v_proj.weight.detach().clone()
    with pytest.raises(ValueError, match=r"1\.self_attn\.v_proj"):
        align_values(model, INPUTS)
    assert torch.equal(model.model.layers[0].self_attn.v_proj.weight, before)
