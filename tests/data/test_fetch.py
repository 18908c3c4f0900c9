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

from crope.config import DataConfig, HubConfig
from crope.data import corpora
from crope.data.corpora import Corpus
from crope.data.fetch import SITES
from crope.data.tokens import GPT2_FILE, load_tokens
from crope.errors import ConfigError, DataError, DataUnavailable, UserError
from tests.conftest import raises_one_line
from tests.data.conftest import DESCRIBED, FILES, SMALL, corpus_of, section, set_hub
from tests.data.hub import COMMIT, Hub

WIKITEXT = "Salesforce/wikitext", "wikitext-2-v1/{}-00000-of-00001.parquet", "text"
PTB = "ptb-text-only/ptb_text_only", "penn_treebank/{}/0000.parquet", "sentence"
REVISIONS = {WIKITEXT: "b08601e04326c79dfdd32d625aee71d232d685c3", PTB: "refs/convert/parquet"}
TEXTS = {
    "train.txt": "".join(f"row {i}: the board of the group is new\n" for i in range(400)),
    "valid.txt": 60 * "the chairman is new\n",
}
NO_DATA_DIR = Path("nowhere")


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
    monkeypatch.setitem(SITES, "ptb/", f"{server.url}/plain/ptb.")
    monkeypatch.setitem(SITES, "pg19/", f"{server.url}/plain/")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def describe(hub, monkeypatch):
    """Writes a dataset of the hub (the content of each file by its name), and describes it."""

    def describe_letters(files=(), **changes):
        train, validation = map(json_lines, TEXTS.values())
        files = {"train-0.jsonl": train, "valid-0.jsonl": validation, **dict(files)}
        hub.write_dataset("owner/letters", files)
        described = {"path": "owner/letters", "revision": COMMIT}
        described |= {"train": "train-*.jsonl", "validation": "valid-*.jsonl"}
        data = DataConfig("letters", HubConfig(**described | changes))
        monkeypatch.setitem(DESCRIBED, "letters", data)

    return describe_letters


def json_lines(text):
    return "".join(json.dumps({"text": line}) + "\n" for line in text.splitlines())


def write_pinned(hub, dataset, *texts):
    """Rows in parquet: the lines of each text, without the spaces around them."""
    repository, name, column = dataset
    files = {name.format("test"): b"a secret"}
    for split, text in zip(("train", "validation"), texts, strict=True):
        rows = [line.strip() for line in text.splitlines()]
        files[name.format(split)] = pd.DataFrame({column: rows}).to_parquet()
    hub.write_dataset(repository, files, revision=REVISIONS[dataset])


def fetched():
    """The texts in data/raw."""
    return {path.name: path.read_bytes().decode() for path in corpora.RAW_DIR.rglob("*.txt")}


def files_of(corpus):
    return {Path(path).name: FILES[path] for path in FILES if path.startswith(corpus)}


def fetch_all(corpus):
    _ = corpus_of(corpus, NO_DATA_DIR).paths


def load(corpus):
    return load_tokens(section(corpus), SMALL, data_dir=NO_DATA_DIR)


# Pinned corpora


@pytest.mark.parametrize(("corpus", "dataset"), [("wikitext2", WIKITEXT), ("ptb", PTB)])
def test_rows_of_the_hub_are_the_pinned_text(hub, corpus, dataset):
    """They lack the spaces and the line feed of a line. No test split is read."""
    write_pinned(hub, dataset, *files_of(corpus).values())
    fetch_all(corpus)
    assert fetched() == files_of(corpus)
    assert not [request for request in hub.requests if "test" in request]


def test_penn_treebank_of_its_own_site_if_the_hub_has_other_content(hub):
    write_pinned(hub, PTB, "something", "else")
    for name, text in files_of("ptb").items():
        hub.write(f"plain/ptb.{name}", text)
    fetch_all("ptb")
    assert fetched() == files_of("ptb")


def test_books_that_arrived_are_kept(hub):
    hub.write("plain/train/10.txt", FILES["pg19/train/10.txt"])
    with raises_one_line(DataUnavailable, r"2 files missing \(pg19/train/9\.txt.*404"):
        fetch_all("pg19")
    assert list(fetched()) == ["10.txt"]


def test_gpt2_is_read_from_the_hub(hub):
    revision = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    hub.write(f"openai-community/gpt2/resolve/{revision}/tokenizer.json", "{}\n")
    gpt2 = Corpus("gpt2", {"train": [GPT2_FILE]}, {}, None, NO_DATA_DIR)
    assert gpt2.paths[GPT2_FILE].read_text() == "{}\n"


# Faults


def test_an_unreachable_hub_is_one_line(data_dir):
    with raises_one_line(DataUnavailable, "no connection.*CROPE_DATA_DIR"):
        fetch_all("ptb")


