"""The text: canonical form against hand-written samples and the real files, damage, and the pinned list."""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from crope.data.corpora import (
    CHECKSUMS,
    Sources,
    load_corpus,
    missing_files,
    read_checksums,
    source_sha256,
    split_files,
    tiny_text,
)
from crope.data.loaders import join_rows
from crope.data.text import Document, canonical
from crope.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("corpus", "delivered", "expected"),
    [
        ("ptb", "no it was n't black monday\nbut N\n", " no it was n't black monday \n but N \n"),
        ("ptb", " no it was \r\n but N \r\n", " no it was \n but N \n"),
        ("ptb", "no final line feed", " no final line feed \n"),
        ("wikitext2", "\n = Title = \n\n\n text . \n", " \n = Title = \n \n \n text . \n"),
        ("wikitext2", " \n = 東京 = \n", " \n = 東京 = \n"),
        ("pg19", "CHAPTER I\r\n\r\n  indented \r\nend", "CHAPTER I\n\n  indented \nend"),
        ("tiny", "as it is \n", "as it is \n"),
    ],
)
def test_canonical_form(corpus: str, delivered: str, expected: str) -> None:
    assert canonical(corpus, delivered) == expected
    assert canonical(corpus, expected) == expected


@pytest.mark.parametrize("corpus", ["ptb", "letters"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_text_in_blocks_is_the_text_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str, end: str
) -> None:
    """Lines of every kind, read some bytes at a time: the blocks together are the canonical form of the whole."""
    draw = random.Random(0)
    parts = ["a", " bé", "東", "\n", "\r\n", "\n\n", " \n", "\u2028", "\x0c"]
    text = "".join(draw.choices(parts, k=400)) + "x" + end
    file = tmp_path / "text"
    file.write_bytes(text.encode())
    monkeypatch.setattr("crope.data.text.BLOCK_BYTES", 7)
    blocks = list(Document(corpus, file))
    assert len(blocks) > 50
    assert "".join(blocks) == canonical(corpus, text)


def test_a_damaged_byte_is_found_where_it_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crope.data.text.BLOCK_BYTES", 16)
    (tmp_path / "text").write_bytes(b"five\n" * 20 + b"\xff")
    with pytest.raises(UnicodeDecodeError) as caught:
        list(Document("letters", tmp_path / "text"))
    assert caught.value.start == 100


def test_words_may_hold_other_blanks_than_the_space() -> None:
    # str.strip() would eat the no-break space that is a word of its own in WikiText-2.
    assert canonical("wikitext2", "\u00a0 a \u3000\n") == " \u00a0 a \u3000 \n"


def test_checksums_pin_the_papers_splits_and_no_test_split() -> None:
    pinned = read_checksums(CHECKSUMS)
    parts = [path.rpartition("/")[0] for path in pinned]
    assert (parts.count("pg19/train"), parts.count("pg19/validation")) == (133, 49)
    assert {"ptb/train.txt", "ptb/valid.txt", "wikitext2/train.txt", "wikitext2/valid.txt"} <= set(pinned)
    assert not [path for path in pinned if "test" in path]


def test_local_text_is_read_whole_and_books_in_order_of_their_id_as_text(sources: Sources) -> None:
    text = load_corpus("pg19", sources)
    assert split_files("pg19", "train", sources) == ["pg19/train/10.txt", "pg19/train/9.txt"]
    assert ["".join(book)[:5] for book in text.splits["train"]] == ["A sho", "Anoth"]
    assert (text.kind, text.where) == ("local", str(sources.data_dir))


def test_a_source_with_other_line_ends_and_blanks_gives_the_pinned_text(sources: Sources) -> None:
    path = sources.data_dir / "ptb" / "train.txt"
    (expected,) = map(list, load_corpus("ptb", sources).splits["train"])
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_bytes("\r\n".join(line.strip() for line in lines).encode())
    assert [list(document) for document in load_corpus("ptb", sources).splits["train"]] == [expected]


def test_what_data_dir_lacks_is_read_from_raw_dir(sources: Sources) -> None:
    (sources.raw_dir / "ptb").mkdir(parents=True)
    (sources.data_dir / "ptb" / "valid.txt").rename(sources.raw_dir / "ptb" / "valid.txt")
    assert missing_files("ptb", sources) == []
    assert load_corpus("ptb", sources).where == f"{sources.data_dir}, {sources.raw_dir}"


def test_a_pinned_source_has_its_name_without_its_text(sources: Sources) -> None:
    before = {name: load_corpus(name, sources).sha256 for name in ("ptb", "pg19")}
    elsewhere = Sources(sources.raw_dir, sources.raw_dir, sources.checksums)
    assert {name: source_sha256(name, elsewhere) for name in ("ptb", "pg19")} == before
    assert before["ptb"]["train"] == sources.pinned["ptb/train.txt"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-100], "sha256 differs from"),
        (lambda data: data.replace(b"group", b"troup", 1), "sha256 differs from"),
        (lambda data: b"", "file is empty"),
        (lambda data: b"\n \n", "file is empty"),
        (lambda data: data[:50] + b"\xff" + data[50:], "not UTF-8 at byte 50 of"),
    ],
)
def test_damage_is_named(sources: Sources, damage: Callable[[bytes], bytes], message: str) -> None:
    path = sources.data_dir / "ptb" / "train.txt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load_corpus("ptb", sources)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_the_message_says_size_and_remedy(sources: Sources) -> None:
    fetched = Sources(sources.raw_dir, sources.data_dir, sources.checksums)  # raw_dir's files may be removed
    path = sources.data_dir / "ptb" / "train.txt"
    path.write_text(" wrong \n" * 1000, encoding="utf-8")
    expected = f"{path}: sha256 differs from {sources.checksums} (file 8,000 bytes); remove it to fetch it again"
    with pytest.raises(DataError) as caught:
        load_corpus("ptb", fetched)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("here", "there"), [("ptb/train.txt", "ptb/valid.txt"), ("wikitext2/train.txt", "ptb/train.txt")]
)
def test_a_file_that_is_another_one_is_named(sources: Sources, here: str, there: str) -> None:
    """Train and validation swapped, and a file of another corpus."""
    one, other = sources.data_dir / here, sources.data_dir / there
    one.rename(one.with_suffix(".aside"))
    other.rename(one)
    one.with_suffix(".aside").rename(other)
    with pytest.raises(DataError) as caught:
        load_corpus(here.partition("/")[0], sources)
    wrong = f"sha256 differs from {sources.checksums} (it holds {there})"
    assert str(caught.value) == f"{one}: {wrong}; replace it, or remove it to have it fetched"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"0123  ptb/train.txt\n", ", line 1: not 'sha256  path'"),
        (b"Z" * 64 + b"  ptb/train.txt\n", ", line 1: not 'sha256  path'"),
        (b"0" * 64 + b" ptb/train.txt\n", ", line 1: not 'sha256  path'"),
        (b"0" * 64 + b"  a\n" + b"1" * 64 + b"  a\n", ", line 2: a is listed twice"),
        (b"0" * 64 + b"  ptb/tr\xff\n", ": not UTF-8 at byte 72"),
        (b"", ": has no line for ptb/train.txt"),
        (None, ": cannot be read (No such file or directory)"),
    ],
)
def test_a_damaged_list_of_checksums_is_named(sources: Sources, lines: bytes | None, message: str) -> None:
    sources.checksums.unlink() if lines is None else sources.checksums.write_bytes(lines)
    with pytest.raises(DataError) as caught:
        load_corpus("ptb", Sources(sources.data_dir, sources.raw_dir, sources.checksums))
    assert str(caught.value) == f"{sources.checksums}{message}; restore it from the repository"


