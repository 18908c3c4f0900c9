"""Downloads: from the hub's protocol on loopback, with faults, and from a site of plain files."""

import gzip
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pandas as pd
import pytest

from crope.data import corpora, fetch
from crope.data.tokens import load_tokens
from crope.errors import ConfigError, DataError, DataUnavailable, UserError
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, NOWHERE, SMALL, set_hub, write
from tests.data.hub import COMMIT, Hub

WIKITEXT = "Salesforce/wikitext/wikitext-2-v1/{}-00000-of-00001.parquet"
PTB = "ptb-text-only/ptb_text_only/penn_treebank/{}/0000.parquet"
TEXTS = {
    "letters/train.txt": "".join(f"row {i}: the board of the group is new\n" for i in range(400)),
    "letters/valid.txt": 60 * "the chairman is new\n",
}
BOOK = "pg19/train/10.txt"


@pytest.fixture
def hub(data_dir, tmp_path, monkeypatch):
    """A hub that also has the PTB files and the PG-19 books, and an empty cache of its client."""
    no_pause = SimpleNamespace(sleep=lambda _: None)  # before a request is repeated
    monkeypatch.setattr("huggingface_hub.utils._http.time", no_pause)
    # What the client has read from the environment when it was imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    huggingface_hub.close_session()  # it keeps the proxy of another test
    server = Hub(tmp_path / "site")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    set_hub(monkeypatch, server.url)
    monkeypatch.setattr("crope.data.fetch.PTB_URL", f"{server.url}/plain/ptb")
    monkeypatch.setattr("crope.data.fetch.PG19_URL", f"{server.url}/plain/pg19")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def describe(hub, tmp_path, monkeypatch):
    """Writes the file of conf/data that describes a dataset of the hub, with changes."""
    write_letters(hub, *TEXTS.values())
    monkeypatch.setattr("crope.data.corpora.CONF_DIR", tmp_path)

    def describe_letters(**changes):
        described = {
            "path": "owner/letters",
            "revision": COMMIT,
            "train": "data/train-*.parquet",
            "validation": "data/validation-*.parquet",
        }
        content = {"corpus": "letters", "hub": described | changes}
        (tmp_path / "letters.yaml").write_text(json.dumps(content))

    describe_letters()
    return describe_letters


@pytest.fixture
def describe_files(describe, hub):
    """The same for these files of the dataset: the content of each by its name."""

    def describe_them(files, train, validation, **changes):
        for name, content in files.items():
            (hub.folder / "owner/letters" / name).write_bytes(content)
        describe(train=train, validation=validation, **changes)

    return describe_them


def write_letters(hub, train, validation):
    data = hub.folder / "owner/letters/data"
    write_parquet(data / "train-0.parquet", "text", train)
    write_parquet(data / "validation-0.parquet", "text", validation)


