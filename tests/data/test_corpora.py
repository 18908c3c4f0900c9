"""Corpora: canonical form against hand-written samples, checksums, missing and damaged files."""

import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from crope.data.corpora import (
    Document,
    canonical,
    checksums,
    corpus_files,
    corpus_sha256,
    data_config,
    find_file,
    is_pinned,
    load_corpus,
    missing_files,
    tiny_corpus,
)
from crope.errors import ConfigError, DataError, DataUnavailable
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, sha256, write


@pytest.mark.parametrize(
    ("corpus", "delivered", "expected"),
    [
        ("ptb", "no it was n't\nbut N\n", " no it was n't \n but N \n"),
        ("ptb", " no it was \r\n but N", " no it was \n but N \n"),
        ("wikitext2", "\n = 東京 = \n\n\n text . \n", " \n = 東京 = \n \n \n text . \n"),
        # A no-break space and a byte order mark are words of WikiText-2.
        ("wikitext2", "\u00a0 a \ufeff\n", " \u00a0 a \ufeff \n"),
        ("pg19", "CHAPTER I\r\n\r\n  indented \r\nend", "CHAPTER I\n\n  indented \nend"),
        ("letters", "as it is \n", "as it is \n"),
        ("letters", "\ufeffone\rtwo\r\n\ufeffthree", "one\ntwo\nthree"),
    ],
)
def test_canonical_form_and_that_it_is_idempotent(corpus, delivered, expected):
    assert canonical(corpus, delivered) == expected
    assert canonical(corpus, expected) == expected


@pytest.mark.parametrize("corpus", ["ptb", "letters"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
def test_blocks_join_to_the_canonical_form_of_the_whole_file(tmp_path, monkeypatch, corpus, end):
    parts = ["a", " bé", "東", "\n", "\r\n", "\r", " \n", "\u2028", "\x0c", "\0", "\ufeff"]
    text = "".join(random.Random(0).choices(parts, k=500)) + "x" + end
    write(tmp_path, "text", text)
    monkeypatch.setattr("crope.data.corpora.BLOCK_CHARS", 7)
    blocks = list(Document(corpus, tmp_path / "text"))
    assert len(blocks) > 50
    assert "".join(blocks) == canonical(corpus, text)


def test_books_are_read_in_order_of_their_id_as_text(data_dir):
    books = ["".join(book) for book in load_corpus("pg19", data_dir)["train"]]
    assert books == [FILES["pg19/train/10.txt"], FILES["pg19/train/9.txt"]]


# Files of conf/data


@pytest.fixture
def write_conf(data_dir, monkeypatch):
    """Writes short.yaml, the only file in place of conf/data."""
    monkeypatch.setattr("crope.data.corpora.CONF_DIR", data_dir)
    return (data_dir / "short.yaml").write_bytes


def test_a_corpus_of_the_first_books_has_the_whole_validation_split(write_conf):
    write_conf(b"corpus: short\nbooks: 1\n")
    files = corpus_files("short")
    assert files["train"] == ["pg19/train/10.txt"]
    assert files["validation"] == ["pg19/validation/7.txt"]


@pytest.mark.parametrize("books", [b"0", b"3"])
def test_a_number_of_books_that_there_are_not_is_refused(write_conf, books):
    write_conf(b"corpus: short\nbooks: " + books)
    with raises_one_line(ConfigError, r"short\.yaml: books: .* 1 to 2"):
        corpus_files("short")


@pytest.mark.parametrize(
    "content",
    [
        b"words",
        b"corpus: caf\xe9",
        b"corpus: x: y",
        b"corpus: x\nbook: 2",
        b"corpus: x\nbooks: two",
        b"corpus: x\nhub: {path: y}",
    ],
)
def test_a_damaged_file_of_conf_is_named(write_conf, content):
    write_conf(content)
    with raises_one_line(ConfigError, r"conf/data/short\.yaml"):
        data_config("short")


# Files of data_dir


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b" the chairman \n", "sha256"),
        (b"\n \n", "empty"),
        (b"caf\xe9\n", "UTF-8"),
    ],
)
def test_damaged_texts_are_refused_by_name(data_dir, content, word):
    """Messages reach the report: no private paths."""
    (data_dir / "ptb/train.txt").write_bytes(content)
    with raises_one_line(DataError, rf"ptb/train\.txt.*{word}") as caught:
        load_corpus("ptb", data_dir)
    assert str(data_dir) not in str(caught.value)