def test_missing_books_are_listed(sources: Sources) -> None:
    (sources.data_dir / "pg19" / "train" / "9.txt").unlink()
    assert missing_files("pg19", sources) == ["pg19/train/9.txt"]
    with pytest.raises(DataError, match=r"pg19/train/9\.txt: not in"):
        load_corpus("pg19", sources)


def test_unknown_corpus_names_the_near_one(sources: Sources) -> None:
    with pytest.raises(ConfigError, match="did you mean wikitext2"):
        load_corpus("wikitext_2", sources)


def test_tiny_is_all_topics_once_and_validation_about_a_tenth() -> None:
    from pydoc_data.topics import topics

    splits = {name: "".join(texts[0]) for name, texts in tiny_text().items()}
    everything = "\n".join(topics[name].strip("\n") + "\n" for name in sorted(topics))
    assert splits["train"] + "\n" + splits["validation"] == everything
    assert 0.05 < len(splits["validation"]) / len(everything) <= 0.1


def test_the_pinned_checksums_are_those_of_the_real_files(real: Sources) -> None:
    theirs = read_checksums(real.data_dir / "SHA256SUMS")
    assert real.pinned == {path: theirs[path] for path in real.pinned}


@pytest.mark.parametrize("corpus", ["ptb", "wikitext2"])
def test_rows_of_the_hub_give_the_real_file_back(real: Sources, corpus: str) -> None:
    """The hub's PTB rows are stripped lines; its WikiText rows keep their line feed, but an empty line is ""."""
    for path in all_files(corpus, real):
        lines = (real.data_dir / path).read_text(encoding="utf-8").split("\n")[:-1]
        kept = [f"{line}\n" if line.strip() and corpus == "wikitext2" else line.strip() for line in lines]
        delivered = canonical(corpus, join_rows(kept))
        assert hashlib.sha256(delivered.encode()).hexdigest() == real.pinned[path]


def test_official_books_have_crlf_and_give_the_pinned_text(real: Sources) -> None:
    """The official sha256 of each book, from the release's own manifest, is that of our text with CRLF."""
    with (real.data_dir / "pg19" / "MANIFEST.tsv").open(encoding="utf-8", newline="") as file:
        official = {f"pg19/{row['split']}/{row['book_id']}.txt": row for row in csv.DictReader(file, delimiter="\t")}
    for path in all_files("pg19", real):
        delivered = Path(real.data_dir / path).read_bytes().replace(b"\n", b"\r\n")
        assert hashlib.sha256(delivered).hexdigest() == official[path]["official_sha256_crlf"]
        text = canonical("pg19", delivered.decode())
        assert hashlib.sha256(text.encode()).hexdigest() == real.pinned[path]


def all_files(corpus: str, sources: Sources) -> list[str]:
    return [path for split in ("train", "validation") for path in split_files(corpus, split, sources)]
