"""Checkpoints with dense weights, by the calls that everybody uses."""

import copy

import pytest
from torch import nn

from crope.adapt import complexify, merge
from tests.interop.toys import EXPERTS, Adapted, build, same_logits


def reopened(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def test_save_pretrained_writes_the_dense_weights(tmp_path):
    """Of a model whose names in files are not those of its parameters."""
    model = build("MixtralForCausalLM", **EXPERTS)
    complexify(model)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert same_logits(reopened(tmp_path), model)


def of_a_part():
    model = build()
    complexify(model.model)
    return model


def copied():
    model = build()
    complexify(model)
    return copy.deepcopy(model)


@pytest.mark.parametrize("make", [of_a_part, copied, build])
def test_it_does_for_parts_and_copies_and_leaves_other_models(make, tmp_path):
    """Called by the names of `transformers` too."""
    model = make()
    model.save_pretrained(save_directory=tmp_path)
    assert same_logits(reopened(tmp_path), model)


def test_it_writes_the_state_dict_that_it_is_given(tmp_path):
    """As FSDP and DeepSpeed gather it."""
    model, other = copied(), copied()
    nn.init.ones_(other.model.layers[1].self_attn.q_proj.b)
    model.save_pretrained(tmp_path, state_dict=other.state_dict())
    assert same_logits(reopened(tmp_path), other)


def test_it_refuses_adapters(tmp_path):
    model = copied()
    attention = model.model.layers[0].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    with pytest.raises(ValueError, match="merge_and_unload"):
        model.save_pretrained(tmp_path)


def test_dense_weights_are_taken_back_if_they_are_complex_linear():
    model, dense = copied(), copied()
    nn.init.ones_(dense.model.layers[1].self_attn.q_proj.b)
    merge(dense)
    model.load_state_dict(dense.state_dict(), strict=False)
    assert same_logits(model, dense)
    with pytest.raises(RuntimeError, match=r"1.self_attn.q_proj.weight is not complex-linear"):
        model.load_state_dict(build().state_dict(), strict=False)
