"""Which text a corpus is, where its files are, and whether they are what data/checksums.txt says.

    load_corpus(corpus, sources)      the text of both splits, found in local folders and checked
    missing_files(corpus, sources)    what hub.py would have to fetch first
    source_sha256(corpus, sources)    names the text without reading it where it is pinned

A corpus has two splits here, train and validation; the test splits are never read. The pinned list of PG-19 books is
the list of `pg19/` lines in data/checksums.txt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from crope.config import CACHE_DIR, CORPORA, ROOT
from crope.data.text import Document, text_sha256
from crope.errors import ConfigError, DataError

PINNED = ("ptb", "wikitext2", "pg19")  # those with lines in data/checksums.txt
SPLITS = ("train", "validation")
CHECKSUMS = ROOT / "data" / "checksums.txt"
RAW_DIR = CACHE_DIR / "raw"

FILE_NAMES = {"train": "train.txt", "validation": "valid.txt"}


@dataclass(frozen=True)
class Sources:
    """Where raw files are looked for, first `data_dir`, then `raw_dir` (what was fetched), and what they must be."""

    data_dir: Path
    raw_dir: Path = RAW_DIR
    checksums: Path = CHECKSUMS

    @cached_property
    def pinned(self) -> dict[str, str]:
        """Relative path -> sha256 of the canonical file. Raises DataError for a malformed list."""
        return read_checksums(self.checksums)

    @property
    def roots(self) -> list[Path]:
        same = self.data_dir.resolve() == self.raw_dir.resolve()
        return [self.data_dir] if same else [self.data_dir, self.raw_dir]

    def find(self, relative: str) -> Path | None:
        return next((root / relative for root in self.roots if (root / relative).is_file()), None)

    def places(self) -> str:
        return " or ".join(shown(root) for root in self.roots)


@dataclass(frozen=True)
class CorpusText:
    """A split is a list of documents (PG-19: one a book; otherwise one in all)."""

    splits: dict[str, list[Document]]
    kind: str  # "local" or "builtin"; tokens.py says "hub" where it has just been fetched
    where: str
    sha256: dict[str, str]


def load_corpus(corpus: str, sources: Sources) -> CorpusText:
    """Reads both splits from the local folders once, and checks them; the text itself does not stay in memory.

    Raises DataError for a file that is absent, empty, not UTF-8, or whose canonical text is not the pinned one.
    """
    check_name(corpus)
    if corpus == "tiny":
        splits = tiny_text()
        where = "pydoc_data.topics"
    else:
        files = {split: split_files(corpus, split, sources) for split in SPLITS}
        splits = {split: [_checked(corpus, path, sources) for path in paths] for split, paths in files.items()}
        where = ", ".join(shown(root) for root in _roots_used(corpus, sources))
    sha256 = _pinned_sha256(corpus, sources) or {
        split: text_sha256(block for document in documents for block in document) for split, documents in splits.items()
    }
    return CorpusText(splits, "builtin" if corpus == "tiny" else "local", where, sha256)


def source_sha256(corpus: str, sources: Sources) -> dict[str, str] | None:
    """What names each split's text; None where only the text itself could tell and it is not here.

    For a pinned corpus this needs no text: the file's own sha256, or for PG-19 that of its lines in the checksum list.
    """
    check_name(corpus)
    pinned = _pinned_sha256(corpus, sources)
    if pinned is not None:
        return pinned
    return None if missing_files(corpus, sources) else load_corpus(corpus, sources).sha256


def missing_files(corpus: str, sources: Sources) -> list[str]:
    """Relative paths of the corpus that are in none of the local folders. Looks at existence only."""
    check_name(corpus)
    return [path for split in SPLITS for path in split_files(corpus, split, sources) if sources.find(path) is None]


def split_files(corpus: str, split: str, sources: Sources) -> list[str]:
    """Relative paths of one split, in reading order: PG-19 by book id as text, which the stated token counts assume."""
    if corpus == "tiny":
        return []
    if corpus != "pg19":
        return [f"{corpus}/{FILE_NAMES[split]}"]
    books = [path for path in sources.pinned if path.startswith(f"pg19/{split}/")]
    if not books:
        raise DataError(f"{shown(sources.checksums)}: lists no file of pg19/{split}; restore it from the repository")
    return sorted(books, key=lambda path: Path(path).stem)


def differs(relative: str, sha256: str, sources: Sources) -> bool:
    """Whether a canonical text is another than the pinned one; never where none is (a text of the user's own)."""
    if relative.split("/")[0] not in PINNED:
        return False
    if relative not in sources.pinned:
        raise DataError(f"{shown(sources.checksums)}: has no line for {relative}; restore it from the repository")
    return sha256 != sources.pinned[relative]


def tiny_text() -> dict[str, list[Document]]:
    """English prose that ships with Python: the help texts of pydoc, about 0.7 MB.

    Topics in sorted order, a blank line between them. Validation is the last tenth of the characters, rounded to
    whole topics. The text varies with the Python version, so it has no pinned checksum.
    """
    from pydoc_data.topics import topics

    texts = [topics[name].strip("\n") + "\n" for name in sorted(topics)]
    left, cut = 0.9 * sum(map(len, texts)), 0
    while left > 0:
        left -= len(texts[cut])
        cut += 1
    parts = {"train": texts[:cut], "validation": texts[cut:]}
    return {split: [Document("tiny", "\n".join(part))] for split, part in parts.items()}


def read_checksums(path: Path) -> dict[str, str]:
    """`sha256  relative/path` a line, as sha256sum writes it. Paths that lead out of a folder are refused."""
    remedy = "restore it from the repository"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)}: not UTF-8 at byte {error.start:,}; {remedy}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        digest, _, relative = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", digest) or not relative:
            raise DataError(f"{shown(path)}, line {number}: not 'sha256  path'; {remedy}")
        if "\\" in relative or any(part in ("", ".", "..") for part in relative.split("/")):
            raise DataError(f"{shown(path)}, line {number}: {relative!r} leads out of the data folder; {remedy}")
        if relative in found:
            raise DataError(f"{shown(path)}, line {number}: {relative} is listed twice; {remedy}")
        found[relative] = digest
    return found


