"""The corpus `tiny`: sentences that a small grammar writes, the same bytes on every machine.

    sentence  phrase(number) verb(number) phrase, a line each
    phrase    "the" adjective* noun(number), one time in four with "that" phrase(number') verb(number')
    number    singular or plural, equal in a phrase and its verb

A text has one derivation only, so its probability is the product of the choices that made it. The
mean of their negative logarithms is the lowest loss that any model can expect: no real corpus has
such a yardstick.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from random import Random

SENTENCES = {"train": (0, 20_000), "validation": (1, 2_000)}  # seed and number of each split
VALIDATION_NATS = 69249.7645  # of the whole validation split
DEEPEST = 2  # of clauses within clauses
FIRST, SECOND = "bdfgklmnprstvz", "aeiou"
SYLLABLES = [first + second for first in FIRST for second in SECOND]


def lexicon(size: int, ending: str) -> list[str]:
    """Returns words of two syllables and the ending that marks their kind, the most frequent first."""
    count = len(SYLLABLES)
    return [
        SYLLABLES[k % count] + SYLLABLES[(7 * k + k // count) % count] + ending for k in range(size)
    ]


NOUNS, VERBS, ADJECTIVES = lexicon(2400, "n"), lexicon(1200, "t"), lexicon(600, "l")


def zipf(size: int) -> list[float]:
    """Returns cumulative weights 1, 1 + 1/2, ...: as frequencies of words fall in real text."""
    return list(accumulate(1 / rank for rank in range(1, size + 1)))


WEIGHTS = {len(words): zipf(len(words)) for words in (NOUNS, VERBS, ADJECTIVES)}


class Writer:
    """Writes sentences and adds up the nats of its choices."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nats = 0.0

    def chance(self, probability: float) -> bool:
        """Decides yes or no."""
        yes = self.random.random() < probability  # the same on every version of Python
        self.nats -= math.log(probability if yes else 1 - probability)
        return yes

    def word(self, words: Sequence[str]) -> str:
        """Chooses a word by its frequency."""
        weights = WEIGHTS[len(words)]
        index = bisect(weights, self.random.random() * weights[-1])
        self.nats += math.log((index + 1) * weights[-1])
        return words[index]

    def phrase(self, depth: int = 0) -> tuple[str, str]:
        """Writes a phrase; returns it with the ending of the verb that agrees with it."""
        plural = self.chance(0.5)
        words = ["the"]
        while self.chance(0.3):
            words.append(self.word(ADJECTIVES))
        words.append(self.word(NOUNS) + "s" * plural)
        if depth < DEEPEST and self.chance(0.25):
            within, ending = self.phrase(depth + 1)
            words += ["that", within, self.word(VERBS) + ending]
        return " ".join(words), "" if plural else "s"

    def sentence(self) -> str:
        """Writes a line."""
        subject, ending = self.phrase()
        verb = self.word(VERBS) + ending
        return f"{subject} {verb} {self.phrase()[0]} .\n"


def write_split(split: str) -> tuple[str, float]:
    """Writes the text of a split; returns it with the negative logarithm of its probability."""
    seed, count = SENTENCES[split]
    writer = Writer(seed)
    text = "".join(writer.sentence() for _ in range(count))
    return text, writer.nats
