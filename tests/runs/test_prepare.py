"""Data ahead of training: what is printed of each corpus, and what fails."""

from pathlib import Path

import pytest

from crope.config import TokenizerConfig
from crope.errors import DataError
from crope.runs.prepare import make_tokens

BPE = TokenizerConfig(name="bpe", vocab_size=300)


@pytest.fixture(autouse=True)
def corpora(toy_tokens, monkeypatch):
    """Of any name but "damaged"."""

    def load(corpus, tokenizer, *, data_dir):
        if corpus == "damaged":
            raise DataError("damaged/train.txt: the file is empty")
        return toy_tokens

    monkeypatch.setattr("crope.runs.prepare.load_tokens", load)


def prepared(*corpora):
    return make_tokens(corpora, BPE, data_dir=Path("raw"))


def test_the_tokens_of_each_corpus_are_printed(capsys):
    assert prepared("toy") == {}
    printed = capsys.readouterr().out
    assert printed.startswith("toy: train 900 tokens, validation 300 tokens\n  data/tokens/")


def test_a_corpus_that_fails_costs_no_other(capsys):
    assert list(prepared("damaged", "toy")) == ["damaged"]
    printed = capsys.readouterr()
    assert printed.out.startswith("toy: train")
    assert printed.err == "error: damaged/train.txt: the file is empty\n"
