"""Corpora: canonical form against hand-written samples and the real files, checksums, missing and
corrupt files.
"""

import hashlib
import random
from pathlib import Path

import pytest

from crope.config import CORPORA, ROOT
from crope.data.corpora import (
    CHECKSUMS,
    Document,
    canonical,
    checksums,
    corpus_files,
    corpus_sha256,
    load_corpus,
    missing_files,
    tiny_corpus,
)
from crope.errors import DataError, DataUnavailable
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, write


@pytest.mark.parametrize(
    ("corpus", "delivered", "expected"),
    [
        ("ptb", "no it was n't black monday\nbut N\n", " no it was n't black monday \n but N \n"),
        ("ptb", " no it was \r\n but N", " no it was \n but N \n"),
        ("wikitext2", "\n = 東京 = \n\n\n text . \n", " \n = 東京 = \n \n \n text . \n"),
        # A no-break space is a word of WikiText-2.
        ("wikitext2", "\u00a0 a \u3000\n", " \u00a0 a \u3000 \n"),
        ("pg19", "CHAPTER I\r\n\r\n  indented \r\nend", "CHAPTER I\n\n  indented \nend"),
        ("letters", "as it is \n", "as it is \n"),
    ],
)
def test_canonical_form_and_that_it_is_idempotent(
    corpus: str, delivered: str, expected: str
) -> None:
    assert canonical(corpus, delivered) == expected
    assert canonical(corpus, expected) == expected


@pytest.mark.parametrize("corpus", ["ptb", "letters"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_blocks_join_to_the_canonical_form_of_the_whole_file(
    tmp_path, monkeypatch, corpus: str, end: str
) -> None:
    parts = ["a", " bé", "東", "\n", "\r\n", "\n\n", " \n", "\u2028", "\x0c"]
    text = "".join(random.Random(0).choices(parts, k=400)) + "x" + end
    write(tmp_path, "text", text)
    monkeypatch.setattr("crope.data.corpora.BLOCK_CHARS", 7)
    blocks = list(Document(corpus, tmp_path / "text"))
    assert len(blocks) > 50
    assert "".join(blocks) == canonical(corpus, text)


def test_books_are_read_in_order_of_their_id_as_text(data_dir: Path) -> None:
    books = ["".join(book) for book in load_corpus("pg19", data_dir)["train"]]
    assert books == [FILES["pg19/train/10.txt"], FILES["pg19/train/9.txt"]]


def test_a_corpus_of_the_first_books_has_the_whole_validation_split(
    data_dir: Path, monkeypatch
) -> None:
    (data_dir / "pg19_1book.yaml").write_text("corpus: pg19_1book\nbooks: 1\n")
    monkeypatch.setattr("crope.data.corpora.CONF_DIR", data_dir)
    assert corpus_files("pg19_1book") == {
        "train": ["pg19/train/10.txt"],
        "validation": ["pg19/validation/7.txt"],
    }


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b" the chairman \n", "sha256"),
        (FILES["ptb/valid.txt"].encode(), "sha256"),
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"caf\xe9\n", "UTF-8"),
    ],
)
def test_corrupt_files_are_refused_by_name(data_dir: Path, content: bytes, word: str) -> None:
    (data_dir / "ptb" / "train.txt").write_bytes(content)
    with raises_one_line(DataError, word) as caught:
        load_corpus("ptb", data_dir)
    assert not isinstance(caught.value, DataUnavailable)
    assert "ptb/train.txt" in str(caught.value)
    assert str(data_dir) not in str(caught.value)  # messages reach the report: no private paths


def test_files_in_no_folder_are_missing_and_fetched_ones_are_read(data_dir: Path) -> None:
    (data_dir / "ptb" / "valid.txt").unlink()
    assert missing_files("ptb", data_dir) == ["ptb/valid.txt"]
    write(data_dir.parent / "raw", "ptb/valid.txt", FILES["ptb/valid.txt"])
    assert "".join(load_corpus("ptb", data_dir)["validation"][0]) == FILES["ptb/valid.txt"]


def test_an_own_corpus_is_named_by_its_text(data_dir: Path, monkeypatch) -> None:
    monkeypatch.setenv("CROPE_DATA_DIR", "")
    write(data_dir, "letters/train.txt", " a line \r\n")
    write(data_dir, "letters/valid.txt", "another\n")
    assert corpus_sha256("letters", data_dir)["train"] == hashlib.sha256(b" a line \n").hexdigest()
    (data_dir / "letters" / "valid.txt").unlink()
    with pytest.raises(DataUnavailable, match=r"letters/valid\.txt missing in data_dir and"):
        corpus_sha256("letters", data_dir)
    monkeypatch.setenv("CROPE_DATA_DIR", "nowhere")
    with pytest.raises(DataUnavailable, match="CROPE_DATA_DIR=nowhere"):
        corpus_sha256("letters", data_dir)


def test_checksums_may_have_blank_lines_and_marks_of_binary_files(data_dir: Path) -> None:
    pinned = checksums()
    file = data_dir.parent / "checksums.txt"
    file.write_text(file.read_text().replace("  ", " *") + "\n")
    assert checksums() == pinned


@pytest.mark.parametrize("corpus", ["ptb", "pg19"])
def test_a_pinned_corpus_is_named_by_the_checksums_of_all_its_files(
    corpus: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another text of any one file changes the name of its split, and of no other."""
    pinned, before = checksums(), corpus_sha256(corpus, data_dir)
    books = [path for path in sorted(pinned) if path.startswith("pg19/train/")]
    text = "".join(f"{pinned[path]}  {path}\n" for path in books)
    named = (
        hashlib.sha256(text.encode()).hexdigest() if corpus == "pg19" else pinned["ptb/train.txt"]
    )
    assert before["train"] == named
    for split, files in corpus_files(corpus).items():
        for file in files:
            changed = pinned | {file: "0" * 64}
            monkeypatch.setattr("crope.data.corpora.checksums", lambda changed=changed: changed)
            after = corpus_sha256(corpus, data_dir)
            assert [name for name in before if after[name] != before[name]] == [split], file


def test_tiny_is_all_topics_once_and_validation_about_a_tenth() -> None:
    from pydoc_data.topics import topics

    splits = {split: "".join(texts[0]) for split, texts in tiny_corpus().items()}
    everything = "\n".join(topics[name].strip("\n") + "\n" for name in sorted(topics))
    assert splits["train"] + "\n" + splits["validation"] == everything
    assert 0.05 < len(splits["validation"]) / len(everything) <= 0.1


def test_checksums_pin_the_papers_corpora_and_no_test_split() -> None:
    assert CHECKSUMS == ROOT / "data" / "checksums.txt"
    counts = {
        (corpus, split): len(files)
        for corpus in CORPORA
        for split, files in corpus_files(corpus).items()
    }
    assert (counts["pg19", "train"], counts["pg19", "validation"]) == (133, 49)
    assert {"ptb/train.txt", "ptb/valid.txt", "wikitext2/train.txt", "wikitext2/valid.txt"} <= set(
        checksums()
    )
    assert not [path for path in checksums() if "test" in path]


def test_every_file_of_conf_data_names_its_corpus() -> None:
    for name in CORPORA:
        assert (
            f"\ncorpus: {name}\n" in f"\n{(ROOT / 'conf' / 'data' / f'{name}.yaml').read_text()}\n"
        )
