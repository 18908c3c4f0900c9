"""The corpus `tiny`: its bytes, and its entropy."""

import hashlib
import math
from itertools import pairwise

import pytest

from crope.data.grammar import ADJECTIVES, NOUNS, VALIDATION_NATS, VERBS, write_split

SHA256 = {
    "train": "ddbcd8a3fc922e650e268d5f47608f7ffecb44f775afeb63c59abf36ff5a4b28",
    "validation": "ade67a3568e3f051e74630511651650d21156ab2d3df42728c400aa2241d469e",
}


def test_the_text_is_the_same_on_every_machine(split):
    assert hashlib.sha256(write_split(split).encode()).hexdigest() == SHA256[split]


def nats_of_words(text):
    """The nats of a text, read from its words alone.

    A phrase chooses its number, before each word whether that is an adjective, each word by its
    rank, and behind its noun whether a clause follows, unless it lies within two clauses.
    """
    kinds = {"n": NOUNS, "t": VERBS, "l": ADJECTIVES}
    ranks = {
        kind: {word: place for place, word in enumerate(kinds[kind], start=1)} for kind in kinds
    }
    harmonic = {kind: sum(1 / rank for rank in range(1, len(kinds[kind]) + 1)) for kind in kinds}
    total, depth = 0.0, 0
    for line in text.splitlines():
        words = line.split()
        for word, following in pairwise(words):
            stem = word.removesuffix("s")
            if word in ("the", "that"):
                depth += word == "that"
                total += math.log(2) * (word == "the")  # singular or plural
                kind = ""
            else:
                kind = stem[-1]
                total += math.log(ranks[kind][stem] * harmonic[kind])
            if word == "the" or kind == "l":
                total -= math.log(0.3 if following.endswith("l") else 0.7)
            if kind == "n" and depth < 2:
                total -= math.log(0.25 if following == "that" else 0.75)
            depth -= kind == "t" and depth > 0
    return total


def test_the_lowest_loss_is_that_of_its_choices():
    assert nats_of_words(write_split("validation")) == pytest.approx(VALIDATION_NATS, abs=1e-4)
