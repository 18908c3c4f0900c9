"""Every model of conf/model against a decoder by loops; causality, gradients, padding rows, initial
values, head.
"""

import functools
import math
import re
from itertools import combinations

import numpy as np
import pytest
import torch

from crope.model import gpt
from crope.model.positions import Positions
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

NAMES = list(CHOICES)
MODELS = ["xpos", "rope", "crope"]
TARGETS = random_tokens().roll(-1, dims=1)


@functools.cache
def decoder_and_reference(name, embed_scale):
    config = model_config(name, d_model=WIDTH, qkv_bias=True, embed_scale=embed_scale)
    decoder = randomise(build(config))
    expected = [decoder_by_loops(decoder, tokens_T, config) for tokens_T in random_tokens().numpy()]
    return decoder, np.stack(expected)


@pytest.mark.parametrize("name", NAMES)
def test_decoder_by_loops(name, branch):
    decoder, expected = decoder_and_reference(name, "sqrt_d")
    found = decoder(random_tokens()).detach()
    assert_allclose(found, expected, atol=1e-5)  # position tables are float32


def test_a_decoder_without_scaled_embeddings_by_loops():
    decoder, expected = decoder_and_reference("xpos", "one")
    assert_allclose(decoder(random_tokens()).detach(), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_leak_of_future_tokens(name, branch):
    """Another token at `at`: outputs before it are the same bits, those from it on change."""
    decoder = randomise(build(model_config(name, d_model=WIDTH)))
    tokens_BT = random_tokens(batch=1)
    for at in (0, 7, LENGTH - 1):
        changed_BT = tokens_BT.clone()
        changed_BT[0, at] = (tokens_BT[0, at] + 1) % VOCAB
        change_TD = (decoder(changed_BT) - decoder(tokens_BT))[0].abs()
        assert not change_TD[:at].any()
        assert (change_TD[at:].amax(-1) > 1e-6).all()


@pytest.mark.parametrize("name", NAMES)
def test_bf16_autocast_has_the_loss_of_float32(name, branch):
    """As in training at bf16, to 1 %, and gradients of every parameter to 10 % of its norm."""
    decoder = randomise(build(model_config(name, d_model=WIDTH))).float()
    parameters = list(decoder.parameters())
    exact = cross_entropy(decoder, random_tokens(), TARGETS)
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_entropy(decoder, random_tokens(), TARGETS)
    assert found.item() == pytest.approx(exact.item(), rel=1e-2)
    gradients = (torch.autograd.grad(loss, parameters) for loss in (exact, found))
    for expected, gradient in zip(*gradients, strict=True):
        assert (gradient - expected).norm() <= 0.1 * expected.norm() + 1e-3


def test_dropout_acts_on_embedding_attention_weights_and_both_branches(monkeypatch):
    seen = []

    def note(x, p, *_):
        seen.append((x.shape[-1], p))
        return x

    monkeypatch.setattr(torch.nn.functional, "dropout", note)
    build(model_config("rope", dropout=0.3))(random_tokens())
    in_a_block = [(LENGTH, 0.3), (24, 0.3), (24, 0.3)]
    assert seen == [(24, 0.3), *2 * in_a_block]


def test_sequence_longer_than_max_len_is_rejected():
    decoder = build(model_config("rope"))
    assert decoder(random_tokens()).shape == (2, LENGTH, 24)
    with pytest.raises(ValueError, match="max_len"):
        decoder(random_tokens(length=LENGTH + 1))


# Padding rows


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_those_without_padding(tied, monkeypatch):
    config = model_config("crope", tied_head=tied)
    padded = build(config).double()
    monkeypatch.setattr(gpt, "VOCAB_MULTIPLE", 1)
    plain = build(config).double()
    for model in (padded, plain):
        cross_entropy(model, random_tokens(), TARGETS).backward()
    assert len(padded.embedding.weight) == 128
    expected = dict(plain.named_parameters())
    for name, parameter in padded.named_parameters():
        rows = slice(len(expected[name]))
        assert torch.equal(parameter[rows], expected[name]), name  # drawn unpadded
        assert_close(parameter.grad[rows], expected[name].grad, atol=1e-12, msg=name)
        assert not parameter[rows.stop :].any(), name
        # Exactly zero, so that AdamW leaves the rows at zero.
        assert not parameter.grad[rows.stop :].any(), name


# Initial values


@pytest.mark.parametrize(("one", "other"), list(combinations([*MODELS, "learned", "lowrank"], 2)))
def test_models_start_equal_where_they_share_tensors(one, other):
    size = {"tied_head": False, "qkv_bias": True}
    first = build(model_config(one, **size)).state_dict()
    second = build(model_config(other, **size)).state_dict()
    for name in first.keys() & second.keys():
        assert torch.equal(first[name], second[name]), name
    for name in first.keys() ^ second.keys():
        assert re.search(r"[qkv]_proj|positions", name)


@pytest.mark.parametrize("model", MODELS)
def test_initial_values(model):
    """GPT-2: N(0, 0.02), projections into the residual stream 0.02 / sqrt(2 n_layers); biases 0,
    gains 1.

    The smallest tensor has 1,024 values: its std is off by 2.2 % (one sigma), its mean by std / 32.
    """
    size = {
        "d_model": 64,
        "n_layers": 4,
        "tied_head": False,
        "qkv_bias": True,
    }
    decoder = build(model_config(model, **size), vocab=128)
    pooled = []
    for name, parameter in decoder.named_parameters():
        values = parameter.detach().double()
        if name.endswith("bias"):
            assert not values.any(), name
        elif values.ndim == 1:
            assert "norm" in name
            assert (values == 1).all()
        else:
            into_residual = name.endswith(("out_proj.weight", "ffn_down.weight"))
            std = 0.02 / math.sqrt(8) if into_residual else 0.02
            assert values.std() == pytest.approx(std, rel=0.12), name
            assert values.mean() == pytest.approx(0, abs=0.15 * std), name
            pooled.append(values.flatten() / std)
    everything = torch.cat(pooled)
    assert everything.std() == pytest.approx(1.0, rel=0.01)
    # A normal law has 4.55 % of its mass beyond two sigma; a uniform one of the same std has none.
    beyond = (everything.abs() > 2).double().mean()
    assert beyond == pytest.approx(0.0455, abs=0.003)


# Head and embedding


def test_a_position_scheme_may_choose_its_initial_values(monkeypatch):
    """As the tutorial says of `init_stds`, for classes of the user's own."""

    class Own(Positions):
        def __init__(self):
            super().__init__()
            self.table_bias = torch.nn.Parameter(torch.empty(200, 50))
            self.width = torch.nn.Parameter(torch.tensor(1.0))

        def init_stds(self, std):
            return {"table_bias": 3.0}

    monkeypatch.setattr(gpt, "build_positions", lambda *_, **__: Own())
    positions = build(model_config("nope")).positions
    assert positions.table_bias.std().item() == pytest.approx(3.0, rel=0.03)
    assert 0 < positions.width.abs().item() < 0.1  # N(0, 0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_head_is_the_embedding_or_a_matrix_of_its_own(tied):
    decoder = randomise(build(model_config("rope", tied_head=tied)))
    hidden_BTD = normal(2, 3, 24)
    assert (decoder.head_weight is decoder.embedding.weight) == tied
    assert tied or (decoder.head is not None and decoder.head.bias is None)
    expected = hidden_BTD.numpy() @ decoder.head_weight.detach().numpy()[:VOCAB].T
    assert_allclose(decoder.logits(hidden_BTD).detach(), expected, atol=1e-12)
