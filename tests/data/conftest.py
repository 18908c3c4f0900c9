"""A small world for the data stage: fake corpora with checksums of their own, and no way out to the network."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crope.config import TokenizerConfig
from crope.data.corpora import Sources
from crope.data.tokens import TokenSet, load_tokens
from tests.data.hub_server import Hub, Site, ptb_repository, wikitext_repository

PTB = {
    "train": " mr. <unk> is chairman of <unk> n.v. the dutch group \n the board of the group is new \n" * 40,
    "valid": " the chairman is new \n",
}
WIKITEXT2 = {
    "train": " \n = Senjō no Valkyria 3 = \n \n the game of the year @-@ 2 , the game \n" * 40,
    "valid": " \n = Robert = \n",
}
SMALL = TokenizerConfig(name="bpe", vocab_size=280)
BOOKS = {
    "train/10": "A short book.\n\nThe end of the short book.\n" * 30,
    "train/9": "Another book, naïve and short.\n" * 30,
    "validation/7": "The book of the end.\n\n  Fin",
}


def fake_files() -> dict[str, str]:
    """Canonical text by relative path."""
    files = {f"ptb/{name}.txt": text for name, text in PTB.items()}
    files |= {f"wikitext2/{name}.txt": text for name, text in WIKITEXT2.items()}
    return files | {f"pg19/{name}.txt": text for name, text in BOOKS.items()}


def kept(sources: Sources) -> list[str]:
    """Every file below raw_dir, whatever its name."""
    return sorted(str(path.relative_to(sources.raw_dir)) for path in sources.raw_dir.rglob("*") if path.is_file())


def load(corpus: str, sources: Sources, tokenizer: TokenizerConfig = SMALL) -> TokenSet:
    return load_tokens(corpus, tokenizer, **places(sources))


def places(sources: Sources) -> dict[str, Any]:
    """The folders that load_tokens and unavailable take."""
    return {
        "data_dir": sources.data_dir,
        "raw_dir": sources.raw_dir,
        "checksums": sources.checksums,
        "tokens_dir": sources.checksums.parent / "tokens",
    }


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Every fake corpus complete in data_dir, raw_dir empty."""
    lines = []
    for relative, text in fake_files().items():
        path = tmp_path / "local" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        lines.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {relative}\n")
    checksums = tmp_path / "checksums.txt"
    checksums.write_text("".join(lines), encoding="utf-8")
    return Sources(tmp_path / "local", tmp_path / "raw", checksums)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names resolve to this machine or not at all, whatever the environment says about proxies and mirrors."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            monkeypatch.delenv(name)
    # The discard port: nothing listens there, so a connection is refused at once.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("crope.data.hub.PTB_URL", "http://127.0.0.1:9/ptb")
    monkeypatch.setattr("crope.data.hub.PG19_URL", "http://127.0.0.1:9/pg19")


@pytest.fixture
def served() -> Iterator[Site]:
    server = Site()
    yield server
    server.close()


@pytest.fixture
def hub_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without repositories; HF_ENDPOINT names it, as a mirror's user would."""
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()


@pytest.fixture
def full_hub(hub_site: Hub, sources: Sources) -> Hub:
    """With both corpora, which are in no local folder."""
    shutil.rmtree(sources.data_dir)
    hub_site.repositories = {
        ("datasets", "Salesforce/wikitext", "main"): wikitext_repository(*WIKITEXT2.values()),
        ("datasets", "ptb-text-only/ptb_text_only", "refs/convert/parquet"): ptb_repository(*PTB.values()),
    }
    return hub_site


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def real() -> Sources:
    """The real text, where CROPE_DATA_DIR has it (CI does)."""
    folder = os.environ.get("CROPE_DATA_DIR", "")
    if not (Path(folder) / "ptb" / "train.txt").is_file():
        pytest.skip("needs the real text: set CROPE_DATA_DIR (layout in data/README.md)")
    return Sources(Path(folder))
