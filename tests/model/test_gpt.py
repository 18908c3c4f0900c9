"""Every model of conf/model against a decoder by loops; dropout, padding rows, initial values,
head.
"""

import numpy as np
import pytest
import torch

from crope.model.positions import POSITIONS, Positions
from crope.seeding import stream
from tests.model.oracles import (
    CHOICES,
    LENGTH,
    VOCAB,
    WIDTH,
    assert_allclose,
    assert_close,
    build,
    cross_entropy,
    decoder_by_loops,
    model_config,
    normal,
    random_tokens,
    randomise,
)

INPUTS = random_tokens()
TARGETS = INPUTS.roll(-1, dims=1)


@pytest.mark.parametrize(
    ("name", "embed_scale"), [*((name, "sqrt_d") for name in CHOICES), ("xpos", "one")]
)
def test_decoder_by_loops(name, embed_scale, branch):
    config = model_config(name, d_model=WIDTH, qkv_bias=True, embed_scale=embed_scale)
    decoder = randomise(build(config))
    expected = [decoder_by_loops(decoder, tokens_T, config) for tokens_T in INPUTS.numpy()]
    found = decoder(INPUTS).detach()
    assert_allclose(found, np.stack(expected), atol=1e-5)  # position tables are float32


@pytest.mark.parametrize("name", CHOICES)
def test_bf16_autocast_has_the_loss_of_float32(name, branch):
    """As in training at bf16, to 1 %."""
    decoder = randomise(build(model_config(name, d_model=WIDTH))).float()
    exact = cross_entropy(decoder, INPUTS, TARGETS).item()
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_entropy(decoder, INPUTS, TARGETS).item()
    assert found == pytest.approx(exact, rel=1e-2)


def test_dropout_acts_on_embedding_attention_weights_and_both_branches(monkeypatch):
    seen = []

    def note(x, p, *_):
        seen.append((x.shape[-1], p))
        return x

    monkeypatch.setattr("torch.nn.functional.dropout", note)
    build(model_config("rope", dropout=0.3))(INPUTS)
    in_a_block = [(LENGTH, 0.3), (24, 0.3), (24, 0.3)]
    assert seen == [(24, 0.3), *2 * in_a_block]


def test_sequence_longer_than_max_len_is_rejected():
    with pytest.raises(ValueError, match="max_len"):
        build(model_config("rope"))(random_tokens(length=LENGTH + 1))


# Padding rows


@pytest.mark.parametrize("head", ["logits", "masked_logits"])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_are_those_without_padding(tied, head, monkeypatch):
    config = model_config("crope", tied_head=tied)
    padded = build(config).double()
    monkeypatch.setattr("crope.model.gpt.VOCAB_MULTIPLE", 1)
    plain = build(config).double()
    losses = []
    for model in (padded, plain):
        model.logits = getattr(model, head if model is padded else "logits")
        losses.append(cross_entropy(model, INPUTS, TARGETS))
        losses[-1].backward()
    assert_close(*losses, atol=1e-12)
    assert len(padded.embedding.weight) == 128
    for found, expected in zip(padded.parameters(), plain.parameters(), strict=True):
        rows = len(expected)
        assert torch.equal(found[:rows], expected)  # drawn unpadded
        assert_close(found.grad[:rows], expected.grad, atol=1e-12)
        assert not found[rows:].any()
        # Exactly zero, so that AdamW leaves the rows at zero.
        assert not found.grad[rows:].any()


# Initial values


def drawn(name, *shape):
    """The standard normal numbers of a parameter at seed 3: the same in all models."""
    return stream(3, f"init/{name}").standard_normal(shape)


@pytest.mark.parametrize("model", ["rope", "crope", "learned"])
def test_initial_values_are_gpt2s_and_depend_on_seed_and_name_alone(model):
    """N(0, 0.02), into the residual stream 0.02 / sqrt(2 n_layers); biases 0, gains 1. Learned
    positions have the std of the embedding times its factor, sqrt(64).
    """
    size = {"d_model": 64, "n_layers": 8, "tied_head": False, "qkv_bias": True}
    decoder = build(model_config(model, **size), vocab=128, seed=3)
    for name, parameter in decoder.named_parameters():
        std = 0.02
        if name.endswith(("out_proj.weight", "ffn_down.weight")):
            std = 0.005
        elif name == "positions.weight":
            std = 0.16
        expected = std * drawn(name, *parameter.shape)
        if name.endswith("bias"):
            expected = 0
        elif "norm" in name:
            expected = 1
        assert_allclose(parameter.detach(), expected, atol=1e-7, err_msg=name)


def test_a_position_scheme_may_choose_its_initial_values(monkeypatch):
    """As the tutorial says of `init_stds`, for classes of the user's own, whatever their names."""

    class Own(Positions):
        def __init__(self):
            super().__init__()
            self.norm_bias = torch.nn.Parameter(torch.tensor(1.0))

        def init_stds(self, std):
            return {"norm_bias": 100 * std}

    monkeypatch.setitem(POSITIONS, "none", lambda *_: Own())
    found = build(model_config("nope"), seed=3).positions.norm_bias.item()
    assert found == pytest.approx(2 * drawn("positions.norm_bias"))


def test_a_head_that_is_not_tied_is_a_matrix_of_its_own():
    decoder = randomise(build(model_config("rope", tied_head=False)))
    hidden_BTD = normal(2, 3, 24)
    expected = hidden_BTD @ decoder.head.weight[:VOCAB].T
    assert_close(decoder.logits(hidden_BTD), expected, atol=1e-12)
