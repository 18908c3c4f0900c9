"""Reaching out: the preflight is bounded in time, and what `datasets` delivers from a site becomes the pinned files.

The sites are on this machine: the raw files of PTB and PG-19 as their own hosts serve them. The hub itself (its API and
parquet files) is not imitated here.
"""

from __future__ import annotations

import http.server
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import fake_files

from crope.config import TokenizerConfig
from crope.data import hub
from crope.data.corpora import Sources, load_corpus
from crope.data.preflight import preflight, site
from crope.data.tokens import TokenSet, load_tokens
from crope.errors import DataError, DataUnavailable

SMALL = TokenizerConfig(name="bpe", vocab_size=280)


class Site(http.server.ThreadingHTTPServer):
    """Serves `files` (URL path -> bytes); refuses any CONNECT, as a proxy may."""

    files: dict[str, bytes]
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        data = self.server.files.get(self.path)
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if data and self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def do_CONNECT(self) -> None:
        self.send_error(403, "Forbidden by policy")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[Site]:
    server = Site(("127.0.0.1", 0), Handler)
    server.files, server.asked = {}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def load(corpus: str, sources: Sources) -> TokenSet:
    places = {"data_dir": sources.data_dir, "raw_dir": sources.raw_dir, "checksums": sources.checksums}
    return load_tokens(corpus, SMALL, tokens_dir=sources.checksums.parent / "tokens", **places)


def test_preflight_is_bounded_where_names_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(*_: Any, **__: Any) -> None:
        time.sleep(30)
        raise OSError("resolved at last")

    monkeypatch.setattr("socket.getaddrinfo", hanging)
    urls = [f"https://host{n}.invalid" for n in range(5)]
    start = time.monotonic()
    assert preflight(urls, timeout_s=0.4) == dict.fromkeys(urls, "no answer in 0.4 s")
    assert time.monotonic() - start < 1.5


def test_preflight_names_the_cause(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str, *_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    answers = preflight([served.url, "http://127.0.0.1:9"])
    assert list(answers) == ["http://127.0.0.1:9"] and "refused" in answers["http://127.0.0.1:9"]
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert preflight(["https://hub.invalid"]) == {"https://hub.invalid": "Name or service not known"}


@pytest.mark.parametrize("url", ["hub.example", "http://", "http://127.0.0.1:notaport"])
def test_an_endpoint_that_is_no_url(url: str) -> None:
    assert list(preflight([url])) == [url]


def test_a_proxy_counts_as_the_host(served: Site, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", served.url)
    refused = preflight(["https://hub.invalid"])
    assert refused == {"https://hub.invalid": "proxy 127.0.0.1: Tunnel connection failed: 403 Forbidden by policy"}
    monkeypatch.setenv("https_proxy", f"http://name:secret@{silent}")
    start = time.monotonic()
    slow = preflight(["https://hub.invalid"], timeout_s=0.4)["https://hub.invalid"]
    assert time.monotonic() - start < 1.5
    assert "secret" not in slow
    monkeypatch.setenv("http_proxy", served.url)  # no CONNECT for plain http: the proxy is there, that is all
    assert preflight(["http://hub.invalid"]) == {}
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert preflight([served.url]) == {}


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_is_respected(served: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert preflight([served.url]) == {served.url: f"{name} is set"}
    assert served.asked == []


def test_the_message_names_host_cause_and_ways_out(sources: Sources) -> None:
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable) as caught:
        load("wikitext2", sources)
    message = str(caught.value)
    assert message.startswith(f"wikitext2: 2 files (wikitext2/train.txt, ...) not in {sources.data_dir} or ")
    assert "(127.0.0.1:9: Connection refused)" in message and "\n" not in message
    for way_out in ("CROPE_DATA_DIR", "data/README.md", "HF_ENDPOINT", "data=tiny"):
        assert way_out in message


def test_credentials_of_a_url_are_not_shown() -> None:
    assert site("https://name:secret@mirror.example:8443/path") == "mirror.example:8443"


def test_missing_books_are_fetched_with_crlf_and_kept(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    books = {path.removeprefix("pg19"): text for path, text in fake_files().items() if path.startswith("pg19/")}
    served.files = {path: text.replace("\n", "\r\n").encode() for path, text in books.items()}
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    (sources.data_dir / "pg19" / "train" / "10.txt").unlink()
    (sources.data_dir / "pg19" / "validation" / "7.txt").unlink()
    tokens = load("pg19", sources)
    assert set(served.asked) == {"/train/10.txt", "/validation/7.txt"}
    assert f"fetching pg19: 2 files from {site(served.url)}" in capsys.readouterr().err
    assert (tokens.meta["source"]["kind"], tokens.meta["source"]["where"]) == ("hub", site(served.url))
    kept = sources.raw_dir / "pg19" / "train" / "10.txt"
    assert kept.read_bytes().decode() == books["/train/10.txt"]
    assert [path.name for path in sources.raw_dir.iterdir()] == ["pg19"]  # no cache is left behind
    monkeypatch.setattr(hub, "PG19_URL", "http://127.0.0.1:9")
    assert load_corpus("pg19", sources).kind == "local"


def test_ptb_comes_from_its_raw_files_where_the_hub_is_away(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {path: text for path, text in fake_files().items() if path.startswith("ptb/")}
    served.files = {path.replace("ptb/", "/ptb."): text.encode() for path, text in texts.items()}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    load("ptb", sources)
    assert {path: (sources.raw_dir / path).read_text(encoding="utf-8") for path in texts} == texts


def test_another_text_is_refused_and_not_kept(sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    served.files = {"/ptb.train.txt": b" another edition \n", "/ptb.valid.txt": b" the chairman is new \n"}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataError, match=r"ptb/train\.txt from 127\.0\.0\.1:\d+ has another sha256 than") as caught:
        load("ptb", sources)
    assert not isinstance(caught.value, DataUnavailable)
    assert not (sources.raw_dir / "ptb" / "train.txt").exists()
    assert (sources.raw_dir / "ptb" / "valid.txt").exists()


def test_a_site_that_lacks_the_file_is_unavailable(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=r"/ptb\.valid\.txt answered HTTP 404\);") as caught:
        load("ptb", sources)
    assert "\n" not in str(caught.value)
    assert list(sources.raw_dir.rglob("*.txt")) == []


def test_books_that_a_site_lacks_do_not_cost_the_others(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files = {"/train/9.txt": fake_files()["pg19/train/9.txt"].encode()}
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=r"pg19: 2 files \(pg19/train/10\.txt, \.\.\.\) not in"):
        load("pg19", sources)
    assert [path.name for path in sources.raw_dir.rglob("*.txt")] == ["9.txt"]
    with pytest.raises(DataUnavailable, match=rf"{site(served.url)}: {served.url}/train/10\.txt answered HTTP 404"):
        hub.fetch("pg19", ["pg19/train/10.txt"], sources)
    with pytest.raises(DataUnavailable, match=rf"{site(served.url)}: does not have all of them"):
        hub.fetch("pg19", ["pg19/train/9.txt", "pg19/train/10.txt"], sources)


def test_a_raw_folder_that_cannot_be_written_is_one_line(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files = {"/ptb.train.txt": fake_files()["ptb/train.txt"].encode()}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    (sources.data_dir / "ptb" / "train.txt").unlink()
    sources.raw_dir.write_text("a file in its place", encoding="utf-8")
    with pytest.raises(DataError, match=r"ptb/train\.txt: cannot be written \(.*\); free it or set CROPE_DATA_DIR$"):
        load("ptb", sources)
