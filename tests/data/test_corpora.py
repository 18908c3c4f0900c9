"""Corpora: canonical form against hand-written samples, checksums, missing and damaged files."""

from pathlib import Path

import pytest

from crope.config import DataConfig, HubConfig
from crope.data.corpora import canonical, find_corpus
from crope.errors import ConfigError, DataError
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, corpus_of, sha256, write

NOWHERE = Path("nowhere")


@pytest.mark.parametrize(
    ("corpus", "delivered", "expected"),
    [
        ("ptb", "no it was n't\nbut N\n", " no it was n't \n but N \n"),
        ("ptb", " no it was \r\n but N", " no it was \n but N \n"),
        ("wikitext2", "\n = 東京 = \n\n\n text . \n", " \n = 東京 = \n \n \n text . \n"),
        # A no-break space and a byte order mark are words of WikiText-2.
        ("wikitext2", "\u00a0 a \ufeff\n", " \u00a0 a \ufeff \n"),
        ("pg19", "CHAPTER I\r\n\r\n  indented \r\nend", "CHAPTER I\n\n  indented \nend"),
        ("letters", "\ufeffone\rtwo\r\n\ufeffthree", "one\ntwo\nthree"),
    ],
)
def test_canonical_form_and_that_it_is_idempotent(corpus, delivered, expected):
    assert canonical(corpus, delivered) == expected
    assert canonical(corpus, expected) == expected


def test_books_are_read_in_order_of_their_id_as_text(data_dir):
    books = corpus_of("pg19", data_dir).texts["train"]
    assert books == [FILES["pg19/train/10.txt"], FILES["pg19/train/9.txt"]]


def test_a_corpus_of_the_first_books_has_the_whole_validation_split(data_dir):
    files = find_corpus(DataConfig("short", books=1), NOWHERE).files
    assert files["train"] == ["pg19/train/10.txt"]
    assert files["validation"] == ["pg19/validation/7.txt"]


@pytest.mark.parametrize("books", [0, 3])
def test_a_number_of_books_that_there_are_not_is_refused(data_dir, books):
    with raises_one_line(ConfigError, r"short\.yaml: books: .* 1 to 2"):
        find_corpus(DataConfig("short", books=books), NOWHERE)


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
        _ = corpus_of("ptb", data_dir).texts
    assert str(data_dir) not in str(caught.value)


def test_a_file_of_data_dir_wins_over_a_fetched_one(data_dir):
    own, raw = data_dir / "ptb/valid.txt", data_dir.parent / "raw/ptb/valid.txt"
    write(raw.parent, raw.name, "fetched")
    assert corpus_of("ptb", data_dir).paths["ptb/valid.txt"] == own
    own.unlink()
    assert corpus_of("ptb", data_dir).paths["ptb/valid.txt"] == raw


# Names: the digests that identify a text


def test_a_text_of_ones_own_is_named_by_its_canonical_form(data_dir):
    write(data_dir, "letters/train.txt", "a line\r\n")
    write(data_dir, "letters/valid.txt", "another\n")
    assert corpus_of("letters", data_dir).sha256()["train"] == sha256("a line\n")


def test_pinned_books_are_named_by_their_lines_in_checksums(data_dir):
    lines = ""
    for book in ("pg19/train/10.txt", "pg19/train/9.txt"):
        lines += f"{sha256(FILES[book])}  {book}\n"
    assert corpus_of("pg19", NOWHERE).sha256()["train"] == sha256(lines)


def test_a_pinned_corpus_whose_splits_are_one_text_is_refused(data_dir):
    line = sha256("a line\n") + "  letters"
    write(data_dir.parent, "checksums.txt", f"{line}/train.txt\n{line}/valid.txt")
    with raises_one_line(DataError, "letters: both splits"):
        corpus_of("letters", NOWHERE).sha256()


@pytest.mark.parametrize("validation", ["\ufeffa line\r\n", "and more", "the end\n", "a {}\n"])
def test_a_split_that_holds_the_other_is_refused(data_dir, validation):
    """The start, the middle or the end, by any line ends; or the training text and more."""
    train = "a line\nand more\nto the end"
    write(data_dir, "letters/train.txt", train)
    write(data_dir, "letters/valid.txt", validation.format(train))
    with raises_one_line(DataError, "letters: both splits"):
        corpus_of("letters", data_dir).sha256()


# What is committed


def test_checksums_pin_the_papers_corpora_and_no_test_split():
    for corpus in ("ptb", "wikitext2", "pg19", "pg19_2books"):
        assert corpus_of(corpus, NOWHERE).is_pinned
    books = corpus_of("pg19", NOWHERE)
    assert [*map(len, books.files.values())] == [133, 49]
    assert not [path for path in books.pinned if "test" in path]


@pytest.mark.parametrize("share", [0, 1, 2.0])
def test_a_share_that_leaves_no_text_is_refused(share, data_dir):
    with raises_one_line(ConfigError, "validation_share"):
        find_corpus(DataConfig("mine", validation_share=share), data_dir)


def test_one_file_is_cut_at_the_last_line_break_before_its_share(data_dir):
    """Of 20 characters the last quarter begins within the third line, which validation gets whole;
    another share under the same name is refused.
    """
    write(data_dir, "mine.txt", "one two\nthree\nfour 5\n"[:20])
    corpus = find_corpus(DataConfig("mine", validation_share=0.25), data_dir)
    assert corpus.texts == {"train": ["one two\nthree\n"], "validation": ["four 5"]}
    other = find_corpus(DataConfig("mine", validation_share=0.5), data_dir)
    with raises_one_line(DataError, r"another source.*0\.25"):
        other.check_source({"hub": corpus.source}, "a run")


def test_a_file_of_one_line_is_not_cut(data_dir):
    write(data_dir, "mine.txt", "one two three four\n")
    with raises_one_line(DataError, "no line break"):
        find_corpus(DataConfig("mine", validation_share=0.25), data_dir).sha256()


@pytest.mark.parametrize(
    "data",
    [
        DataConfig("mine", HubConfig("owner/mine", "v1"), validation_share=0.1),
        DataConfig("mine", books=2, validation_share=0.1),
        DataConfig("pg19", validation_share=0.1),
        DataConfig("tiny", validation_share=0.1),
    ],
)
def test_a_share_is_of_one_file_of_the_users_own(data, data_dir):
    with raises_one_line(ConfigError, "one file of your own"):
        find_corpus(data, data_dir)


def test_a_run_on_another_number_of_books_has_another_source():
    few = find_corpus(DataConfig("some", books=2), NOWHERE)
    few.check_source({"sha256": few.sha256()}, "a run")
    with raises_one_line(DataError, "another source"):
        few.check_source({"sha256": corpus_of("pg19", NOWHERE).sha256()}, "a run")
