"""A text of the user's own: two files and a name in conf/data, no checksum, no source to fetch it from."""

from __future__ import annotations

import tracemalloc

import pytest

from crope.config import CORPORA, ROOT
from crope.data.corpora import Sources, load_corpus
from crope.data.tokens import unavailable
from crope.errors import ConfigError, DataUnavailable
from tests.data.conftest import SMALL, load, places

TRAIN, VALID = " A line with blanks at both ends \r\n" * 400, "Another line\n" * 40


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a conf/data/letters.yaml."""
    monkeypatch.setattr("crope.data.corpora.CORPORA", (*CORPORA, "letters"))


@pytest.fixture
def written(sources: Sources, named: None) -> Sources:
    folder = sources.data_dir / "letters"
    folder.mkdir()
    (folder / "train.txt").write_bytes(TRAIN.encode())
    (folder / "valid.txt").write_bytes(VALID.encode())
    return sources


def test_the_text_is_taken_as_it_is_but_for_the_ends_of_line(written: Sources) -> None:
    splits = load_corpus("letters", written).splits
    texts = {split: ["".join(document) for document in documents] for split, documents in splits.items()}
    assert texts == {"train": [TRAIN.replace("\r", "")], "validation": [VALID]}


def test_tokens_are_made_with_a_warning_and_anew_for_another_text(written: Sources, capsys) -> None:
    tokens = load("letters", written)
    assert tokens.meta["splits"]["validation"]["bytes"] == len(VALID)
    assert "warning: letters has no pinned checksum" in capsys.readouterr().err
    (written.data_dir / "letters" / "valid.txt").write_text(VALID * 2)
    assert load("letters", written).folder != tokens.folder


def test_without_its_files_it_says_where_to_put_them(sources: Sources, named: None) -> None:
    with pytest.raises(DataUnavailable) as caught:
        load("letters", sources)
    reason = str(caught.value)
    assert reason.startswith("letters: 2 files (letters/train.txt, ...) not in ")
    assert reason.endswith("; put train.txt and valid.txt there (data/README.md)")
    assert unavailable(["letters"], SMALL, **places(sources)) == {"letters": reason}


def test_a_name_without_a_file_of_conf_data_is_refused(sources: Sources) -> None:
    with pytest.raises(ConfigError, match="no corpus 'letters'"):
        load_corpus("letters", sources)


def test_every_file_of_conf_data_names_the_corpus_that_it_is_called() -> None:
    for path in sorted((ROOT / "conf" / "data").glob("*.yaml")):
        assert f"\ncorpus: {path.stem}\n" in f"\n{path.read_text()}\n", path


def test_preparing_a_text_takes_no_more_memory_for_more_of_it(
    sources: Sources, named: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times the text, the same peak: Python's own memory, strings and arrays, as tracemalloc counts it."""
    line = " ".join(f"word{number}" for number in range(200)) + "\n"
    monkeypatch.setattr("crope.data.tokenizer._PIECES_AT_ONCE", 4)  # so that the smaller text is many batches too
    folder, peaks = sources.data_dir / "letters", {}
    folder.mkdir()
    (folder / "valid.txt").write_text(line * 10, encoding="utf-8")
    for megabytes in (2, 6):
        (folder / "train.txt").write_text(line * (megabytes * 1_000_000 // len(line)), encoding="utf-8")
        tracemalloc.start()
        tokens = load("letters", sources)
        peaks[megabytes] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tokens.meta["splits"]["train"]["bytes"] > 0.99 * megabytes * 1_000_000
    assert peaks[6] < 1.1 * peaks[2], peaks
