"""Corpora: the files of each split, their canonical form and their checksums.

A corpus has two splits, train and validation; test splits are never read. A file `<corpus>/...` is
looked for in `data_dir`, then in RAW_DIR, where fetch.py writes. Files with a line in
data/checksums.txt are pinned: other content is refused. The other corpora, `<name>/train.txt` and
`<name>/valid.txt`, are the user's own, or fetched as the section `hub` of conf/data/<name>.yaml
says; source.json beside a fetched text has this section, and text from another source is refused.
"""

import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from crope.config import CACHE_DIR, ROOT, DataConfig
from crope.errors import ConfigError, DataError, DataUnavailable, one_line
from crope.files import read_json

SPLITS = ("train", "validation")
CHECKSUMS = ROOT / "data" / "checksums.txt"
CONF_DIR = ROOT / "conf" / "data"
RAW_DIR = CACHE_DIR / "raw"
SOURCE_FILE = "source.json"
WORD_LEVEL = ("ptb", "wikitext2")
BLOCK_CHARS = 1 << 20
# A line of sha256sum; the star marks a file that was read as binary.
CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")

Documents = dict[str, list[Iterable[str]]]  # by split; each an iterable of blocks of whole lines


@dataclass(frozen=True)
class Document:
    """A file. Iterating yields its canonical form in blocks of whole lines.

    Every iteration reads the file again: a corpus may be larger than memory. Raises OSError and
    UnicodeDecodeError.
    """

    corpus: str
    path: Path

    def __iter__(self) -> Iterator[str]:
        # Python's text mode ends a line at LF, CRLF or CR, and at no other character.
        with self.path.open(encoding="utf-8") as file:
            while lines := file.readlines(BLOCK_CHARS):
                yield canonical(self.corpus, "".join(lines))


def canonical(corpus: str, text: str) -> str:
    """The text with LF line endings and without byte order marks; each line of a word-level corpus
    is a space, words, a space (if empty, one space).

    Sources differ in just these points: the official PG-19 files have CRLF, the hub strips the
    spaces of PTB and of WikiText's empty lines, files that are joined keep their marks. The
    function is idempotent and acts on each line independently.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Only at the start of a line: WikiText-2 has 36 of these characters between words.
    text = re.sub("^\ufeff+", "", text, flags=re.MULTILINE)
    if corpus not in WORD_LEVEL:
        return text
    # strip(" "), because str.strip() would remove the no-break spaces that are words in WikiText-2.
    stripped = (line.strip(" ") for line in text.removesuffix("\n").split("\n"))
    return "".join(f" {words} \n" if words else " \n" for words in stripped)


def text_sha256(blocks: Iterable[str]) -> str:
    """The sha256 of the concatenated blocks in UTF-8."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.encode())
    return digest.hexdigest()


def checksums() -> dict[str, str]:
    """Pinned sha256 by relative path, from data/checksums.txt (the format of sha256sum).

    Raises DataError if the file is missing or damaged.
    """
    try:
        lines = CHECKSUMS.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"data/checksums.txt: not readable as UTF-8 ({type(error).__name__}); restore it with git"
        ) from error
    pinned = {}
    for line in filter(None, map(str.strip, lines)):
        match = CHECKSUM_LINE.fullmatch(line)
        if not match:
            raise DataError(
                f"data/checksums.txt: {line:.80} is no sha256 with a path; restore it with git"
            )
        pinned[match[2]] = match[1]
    return pinned


def corpus_files(corpus: str) -> dict[str, list[str]]:
    """Relative paths of each split in reading order.

    PG-19: the pinned books, sorted by id as text, or the first `books` of the training split; tiny
    has none. Raises ConfigError if there are not so many books.
    """
    if corpus == "tiny":
        return {split: [] for split in SPLITS}
    books = data_config(corpus).books
    if corpus != "pg19" and books is None:
        return {"train": [f"{corpus}/train.txt"], "validation": [f"{corpus}/valid.txt"]}
    pinned = sorted(checksums())
    train = [path for path in pinned if path.startswith("pg19/train/")]
    validation = [path for path in pinned if path.startswith("pg19/validation/")]
    if books is not None and not 1 <= books <= len(train):
        raise ConfigError(f"conf/data/{corpus}.yaml: books: {books} must be 1 to {len(train)}")
    return {"train": train[:books], "validation": validation}


def is_pinned(corpus: str) -> bool:
    """Whether every file of the corpus has a checksum."""
    pinned = checksums()
    return all(paths and pinned.keys() >= set(paths) for paths in corpus_files(corpus).values())


def data_config(corpus: str) -> DataConfig:
    """The content of conf/data/<corpus>.yaml. Raises ConfigError if it is invalid."""
    file = CONF_DIR / f"{corpus}.yaml"
    if not file.is_file():
        return DataConfig(corpus)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(DataConfig), OmegaConf.load(file))
        data: DataConfig = OmegaConf.to_object(merged)  # type: ignore[assignment]
        if data.hub and not data.hub.revision:
            raise ValueError("data.hub.revision: missing; give a commit, a tag or a named ref")
        return data
    # OSError: what OmegaConf raises for a file that is no mapping.
    except (ValueError, OSError, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"conf/data/{file.name}: {one_line(error)}") from error


def source_of(corpus: str) -> dict[str, Any] | None:
    """The source that a corpus without checksums is fetched from; None if it is pinned or the
    user's own.
    """
    hub = None if is_pinned(corpus) else data_config(corpus).hub
    return asdict(hub) if hub else None