def write_parquet(path, column, text):
    """The lines of a text, each without the spaces around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [line.strip() for line in text.splitlines()]
    pd.DataFrame({column: rows}).to_parquet(path, row_group_size=50)


def fetched():
    """The texts in data/raw; source.json is left out."""
    texts = {}
    for path in corpora.RAW_DIR.rglob("*.txt"):
        texts[str(path.relative_to(corpora.RAW_DIR))] = path.read_bytes().decode()
    return texts


def files_of(corpus):
    return {path: FILES[path] for path in FILES if path.startswith(corpus)}


def fetch_pinned(corpus):
    fetch.fetch(corpus, list(files_of(corpus)))


def fetch_letters():
    fetch.fetch("letters", list(TEXTS))


def load(corpus):
    return load_tokens(corpus, SMALL, data_dir=Path("nowhere"))


# Pinned corpora


@pytest.mark.parametrize(
    ("corpus", "name", "column"),
    [
        ("wikitext2", WIKITEXT, "text"),
        ("ptb", PTB, "sentence"),
    ],
)
def test_rows_of_the_hub_are_the_pinned_text(hub, corpus, name, column):
    """They lack the spaces and the line feed of a line. No test split is read."""
    write_parquet(hub.folder / name.format("test"), column, "a secret")
    for split, text in zip(("train", "validation"), files_of(corpus).values(), strict=True):
        write_parquet(hub.folder / name.format(split), column, text)
    fetch_pinned(corpus)
    assert fetched() == files_of(corpus)
    assert not [request for request in hub.requests if "test" in request]


def test_penn_treebank_of_its_own_site_if_the_hub_has_other_content(hub):
    write_parquet(hub.folder / PTB.format("train"), "sentence", "something else")
    for path, text in files_of("ptb").items():
        write(hub.folder, f"plain/{path.replace('/', '/ptb.')}", text)
    fetch_pinned("ptb")
    assert fetched() == files_of("ptb")


def test_other_content_is_refused(hub):
    write_parquet(hub.folder / WIKITEXT.format("train"), "text", "something else")
    with raises_one_line(DataError, "sha256"):
        fetch_pinned("wikitext2")
    assert not fetched()


def test_books_with_crlf_are_the_pinned_ones(hub):
    for path, text in files_of("pg19").items():
        write(hub.folder, f"plain/{path}", text.replace("\n", "\r\n"))
    load("pg19")
    assert fetched() == files_of("pg19")


def test_books_that_arrived_are_kept(hub):
    write(hub.folder, f"plain/{BOOK}", FILES[BOOK])
    with raises_one_line(DataUnavailable, r"9\.txt missing.*404"):
        fetch.fetch("pg19", [BOOK, "pg19/train/9.txt"])
    assert list(fetched()) == [BOOK]


def test_gpt2_is_read_from_the_hub(hub):
    write(hub.folder, "openai-community/gpt2/tokenizer.json", "{}\n")
    fetch.fetch("gpt2", [fetch.GPT2_FILE])
    assert (corpora.RAW_DIR / fetch.GPT2_FILE).read_text() == "{}\n"


def test_a_pinned_corpus_has_no_source(data_dir):
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


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("silent", "Timeout"),
        ("401", "401"),
        ("500", "500"),
    ],
)
def test_a_fault_is_one_line_and_the_second_attempt_succeeds(describe, hub, fault, word):
    """Of a slice too, whose requests have no time limit but the first."""
    describe(max_bytes=4000)
    hub.fault = fault
    with raises_one_line(DataUnavailable, rf"letters/train\.txt.*{word}"):
        fetch_letters()
    assert len(hub.requests) == 1
    assert not fetched()
    hub.fault = ""
    fetch_letters()
    assert len(fetched()) == 2


def test_a_broken_book_is_asked_for_twice(hub):
    hub.fault = "500"
    with raises_one_line(DataUnavailable, "500"):
        fetch.fetch("pg19", [BOOK])
    assert hub.requests == 2 * [f"GET /plain/{BOOK}"]


def test_proxies_are_asked(hub, monkeypatch):
    monkeypatch.setenv("http_proxy", NOWHERE)
    monkeypatch.setattr("crope.data.fetch.PG19_URL", "http://site.invalid")
    with raises_one_line(DataUnavailable, "(?i)refused"):
        fetch.fetch("pg19", [BOOK])


def test_offline_no_site_is_asked(hub, monkeypatch):
    """Neither the hub nor a site of plain files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises_one_line(DataUnavailable, "HF_HUB_OFFLINE"):
        fetch_pinned("ptb")
    assert not hub.requests


def test_what_arrived_serves_offline(describe, hub, monkeypatch):
    fetch_letters()
    shutil.rmtree(corpora.RAW_DIR)
    hub.requests = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fetch_letters()
    assert fetched() == TEXTS
    assert not hub.requests


# Corpora of one's own, by the section `hub` of a file in conf/data


def test_a_dataset_of_the_hub_becomes_tokens_that_name_it(describe):
    source = load("letters").meta["source"]["hub"]
    assert fetched() == TEXTS
    assert source["path"] == "owner/letters"
    assert source["revision"] == COMMIT


