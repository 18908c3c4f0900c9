"""N-gram losses against dictionaries of counts."""

import math

import numpy as np
import pytest

from crope.data.ngrams import ngram_entry, ngram_losses


def probability(token, history, train, vocab_size):
    """The formula, by a look at each place of the training split."""
    shorter = 1 / vocab_size
    if history:
        shorter = probability(token, history[1:], train, vocab_size)
    followers = []
    for place in range(len(history), len(train)):
        if train[place - len(history) : place] == history:
            followers.append(train[place])
    if not followers:
        return shorter
    distinct = len(set(followers))
    return (followers.count(token) + distinct * shorter) / (len(followers) + distinct)


@pytest.mark.parametrize(
    "sizes",
    [
        (400, 200),
        (2, 30),
        (30, 2),
        (1, 1),
    ],
)
@pytest.mark.parametrize("step", [1, 1250])
def test_losses_are_those_of_the_formula(sizes, step):
    """With unseen tokens and histories, splits shorter than a trigram, and keys beyond 32 bits."""
    draw = np.random.default_rng(0)
    train, validation = (step * (40 * draw.random(size) ** 3).astype(np.uint16) for size in sizes)
    losses = ngram_losses(train, validation, 40 * step + 1)
    for order, loss in enumerate(losses.values(), 1):
        total = 0.0
        for i, token in enumerate(validation):
            history = validation[max(0, i - order + 1) : i].tolist()
            total -= math.log(probability(token, history, train.tolist(), 40 * step + 1))
        assert loss == pytest.approx(total / len(validation), rel=1e-12)


def test_an_entry_names_the_tokens_of_its_losses(toy_tokens):
    entry = ngram_entry(toy_tokens)
    assert entry["corpus"] == toy_tokens.meta["corpus"]
    assert entry["sha256"]["train"] == toy_tokens.meta["splits"]["train"]["sha256"]
