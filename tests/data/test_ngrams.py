"""N-gram losses against dictionaries of counts and against arithmetic by hand; ngrams.json."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from crope.data.ngrams import NGRAMS_FILE, ORDERS, load_ngrams, ngram_losses, stored_ngrams
from crope.data.tokens import TokenSet, load_tokens
from crope.files import write_json
from tests.data.conftest import SMALL


class SlowModel:
    """The formula with dictionaries: `continuations[h][w]` is c(h w)."""

    def __init__(self, train: Sequence[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.continuations: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for length in range(3):
            for i in range(length, len(train)):
                history = tuple(train[i - length : i])
                self.continuations[history][train[i]] += 1

    def probability(self, token: int, history: tuple[int, ...]) -> float:
        shorter = 1 / self.vocab_size
        if history:
            shorter = self.probability(token, history[1:])
        after = self.continuations.get(history)
        if after is None:
            return shorter
        return (after[token] + len(after) * shorter) / (after.total() + len(after))

    def loss(self, validation: Sequence[int], length: int) -> float:
        """With histories of `length` tokens."""
        total = 0.0
        for i, token in enumerate(validation):
            history = tuple(validation[max(0, i - length) : i])
            total -= math.log(self.probability(token, history))
        return total / len(validation)


def random_splits(vocab_size: int, train: int, validation: int) -> tuple[np.ndarray, np.ndarray]:
    """About 40 ids across the vocabulary, the small ones frequent, the largest tenth in the
    validation split only.
    """
    step = max(1, vocab_size // 40)
    draw = np.random.default_rng(vocab_size).random(train + validation)
    ranks = (vocab_size // step * draw**3).astype(np.uint16)
    return ranks[:train] * 9 // 10 * step, ranks[train:] * step


@pytest.mark.parametrize(
    ("vocab_size", "train", "validation"),
    [
        (2, 300, 100),
        (300, 500, 300),
        (50_257, 400, 200),  # trigrams have keys beyond 32 bits
        (7, 2, 30),  # shorter than a trigram
        (7, 30, 2),
        (7, 1, 1),
    ],
)
def test_losses_are_those_of_the_formula(vocab_size, train, validation):
    first, second = random_splits(vocab_size, train, validation)
    slow = SlowModel(first.tolist(), vocab_size)
    losses = ngram_losses(first, second, vocab_size)
    for length, name in enumerate(["unigram", "bigram", "trigram"]):
        expected = slow.loss(second.tolist(), length)
        assert losses[name] == pytest.approx(expected, rel=1e-12)


def test_the_random_splits_have_unseen_tokens_and_histories():
    train, validation = (split.tolist() for split in random_splits(300, 500, 300))
    assert set(validation) - set(train)
    assert set(pairwise(validation[:-1])) - set(pairwise(train))


def test_losses_by_hand():
    """P(0) = (2 + 2/2) / (3 + 2) = 0.6 and P(1) = (1 + 2/2) / (3 + 2) = 0.4;
    P(1 | 0) = (1 + 2 * 0.4) / (2 + 2) = 0.45.
    """
    losses = ngram_losses(np.array([0, 0, 1]), np.array([0, 1]), 2)
    assert losses["unigram"] == pytest.approx(-math.log(0.6 * 0.4) / 2, rel=1e-12)
    assert losses["bigram"] == pytest.approx(-math.log(0.6 * 0.45) / 2, rel=1e-12)
    assert losses["trigram"] == losses["bigram"]  # the history is one token here


# ngrams.json


@pytest.fixture
def tokens(data_dir: Path) -> TokenSet:
    return load_tokens("ptb", SMALL, data_dir=data_dir)


def test_ngrams_are_computed_once(tokens, monkeypatch):
    ngrams = load_ngrams(tokens)
    expected = ngram_losses(tokens.train, tokens.validation, 280)
    assert ngrams["loss_nats"] == pytest.approx(expected, abs=1e-6)
    monkeypatch.delattr("crope.data.ngrams.ngram_losses")
    assert load_ngrams(tokens) == ngrams


def test_ngrams_leave_the_token_files_valid(tokens, data_dir):
    opened = (tokens.folder / "train.npy").stat().st_ino
    load_ngrams(tokens)
    load_tokens("ptb", SMALL, data_dir=data_dir)
    assert (tokens.folder / "train.npy").stat().st_ino == opened


@pytest.mark.parametrize("key", ["corpus", "tokenizer", "sha256"])
def test_ngrams_of_another_corpus_are_computed_again(tokens, key):
    ngrams = load_ngrams(tokens)
    other = ngrams | {key: {}, "loss_nats": dict.fromkeys(ORDERS, 1.0)}
    write_json(tokens.folder / NGRAMS_FILE, other)
    assert stored_ngrams(tokens.folder) is None
    assert load_ngrams(tokens) == ngrams


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_damaged_ngrams_are_computed_again(tokens, content):
    ngrams = load_ngrams(tokens)
    (tokens.folder / NGRAMS_FILE).write_text(content)
    assert stored_ngrams(tokens.folder) is None
    assert load_ngrams(tokens) == ngrams
    assert json.loads((tokens.folder / NGRAMS_FILE).read_text()) == ngrams