CONTENT = "\ufeffone\rtwo\r\n\ufeffa\u2028b\0c\x85"


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        ("a.txt", CONTENT, ""),
        ("a.jsonl", json.dumps({"text": CONTENT}), "\n"),
        ("a.jsonl", json.dumps({"text": f"{CONTENT}\n"}), "\n"),
    ],
)
def test_a_text_has_its_lines_by_every_route(describe_files, name, content, end):
    """As a text file, and as a row, which ends a line."""
    describe_files({name: content.encode(), "valid.txt": b"Another.\n"}, name, "valid.txt")
    fetch_letters()
    assert fetched()["letters/train.txt"] == f"one\ntwo\na\u2028b\0c\x85{end}"


def test_text_files_are_joined_by_whole_lines(describe_files):
    """Compressed ones too."""
    files = {}
    for name, text in (("a1", "first"), ("a2", "\ufeffsecond\n"), ("b", "other\n")):
        files[f"{name}.txt.gz"] = gzip.compress(text.encode())
    describe_files(files, "a*.txt.gz", "b.txt.gz")
    fetch_letters()
    assert fetched()["letters/train.txt"] == "first\nsecond\n"


@pytest.mark.parametrize("max_bytes", [None, 4000])
def test_splits_that_share_a_file_are_refused(describe, max_bytes):
    """One of several; also where a slice is streamed."""
    describe(train="data/*.parquet", max_bytes=max_bytes)
    with raises_one_line(ConfigError, "overlap"):
        fetch_letters()


def test_slices_with_equal_rows_are_refused(describe_files):
    """Also where the slice of one is longer than that of the other."""
    text = TEXTS["letters/train.txt"].encode()
    describe_files({"a.txt": text, "b.txt": text}, "a.txt", "b.txt", max_bytes=4000)
    with raises_one_line(DataError, "same text"):
        load("letters")


# Slices: with max_bytes


def test_a_slice_has_whole_rows_of_so_many_bytes_and_validation_a_tenth(describe, hub, tmp_path):
    """A row has 5 characters, 9 bytes and a line feed. Nothing stays in the client's cache."""
    rows = 4000 * "éééé!\n"
    write_letters(hub, rows, f"another\n{rows}")
    describe(max_bytes=1000)
    fetch_letters()
    assert fetched()["letters/train.txt"] == 100 * "éééé!\n"
    assert fetched()["letters/valid.txt"] == "another\n" + 9 * "éééé!\n"
    assert not list((tmp_path / "hf").rglob("*.parquet"))


def test_a_slice_that_is_too_short_can_be_corrected(describe):
    describe(max_bytes=100)
    with raises_one_line(ConfigError, "max_bytes=100"):
        fetch_letters()
    describe(max_bytes=4000)
    fetch_letters()
    assert len(fetched()) == 2


# Wrong sections, and sources that change


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"revision": None}, "revision"),
        ({"revision": "main"}, "main"),
        ({"revision": "missing"}, "missing"),
        ({"column": "body"}, "data.hub.column=body"),
        ({"train": "data/none.jsonl"}, "FileNotFoundError"),
        ({"train": "data/none*.jsonl"}, "no file data/none"),
        ({"train": "data/train.csv"}, "train.csv"),
        ({"max_bytes": 0}, "max_bytes"),
    ],
)
def test_a_wrong_hub_section_is_one_line(describe, changes, word):
    describe(**changes)
    with raises_one_line(UserError, word):
        load("letters")
    assert not fetched()


def test_a_changed_hub_section_needs_another_name(describe):
    """With the fetched texts, and while one of them is missing."""
    load("letters")
    describe(max_bytes=4000)
    with raises_one_line(DataError, "source"):
        load("letters")
    (corpora.RAW_DIR / "letters/valid.txt").unlink()
    with raises_one_line(DataError, "source"):
        load("letters")
    assert list(fetched()) == ["letters/train.txt"]
