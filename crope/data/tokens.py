"""Token arrays of a corpus: tokenizers, encoding and files.

    data/tokens/ptb-bpe4096-3f0c9a7be21d/
        train.npy, validation.npy    1-D, uint16 if the vocabulary fits, else uint32
        tokenizer.json               format of the `tokenizers` library
        meta.json                    source, tokenizer, counts of tokens, words, bytes and lines,
                                     sha256

The folder's name hashes source and tokenizer settings. The folder appears complete or not at all.
Prepared tokens of a pinned corpus work without its text.
"""

import json
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from crope.config import CACHE_DIR, DataConfig, TokenizerConfig
from crope.data.corpora import SPLITS, Corpus, find_corpus
from crope.errors import ConfigError, DataError, UserError, log_line
from crope.files import json_sha256, read_json, sha256_file, write_json, write_text

TOKENS_DIR = CACHE_DIR / "tokens"
TOKENS_FORMAT = 2  # to be raised when the same corpus and tokenizer give other files
GPT2_FILE = "tokenizers/gpt2/tokenizer.json"
# Of vocabulary and merges (vocabulary_of): the hub's file and one built from OpenAI's files
# differ in their JSON.
GPT2_SHA256 = "7af2255eedd60b16dd34cbba614d328a4b0726f23b66fb09c942a867f3ccac38"

# GPT-2's pre-tokenizer always splits between a visible character and a space or line feed, and no
# alternative of its pattern looks behind: pieces cut here have the token ids of the whole text.
_CUT = re.compile(r"(?<=\S)(?=[ \n])")


@dataclass(frozen=True)
class TokenSet:
    """A prepared corpus; `train` and `validation` are 1-D arrays of token ids, mapped from disk."""

    folder: Path
    meta: dict[str, Any]
    train: NDArray[Any]
    validation: NDArray[Any]

    def check_length(self, seq_len: int) -> None:
        """Raises ConfigError if a split holds no window of seq_len tokens plus one target."""
        for split in SPLITS:
            count = len(getattr(self, split))
            if count < seq_len + 1:
                raise ConfigError(
                    f"train.seq_len={seq_len}: the {split} split has only {count:,} tokens; choose"
                    f" at most {count - 1} or a larger dataset"
                )


def load_tokens(data: DataConfig, tokenizer: TokenizerConfig, *, data_dir: Path) -> TokenSet:
    """Opens the token files of a corpus; makes missing or corrupt ones first, fetching text if
    needed.

    Raises DataUnavailable if the text cannot be found, DataError if it is corrupt, ConfigError if
    it is too small for the vocabulary, OSError if a write fails.
    """
    corpus = find_corpus(data, data_dir)
    source = corpus.sha256()
    folder = _folder(corpus.name, source, tokenizer)
    if tokens := open_tokens(folder):
        return tokens
    log_line(f"preparing {corpus.name}: tokenizer {tokenizer.name} ({tokenizer.vocab_size:,})")
    TOKENS_DIR.mkdir(parents=True, exist_ok=True)
    # A soft lock, in its place, would outlast a killed process.
    with FileLock(TOKENS_DIR / f".{corpus.name}.lock", fallback_to_soft=False):
        # Another process may have made them while this one waited.
        return open_tokens(folder) or _write_tokens(folder, corpus, source, tokenizer)


def make_tokens(
    corpora: Iterable[DataConfig], tokenizer: TokenizerConfig, *, data_dir: Path
) -> dict[str, UserError]:
    """Makes the token files of each corpus ahead of training, prints a line each, and returns the
    errors by corpus.

    Raises OSError: no other corpus could be written either.
    """
    failed: dict[str, UserError] = {}
    for data in corpora:
        try:
            tokens = load_tokens(data, tokenizer, data_dir=data_dir)
        except UserError as error:  # a corpus that cannot be had costs no other
            failed[data.corpus] = error
            log_line(f"error: {error}")
        else:
            counts = ", ".join(
                f"{split} {tokens.meta['splits'][split]['tokens']:,} tokens" for split in SPLITS
            )
            print(f"{data.corpus}: {counts}\n  {tokens.folder}", flush=True)
    return failed


def open_tokens(folder: Path) -> TokenSet | None:
    """Opens token files after verifying their sha256 (PG-19: 40 ms). None: they have to be made."""
    try:
        meta = read_json(folder / "meta.json")
        digests = {f"{split}.npy": meta["splits"][split]["sha256"] for split in SPLITS}
        digests["tokenizer.json"] = meta["tokenizer"]["file_sha256"]
        for name, digest in digests.items():
            if sha256_file(folder / name) != digest:
                return None
        return _map(folder, meta)
    except (OSError, ValueError, KeyError):
        return None