def place_below(root: Path, relative: str) -> Path:
    """Where a file is to be written. `root` may be a link, as its owner likes; below it no link may lead out of it.

    Raises DataError. A link in the place of the file itself is harmless: writing replaces it.
    """
    path = root / relative
    if not path.parent.resolve().is_relative_to(root.resolve()):
        where = f"{shown(path.parent)} leads out of {shown(root)}, to {path.parent.resolve()}"
        raise DataError(f"{relative}: not written, {where}; put a folder in place of the link, or set CROPE_CACHE_DIR")
    return path


def check_name(corpus: str) -> None:
    if corpus not in CORPORA:
        near = difflib.get_close_matches(corpus, CORPORA, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"data.corpus: no corpus {corpus!r}; {hint}there are {', '.join(CORPORA)}")


def shown(path: Path) -> str:
    """A path as messages and records print it: below the repository relative to it, else as it was given."""
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return str(path)


def _checked(corpus: str, relative: str, sources: Sources) -> Document:
    path = sources.find(relative)
    if path is None:
        raise DataError(f"{relative}: not in {sources.places()}; layout in data/README.md")
    fetched = path.is_relative_to(sources.raw_dir)
    remedy = "remove it to fetch it again" if fetched else "replace it, or remove it to have it fetched"
    document = Document(corpus, path)
    try:
        size = path.stat().st_size
        blank = not any(block.strip() for block in document)
        sha256 = text_sha256(document)
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)}: not UTF-8 at byte {error.start:,} of {size:,}; {remedy}") from None
    if blank:
        raise DataError(f"{shown(path)}: file is empty ({size} bytes); {remedy}")
    if differs(relative, sha256, sources):
        wrong = f"sha256 differs from {shown(sources.checksums)}"
        names = [name for name, digest in sources.pinned.items() if digest == sha256]
        what = f"it holds {names[0]}" if names else f"file {size:,} bytes"
        raise DataError(f"{shown(path)}: {wrong} ({what}); {remedy}")
    return document


def _pinned_sha256(corpus: str, sources: Sources) -> dict[str, str] | None:
    if corpus not in PINNED:
        return None
    found = {}
    for split in SPLITS:
        files = split_files(corpus, split, sources)
        lines = [f"{sources.pinned[path]}  {path}\n" for path in files if path in sources.pinned]
        if len(lines) < len(files):
            raise DataError(f"{shown(sources.checksums)}: has no line for {files[0]}; restore it from the repository")
        found[split] = sources.pinned[files[0]] if len(files) == 1 else text_sha256(lines)
    return found


def _roots_used(corpus: str, sources: Sources) -> Iterator[Path]:
    found = [sources.find(path) for split in SPLITS for path in split_files(corpus, split, sources)]
    return (root for root in sources.roots if any(path and path.is_relative_to(root) for path in found))
