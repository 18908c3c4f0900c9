"""Token files: a split as one flat .npy, in a folder named by what it was made from.

    data/tokens/ptb-bpe4096-3f0c9a7be21d/
        train.npy, validation.npy    1-D, uint16 where the vocabulary fits, else uint32
        tokenizer.json               as the `tokenizers` library writes it
        meta.json                    source, tokenizer, counts of tokens, words, bytes and lines, hashes

A folder is built beside its place and renamed whole: it exists complete or not at all, and is never changed.
PG-19 is encoded a book at a time, books in order of their id as text, nothing between them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from crope.config import TokenizerConfig
from crope.data.corpora import SPLITS, CorpusText, shown
from crope.data.tokenizer import GPT2_SHA256, encode, token_dtype, vocabulary_of, vocabulary_sha256
from crope.errors import DataError
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


def folder_name(corpus: str, tokenizer: TokenizerConfig, source_sha256: dict[str, str]) -> str:
    """Named by content: two folders of one name hold the same files."""
    made_from = {
        "format": TOKENS_FORMAT,
        "source": source_sha256,
        "tokenizer": [tokenizer.name, tokenizer.vocab_size, GPT2_SHA256 if tokenizer.name == "gpt2" else None],
    }
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    return f"{corpus}-{tokenizer.name}{tokenizer.vocab_size}-{digest[:12]}"


def open_tokens(folder: Path) -> TokenSet:
    """Raises ValueError, saying what is wrong, where the folder is not what its name and its meta.json say.

    Everything is read and hashed each time: up to 40 ms for the arrays (PG-19, 41 MB), 150 ms for GPT-2's vocabulary.
    """
    meta = _read_meta(folder)
    vocab_size = meta["tokenizer"]["vocab_size"]
    _check_tokenizer_file(folder / "tokenizer.json", meta["tokenizer"])
    arrays = {split: _open_array(folder / f"{split}.npy", meta["splits"][split], vocab_size) for split in SPLITS}
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
    try:
        return open_tokens(folder)
    except ValueError as error:
        raise DataError(f"{shown(folder)}: {error}, though just written; check the disk") from None


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["format"] != TOKENS_FORMAT:
            raise ValueError(f"meta.json has format {meta['format']}, not {TOKENS_FORMAT}")
        tokenizer = TokenizerConfig(name=meta["tokenizer"]["name"], vocab_size=meta["tokenizer"]["vocab_size"])
        name = folder_name(meta["corpus"], tokenizer, meta["source"]["sha256"])
        counts = [meta["splits"][split][key] for split in SPLITS for key in ("tokens", "words", "bytes", "lines")]
        hashes = [meta["splits"][split]["sha256"] for split in SPLITS] + [meta["tokenizer"]["sha256"]]
    except OSError as error:
        raise ValueError(f"meta.json cannot be read ({error.strerror})") from None
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"meta.json is damaged ({type(error).__name__})") from None
    if not all(type(count) is int for count in [*counts, tokenizer.vocab_size]):
        raise ValueError("meta.json is damaged (a count is not a number)")
    if not all(type(digest) is str for digest in hashes):
        raise ValueError("meta.json is damaged (a sha256 is not text)")
    if name != folder.name:
        raise ValueError(f"meta.json is that of {name}")
    return dict(meta)


def _check_tokenizer_file(path: Path, expected: dict[str, Any]) -> None:
    try:
        vocabulary, merges = vocabulary_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} is damaged ({type(error).__name__})") from None
    if len(vocabulary) != expected["vocab_size"]:
        raise ValueError(f"{path.name} has {len(vocabulary):,} entries, meta.json says {expected['vocab_size']:,}")
    if vocabulary_sha256(vocabulary, merges) != expected["sha256"]:
        raise ValueError(f"{path.name} is another tokenizer than that of meta.json (sha256 of its vocabulary differs)")


def _open_array(path: Path, expected: dict[str, Any], vocab_size: int) -> NDArray[Any]:
    try:
        if sha256_file(path) != expected["sha256"]:
            raise ValueError(f"{path.name} is damaged (sha256 differs from meta.json)")
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from None
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} is no array of numbers ({type(error).__name__})") from None
    dtype = np.dtype(token_dtype(vocab_size))
    if array.shape != (expected["tokens"],) or array.dtype != dtype:
        found, wanted = f"{array.dtype} of shape {array.shape}", f"{dtype} of shape ({expected['tokens']},)"
        raise ValueError(f"{path.name} is {found}, meta.json says {wanted}")
    if array.size and array.max() >= vocab_size:
        raise ValueError(f"{path.name} has token id {array.max()}, the vocabulary ends at {vocab_size - 1}")
    return array


def _fill(folder: Path, corpus: str, config: TokenizerConfig, text: CorpusText, tokenizer: Tokenizer) -> None:
    splits = {}
    dtype = np.dtype(token_dtype(config.vocab_size))
    for split, documents in text.splits.items():
        counts = Counter(words=0, bytes=0, lines=0)
        path = folder / f"{split}.npy"
        tokens = _write_array(path, encode(tokenizer, [_counted(document, counts) for document in documents]), dtype)
        splits[split] = {"tokens": tokens, **counts, "sha256": sha256_file(path), "dtype": dtype.name}
    tokenizer_json = tokenizer.to_str()
    write_text(folder / "tokenizer.json", tokenizer_json)
    vocabulary = vocabulary_sha256(*vocabulary_of(json.loads(tokenizer_json)))
    identity = {"name": config.name, "vocab_size": config.vocab_size, "sha256": vocabulary}
    meta = {
        "format": TOKENS_FORMAT,
        "corpus": corpus,
        "tokenizer": identity,
        "source": {"kind": text.kind, "where": text.where, "sha256": text.sha256},
        "splits": splits,
        "made_by": {"tokenizers": version("tokenizers"), "python": platform.python_version()},
    }
    write_json(folder / "meta.json", meta)


def _counted(blocks: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """The blocks, which are of whole lines, while their words, bytes and line feeds are added up."""
    for block in blocks:
        counts.update(words=len(block.split()), bytes=len(block.encode()), lines=block.count("\n"))
        yield block


def _write_array(path: Path, parts: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> int:
    """The file that np.save would write of the parts together, without ever holding them; returns their length."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    length = 0
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (length,)})
        for part in parts:
            file.write(part.tobytes())
            length += part.size
        file.seek(0)  # numpy pads a header, so that one of a longer array takes the same room
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (length,)})
        file.flush()
        os.fsync(file.fileno())
    return length


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
                folder.rename(damaged / folder.name)  # inside, since it may be a file or a link
            shutil.rmtree(damaged, ignore_errors=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
