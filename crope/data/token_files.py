"""Token files: a split as one flat .npy, in a folder named by what it was made from.

    data/tokens/ptb-bpe4096-3f0c9a7be21d/
        train.npy, validation.npy    1-D, uint16 where the vocabulary fits, else uint32
        tokenizer.json               as the `tokenizers` library writes it
        meta.json                    source, tokenizer, counts of tokens, words, bytes and lines, hashes

A folder is built beside its place and renamed whole: it exists complete or not at all, and is never changed.
PG-19 is encoded a book at a time, books in order of their id as text, nothing between them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crope.config import TokenizerConfig
from crope.data.corpora import SPLITS, CorpusText
from crope.data.tokenizer import encode, token_dtype, vocabulary_sha256
from crope.record import sha256_file, write_json, write_text

TOKENS_FORMAT = 1  # raise it when the same text and tokenizer would give other files


@dataclass(frozen=True)
class TokenSet:
    """A prepared corpus; `train` and `validation` are 1-D arrays of token ids, mapped from disk, read-only."""

    folder: Path
    meta: dict[str, Any]
    train: NDArray[Any]
    validation: NDArray[Any]

    @property
    def vocab_size(self) -> int:
        return int(self.meta["tokenizer"]["vocab_size"])


def open_tokens(folder: Path) -> TokenSet:
    """Raises ValueError, saying what is wrong, where the folder is not what its meta.json says."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = token_dtype(meta["tokenizer"]["vocab_size"])
        expected = {split: meta["splits"][split]["tokens"] for split in SPLITS}
        current = meta["format"] == TOKENS_FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"meta.json is damaged ({type(error).__name__})") from None
    if not current:
        raise ValueError(f"meta.json has format {meta['format']}, not {TOKENS_FORMAT}")
    if not (folder / "tokenizer.json").is_file():
        raise ValueError("tokenizer.json is missing")
    arrays = {}
    for split in SPLITS:
        path = folder / f"{split}.npy"
        try:
            array = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path.name} is damaged ({type(error).__name__})") from None
        if array.shape != (expected[split],) or array.dtype != dtype:
            raise ValueError(f"{path.name} has {array.size:,} tokens, meta.json says {expected[split]:,}")
        arrays[split] = array
    return TokenSet(folder, meta, arrays["train"], arrays["validation"])


def write_tokens(
    folder: Path, corpus: str, config: TokenizerConfig, text: CorpusText, tokenizer: Tokenizer
) -> TokenSet:
    """Encodes both splits and gives them the name `folder`; of two processes that do so, the first one's files stay."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _fill(building, corpus, config, text, tokenizer)
        _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return open_tokens(folder)


def _fill(folder: Path, corpus: str, config: TokenizerConfig, text: CorpusText, tokenizer: Tokenizer) -> None:
    splits = {}
    for split, documents in text.splits.items():
        ids = encode(tokenizer, documents)
        path = folder / f"{split}.npy"
        with path.open("wb") as file:
            np.save(file, ids)
            file.flush()
            os.fsync(file.fileno())
        splits[split] = {
            "tokens": ids.size,
            "words": sum(len(document.split()) for document in documents),
            "bytes": sum(len(document.encode()) for document in documents),
            "lines": sum(document.count("\n") for document in documents),
            "sha256": sha256_file(path),
            "dtype": ids.dtype.name,
        }
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    identity = {"name": config.name, "vocab_size": config.vocab_size, "sha256": vocabulary_sha256(tokenizer)}
    meta = {
        "format": TOKENS_FORMAT,
        "corpus": corpus,
        "tokenizer": identity,
        "source": {"kind": text.kind, "where": text.where, "sha256": text.sha256},
        "splits": splits,
        "made_by": {"tokenizers": version("tokenizers"), "python": platform.python_version()},
    }
    write_json(folder / "meta.json", meta)


def _publish(building: Path, folder: Path) -> None:
    """Gives the folder its name. Another process may have been first: then its files are used, unless damaged."""
    building.chmod(0o755)  # mkdtemp gives 0700, which a shared folder cannot use
    for _ in range(2):
        try:
            building.rename(folder)
            break
        except OSError:
            if not folder.exists():
                raise
        try:
            open_tokens(folder)
            return
        except ValueError:
            damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            with suppress(FileNotFoundError):  # another process that rebuilds it as well
                folder.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
