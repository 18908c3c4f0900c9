"""Downloads: from the hub's protocol on loopback, with faults, and from a site of plain files."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pandas as pd
import pytest

from crope.data import corpora, fetch
from crope.data.corpora import Document
from crope.data.tokens import load_tokens
from crope.errors import ConfigError, DataError, DataUnavailable, UserError
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, NOWHERE, SMALL, write
from tests.data.hub import COMMIT, serve

WIKITEXT = "Salesforce/wikitext/wikitext-2-v1/{}-00000-of-00001.parquet"
PTB = "ptb-text-only/ptb_text_only/penn_treebank/{}/0000.parquet"
TRAIN = [f"row {i}: the board of the group is new" for i in range(400)]
VALIDATION = [f"row {i}: the chairman is new" for i in range(60)]
TEXTS = {
    "letters/train.txt": "\n".join([*TRAIN, ""]),
    "letters/valid.txt": "\n".join([*VALIDATION, ""]),
}
BOOK = "pg19/train/10.txt"


@pytest.fixture
def hub(data_dir, tmp_path, monkeypatch):
    """A hub that also has the PTB files and the PG-19 books, and an empty cache of its client."""
    (tmp_path / "site").mkdir()
    no_pause = SimpleNamespace(sleep=lambda _: None)  # before a request is repeated
    monkeypatch.setattr("huggingface_hub.utils._http.time", no_pause)
    # What the client has read from the environment when it was imported.
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    huggingface_hub.close_session()  # it keeps the proxy of another test
    with serve(tmp_path / "site") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(fetch, "PTB_URL", f"{server.url}/plain/ptb")
        monkeypatch.setattr(fetch, "PG19_URL", f"{server.url}/plain/pg19")
        yield server


@pytest.fixture
def letters(hub, tmp_path, monkeypatch):
    """A dataset of the hub; the file of conf/data that describes it is returned."""
    write_letters(hub, TRAIN, VALIDATION)
    monkeypatch.setattr(corpora, "CONF_DIR", tmp_path)
    describe(tmp_path / "letters.yaml")
    return tmp_path / "letters.yaml"


def write_letters(hub, train, validation):
    write_parquet(hub.folder / "owner/letters/data/train-0.parquet", "text", train)
    write_parquet(hub.folder / "owner/letters/data/validation-0.parquet", "text", validation)


def write_parquet(path, column, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({column: rows}).to_parquet(path, row_group_size=50)


def describe(file, **changes):
    hub = {"path": "owner/letters", "revision": COMMIT}
    hub["train"] = "data/train-*.parquet"
    hub["validation"] = "data/validation-*.parquet"
    file.write_text(json.dumps({"corpus": "letters", "hub": hub | changes}))


def describe_folder(file, train, validation, **changes):
    """The files are those of the folder of `file`."""
    changes |= {"path": str(file.parent), "revision": None}
    describe(file, train=train, validation=validation, **changes)


def fetched(data_dir):
    """The texts in data/raw; source.json is left out."""
    raw = data_dir.parent / "raw"
    texts = {}
    for path in raw.rglob("*.*"):
        if path.name != "source.json":
            texts[str(path.relative_to(raw))] = path.read_bytes().decode()
    return texts


def files_of(corpus):
    return {path: FILES[path] for path in FILES if path.startswith(corpus)}


def fetch_pinned(corpus):
    fetch.fetch(corpus, list(files_of(corpus)))


def fetch_letters():
    fetch.fetch("letters", list(TEXTS))


def offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


# Pinned corpora


@pytest.mark.parametrize(
    ("corpus", "name", "column"),
    [
        ("wikitext2", WIKITEXT, "text"),
        ("ptb", PTB, "sentence"),
    ],
)
def test_rows_of_the_hub_are_the_pinned_text(data_dir, hub, corpus, name, column):
    """They lack the spaces and the line feed of a line. No test split is read."""
    write_parquet(hub.folder / name.format("test"), column, ["a secret"])
    for split, file in (("train", "train"), ("validation", "valid")):
        lines = FILES[f"{corpus}/{file}.txt"].splitlines()
        rows = [line.strip() for line in lines]
        write_parquet(hub.folder / name.format(split), column, rows)
    fetch_pinned(corpus)
    assert fetched(data_dir) == files_of(corpus)
    assert not [request for request in hub.requests if "test" in request]


def test_penn_treebank_of_its_own_site_if_the_hub_has_other_content(data_dir, hub):
    write_parquet(hub.folder / PTB.format("train"), "sentence", ["something else"])
    for path, text in files_of("ptb").items():
        write(hub.folder, f"plain/{path.replace('/', '/ptb.')}", text)
    fetch_pinned("ptb")
    assert fetched(data_dir) == files_of("ptb")


def test_other_content_is_refused(data_dir, hub):
    write_parquet(hub.folder / WIKITEXT.format("train"), "text", ["something else"])
    with raises_one_line(DataError, "sha256"):
        fetch_pinned("wikitext2")
    assert fetched(data_dir) == {}


def test_books_with_crlf_are_the_pinned_ones(data_dir, hub):
    for path, text in files_of("pg19").items():
        write(hub.folder, f"plain/{path}", text.replace("\n", "\r\n"))
    load_tokens("pg19", SMALL, data_dir=Path("nowhere"))
    assert fetched(data_dir) == files_of("pg19")


def test_books_that_arrived_are_kept(data_dir, hub):
    write(hub.folder, f"plain/{BOOK}", FILES[BOOK])
    with raises_one_line(DataUnavailable, r"9\.txt missing.*404"):
        fetch.fetch("pg19", [BOOK, "pg19/train/9.txt"])
    assert list(fetched(data_dir)) == [BOOK]


def test_gpt2_is_read_from_the_hub(data_dir, hub):
    write(hub.folder, "openai-community/gpt2/tokenizer.json", "{}\n")
    fetch.fetch("gpt2", [fetch.GPT2_FILE])
    assert fetched(data_dir) == {fetch.GPT2_FILE: "{}\n"}


def test_a_pinned_corpus_has_no_source(hub):
    assert corpora.source_of("ptb") is None
    corpora.check_source("ptb", {"path": "of runs before it was pinned"}, "a run")


# Faults


def test_an_unreachable_site_is_tried_once(data_dir, monkeypatch):
    """Each of two: the hub and the own site of Penn Treebank."""
    tried = []

    def refuse(address, timeout):
        tried.append((*address, timeout))
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("socket.create_connection", refuse)
    with raises_one_line(DataUnavailable, "refused.*CROPE_DATA_DIR") as caught:
        load_tokens("ptb", SMALL, data_dir=data_dir / "empty")
    assert tried == 2 * [("127.0.0.1", 9, 3.0)]
    assert str(data_dir) not in str(caught.value)


@pytest.mark.parametrize("max_bytes", [None, 4000], ids=["whole", "slice"])
@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("silent", "Timeout"),
        ("401", "401"),
        ("500", "500"),
    ],
)
def test_a_fault_is_one_line_and_the_second_attempt_succeeds(
    letters, hub, data_dir, fault, word, max_bytes
):
    describe(letters, max_bytes=max_bytes)
    hub.fault = fault
    with raises_one_line(DataUnavailable, rf"letters/train\.txt.*{word}"):
        fetch_letters()
    assert len(hub.requests) == 1
    assert not fetched(data_dir)
    hub.fault = ""
    fetch_letters()
    assert len(fetched(data_dir)) == 2


def test_a_broken_book_is_asked_for_twice(data_dir, hub):
    hub.fault = "500"
    with raises_one_line(DataUnavailable, "500"):
        fetch.fetch("pg19", [BOOK])
    assert hub.requests == 2 * [f"GET /plain/{BOOK}"]


def test_proxies_are_asked(data_dir, hub, monkeypatch):
    monkeypatch.setenv("http_proxy", NOWHERE)
    monkeypatch.setattr(fetch, "PG19_URL", "http://site.invalid")
    with raises_one_line(DataUnavailable, "(?i)refused"):
        fetch.fetch("pg19", [BOOK])


@pytest.mark.parametrize("corpus", ["ptb", "pg19"])
def test_offline_no_site_is_asked(data_dir, hub, monkeypatch, corpus):
    offline(monkeypatch)
    with raises_one_line(DataUnavailable, "HF_HUB_OFFLINE"):
        fetch_pinned(corpus)
    assert not hub.requests


def test_what_arrived_is_not_asked_for_again_and_serves_offline(
    letters, hub, data_dir, monkeypatch
):
    hub.fault = "500"
    hub.fault_path = "*validation-0.parquet"
    with pytest.raises(DataUnavailable):
        fetch_letters()
    hub.fault = ""
    hub.requests = []
    fetch_letters()
    assert not [request for request in hub.requests if "train-0" in request]
    shutil.rmtree(data_dir.parent / "raw")
    hub.requests = []
    offline(monkeypatch)
    fetch_letters()
    assert fetched(data_dir) == TEXTS
    assert not hub.requests


# Corpora of one's own, by the section `hub` of a file in conf/data


def test_a_dataset_of_the_hub_becomes_tokens_that_name_it(letters, data_dir):
    tokens = load_tokens("letters", SMALL, data_dir=data_dir)
    assert fetched(data_dir) == TEXTS
    assert tokens.meta["source"]["hub"]["path"] == "owner/letters"
    assert tokens.meta["source"]["hub"]["revision"] == COMMIT


@pytest.mark.parametrize(
    "content",
    [
        "one\rtwo\r\nthree\n",
        "no line feed at the end",
        "\ufeffmark\n\ufeffmark\n",
        "a\u2028b\0c\x85\n",
    ],
)
@pytest.mark.parametrize(
    ("file", "end"),
    [
        ("own.txt", ""),
        ("row.jsonl", "\n"),
    ],
)
def test_a_text_is_the_same_by_every_route(letters, data_dir, content, file, end):
    """As a text file of one's own, and through `hub` as a text file and as a row, which ends a
    line.
    """
    folder = letters.parent
    write(folder, "own.txt", content)
    write(folder, "row.jsonl", json.dumps({"text": content}))
    write(folder, "valid.txt", "Another text.\n")
    describe_folder(letters, file, "valid.txt")
    fetch_letters()
    text = "".join(Document("letters", folder / "own.txt"))
    if not text.endswith("\n"):
        text += end
    assert fetched(data_dir)["letters/train.txt"] == text


def test_text_files_are_joined_by_whole_lines(letters, data_dir):
    """Compressed ones too."""
    for name, text in (("a1", "first"), ("a2", "\ufeffsecond\n"), ("b", "other\n")):
        content = gzip.compress(text.encode())
        (letters.parent / f"{name}.txt.gz").write_bytes(content)
    describe_folder(letters, "a*.txt.gz", "b.txt.gz")
    fetch_letters()
    assert fetched(data_dir)["letters/train.txt"] == "first\nsecond\n"


@pytest.mark.parametrize("validation", ["a.txt", "../{0.name}/a.txt", "link.txt"])
def test_splits_that_share_a_file_are_refused(letters, validation):
    """One of several, by any name."""
    folder = letters.parent
    write(folder, "a.txt", "one line\n")
    write(folder, "aa.txt", "another line\n")
    (folder / "link.txt").symlink_to("a.txt")
    describe_folder(letters, "a*.txt", validation.format(folder))
    with raises_one_line(ConfigError, "overlap"):
        fetch_letters()


@pytest.mark.parametrize("max_bytes", [None, 4000])
def test_splits_that_share_a_file_of_the_hub_are_refused(letters, data_dir, max_bytes):
    describe(letters, validation="data/train-0.parquet", max_bytes=max_bytes)
    with raises_one_line(ConfigError, "overlap"):
        fetch_letters()
    assert not fetched(data_dir)


@pytest.mark.parametrize("max_bytes", [None, 4000])
def test_splits_with_equal_rows_are_refused(letters, data_dir, max_bytes):
    """Also where the slice of one is longer than that of the other."""
    for name in ("a.txt", "b.txt"):
        write(letters.parent, name, TEXTS["letters/train.txt"])
    describe_folder(letters, "a.txt", "b.txt", max_bytes=max_bytes)
    with raises_one_line(DataError, "same text"):
        load_tokens("letters", SMALL, data_dir=data_dir)


# Slices: with max_bytes


def test_a_slice_has_whole_rows_of_so_many_bytes_and_validation_a_tenth(
    letters, hub, data_dir, tmp_path
):
    """A row has 5 characters, 9 bytes and a line feed. Nothing stays in the client's cache."""
    rows = 4000 * ["éééé!"]
    write_letters(hub, rows, ["another", *rows])
    describe(letters, max_bytes=1000)
    fetch_letters()
    assert fetched(data_dir)["letters/train.txt"] == 100 * "éééé!\n"
    assert fetched(data_dir)["letters/valid.txt"] == "another\n" + 9 * "éééé!\n"
    assert not list((tmp_path / "hf").rglob("*.parquet"))


