"""Byte-level BPE, OpenAI's or trained on the train split, and encoding with all cores.

    load_gpt2(path)                GPT-2's vocabulary and merges, verified
    train_bpe(texts, vocab_size)   deterministic, exactly `vocab_size` entries
    encode(tokenizer, texts)       token ids, streamed

Neither has special tokens: text is only text (the string "<|endoftext|>" does not become id 50256).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from crope.config import GPT2_VOCAB_SIZE, TokenizerConfig
from crope.data.corpora import shown
from crope.errors import ConfigError, DataError

GPT2_FILE = "tokenizers/gpt2/tokenizer.json"
# Of vocabulary and merges (see vocabulary_sha256), not of the file: the hub's file and the one built from OpenAI's
# encoder.json and vocab.bpe hold the same ones in different JSON.
GPT2_SHA256 = "7af2255eedd60b16dd34cbba614d328a4b0726f23b66fb09c942a867f3ccac38"

# Between a visible character and a blank or line feed the pre-tokenizer (GPT-2's pattern) always cuts too, and no
# alternative of that pattern looks behind: pieces cut here have the ids of the whole text.
_CUT = re.compile(r"(?<=\S)(?=[ \n])")
_PIECE_CHARS = 1 << 16
_PIECES_AT_ONCE = 64


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raises ConfigError for a tokenizer that cannot exist, before any text is read."""
    if config.name == "gpt2" and config.vocab_size != GPT2_VOCAB_SIZE:
        raise ConfigError(f"tokenizer.vocab_size={config.vocab_size}: the gpt2 tokenizer has {GPT2_VOCAB_SIZE} entries")
    if config.name == "bpe" and config.vocab_size < 257:
        raise ConfigError(f"tokenizer.vocab_size={config.vocab_size}: must be at least 257, the bytes and one merge")
    if config.name not in ("gpt2", "bpe"):
        raise ConfigError(f"tokenizer.name={config.name!r}: there are gpt2, bpe")


def load_gpt2(path: Path) -> Tokenizer:
    """Reads a tokenizer.json; only its vocabulary and merges are used. Raises DataError if they are not GPT-2's."""
    remedy = "remove or replace it"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown(path)}: cannot be read ({type(error).__name__}); {remedy}") from None
    return read_gpt2(text, shown(path), remedy)


def read_gpt2(text: str, where: str, remedy: str) -> Tokenizer:
    """The same for the text of one; messages start with `where` and end with `remedy`."""
    try:
        vocabulary, merges = vocabulary_of(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a BPE tokenizer.json ({type(error).__name__}); {remedy}") from None
    if vocabulary_sha256(vocabulary, merges) != GPT2_SHA256:
        raise DataError(f"{where}: vocabulary or merges are not GPT-2's (sha256 differs); {remedy}")
    return _byte_level(models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in merges]))


def train_bpe(texts: Iterable[Iterable[str]], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with the 256 bytes as its alphabet, so that every text has ids. Texts are blocks, as `Document`s.

    Raises ConfigError where no pair of tokens occurs twice before `vocab_size` entries are reached.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer=trainer)
    reached = tokenizer.get_vocab_size()
    if reached != vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size}: the train split is too small for it, training ended at {reached} "
            f"entries; take {reached} or fewer"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Iterable[Iterable[str]]) -> Iterator[NDArray[Any]]:
    """Token ids of the texts one after the other, nothing between them: uint16 where the vocabulary fits, else uint32.

    Some megabytes of text at a time, in pieces that all cores share; the ids are those of encoding each text whole.
    """
    dtype = token_dtype(tokenizer.get_vocab_size())
    for batch in _batches(piece for text in texts for piece in pieces(text)):
        for encoding in tokenizer.encode_batch_fast(batch):
            yield np.array(encoding.ids, dtype)


def token_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def pieces(blocks: Iterable[str], chars: int = _PIECE_CHARS) -> Iterator[str]:
    """The text of the blocks in pieces of about `chars` characters, cut only where a cut changes no token."""
    left, searched = "", 0
    for block in blocks:
        left += block
        while (cut := _CUT.search(left, max(chars, searched))) is not None:
            yield left[: cut.start()]
            left, searched = left[cut.start() :], 0
        searched = len(left)
    yield left


def vocabulary_of(tokenizer_json: dict[str, Any]) -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges from the format of the `tokenizers` library; older files write a merge as "a b"."""
    model = tokenizer_json["model"]
    added = {token["content"]: token["id"] for token in tokenizer_json.get("added_tokens") or []}
    merges = [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in model["merges"]]
    return {**model["vocab"], **added}, merges


def vocabulary_sha256(vocabulary: dict[str, int], merges: list[list[str]]) -> str:
    """Identity of a tokenizer here, whatever file vocabulary and merges came in."""
    return hashlib.sha256(json.dumps([vocabulary, merges], sort_keys=True).encode()).hexdigest()


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _batches(items: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for item in items:
        batch.append(item)
        if len(batch) == _PIECES_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
