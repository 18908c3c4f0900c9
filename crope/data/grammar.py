"""The corpus `tiny`: sentences that a small grammar writes, the same bytes on every machine.

    sentence  phrase(number) verb(number) phrase, a line each
    phrase    "the" adjective* noun(number), one time in four with "that" phrase(number')
              verb(number')
    number    singular or plural, equal in a phrase and its verb

A text has only one derivation, so its probability is the product of its choices. The mean of their
negative logarithms is the lowest loss that a model can expect: no real corpus has such a yardstick.
"""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from random import Random

SENTENCES = {"train": (0, 20_000), "validation": (1, 2_000)}  # seed and number of each split
# Of the whole validation split; tests/data/test_grammar.py counts them.
VALIDATION_NATS = 69249.7645
DEEPEST = 2  # of clauses within clauses
FIRST, SECOND = "bdfgklmnprstvz", "aeiou"
SYLLABLES = [first + second for first in FIRST for second in SECOND]


def lexicon(size: int, ending: str) -> list[str]:
    """Returns words of two syllables and the ending of their kind, the most frequent first."""
    count = len(SYLLABLES)
    return [
        SYLLABLES[k % count] + SYLLABLES[(7 * k + k // count) % count] + ending for k in range(size)
    ]


NOUNS, VERBS, ADJECTIVES = lexicon(2400, "n"), lexicon(1200, "t"), lexicon(600, "l")


def zipf(size: int) -> list[float]:
    """Returns cumulative weights 1, 1 + 1/2, ...: as frequencies of words fall in real text."""
    return list(accumulate(1 / rank for rank in range(1, size + 1)))


WEIGHTS = {len(words): zipf(len(words)) for words in (NOUNS, VERBS, ADJECTIVES)}


def write_split(split: str) -> str:
    """Writes the text of a split."""
    seed, count = SENTENCES[split]
    random = Random(seed)
    return "".join(sentence(random) for _ in range(count))


def sentence(random: Random) -> str:
    """Writes a line."""
    subject, ending = phrase(random)
    verb = word(random, VERBS) + ending
    return f"{subject} {verb} {phrase(random)[0]} .\n"


def phrase(random: Random, depth: int = 0) -> tuple[str, str]:
    """Writes a phrase; returns it with the ending of the verb that agrees with it."""
    plural = random.random() < 0.5  # the same on every version of Python
    words = ["the"]
    while random.random() < 0.3:
        words.append(word(random, ADJECTIVES))
    words.append(word(random, NOUNS) + "s" * plural)
    if depth < DEEPEST and random.random() < 0.25:
        within, ending = phrase(random, depth + 1)
        words += ["that", within, word(random, VERBS) + ending]
    return " ".join(words), "" if plural else "s"


def word(random: Random, words: Sequence[str]) -> str:
    """Chooses a word by its frequency."""
    weights = WEIGHTS[len(words)]
    return words[bisect(weights, random.random() * weights[-1])]
