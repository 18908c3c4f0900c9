"""Data ahead of training: what is printed of each corpus, and what fails."""

from crope.data.ngrams import NGRAMS_FILE
from crope.data.tokens import load_tokens
from crope.runs.prepare import prepare
from tests.data.conftest import SMALL, data_dir, no_network, write  # noqa: F401


def test_two_lines_of_a_corpus(data_dir, capsys):  # noqa: F811
    assert not prepare(["ptb"], SMALL, data_dir=data_dir)
    folder = load_tokens("ptb", SMALL, data_dir=data_dir).folder
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("ptb: train 2,")
    assert first.endswith(f"; data/tokens/{folder.name}")
    assert second.startswith("ptb: unigram / bigram / trigram loss ")
    assert (folder / NGRAMS_FILE).exists()
