"""Downloads: from the hub's protocol on loopback, with faults, and from a site of plain files."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pandas as pd
import pytest

from crope.config import ROOT, HubConfig
from crope.data import corpora, fetch
from crope.data.corpora import corpus_sha256
from crope.data.tokens import load_tokens
from crope.errors import ConfigError, DataError, DataUnavailable
from tests.conftest import raises_one_line
from tests.data.conftest import FILES, NOWHERE, SMALL, write
from tests.data.hub import COMMIT, FAULTS, Hub, serve

WIKITEXT = "Salesforce/wikitext/wikitext-2-v1/{}-00000-of-00001.parquet"
PTB = "ptb-text-only/ptb_text_only/penn_treebank/{}/0000.parquet"
ROWS = {
    "train": [f"row {i}: the board of the group is new" for i in range(400)],
    "validation": [f"row {i}: the chairman is new" for i in range(60)],
}
TEXTS = {
    f"letters/{file}.txt": "".join(f"{row}\n" for row in ROWS[split])
    for split, file in (("train", "train"), ("validation", "valid"))
}
SLICE = 4000  # bytes; a file of ROWS has 16,000


@pytest.fixture
def hub(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that also has the PTB files and the PG-19 books, and an empty cache of its client."""
    (tmp_path / "site").mkdir()
    (tmp_path / "conf").mkdir()
    huggingface_hub.close_session()  # which remembers the proxy of another test
    with serve(tmp_path / "site") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # What the libraries read from the environment when they are imported.
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "hf" / "hub"),
            "HF_HUB_DOWNLOAD_TIMEOUT": 0.3,
            "HF_TOKEN_PATH": str(tmp_path / "hf" / "token"),
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        no_pause = SimpleNamespace(sleep=lambda _: None)  # before a request is repeated
        monkeypatch.setattr("huggingface_hub.utils._http.time", no_pause)
        monkeypatch.setattr("huggingface_hub.file_download.time", no_pause)
        monkeypatch.setattr("crope.data.fetch.PTB_URL", f"{server.url}/plain/ptb")
        monkeypatch.setattr("crope.data.fetch.PG19_URL", f"{server.url}/plain/pg19")
        yield server