def test_a_slice_that_is_too_short_can_be_corrected(letters, data_dir):
    describe(letters, max_bytes=100)
    with raises_one_line(ConfigError, "max_bytes=100"):
        fetch_letters()
    describe(letters, max_bytes=4000)
    fetch_letters()
    assert len(fetched(data_dir)) == 2


# Wrong sections, and sources that change


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"revision": None}, "revision"),
        ({"revision": "main"}, "main"),
        ({"revision": "missing"}, "missing"),
        ({"column": "body"}, "data.hub.column=body"),
        ({"train": "data/*.bin"}, "parquet"),
        ({"train": "data/none.csv"}, "no file data/none.csv"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"branch": "x"}, "branch"),
        ({"train": None}, "train"),
    ],
)
def test_a_wrong_hub_section_is_one_line(letters, data_dir, changes, word):
    describe(letters, **changes)
    with raises_one_line(UserError, word):
        load_tokens("letters", SMALL, data_dir=data_dir)
    assert not fetched(data_dir)


@pytest.mark.parametrize("changes", [{"revision": "v2"}, {"max_bytes": 4000}])
def test_a_changed_hub_section_needs_another_name(letters, data_dir, changes):
    """With the fetched texts, and while one of them is missing."""
    load_tokens("letters", SMALL, data_dir=data_dir)
    describe(letters, **changes)
    with raises_one_line(DataError, "source"):
        load_tokens("letters", SMALL, data_dir=data_dir)
    (data_dir.parent / "raw/letters/valid.txt").unlink()
    with raises_one_line(DataError, "source"):
        load_tokens("letters", SMALL, data_dir=data_dir)
    assert list(fetched(data_dir)) == ["letters/train.txt"]
