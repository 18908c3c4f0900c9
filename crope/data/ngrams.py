"""Losses of n-gram models: a yardstick for the losses of language models on the same tokens."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet

ORDERS = ("unigram", "bigram", "trigram")


def ngram_losses(
    train: NDArray[Any], validation: NDArray[Any], vocab_size: int
) -> dict[str, float]:
    """Mean loss (nats per token) of the validation split under n-gram models of the train split,
    by name.

    Both splits are 1-D token ids; n-grams are packed into 64 bits, so `vocab_size` is below 2^21.
    The models are interpolated (Witten and Bell), with h' = h without its oldest token:
    P_n(w | h) = (c(h w) + T(h) P_{n-1}(w | h')) / (c(h) + T(h)), P_0 = 1 / vocab_size. c(h) counts
    how often h is followed by a token, T(h) how many distinct tokens follow it; where c(h) = 0, P_n
    is P_{n-1}. Every token is scored, the first ones with the history that they have.
    """
    probability = np.full(len(validation), 1 / vocab_size)
    losses = {}
    for order, name in enumerate(ORDERS, 1):
        keys, counts = np.unique(_pack(train, order, vocab_size), return_counts=True)
        count_before = np.concatenate([[0], np.cumsum(counts)])
        queries, inverse = np.unique(_pack(validation, order, vocab_size), return_inverse=True)
        # The n-grams with one history are neighbours among the sorted keys: keys[first:end].
        history = queries - queries % vocab_size
        first, end = np.searchsorted(keys, history), np.searchsorted(keys, history + vocab_size)
        followed = count_before[end] - count_before[first]
        # At least 1, so that after an unseen history the probability stays as it is.
        distinct = np.maximum(end - first, 1)
        place, after = np.searchsorted(keys, queries), np.searchsorted(keys, queries, side="right")
        count = count_before[after] - count_before[place]
        shorter = probability[order - 1 :]
        mixed = count[inverse] + distinct[inverse] * shorter
        probability[order - 1 :] = mixed / (followed + distinct)[inverse]
        losses[name] = float(-np.log(probability).mean())
    return losses


def ngram_entry(tokens: TokenSet) -> dict[str, Any]:
    """Computes the n-gram losses of a prepared corpus (nats per token); says of which tokens."""
    meta = tokens.meta
    losses = ngram_losses(tokens.train, tokens.validation, tokens.vocab_size)
    return {
        "corpus": meta["corpus"],
        "tokenizer": {key: meta["tokenizer"][key] for key in ("name", "vocab_size")},
        "sha256": {split: meta["splits"][split]["sha256"] for split in SPLITS},
        "loss_nats": {name: round(loss, 6) for name, loss in losses.items()},
    }


def _pack(tokens: NDArray[Any], order: int, vocab_size: int) -> NDArray[np.int64]:
    """Every n-gram of a split as one integer, the oldest token in the highest digit of base
    `vocab_size`.
    """
    keys = np.zeros(max(0, len(tokens) - order + 1), np.int64)
    for offset in range(order):
        keys = keys * vocab_size + tokens[offset : offset + len(keys)]
    return keys
