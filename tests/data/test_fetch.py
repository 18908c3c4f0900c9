"""Downloads: against a site on this machine that serves plain files, and parquet files as the hub
does.
"""

import http.server
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from crope.data.fetch import fetch, unreachable
from crope.data.tokens import load_tokens
from crope.errors import DataError, DataUnavailable
from tests.data.conftest import FILES, SMALL, write

WIKITEXT = "datasets/Salesforce/wikitext/resolve/main/wikitext-2-v1"
PTB = "datasets/ptb-text-only/ptb_text_only/resolve/refs%2Fconvert%2Fparquet/penn_treebank"


class Handler(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return str(
            Path(self.directory) / path.lstrip("/")
        )  # "%2F" stays a part of the revision's name

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the site serves: the hub, the PTB files and the PG-19 books are all there."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr("crope.data.fetch.PTB_URL", f"{url}/ptb")
    monkeypatch.setattr("crope.data.fetch.PG19_URL", f"{url}/pg19")
    yield folder
    server.shutdown()
    server.server_close()


def write_parquet(path: Path, column: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({column: rows}).to_parquet(path)


def fetched(data_dir: Path) -> dict[str, str]:
    raw = data_dir.parent / "raw"
    return {
        str(path.relative_to(raw)): path.read_bytes().decode()
        for path in raw.rglob("*")
        if path.is_file()
    }


def files_of(corpus: str) -> dict[str, str]:
    return {path: text for path, text in FILES.items() if path.startswith(f"{corpus}/")}


@pytest.mark.parametrize(
    ("corpus", "name", "column"),
    [
        ("wikitext2", f"{WIKITEXT}/{{}}-00000-of-00001.parquet", "text"),
        ("ptb", f"{PTB}/{{}}/0000.parquet", "sentence"),
    ],
)
def test_hub_rows_become_the_pinned_files(
    data_dir: Path, site: Path, corpus: str, name: str, column: str
) -> None:
    """PTB's rows are stripped lines there; WikiText-2's keep their line feed, but an empty line is
    "".
    """
    for split, file in (("train", "train"), ("validation", "valid")):
        lines = FILES[f"{corpus}/{file}.txt"].splitlines(keepends=True)
        rows = [line if line.strip() and corpus == "wikitext2" else line.strip() for line in lines]
        write_parquet(site / name.format(split), column, rows)
    fetch(corpus, list(files_of(corpus)))
    assert fetched(data_dir) == files_of(corpus)


def test_ptb_from_its_own_site_if_the_hub_has_other_content(data_dir: Path, site: Path) -> None:
    write_parquet(site / PTB / "train" / "0000.parquet", "sentence", ["something else"])
    for name in ("train", "valid"):
        write(site, f"ptb/ptb.{name}.txt", FILES[f"ptb/{name}.txt"])
    fetch("ptb", list(files_of("ptb")))
    assert fetched(data_dir) == files_of("ptb")


def test_books_with_crlf_are_fetched_and_tokenised(
    data_dir: Path, site: Path, tmp_path: Path
) -> None:
    for path, text in files_of("pg19").items():
        write(site, path, text.replace("\n", "\r\n"))
    tokens = load_tokens("pg19", SMALL, data_dir=tmp_path / "empty")
    assert fetched(data_dir) == files_of("pg19")
    assert tokens.meta["splits"]["validation"]["bytes"] == len(FILES["pg19/validation/7.txt"])


@pytest.mark.parametrize(
    ("served", "error", "word"), [("", DataUnavailable, "404"), ("Other\n", DataError, "sha256")]
)
def test_missing_and_other_content_are_one_line_and_what_arrived_is_kept(
    data_dir: Path, site: Path, served: str, error: type[Exception], word: str
) -> None:
    write(site, "pg19/train/10.txt", FILES["pg19/train/10.txt"])
    if served:
        write(site, "pg19/train/9.txt", served)
    with pytest.raises(error, match=word) as caught:
        fetch("pg19", ["pg19/train/10.txt", "pg19/train/9.txt"])
    assert type(caught.value) is error and "\n" not in str(caught.value)
    assert list(fetched(data_dir)) == ["pg19/train/10.txt"]


def test_an_unreachable_site_is_one_line_at_once(data_dir: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(DataUnavailable, match="CROPE_DATA_DIR") as caught:
        load_tokens("ptb", SMALL, data_dir=tmp_path / "empty")
    assert time.monotonic() - start < 5
    assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_offline_mode_and_proxies_are_respected(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "refused" in str(unreachable("http://hub.invalid")).lower()  # of the proxy
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in str(unreachable("http://hub.invalid"))