@pytest.mark.parametrize(("fault", "word"), [("silent", "Timeout"), ("401", "401"), ("500", "500")])
def test_a_fault_is_one_line_and_the_second_attempt_succeeds(describe, hub, fault, word):
    """Of a slice too, whose requests have no time limit but the first."""
    describe(max_bytes=4000)
    hub.fault = fault
    with raises_one_line(DataUnavailable, rf"/train\.txt.*{word}"):
        fetch_all("letters")
    assert len([request for request in hub.requests if "letters" in request]) == 1
    hub.fault = ""
    fetch_all("letters")
    assert len(fetched()) == 2


def test_offline_no_site_is_asked(hub, monkeypatch):
    """Neither the hub nor a site of plain files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises_one_line(DataUnavailable, "HF_HUB_OFFLINE"):
        fetch_all("ptb")
    assert not hub.requests


def test_what_arrived_serves_offline(describe, hub, monkeypatch):
    describe()
    fetch_all("letters")
    shutil.rmtree(corpora.RAW_DIR)
    hub.requests = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fetch_all("letters")
    assert fetched() == TEXTS
    assert not hub.requests


def test_offline_a_pattern_needs_the_list_of_the_repositorys_files(describe, monkeypatch):
    """There may be more than the single files in the cache."""
    describe()
    for name in ("train-0.jsonl", "valid-0.jsonl"):
        where = {"repo_type": "dataset", "revision": COMMIT}
        huggingface_hub.hf_hub_download("owner/letters", name, **where)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises_one_line(DataUnavailable, "No cached tree"):
        fetch_all("letters")
    describe(train="train-0.jsonl", validation="valid-0.jsonl")
    fetch_all("letters")
    assert fetched() == TEXTS


# Corpora of one's own, by the section `hub`


CONTENT = "\ufeffone\rtwo\r\n\ufeffa\u2028b\0c\x85"


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        ("a.txt", CONTENT, ""),
        ("a.jsonl", json.dumps({"text": f"{CONTENT}\n"}), "\n"),
    ],
)
def test_a_text_has_its_lines_by_every_route(describe, name, content, end):
    """As a text file, and as a row, which ends a line."""
    describe({name: content.encode()}, train=name)
    fetch_all("letters")
    assert fetched()["train.txt"] == f"one\ntwo\na\u2028b\0c\x85{end}"


def test_text_files_are_joined_by_whole_lines(describe):
    """Compressed ones too."""
    files = {"a1.txt.gz": gzip.compress(b"first"), "a2.txt.gz": gzip.compress(b"second\n")}
    describe(files, train="a*.txt.gz")
    fetch_all("letters")
    assert fetched()["train.txt"] == "first\nsecond\n"


def test_a_pattern_of_any_folder_means_the_first_one_too(describe):
    """And one star no other folder; a name may look like a pattern."""
    files = {"a/b/train-1.txt": "deep\n", "train-[0].txt": "first\n", "a/train-2.txt": "a\n"}
    describe(files, train="**/train-*.txt")
    fetch_all("letters")
    assert fetched()["train.txt"] == "deep\na\nfirst\n"
    shutil.rmtree(corpora.RAW_DIR)
    describe(files, train="train-*.txt")
    fetch_all("letters")
    assert fetched()["train.txt"] == "first\n"


def test_splits_that_share_a_file_are_refused(describe):
    """One of several."""
    describe(train="*.jsonl")
    with raises_one_line(ConfigError, "overlap"):
        fetch_all("letters")


def test_a_slice_has_whole_rows_of_so_many_bytes_and_validation_a_tenth(describe, tmp_path):
    """A row has 5 characters, 9 bytes and a line feed. Nothing stays in the client's cache."""
    rows = json_lines(4000 * "éééé!\n")
    validation = json_lines("another\n") + rows
    describe({"train-0.jsonl": rows, "valid-0.jsonl": validation}, max_bytes=1000)
    fetch_all("letters")
    assert fetched()["train.txt"] == 100 * "éééé!\n"
    assert fetched()["valid.txt"] == "another\n" + 9 * "éééé!\n"
    assert not list((tmp_path / "hf").rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"revision": None}, "revision"),
        ({"revision": "main"}, "revision"),
        ({"revision": "missing"}, "missing"),
        ({"train": "none*.jsonl"}, "no file none"),
        ({"train": "train.csv"}, "train.csv"),
        ({"max_bytes": 10}, "empty"),
    ],
)
def test_a_wrong_hub_section_is_one_line(describe, changes, word):
    describe(**changes)
    with raises_one_line(UserError, word):
        load("letters")
    assert not fetched()


def test_a_changed_hub_section_is_fetched_anew_and_needs_another_name(describe):
    """Its 4,000 bytes hold 105 rows."""
    describe()
    before = load("letters").meta["source"]
    corpus_of("letters", NO_DATA_DIR).check_source(before, "a run")
    describe(max_bytes=4000)
    assert corpus_of("letters", NO_DATA_DIR).texts["train"][0].count("\n") == 105
    with raises_one_line(DataError, "another source"):
        corpus_of("letters", NO_DATA_DIR).check_source(before, "a run")
    ptb = corpus_of("ptb", NO_DATA_DIR)
    ptb.check_source({"hub": before["hub"], "sha256": ptb.sha256()}, "from before it was pinned")
