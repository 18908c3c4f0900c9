"""Corpora: the files of each split, their canonical form and their checksums.

A corpus has two splits, train and validation; test splits are never read. A file `<corpus>/...` is
looked for in `data_dir`, then in RAW_DIR, where fetch.py writes. Files with a line in
data/checksums.txt are pinned: other content is refused. The other corpora are the user's own,
`<name>/train.txt` and `<name>/valid.txt`, or fetched as the section `hub` of conf/data/<name>.yaml
says; their folder's name then has a hash of that section, so that texts of two sources are never
mixed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from crope.config import CACHE_DIR, ROOT, DataConfig, HubConfig
from crope.data.grammar import write_split
from crope.errors import ConfigError, DataError
from crope.files import json_sha256, sha256

SPLITS = ("train", "validation")
CHECKSUMS = ROOT / "data" / "checksums.txt"
CONF_DIR = ROOT / "conf" / "data"
RAW_DIR = CACHE_DIR / "raw"
WORD_LEVEL = ("ptb", "wikitext2")

Texts = dict[str, list[str]]  # by split: the canonical text of each file


@dataclass(frozen=True)
class Corpus:
    """A corpus, as `find_corpus` finds it.

    files     relative paths of each split in reading order; none of tiny
    pinned    sha256 of those files that have a checksum, by path
    hub       where the text is fetched from
    """

    name: str
    files: Mapping[str, Sequence[str]]
    pinned: Mapping[str, str]
    hub: HubConfig | None

    @property
    def is_pinned(self) -> bool:
        """Whether every file has a checksum."""
        return 0 < len(self.pinned) == sum(map(len, self.files.values()))

    @property
    def source(self) -> dict[str, Any] | None:
        """Returns the source that a corpus without checksums is fetched from; None if it is pinned
        or the user's own.
        """
        return asdict(self.hub) if self.hub and not self.is_pinned else None

    def check_source(self, recorded: dict[str, Any] | None, what: str) -> None:
        """Raises DataError if `what` was made from another source than conf/data says: two corpora
        of one name would be mixed. A pinned one is known by its checksums, wherever it came from.
        """
        if not self.is_pinned and recorded != self.source:
            raise DataError(
                f"{what} has another source ({recorded or 'text files'}) than"
                f" conf/data/{self.name}.yaml; give the changed corpus another name"
            )

    def missing(self, data_dir: Path) -> list[str]:
        """Finds the files that are in neither folder."""
        paths = chain(*self.files.values())
        return [path for path in paths if not find_file(path, data_dir).is_file()]

    def load(self, data_dir: Path) -> Texts:
        """Reads and checks the texts of each split (PG-19: one per book, otherwise one).

        Raises DataError if a text is blank, not UTF-8 or not the pinned one. Messages name the
        relative path only, because the report prints them.
        """
        if self.name == "tiny":
            return {split: [write_split(split)[0]] for split in SPLITS}
        texts: Texts = {split: [] for split in SPLITS}
        for split, paths in self.files.items():
            for relative in paths:
                try:
                    text = find_file(relative, data_dir).read_text(encoding="utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{relative}: not UTF-8 ({error.reason}); convert it"
                    ) from error
                texts[split].append(self.checked(relative, text))
        return texts

    def checked(self, relative: str, text: str) -> str:
        """Returns the canonical form of a file's text.

        Raises DataError if it is blank, or if the file is pinned and its sha256 differs.
        """
        text = canonical(self.name, text)
        digest = sha256(text.encode())
        if not text.strip():
            raise DataError(f"{relative}: the file is empty; replace or remove it")
        if self.pinned.get(relative, digest) != digest:
            raise DataError(
                f"{relative}: sha256 differs from data/checksums.txt; replace or remove it"
            )
        return text

    def sha256(self, data_dir: Path) -> dict[str, str]:
        """Computes the sha256 that identifies each split's text; of a pinned corpus it follows from
        the checksums alone.

        For a pinned split of several files it is that of its lines in data/checksums.txt. Raises as
        `load` does, and DataError if both splits have one text.
        """
        digests = {}
        if self.is_pinned:
            for split, paths in self.files.items():
                lines = "".join(f"{self.pinned[path]}  {path}\n" for path in paths)
                digests[split] = (
                    self.pinned[paths[0]] if len(paths) == 1 else sha256(lines.encode())
                )
            same = digests["train"] == digests["validation"]
        else:
            texts = self.load(data_dir)
            for split, parts in texts.items():
                digests[split] = sha256("".join(parts).encode())
            # Slices of the same rows differ in length (max_bytes), but start alike.
            same = texts["train"][0].startswith(texts["validation"][0])
        if same:
            raise DataError(
                f"{self.name}: both splits are the same text; give validation another text"
            )
        return digests


def find_corpus(name: str) -> Corpus:
    """Reads what conf/data/<name>.yaml and data/checksums.txt say of a corpus.

    PG-19 has the pinned books, sorted by id as text, or the first `books` of the training split.
    Raises ConfigError if there are not so many books, or `hub` has no revision that stays.
    """
    checksums = {}
    for line in CHECKSUMS.read_text(encoding="utf-8").splitlines():
        digest, path = line.split()
        checksums[path] = digest
    file = CONF_DIR / f"{name}.yaml"
    known = OmegaConf.structured(DataConfig(name))
    if file.is_file():
        known.merge_with(OmegaConf.load(file))
    data: DataConfig = OmegaConf.to_object(known)  # type: ignore[assignment]
    if data.hub and data.hub.revision in (None, "main"):
        raise ConfigError(
            f"conf/data/{name}.yaml: hub.revision: give a commit, a tag or a named ref, no branch"
        )
    files: dict[str, list[str]] = {split: [] for split in SPLITS}
    if name == "pg19" or data.books is not None:
        for path in sorted(checksums):
            if path.startswith("pg19/"):
                files[path.split("/")[1]].append(path)
        count = len(files["train"])
        if data.books is not None and not 1 <= data.books <= count:
            raise ConfigError(f"conf/data/{name}.yaml: books: {data.books} must be 1 to {count}")
        files["train"] = files["train"][: data.books]
    elif name != "tiny":
        folder = name
        if data.hub and f"{name}/train.txt" not in checksums:
            folder = f"{name}-{json_sha256(asdict(data.hub))[:8]}"
        files = {"train": [f"{folder}/train.txt"], "validation": [f"{folder}/valid.txt"]}
    pinned = {path: checksums[path] for path in chain(*files.values()) if path in checksums}
    return Corpus(name, files, pinned, data.hub)


def load_corpus(name: str, data_dir: Path) -> Texts:
    """Reads the texts of each split of a corpus, as `Corpus.load` does."""
    return find_corpus(name).load(data_dir)


def find_file(relative: str, data_dir: Path) -> Path:
    """Returns the file in `data_dir`, else its place in RAW_DIR."""
    own = data_dir / relative
    return own if own.is_file() else RAW_DIR / relative


def canonical(corpus: str, text: str) -> str:
    """Returns the text with LF line endings and without byte order marks; each line of a word-level
    corpus is a space, words, a space (if empty, one space).

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
