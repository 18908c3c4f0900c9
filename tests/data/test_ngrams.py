"""N-gram losses against dictionaries of counts and against arithmetic by hand; ngrams.json."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from crope.data.ngrams import NGRAMS_FILE, ORDERS, load_ngrams, ngram_losses, stored_ngrams
from crope.data.tokens import TokenSet, load_tokens
from crope.files import sha256_file, write_json
from crope.runs.prepare import prepare
from tests.data.conftest import SMALL


class SlowModel:
    """The formula with dictionaries: `continuations[h][w]` is c(h w)."""

    def __init__(self, train: Sequence[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.continuations: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for length in range(len(ORDERS)):
            for i in range(length, len(train)):
                self.continuations[tuple(train[i - length : i])][train[i]] += 1

    def probability(self, token: int, history: tuple[int, ...]) -> float:
        shorter = self.probability(token, history[1:]) if history else 1 / self.vocab_size
        after = self.continuations.get(history)
        if after is None:
            return shorter
        return (after[token] + len(after) * shorter) / (after.total() + len(after))

    def losses(self, validation: Sequence[int]) -> dict[str, float]:
        return {
            name: -sum(
                math.log(self.probability(token, tuple(validation[max(0, i - length) : i])))
                for i, token in enumerate(validation)
            )
            / len(validation)
            for length, name in enumerate(ORDERS)
        }


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
    [(2, 300, 100), (11, 400, 200), (300, 500, 300), (50_257, 400, 200), (7, 2, 30), (7, 30, 2),
     (7, 1, 1)],
)  # fmt: skip
def test_losses_are_those_of_the_formula(vocab_size: int, train: int, validation: int) -> None:
    """Also with keys beyond 32 bits and splits shorter than a trigram."""
    first, second = random_splits(vocab_size, train, validation)
    expected = SlowModel(first.tolist(), vocab_size).losses(second.tolist())
    assert ngram_losses(first, second, vocab_size) == pytest.approx(expected, rel=1e-12)


def test_the_random_splits_have_unseen_tokens_and_histories() -> None:
    train, validation = (split.tolist() for split in random_splits(300, 500, 300))
    assert set(validation) - set(train)
    assert set(pairwise(validation[:-1])) - set(pairwise(train))


def test_losses_by_hand() -> None:
    """P(0) = (2 + 2/2) / (3 + 2) and P(1) = (1 + 2/2) / (3 + 2); P(1 | 0) = (1 + 2 * 0.4) / (2 + 2)."""
    losses = ngram_losses(np.array([0, 0, 1]), np.array([0, 1]), 2)
    after_zero = -math.log(0.6 * 0.45) / 2  # of the trigrams too: their history is one token here
    expected = {"unigram": -math.log(0.6 * 0.4) / 2, "bigram": after_zero, "trigram": after_zero}
    assert losses == pytest.approx(expected, rel=1e-12)


@pytest.fixture
def tokens(data_dir: Path) -> TokenSet:
    return load_tokens("ptb", SMALL, data_dir=data_dir)


def fail(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def test_ngrams_are_computed_once_and_leave_the_token_files_valid(
    tokens: TokenSet, data_dir: Path, monkeypatch
) -> None:
    opened = (tokens.folder / "train.npy").stat().st_ino
    ngrams = load_ngrams(tokens)
    expected = ngram_losses(tokens.train, tokens.validation, 280)
    assert ngrams["loss_nats"] == pytest.approx(expected, abs=1e-6)
    monkeypatch.setattr("crope.data.ngrams.ngram_losses", fail)
    again = load_tokens("ptb", SMALL, data_dir=data_dir)
    assert load_ngrams(again) == ngrams == stored_ngrams(again.folder)
    assert (again.folder / "train.npy").stat().st_ino == opened


@pytest.mark.parametrize("digests", [{}, {"train": "0" * 64, "validation": "0" * 64}, None])
def test_ngrams_of_other_files_are_computed_again(tokens: TokenSet, digests: object) -> None:
    """Wrong losses with no or other digests; a file cut in the middle."""
    ngrams, path = load_ngrams(tokens), tokens.folder / NGRAMS_FILE
    wrong = json.dumps({**ngrams, "sha256": digests, "loss_nats": dict.fromkeys(ORDERS, 1.0)})
    path.write_text(wrong if digests is not None else wrong[:50])
    assert stored_ngrams(tokens.folder) is None
    assert load_ngrams(tokens) == ngrams == json.loads(path.read_text())


def test_new_token_files_in_the_folder_get_new_ngrams(tokens: TokenSet, data_dir: Path) -> None:
    load_ngrams(tokens)
    np.save(tokens.folder / "train.npy", tokens.validation)
    tokens.meta["splits"]["train"]["sha256"] = sha256_file(tokens.folder / "train.npy")
    write_json(tokens.folder / "meta.json", tokens.meta)
    changed = load_tokens("ptb", SMALL, data_dir=data_dir)
    assert stored_ngrams(changed.folder) is None
    expected = ngram_losses(tokens.validation, tokens.validation, 280)
    assert load_ngrams(changed)["loss_nats"] == pytest.approx(expected, abs=1e-6)


def test_prepare_prints_the_losses_and_training_needs_none(data_dir: Path, capsys) -> None:
    tokens = load_tokens("ptb", SMALL, data_dir=data_dir)
    assert not (tokens.folder / NGRAMS_FILE).exists()
    assert not prepare(["ptb"], SMALL, data_dir=data_dir)
    stored = stored_ngrams(tokens.folder)
    assert stored
    values = " / ".join(f"{stored['loss_nats'][name]:.4f}" for name in ORDERS)
    assert f"unigram / bigram / trigram loss {values} nats per token" in capsys.readouterr().out


def test_ngrams_that_cannot_be_written_fail_no_corpus(data_dir: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("crope.data.ngrams.write_json", fail)
    assert not prepare(["ptb", "wikitext2"], SMALL, data_dir=data_dir)
    assert capsys.readouterr().err.count("No space") == 2