def check_source(corpus: str, recorded: dict[str, Any] | None, what: str) -> None:
    """Raises DataError if `what` was made from another source than conf/data says: two corpora of
    one name would be mixed. A pinned one is known by its checksums, wherever it came from.
    """
    if not is_pinned(corpus) and recorded != source_of(corpus):
        raise DataError(
            f"{what} has another source ({recorded or 'text files'}) than conf/data/{corpus}.yaml; "
            "give the changed corpus another name"
        )


def find_file(relative: str, data_dir: Path) -> Path | None:
    """The file in `data_dir`, else in RAW_DIR, or None."""
    for folder in (data_dir, RAW_DIR):
        if (folder / relative).is_file():
            return folder / relative
    return None


def missing_files(corpus: str, data_dir: Path) -> list[str]:
    """Relative paths of the corpus that are in neither folder."""
    missing = []
    for relative in chain(*corpus_files(corpus).values()):
        if find_file(relative, data_dir) is None:
            missing.append(relative)
    return missing


def load_corpus(corpus: str, data_dir: Path) -> Documents:
    """The documents of each split (PG-19: one per book, otherwise one), after checking them.

    Raises DataUnavailable if a file is missing, DataError if one is empty, not UTF-8, not the
    pinned one, or of another source.
    """
    if corpus == "tiny":
        return tiny_corpus()
    texts: Documents = {}
    for split, files in corpus_files(corpus).items():
        texts[split] = [_verified(corpus, relative, data_dir) for relative in files]
    return texts


def corpus_sha256(corpus: str, data_dir: Path) -> dict[str, str]:
    """The sha256 that identifies each split's text: from data/checksums.txt if pinned, else of the
    text itself.

    For a pinned split of several files it is that of its lines in data/checksums.txt. Raises as
    load_corpus does, and DataError if both splits have one text.
    """
    digests = {}
    same = False
    if is_pinned(corpus):
        pinned = checksums()
        for split, paths in corpus_files(corpus).items():
            lines = [f"{pinned[path]}  {path}\n" for path in paths]
            digests[split] = pinned[paths[0]] if len(paths) == 1 else text_sha256(lines)
    else:
        texts = load_corpus(corpus, data_dir)
        for split, documents in texts.items():
            digests[split] = text_sha256(chain(*documents))
        if source_of(corpus):
            # Slices of the same rows differ in length (max_bytes), but start alike.
            train, validation = (next(iter(documents[0])) for documents in texts.values())
            same = train.startswith(validation)
    if same or digests["train"] == digests["validation"]:
        raise DataError(f"{corpus}: both splits are the same text; give validation another text")
    return digests


def _verified(corpus: str, relative: str, data_dir: Path) -> Document:
    """A file of the corpus. Raises as load_corpus does."""
    path = find_file(relative, data_dir)
    if path is None:
        raise DataUnavailable(missing_text(corpus, missing_files(corpus, data_dir)))
    where = "data/raw" if path.absolute().is_relative_to(RAW_DIR) else "data_dir"
    if not is_pinned(corpus):
        check_source(corpus, read_source(path.parent), f"{relative} (from {where})")
    document = Document(corpus, path)
    check_content(relative, document, where=where)
    return document


def read_source(folder: Path) -> dict[str, Any] | None:
    """The source.json beside a fetched text; None without one."""
    try:
        return read_json(folder / SOURCE_FILE)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{folder.name}/{SOURCE_FILE}: damaged; replace or remove it") from error


def check_content(relative: str, blocks: Iterable[str], *, where: str) -> None:
    """Raises DataError if the text is unreadable or blank, or if the file is pinned and its sha256
    differs.

    Messages name the relative path and the kind of folder only, because the report prints them.
    """
    try:
        blank = not any(map(str.strip, blocks))
        digest = text_sha256(blocks)
    except (OSError, UnicodeDecodeError) as error:
        kind = type(error).__name__
        raise DataError(
            f"{relative} (from {where}): not readable as UTF-8 ({kind}); convert or replace it"
        ) from error
    if blank:
        raise DataError(f"{relative} (from {where}): the file is empty; replace or remove it")
    if checksums().get(relative) not in (None, digest):
        raise DataError(
            f"{relative} (from {where}): sha256 differs from data/checksums.txt; replace or remove it"
        )


def missing_text(corpus: str, missing: Sequence[str], remedy: str = "") -> str:
    """The one line for files that are in no folder."""
    files = missing[0] if len(missing) == 1 else f"{len(missing)} files ({missing[0]}, ...)"
    remedy = remedy or "copy them there, layout in data/README.md"
    where, named = "data_dir", os.environ.get("CROPE_DATA_DIR", "")
    if named and not Path(named).is_dir():  # data_dir=DIR may name another
        where = f"CROPE_DATA_DIR={named}, which does not exist,"
    return f"{corpus}: {files} missing in {where} and data/raw; {remedy}"


def tiny_corpus() -> Documents:
    """English prose that ships with Python: pydoc's help topics, about 0.5 MB.

    Topics are sorted and separated by a blank line; validation is the last tenth of the characters,
    rounded to whole topics. The text varies with the Python version, so it is not pinned.
    """
    from pydoc_data.topics import topics

    texts = [topics[name].strip("\n") + "\n" for name in sorted(topics)]
    cut = bisect_left(list(accumulate(map(len, texts))), 0.9 * sum(map(len, texts))) + 1
    parts = {"train": texts[:cut], "validation": texts[cut:]}
    return {split: [["\n".join(part)]] for split, part in parts.items()}
