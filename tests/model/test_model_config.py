"""The registries of crope/model, and the combinations and sizes that no model has."""

import itertools
from dataclasses import replace

import pytest

from crope.config import ModelConfig, model_problems
from crope.model.attention import ATTENTIONS
from crope.model.positions import POSITIONS
from crope.model.projections import PROJECTIONS
from tests.model.oracles import (
    CHOICES,
    ORACLES,
    WIDTH,
    Oracle,
    build,
    cross_entropy,
    random_tokens,
)

ROPE = ModelConfig("rotary", "real")


@pytest.mark.parametrize(
    ("part", "registry"),
    [("position", POSITIONS), ("projection", PROJECTIONS), ("attention", ATTENTIONS)],
)
def test_each_part_is_in_a_model_and_a_name_without_one_is_refused(part, registry):
    """The command line knows the names of conf/model only."""
    assert {choices[part] for choices in CHOICES.values()} == set(registry)
    with pytest.raises(
        ValueError, match=f"model.{part}=rael must be one of {next(iter(registry))}"
    ):
        build(replace(ROPE, **{part: "rael"}))


@pytest.mark.parametrize(
    ("position", "projection", "attention"),
    list(itertools.product(POSITIONS, PROJECTIONS, ATTENTIONS)),
)
def test_combinations_are_rejected_or_can_be_trained(position, projection, attention):
    """From the definitions: linear attention has no score matrix, and only rotary has pairs to
    misalign with.
    """
    model = ModelConfig(position, projection, attention, d_model=WIDTH, n_layers=1)
    no_scores = attention == "linear" and ORACLES[position].bias is not Oracle.bias
    no_pairs = projection == "complex_misaligned" and position != "rotary"
    if no_scores or no_pairs:
        with pytest.raises(ValueError, match=r"model\.projection" if no_pairs else "never forms"):
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