def test_a_file_in_no_folder_is_missing(data_dir, monkeypatch):
    monkeypatch.setenv("CROPE_DATA_DIR", "")
    (data_dir / "ptb/valid.txt").unlink()
    assert missing_files("ptb", data_dir) == ["ptb/valid.txt"]
    with raises_one_line(DataUnavailable, r"ptb/valid\.txt missing in data_dir and"):
        load_corpus("ptb", data_dir)
    monkeypatch.setenv("CROPE_DATA_DIR", "nowhere")
    with raises_one_line(DataUnavailable, "CROPE_DATA_DIR=nowhere, which does not exist"):
        load_corpus("ptb", data_dir)


def test_a_file_of_data_dir_wins_over_a_fetched_one(data_dir):
    fetched = data_dir.parent / "raw"
    write(fetched, "ptb/valid.txt", FILES["ptb/valid.txt"])
    assert find_file("ptb/valid.txt", data_dir) == data_dir / "ptb/valid.txt"
    (data_dir / "ptb/valid.txt").unlink()
    assert find_file("ptb/valid.txt", data_dir) == fetched / "ptb/valid.txt"


# Names: the digests that identify a text


def test_a_partly_pinned_corpus_is_named_by_its_text(data_dir):
    """In canonical form; and its pinned file is checked."""
    write(data_dir, "letters/train.txt", "a line\n")
    write(data_dir, "letters/valid.txt", "another\r\n")
    digest = sha256("a line\n")
    write(data_dir.parent, "checksums.txt", f"{digest}  letters/train.txt")
    assert not is_pinned("letters")
    assert corpus_sha256("letters", data_dir)["validation"] == sha256("another\n")
    write(data_dir, "letters/train.txt", "a changed line\n")
    with raises_one_line(DataError, r"letters/train\.txt.*sha256"):
        corpus_sha256("letters", data_dir)


def test_a_pinned_text_is_named_by_its_checksum(data_dir):
    """Also where the text is not there."""
    digests = corpus_sha256("ptb", Path("nowhere"))
    assert digests["train"] == sha256(FILES["ptb/train.txt"])
    assert digests["validation"] == sha256(FILES["ptb/valid.txt"])


def test_pinned_books_are_named_by_their_lines_in_checksums(data_dir):
    lines = ""
    for book in ("pg19/train/10.txt", "pg19/train/9.txt"):
        lines += f"{sha256(FILES[book])}  {book}\n"
    assert corpus_sha256("pg19", Path("nowhere"))["train"] == sha256(lines)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_corpus_whose_splits_are_one_text_is_refused(data_dir, pinned):
    write(data_dir, "letters/train.txt", "a line\n")
    write(data_dir, "letters/valid.txt", "\ufeffa line\r\n")
    if pinned:
        line = sha256("a line\n") + "  letters"
        write(data_dir.parent, "checksums.txt", f"{line}/train.txt\n{line}/valid.txt")
    with raises_one_line(DataError, "letters: both splits"):
        corpus_sha256("letters", data_dir)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"0" * 64, b"123  ptb/train.txt"])
def test_missing_and_damaged_checksums_are_named(data_dir, content):
    file = data_dir.parent / "checksums.txt"
    file.unlink()
    if content:
        file.write_bytes(content)
    with raises_one_line(DataError, r"data/checksums\.txt.*git"):
        load_corpus("ptb", data_dir)


# What is committed


def test_checksums_pin_the_papers_corpora_and_no_test_split():
    books = corpus_files("pg19").values()
    assert [*map(len, books)] == [133, 49]
    for corpus in ("ptb", "wikitext2", "pg19_2books"):
        assert is_pinned(corpus)
    assert not [path for path in checksums() if "test" in path]


def test_tiny_is_all_topics_once_and_validation_about_a_tenth():
    ((train,),), ((validation,),) = tiny_corpus().values()
    everything = [topics[name].strip("\n") + "\n" for name in sorted(topics)]
    assert f"{train}\n{validation}" == "\n".join(everything)
    assert 0.05 < len(validation) / len(train) < 0.12
