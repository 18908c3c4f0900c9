"""ModelConfig: its names are the classes of crope/model, its checks follow from their definitions."""

import itertools
from dataclasses import replace

import pytest

from crope.config import (
    ATTENTIONS,
    POSITIONS,
    PROJECTIONS,
    SCORE_BIASES,
    ModelConfig,
    half_rank,
    model_problems,
)
from crope.model.positions import build_positions
from tests.model.oracles import WIDTH, build, cross_entropy, random_tokens

ROPE = ModelConfig("rotary", "real")


def test_score_biases_are_the_schemes_with_a_bias():
    for name in POSITIONS:
        scheme = build_positions(replace(ROPE, position=name), max_len=4)
        assert (scheme.bias(4) is not None) == (name in SCORE_BIASES)


@pytest.mark.parametrize(
    ("position", "projection", "attention"),
    list(itertools.product(POSITIONS, PROJECTIONS, ATTENTIONS)),
)
def test_combinations_are_rejected_or_can_be_trained(position, projection, attention):
    """From the definitions: linear attention has no score matrix, and only rotary has pairs to
    misalign with.
    """
    model = ModelConfig(position, projection, attention, d_model=WIDTH, n_layers=1)
    no_scores = attention == "linear" and position in SCORE_BIASES
    no_pairs = projection == "complex_misaligned" and position != "rotary"
    wrong = ["model.position"] * no_scores + ["model.projection"] * no_pairs
    assert [key for key, _ in model_problems(model)] == wrong
    if wrong:
        with pytest.raises(ValueError, match=wrong[0]):
            build(model)
        return
    decoder = build(model)
    tokens_BT = random_tokens()
    cross_entropy(decoder, tokens_BT, tokens_BT.roll(-1, dims=1)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in decoder.parameters())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"d_model": 30}, "divisible"),
        ({"d_model": 12}, "odd"),
        ({"d_model": 24, "projection": "halved"}, "odd"),
        ({"d_model": 2, "n_heads": 1, "projection": "lowrank"}, "rank"),
        ({"d_model": 8, "projection": "complex_misaligned"}, "pairs"),
    ],
)
def test_impossible_sizes_are_rejected(changes, word):
    model = replace(ROPE, **changes)
    ((_, text),) = model_problems(model)
    assert word in text


def test_a_decoder_has_no_value_that_a_run_could_not_have():
    with pytest.raises(ValueError, match="embed_scale"):
        build(replace(ROPE, embed_scale="sqrt"))


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [
        ((48, 80), 15),
        ((6, 6), 1),
    ],
)
def test_half_rank_is_the_largest_within_half_the_weights(sizes, rank):
    """r (D + E) <= D E / 2: 15 * 128 = 1920; 1 * 12 <= 18."""
    assert half_rank(*sizes) == rank
