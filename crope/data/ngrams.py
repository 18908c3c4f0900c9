"""Losses of n-gram models: a yardstick for language models on the same tokens."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from crope.data.corpora import SPLITS
from crope.data.tokens import TokenSet

ORDERS = ("unigram", "bigram", "trigram")


def ngram_losses(
    train: NDArray[Any], validation: NDArray[Any], vocab_size: int
) -> dict[str, float]:
    """Computes the validation split's mean loss (nats per token) under n-gram models of the train
    split, by name.

    Both splits are 1-D token ids; n-grams are packed into 64 bits, so `vocab_size` is below 2^21.
    The models are interpolated (Witten and Bell), with h' = h without its oldest token:
    P_n(w | h) = (c(h w) + T(h) P_{n-1}(w | h')) / (c(h) + T(h)), P_0 = 1 / vocab_size. c(h) counts
    the tokens that follow h, T(h) the distinct ones; where c(h) = 0, P_n is P_{n-1}. Every token is
    scored, the first ones with the history they have.
    """
    probability = np.full(len(validation), 1 / vocab_size)
    losses = {}
    for order, name in enumerate(ORDERS, 1):
        counts = pd.Series(_pack(train, order, vocab_size)).value_counts()
        by_history = counts.groupby(counts.index // vocab_size)
        grams = _pack(validation, order, vocab_size)
        histories = grams // vocab_size
        count = counts.reindex(grams, fill_value=0).to_numpy()
        followed = by_history.sum().reindex(histories, fill_value=0).to_numpy()
        # At least 1, so that after an unseen history the probability stays as it is.
        distinct = by_history.size().reindex(histories, fill_value=1).to_numpy()
        shorter = probability[order - 1 :]
        probability[order - 1 :] = (count + distinct * shorter) / (followed + distinct)
        losses[name] = float(-np.log(probability).mean())
    return losses


def ngram_entry(tokens: TokenSet) -> dict[str, Any]:
    """Computes a corpus's n-gram losses (nats per token), with what identifies its tokens."""
    meta = tokens.meta
    tokenizer = {key: meta["tokenizer"][key] for key in ("name", "vocab_size")}
    losses = ngram_losses(tokens.train, tokens.validation, tokenizer["vocab_size"])
    return {
        "corpus": meta["corpus"],
        "tokenizer": tokenizer,
        "sha256": {split: meta["splits"][split]["sha256"] for split in SPLITS},
        "loss_nats": {name: round(loss, 6) for name, loss in losses.items()},
    }


def _pack(tokens: NDArray[Any], order: int, vocab_size: int) -> NDArray[np.int64]:
    """Packs every n-gram of a split into one integer, the oldest token in the highest digit of base
    `vocab_size`.
    """
    keys = np.zeros(max(0, len(tokens) - order + 1), np.int64)
    for offset in range(order):
        keys = keys * vocab_size + tokens[offset : offset + len(keys)]
    return keys
