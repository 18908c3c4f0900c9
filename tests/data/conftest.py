"""Small corpora with checksums of their own, and a machine without network."""

import hashlib
import os
from pathlib import Path

import pytest

from crope.config import DataConfig, TokenizerConfig
from crope.data.corpora import find_corpus
from crope.data.fetch import SITES, _connect
from crope.plan.compose import group_files, group_values, typed

SMALL = TokenizerConfig("bpe", 280)
NOWHERE = "http://127.0.0.1:9"  # the discard port: a connection is refused at once
FILES = {
    "ptb/train.txt": " mr. <unk> is chairman of <unk> n.v. the dutch group \n the board of the group is new \n"
    * 40,
    "ptb/valid.txt": " the chairman is new \n zyzzyva \n zyzzyva \n zyzzyva \n",
    "wikitext2/train.txt": " \n = Senjō no Valkyria 3 = \n \n the game of the year @-@ 2 , the game \n"
    * 40,
    "wikitext2/valid.txt": " \n = Robert = \n",
    "pg19/train/10.txt": "A short book.\n\nThe end of the short book.\n" * 30,
    "pg19/train/9.txt": "Another book, naïve and short.\n" * 30,
    "pg19/validation/7.txt": "The book of the end.\n\n  Fin",
}


DESCRIBED = {}  # sections `data` of a test, by the name of the corpus


def section(name):
    """What DESCRIBED or conf/data says of a corpus; any other is the user's own."""
    if name in DESCRIBED or name not in group_files("data"):
        return DESCRIBED.get(name, DataConfig(name))
    return typed(DataConfig, group_values("data", name))


def corpus_of(name, data_dir):
    return find_corpus(section(name), data_dir)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder, relative, content):
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def set_hub(monkeypatch, url):
    """What HF_ENDPOINT says when the hub's client is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """A folder with all FILES, which are pinned; data/raw and data/tokens are empty folders beside
    it.
    """
    lines = ""
    for relative, text in FILES.items():
        write(tmp_path / "local", relative, text)
        lines += f"{sha256(text)}  {relative}\n"
    write(tmp_path, "checksums.txt", lines)
    monkeypatch.setattr("crope.data.corpora.CHECKSUMS", tmp_path / "checksums.txt")
    monkeypatch.setattr("crope.data.corpora.RAW_DIR", tmp_path / "raw")
    monkeypatch.setattr("crope.data.tokens.TOKENS_DIR", tmp_path / "tokens")
    return tmp_path / "local"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    set_hub(monkeypatch, NOWHERE)
    for start in ("ptb/", "pg19/"):
        monkeypatch.setitem(SITES, start, NOWHERE)
    _connect.cache_clear()


@pytest.fixture
def real_data():
    """The real corpora, if CROPE_DATA_DIR has them."""
    folder = Path(os.environ.get("CROPE_DATA_DIR", ""))
    if not (folder / "ptb/train.txt").is_file():
        pytest.skip("needs the real corpora: set CROPE_DATA_DIR (layout in data/README.md)")
    return folder