def load_gpt2(path: Path) -> Tokenizer:
    """Builds GPT-2's tokenizer from its tokenizer.json, vocabulary and merges only.

    Raises DataError if they are others.
    """
    vocabulary, merges = vocabulary_of(Tokenizer.from_file(str(path)))
    if json_sha256([vocabulary, merges]) != GPT2_SHA256:
        raise DataError(f"{path}: not GPT-2's vocabulary and merges; replace or remove it")
    return _byte_level(models.BPE(vocabulary, merges))


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains byte-level BPE with exactly `vocab_size` entries; deterministic.

    The alphabet is all 256 bytes, which encode every text; there are no special tokens. Raises
    ConfigError if no pair of tokens occurs twice before `vocab_size` is reached.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=sys.stderr.isatty(),
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(chain.from_iterable(map(pieces, texts)), trainer=trainer)
    reached = tokenizer.get_vocab_size()
    if reached != vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size={vocab_size}: the train split is too small, BPE training ended at {reached} "
            f"entries; set tokenizer.vocab_size to {reached} or less"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """Yields the token ids of the texts in order, nothing between them: those of each text encoded
    whole.

    Encodes some megabytes at a time, in pieces on all cores.
    """
    stream = chain.from_iterable(map(pieces, texts))
    while batch := list(islice(stream, 64)):
        for encoding in tokenizer.encode_batch_fast(batch):
            yield encoding.ids


def pieces(text: str, chars: int = 1 << 16) -> Iterator[str]:
    """Cuts a text into pieces of about `chars` characters, at places that change no token."""
    start = 0
    while cut := _CUT.search(text, start + chars):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def vocabulary_of(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns vocabulary, special tokens included, and merges."""
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokenizer.get_vocab(), [(a, b) for a, b in merges]


def _folder(corpus: str, source: dict[str, str], tokenizer: TokenizerConfig) -> Path:
    vocabulary = GPT2_SHA256 if tokenizer.name == "gpt2" else None
    made_from = {
        "format": TOKENS_FORMAT,
        "source": source,
        "tokenizer": [tokenizer.name, tokenizer.vocab_size, vocabulary],
    }
    digest = json_sha256(made_from)[:12]
    return TOKENS_DIR / f"{corpus}-{tokenizer.name}{tokenizer.vocab_size}-{digest}"


def _map(folder: Path, meta: dict[str, Any]) -> TokenSet:
    # "c": torch warns of arrays that cannot be written; the file stays as it is.
    arrays = [np.load(folder / f"{split}.npy", mmap_mode="c") for split in SPLITS]
    return TokenSet(folder, meta, *arrays)


def _write_tokens(
    folder: Path, corpus: Corpus, source: dict[str, str], config: TokenizerConfig
) -> TokenSet:
    """Encodes both splits into a partial folder, then renames it.

    `source` is Corpus.sha256. The caller holds the lock of the corpus.
    """
    texts = corpus.texts
    if config.name == "gpt2":  # its file is found or fetched as a text is
        gpt2 = Corpus("gpt2", {"train": [GPT2_FILE]}, {}, None, corpus.data_dir)
        tokenizer = load_gpt2(gpt2.paths[GPT2_FILE])
    else:
        tokenizer = train_bpe(texts["train"], config.vocab_size)

    building = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
    building.mkdir()
    try:
        write_text(building / "tokenizer.json", tokenizer.to_str())
        meta: dict[str, Any] = {  # no absolute path: meta.json is copied into published records
            "format": TOKENS_FORMAT,
            "corpus": corpus.name,
            "tokenizer": {
                "name": config.name,
                "vocab_size": config.vocab_size,
                "sha256": json_sha256(vocabulary_of(tokenizer)),
                "file_sha256": sha256_file(building / "tokenizer.json"),
            },
            "source": {"sha256": source},
            "splits": {
                split: _write_split(building / f"{split}.npy", tokenizer, texts[split])
                for split in SPLITS
            },
            "made_by": {"tokenizers": version("tokenizers"), "python": platform.python_version()},
        }
        if corpus.source:
            meta["source"]["hub"] = corpus.source
        write_json(building / "meta.json", meta)
        shutil.rmtree(folder, ignore_errors=True)  # corrupt, else it would have been opened
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _map(folder, meta)


def _write_split(path: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    """Writes the ids of a split as .npy and returns their entry in meta.json."""
    dtype = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
    parts = [np.array(ids, dtype) for ids in encode(tokenizer, texts)]
    np.save(path, np.concatenate(parts))
    return {
        "tokens": sum(map(len, parts)),
        "words": sum(len(text.split()) for text in texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "lines": sum(text.count("\n") for text in texts),
        "sha256": sha256_file(path),
        "dtype": dtype.name,
    }


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
