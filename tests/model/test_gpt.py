"""The decoder against one written out in float64, causality, padding rows, initial values, head and embedding scale."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from crope.config import TrainConfig
from crope.loss import cross_entropy
from crope.model import gpt
from crope.model.gpt import GPT
from crope.model.positions import Positions
from crope.optim import build_optimizer
from crope.seeding import stream

MODELS = ["xpos", "rope", "crope"]
VOCAB, LENGTH = 70, 12  # 70 is padded to 128


def random_tokens(batch: int = 3, length: int = LENGTH, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(2))


def build(config, *, vocab: int = VOCAB, seed: int = 0) -> GPT:
    return GPT(config, vocab_size=vocab, max_len=LENGTH, seed=seed)


@pytest.mark.parametrize("embed_scale", ["one", "sqrt_d"])
@pytest.mark.parametrize("model", MODELS)
def test_against_written_out_decoder(model: str, embed_scale: str, model_config, randomise, slow_decoder) -> None:
    config = model_config(model, embed_scale=embed_scale, qkv_bias=True)
    decoder, tokens_BT = randomise(build(config)), random_tokens()
    found = decoder(tokens_BT).detach().numpy()
    for tokens_T, hidden_TD in zip(tokens_BT.numpy(), found, strict=True):
        np.testing.assert_allclose(hidden_TD, slow_decoder(decoder, tokens_T, config), rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("at", [0, 5, LENGTH - 1])
def test_a_token_changes_no_output_before_it_but_all_from_it(model: str, at: int, model_config, randomise) -> None:
    decoder, tokens_BT = randomise(build(model_config(model))), random_tokens(batch=1)
    changed_BT = tokens_BT.clone()
    changed_BT[0, at] = (tokens_BT[0, at] + 1) % VOCAB
    with torch.no_grad():
        moved_T = (decoder.logits(decoder(tokens_BT)) - decoder.logits(decoder(changed_BT))).abs().amax(dim=(0, 2))
    assert (moved_T[:at] < 1e-12).all()
    assert (moved_T[at:] > 1e-6).all()


@pytest.mark.parametrize("model", MODELS)
def test_order_matters(model: str, model_config, randomise) -> None:
    """Without positions the last of the outputs would not see that earlier tokens changed places."""
    decoder, tokens_BT = randomise(build(model_config(model, n_layers=1))), torch.tensor([[3, 9, 27, 4]])
    with torch.no_grad():
        moved = decoder(tokens_BT)[0, -1] - decoder(tokens_BT[:, [1, 0, 2, 3]])[0, -1]
    assert moved.abs().max() > 1e-3


@pytest.mark.parametrize("model", MODELS)
def test_sequence_longer_than_max_len_is_rejected(model: str, model_config) -> None:
    decoder = build(model_config(model))
    assert decoder(random_tokens(length=LENGTH)).shape == (3, LENGTH, 24)
    with pytest.raises(ValueError, match=f"{LENGTH + 1} tokens in a sequence, but max_len is {LENGTH}"):
        decoder(random_tokens(length=LENGTH + 1))


# Padding rows


@pytest.mark.parametrize(("vocab", "rows"), [(64, 64), (65, 128), (70, 128), (128, 128)])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_padded_and_logits_are_not(vocab: int, rows: int, tied: bool, model_config) -> None:
    decoder = build(model_config("rope", tied_head=tied), vocab=vocab)
    assert decoder.embedding.weight.shape == decoder.head_weight.shape == (rows, 24)
    assert decoder.logits(decoder(random_tokens(vocab=vocab))).shape == (3, LENGTH, vocab)
    assert not decoder.embedding.weight[vocab:].any()
    assert not decoder.head_weight[vocab:].any()


@pytest.mark.parametrize("tied", [True, False])
def test_padding_rows_carry_no_probability(tied: bool, model_config, randomise) -> None:
    """Whatever stands in them: the loss is that of a softmax over the vocabulary alone."""
    decoder, tokens_BT = randomise(build(model_config("crope", tied_head=tied))), random_tokens()
    targets_BT = random_tokens(batch=6)[3:]
    with torch.no_grad():
        before = cross_entropy(decoder, tokens_BT, targets_BT)
        logits = decoder(tokens_BT).numpy() @ decoder.head_weight[:VOCAB].numpy().T
        decoder.head_weight[VOCAB:] = 100.0
        after = cross_entropy(decoder, tokens_BT, targets_BT)
    picked = np.take_along_axis(logits, targets_BT.numpy()[..., None], axis=-1)[..., 0]
    assert before.item() == pytest.approx((np.log(np.exp(logits).sum(-1)) - picked).mean(), rel=1e-12)
    assert after.item() == before.item()


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients_are_those_without_padding(tied: bool, model_config, monkeypatch) -> None:
    tokens_BT, targets_BT = random_tokens(), random_tokens(batch=6)[3:]
    config = model_config("crope", tied_head=tied)
    padded = build(config).double()
    monkeypatch.setattr(gpt, "VOCAB_MULTIPLE", 1)
    plain = build(config).double()
    assert len(plain.embedding.weight) == VOCAB and len(padded.embedding.weight) > VOCAB
    losses = [cross_entropy(model, tokens_BT, targets_BT) for model in (padded, plain)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    for (name, one), (_, other) in zip(padded.named_parameters(), plain.named_parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        rows = slice(VOCAB) if name in ("embedding.weight", "head.weight") else slice(None)
        assert torch.equal(one[rows], other[rows]), name  # drawn unpadded
        torch.testing.assert_close(one.grad[rows], other.grad[rows], rtol=0, atol=1e-12, msg=name)
        assert not one.grad[len(other) :].any(), name  # exactly zero


def test_padding_rows_are_still_zero_after_updates(model_config) -> None:
    decoder, tokens_BT = build(model_config("rope", tied_head=False)), random_tokens()
    config = TrainConfig(batch_size=3, seq_len=LENGTH, max_steps=3, lr_gamma=0.5, lr_step_size=1)
    optimizer, scheduler = build_optimizer(decoder, config)
    before = decoder.embedding.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(decoder, tokens_BT, tokens_BT).backward()
        optimizer.step()
        scheduler.step()
    assert not decoder.embedding.weight[VOCAB:].any() and not decoder.head_weight[VOCAB:].any()
    assert not torch.equal(decoder.embedding.weight, before)


# Initial values


@pytest.mark.parametrize(("one", "other"), list(combinations(MODELS, 2)))
def test_models_start_equal_where_they_share_tensors(one: str, other: str, model_config) -> None:
    found = [
        dict(build(model_config(name, tied_head=False, qkv_bias=True)).named_parameters()) for name in (one, other)
    ]
    shared = set(found[0]) & set(found[1])
    own = {f"blocks.{i}.attn.{name}_proj.weight" for i in range(2) for name in "qkv"} if other == "crope" else set()
    assert shared == set(found[0]) - own
    for name in shared:
        assert torch.equal(found[0][name], found[1][name]), name


@pytest.mark.parametrize("model", MODELS)
def test_same_seed_same_values_and_no_two_matrices_alike(model: str, model_config) -> None:
    config = model_config(model, tied_head=False)
    first, again, other = (build(config, seed=seed).state_dict() for seed in (0, 0, 1))
    matrices = [name for name, value in first.items() if value.ndim == 2]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in matrices)
    for one, two in combinations(matrices, 2):
        if first[one].shape == first[two].shape:
            # Also not the same draws at another scale.
            joint = torch.stack((first[one].flatten(), first[two].flatten())).double()
            assert torch.corrcoef(joint)[0, 1].abs() < 0.4, (one, two)


@pytest.mark.parametrize("model", MODELS)
def test_initial_values(model: str, model_config) -> None:
    """GPT-2: N(0, 0.02), maps into the residual stream 0.02 / sqrt(2 n_layers); biases 0, gains 1.

    The smallest tensor has 1,024 values: its std is off by 2.2 % (one sigma), its mean by std / 32.
    """
    decoder = build(model_config(model, d_model=64, n_layers=4, tied_head=False, qkv_bias=True), vocab=150)
    pooled = []
    for name, parameter in decoder.named_parameters():
        values = parameter.detach().double()
        if name.endswith("bias"):
            assert not values.any(), name
        elif values.ndim == 1:
            assert "norm" in name and (values == 1).all(), name
        else:
            values = values[:150] if name in ("embedding.weight", "head.weight") else values
            into_residual = ".out_proj." in name or ".ffn_down." in name
            std = 0.02 / math.sqrt(2 * 4) if into_residual else 0.02
            assert values.std().item() == pytest.approx(std, rel=0.12), name
            assert abs(values.mean().item()) < 5 * std / math.sqrt(values.numel()), name
            pooled.append(values.flatten() / std)
    everything = torch.cat(pooled)
    assert everything.std().item() == pytest.approx(1.0, rel=0.01)
    # A normal law has 4.55 % of its mass past two sigma; a uniform one of the same std has none.
    assert (everything.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.003)


# Head and embedding


def test_a_schemes_vector_starts_as_a_weight_does(model_config, monkeypatch) -> None:
    class Slopes(Positions):
        def __init__(self) -> None:
            super().__init__()
            self.slope = torch.nn.Parameter(torch.ones(5))
            self.slope_bias = torch.nn.Parameter(torch.ones(5))

    monkeypatch.setattr("crope.model.gpt.build_positions", lambda config, max_len: Slopes())
    found = build(model_config("nope")).positions
    expected = 0.02 * stream(0, "init/positions.slope").standard_normal(5)
    np.testing.assert_allclose(found.slope.detach(), expected, rtol=1e-6)
    assert not found.slope_bias.any()


def test_tied_head_is_the_embedding(model_config, randomise) -> None:
    decoder = randomise(build(model_config("rope", tied_head=True)))
    assert decoder.head_weight is decoder.embedding.weight
    hidden_BTD = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = hidden_BTD.numpy() @ decoder.embedding.weight.detach().numpy()[:VOCAB].T
    np.testing.assert_allclose(decoder.logits(hidden_BTD).detach(), expected, rtol=0, atol=1e-12)


def test_untied_head_is_a_matrix_of_its_own(model_config, randomise) -> None:
    decoder = randomise(build(model_config("rope", tied_head=False)))
    hidden_BTD = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert decoder.head is not None and decoder.head.bias is None
    expected = hidden_BTD.numpy() @ decoder.head.weight.detach().numpy()[:VOCAB].T
    np.testing.assert_allclose(decoder.logits(hidden_BTD).detach(), expected, rtol=0, atol=1e-12)
    assert not torch.equal(decoder.head.weight, decoder.embedding.weight)


@pytest.mark.parametrize(("embed_scale", "factor"), [("one", 1.0), ("sqrt_d", math.sqrt(24))])
@pytest.mark.parametrize("model", MODELS)
def test_embed_scale_multiplies_the_embedding_alone(model: str, embed_scale: str, factor: float, model_config) -> None:
    """What enters the first block; the sinusoids are added unscaled (Vaswani et al. Secs. 3.4, 3.5)."""
    decoder, tokens_BT, entered = build(model_config(model, embed_scale=embed_scale)).double(), random_tokens(), []
    decoder.blocks[0].register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0].detach().numpy()))
    decoder(tokens_BT)
    expected = factor * decoder.embedding.weight.detach().numpy()[tokens_BT]
    if model == "xpos":
        for pos in range(LENGTH):
            for i in range(12):
                expected[:, pos, 2 * i] += math.sin(pos / 10000 ** (2 * i / 24))
                expected[:, pos, 2 * i + 1] += math.cos(pos / 10000 ** (2 * i / 24))
    np.testing.assert_allclose(entered[0], expected, rtol=0, atol=1e-6)


def test_dropout_acts_in_training_only(model_config, randomise) -> None:
    plain, tokens_BT = randomise(build(model_config("crope"))), random_tokens()
    dropped = build(model_config("crope", dropout=0.3)).double()
    dropped.load_state_dict(plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(dropped.eval()(tokens_BT), plain(tokens_BT), rtol=0, atol=1e-12)
        assert (dropped.train()(tokens_BT) - plain(tokens_BT)).abs().max() > 1e-3
