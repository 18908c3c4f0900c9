"""Data ahead of training: what is printed of each corpus, and what fails."""

from pathlib import Path

import pytest

from crope.config import TokenizerConfig
from crope.errors import DataError, StorageError
from crope.runs.prepare import prepare

BPE = TokenizerConfig(name="bpe", vocab_size=300)


@pytest.fixture(autouse=True)
def corpora(toy_tokens, monkeypatch):
    """Of any name but "damaged", and "full" for a disk that is."""

    def load(corpus, tokenizer, *, data_dir):
        if corpus == "damaged":
            raise DataError("damaged/train.txt: the file is empty")
        if corpus == "full":
            raise StorageError("full: No space left on device")
        return toy_tokens

    monkeypatch.setattr("crope.runs.prepare.load_tokens", load)


def prepared(*corpora):
    return prepare(corpora, BPE, data_dir=Path("raw"))


def test_tokens_and_losses_of_each_corpus_are_printed(capsys, monkeypatch):
    losses = {"unigram": 5.5, "bigram": 4.25, "trigram": 4.0}
    monkeypatch.setattr("crope.runs.prepare.load_ngrams", lambda _: {"loss_nats": losses})
    assert prepared("toy") == {}
    tokens, ngrams = capsys.readouterr().out.splitlines()
    assert tokens.startswith("toy: train 900 tokens, validation 300 tokens; data/tokens/")
    assert ngrams.startswith("toy: unigram / bigram / trigram loss 5.5000 / 4.2500 / 4.0000 nats")


def test_a_corpus_that_fails_costs_no_other(capsys):
    assert list(prepared("damaged", "toy")) == ["damaged"]
    printed = capsys.readouterr()
    assert printed.out.startswith("toy: train")
    assert printed.err == "error: damaged/train.txt: the file is empty\n"


def test_a_disk_that_fails_ends_the_preparation():
    with pytest.raises(StorageError, match="full: No space"):
        prepared("full", "damaged")


def test_losses_that_cannot_be_written_are_no_failure(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("crope.data.ngrams.write_json", full)
    assert prepared("toy") == {}
    assert "warning: toy: cannot write ngrams.json (No space" in capsys.readouterr().err