@pytest.fixture
def letters(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of the hub, `letters` with ROWS; its file in conf/data is returned."""
    for split, rows in ROWS.items():
        write_parquet(hub.folder / f"owner/letters/data/{split}-0.parquet", "text", rows)
    monkeypatch.setattr("crope.data.corpora.CONF_DIR", tmp_path / "conf")
    return describe(tmp_path / "conf/letters.yaml")


def describe(file: Path, ending: str = "parquet", **changes: object) -> Path:
    hub = {split: f"data/{split}-*.{ending}" for split in ROWS}
    hub |= {"path": "owner/letters", "revision": COMMIT} | changes
    file.write_text(json.dumps({"corpus": "letters", "hub": hub}))
    return file


def write_parquet(path: Path, column: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({column: rows}).to_parquet(path, row_group_size=50)


def fetched(data_dir: Path) -> dict[str, str]:
    raw = data_dir.parent / "raw"
    return {
        str(path.relative_to(raw)): path.read_bytes().decode()
        for path in raw.rglob("*")
        if path.is_file() and path.name != "source.json"
    }


def files_of(corpus: str) -> dict[str, str]:
    return {path: text for path, text in (FILES | TEXTS).items() if path.startswith(f"{corpus}/")}


def fetch_files(corpus: str = "letters") -> None:
    fetch.fetch(corpus, list(files_of(corpus)))


def write_pinned_rows(hub: Hub, corpus: str) -> None:
    """PTB's rows are stripped lines there; WikiText-2's keep their line feed, but an empty line is
    "".
    """
    name, column = {"wikitext2": (WIKITEXT, "text"), "ptb": (PTB, "sentence")}[corpus]
    for split, file in (("train", "train"), ("validation", "valid"), ("test", "valid")):
        lines = FILES[f"{corpus}/{file}.txt"].splitlines(keepends=True)
        rows = [line if line.strip() and corpus == "wikitext2" else line.strip() for line in lines]
        write_parquet(hub.folder / name.format(split), column, rows)


@pytest.mark.parametrize("corpus", ["wikitext2", "ptb"])
def test_hub_rows_become_the_pinned_files_and_no_test_split_is_read(
    data_dir: Path, hub: Hub, corpus: str
) -> None:
    write_pinned_rows(hub, corpus)
    fetch_files(corpus)
    assert fetched(data_dir) == files_of(corpus)
    assert hub.requests and not [request for request in hub.requests if "test" in request]


def test_ptb_from_its_own_site_if_the_hub_has_other_content(data_dir: Path, hub: Hub) -> None:
    write_parquet(hub.folder / PTB.format("train"), "sentence", ["something else"])
    for name in ("train", "valid"):
        write(hub.folder, f"plain/ptb/ptb.{name}.txt", FILES[f"ptb/{name}.txt"])
    fetch_files("ptb")
    assert fetched(data_dir) == files_of("ptb")


def test_other_content_of_the_hub_is_refused(data_dir: Path, hub: Hub) -> None:
    for split in ROWS:
        write_parquet(hub.folder / WIKITEXT.format(split), "text", ["something else"])
    with pytest.raises(DataError, match="sha256"):
        fetch_files("wikitext2")
    assert fetched(data_dir) == {}


def test_books_with_crlf_are_fetched_and_tokenised(
    data_dir: Path, hub: Hub, tmp_path: Path
) -> None:
    for path, text in files_of("pg19").items():
        write(hub.folder, f"plain/{path}", text.replace("\n", "\r\n"))
    tokens = load_tokens("pg19", SMALL, data_dir=tmp_path / "empty")
    assert fetched(data_dir) == files_of("pg19")
    assert tokens.meta["splits"]["validation"]["bytes"] == len(FILES["pg19/validation/7.txt"])


@pytest.mark.parametrize(
    ("served", "error", "word"), [("", DataUnavailable, "404"), ("Other\n", DataError, "sha256")]
)
def test_missing_and_other_content_are_one_line_and_what_arrived_is_kept(
    data_dir: Path, hub: Hub, served: str, error: type[Exception], word: str
) -> None:
    write(hub.folder, "plain/pg19/train/10.txt", FILES["pg19/train/10.txt"])
    if served:
        write(hub.folder, "plain/pg19/train/9.txt", served)
    with raises_one_line(error, word) as caught:
        fetch.fetch("pg19", ["pg19/train/10.txt", "pg19/train/9.txt"])
    assert type(caught.value) is error
    assert list(fetched(data_dir)) == ["pg19/train/10.txt"]


def test_an_unreachable_site_is_one_line_at_once(data_dir: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    with raises_one_line(DataUnavailable, "CROPE_DATA_DIR") as caught:
        load_tokens("ptb", SMALL, data_dir=tmp_path / "empty")
    assert time.monotonic() - start < 5
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("corpus", ["ptb", "pg19"])
def test_offline_mode_and_proxies_are_respected(
    data_dir: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, corpus: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("crope.data.fetch.PTB_URL", "http://site.invalid")
    monkeypatch.setattr("crope.data.fetch.PG19_URL", "http://site.invalid")
    monkeypatch.setenv("http_proxy", NOWHERE)
    with pytest.raises(DataUnavailable, match=r"(?i)refused"):  # by the proxy
        fetch_files(corpus)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataUnavailable, match="HF_HUB_OFFLINE"):
        fetch_files(corpus)


@pytest.mark.parametrize("local", [False, True], ids=["hub", "folder"])
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "txt"])
def test_a_file_in_conf_data_makes_a_corpus(
    letters: Path, hub: Hub, data_dir: Path, ending: str, local: bool
) -> None:
    """From each builder's files, tokenised; its source is in meta.json."""
    folder = hub.folder / "owner/letters"
    for split, rows in ROWS.items():
        table, file = pd.DataFrame({"body": rows}), folder / f"data/{split}-1.{ending}"
        if ending == "parquet":
            table.to_parquet(file)
            (folder / f"data/{split}-0.parquet").unlink()
        elif ending == "jsonl":
            table.to_json(file, orient="records", lines=True)
        elif ending == "csv":
            table.to_csv(file, index=False)
        else:
            file.write_text("\n".join(rows))
    where = {"path": str(folder), "revision": None} if local else {"revision": COMMIT}
    column = "text" if ending == "txt" else "body"
    describe(letters, ending, column=column, **where)
    tokens = load_tokens("letters", SMALL, data_dir=data_dir)
    assert fetched(data_dir) == TEXTS
    source = {"path": "owner/letters", "max_bytes": None} | where
    assert tokens.meta["source"]["hub"].items() >= source.items()
    assert bool(hub.requests) != local


def test_an_empty_cell_is_an_empty_row(letters: Path, hub: Hub, data_dir: Path) -> None:
    folder = hub.folder / "owner/letters"
    for split, rows in ROWS.items():
        lines = [{"body": text, "n": 1} for text in rows] + [{"body": None, "n": 2}]
        pd.DataFrame(lines).to_json(folder / f"data/{split}-1.jsonl", orient="records", lines=True)
    describe(letters, "jsonl", column="body", path=str(folder), revision=None)
    load_tokens("letters", SMALL, data_dir=data_dir)
    assert fetched(data_dir) == {name: f"{text}\n" for name, text in TEXTS.items()}


def test_a_slice_is_streamed_and_no_longer_than_max_bytes(
    letters: Path, hub: Hub, data_dir: Path, tmp_path: Path
) -> None:
    """Whole rows from the start; the validation split is a tenth as long. Nothing stays in the
    client's cache.
    """
    rows = [f"{i}{i:_>5000}" for i in range(4000)]
    write_parquet(hub.folder / "owner/letters/data/train-0.parquet", "text", rows)
    describe(letters, max_bytes=100_000)
    fetch_files()
    texts = fetched(data_dir)
    assert texts["letters/train.txt"] == "".join(f"{row}\n" for row in rows[:19])
    assert texts["letters/valid.txt"] == TEXTS["letters/valid.txt"]
    assert not list((tmp_path / "hf").rglob("*.parquet"))
    shutil.rmtree(tmp_path / "raw")
    describe(letters, max_bytes=100)
    with pytest.raises(ConfigError, match="max_bytes=100"):
        fetch_files()
    describe(letters, max_bytes=100_000, validation="data/text")
    with pytest.raises(ConfigError, match="parquet"):  # after the training split has arrived
        fetch_files()
    describe(letters, max_bytes=100_000)  # corrected
    fetch_files()
    assert fetched(data_dir) == texts


@pytest.mark.parametrize(
    ("fault", "ending", "max_bytes"),
    [
        *((fault, "parquet", None) for fault in FAULTS),
        *((fault, "parquet", SLICE) for fault in FAULTS),
        ("truncated", "txt", SLICE),  # a shorter text looks valid
    ],
)
def test_a_fault_is_one_line_and_the_second_attempt_succeeds(
    letters: Path, hub: Hub, data_dir: Path, fault: str, ending: str, max_bytes: int | None
) -> None:
    """A request is repeated once by us and once to continue a file: more would take minutes."""
    for split in ROWS:
        (hub.folder / f"owner/letters/data/{split}-0.txt").write_text("\n".join(ROWS[split]))
    describe(letters, ending, max_bytes=max_bytes)
    hub.fault = fault
    hub.fault_path = "/cdn*" if fault in ("truncated", "dies") else "*"
    with raises_one_line(DataUnavailable, r"letters/train\.txt"):
        fetch_files()
    assert max(map(hub.requests.count, hub.requests)) <= 2
    assert not fetched(data_dir)
    hub.fault = ""
    fetch_files()
    for path, text in fetched(data_dir).items():
        share = len(text) / (max_bytes or len(text)) * (10 if "valid" in path else 1)
        assert TEXTS[path].startswith(text) and (text == TEXTS[path] or 0.9 < share <= 1)


def test_a_slow_hub_is_waited_for(letters: Path, hub: Hub, data_dir: Path) -> None:
    hub.fault = "slow"
    fetch_files()
    assert fetched(data_dir) == TEXTS


def test_what_arrived_is_not_fetched_again_and_serves_offline(
    letters: Path, hub: Hub, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fault, hub.fault_path = "500", "*validation-0.parquet"
    with pytest.raises(DataUnavailable, match=r"letters/valid\.txt"):
        load_tokens("letters", SMALL, data_dir=tmp_path / "empty")
    hub.fault, hub.requests = "", []
    load_tokens("letters", SMALL, data_dir=tmp_path / "empty")
    assert hub.requests and not [request for request in hub.requests if "train-0" in request]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in TEXTS:
        (tmp_path / "raw" / path).unlink()
    hub.requests = []
    fetch_files()
    assert fetched(data_dir) == TEXTS and not hub.requests


@pytest.mark.parametrize("change", ["revision", "max_bytes", "own text", "no hub"])
def test_two_sources_of_one_name_are_refused(
    letters: Path, hub: Hub, data_dir: Path, change: str
) -> None:
    """Also while a file is missing, and with prepared tokens."""
    if change == "own text":
        for path in TEXTS:
            write(data_dir, path, "A text of mine, the board of the group.\n" * 60)
    else:
        load_tokens("letters", SMALL, data_dir=data_dir)
        if change == "no hub":
            letters.write_text("corpus: letters\n")
        else:
            describe(letters, **{change: "v2" if change == "revision" else SLICE})
    before = fetched(data_dir)
    with raises_one_line(DataError, "source"):
        load_tokens("letters", SMALL, data_dir=data_dir)
    if change not in ("own text", "no hub"):
        (data_dir.parent / "raw" / "letters" / "valid.txt").unlink()
        with pytest.raises(DataError, match="source"):
            load_tokens("letters", SMALL, data_dir=data_dir)
        del before["letters/valid.txt"]
    assert fetched(data_dir) == before


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"revision": None}, "revision"),
        ({"revision": "main"}, "main"),
        ({"column": "body"}, "text"),
        ({"train": "data/*.bin"}, "parquet"),
        ({"validation": "data/train-0.parquet"}, "overlap"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": "many"}, "max_bytes"),
        ({"branch": "x"}, "branch"),
        ({"train": None}, "train"),
    ],
)
def test_a_wrong_hub_section_is_one_line(
    letters: Path, data_dir: Path, changes: dict[str, object], word: str
) -> None:
    describe(letters, **changes)
    with raises_one_line(ConfigError, word):
        load_tokens("letters", SMALL, data_dir=data_dir)
    assert not fetched(data_dir)


def test_a_missing_revision_is_named(letters: Path, data_dir: Path) -> None:
    describe(letters, revision="missing", max_bytes=SLICE)
    with pytest.raises(DataUnavailable, match="missing"):
        fetch_files()


def test_gpt2_is_read_from_the_hub(data_dir: Path, hub: Hub) -> None:
    write(hub.folder, "openai-community/gpt2/tokenizer.json", "{}\n")
    fetch.fetch("gpt2", [fetch.GPT2_FILE])
    # The hub's JSON differs from one that was built of OpenAI's files; load_gpt2 verifies both.
    assert fetch.GPT2_FILE not in (ROOT / "data" / "checksums.txt").read_text()
    assert fetched(data_dir) == {fetch.GPT2_FILE: "{}\n"}


def test_pinned_corpora_have_no_source(hub: Hub) -> None:
    assert corpora.source_of("ptb") is None and isinstance(
        corpora.data_config("ptb").hub, HubConfig
    )
    corpora.check_source("ptb", {"path": "of runs before it was pinned"}, "a run")
    assert corpus_sha256("ptb", Path("nowhere"))
