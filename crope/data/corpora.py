"""Corpora: the files of each split, their canonical form and checksums.

A corpus has two splits, train and validation; test splits are never read. A file `<corpus>/...` is
read from `data_dir`, else from RAW_DIR, where fetched files are kept. Files with a line in
data/checksums.txt are pinned: other content is refused. Other corpora are the user's own, either
`<name>/train.txt` and `<name>/valid.txt` or one file, `<name>.txt`, with a `validation_share`; or
they are fetched as the section `hub` of conf/data/<name>.yaml says, into a folder named with a hash
of that section.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from crope.config import CACHE_DIR, ROOT, DataConfig, HubConfig
from crope.data.fetch import download, sites
from crope.data.grammar import write_split
from crope.errors import ConfigError, DataError, DataUnavailable, log_line
from crope.files import json_sha256, sha256, write_text

SPLITS = ("train", "validation")
CHECKSUMS = ROOT / "data" / "checksums.txt"
RAW_DIR = CACHE_DIR / "raw"
WORD_LEVEL = ("ptb", "wikitext2")


@dataclass(frozen=True)
class Corpus:
    """A corpus; its texts are read once, and fetched if missing.

    files      relative paths of each split in reading order; none of tiny
    pinned     sha256 of those files that have a checksum, by path
    hub        where the text is fetched from
    data_dir   the user's folder of texts
    share      of the one file, that is cut from its end as validation; None of two files
    """

    name: str
    files: Mapping[str, Sequence[str]]
    pinned: Mapping[str, str]
    hub: HubConfig | None
    data_dir: Path
    share: float | None = None

    @property
    def is_pinned(self) -> bool:
        """Tells whether every file has a checksum."""
        return 0 < len(self.pinned) == sum(map(len, self.files.values()))

    @property
    def source(self) -> dict[str, Any] | None:
        """Returns where a corpus without checksums is fetched from or how its file is split; None
        if it is pinned or two files of the user's own.
        """
        if self.share:
            return {"validation_share": self.share}
        return asdict(self.hub) if self.hub and not self.is_pinned else None

    def check_source(self, recorded: Mapping[str, Any], what: str) -> None:
        """Raises DataError if `what` was made from another source than conf/data says: two corpora
        of one name would be mixed. A pinned corpus is known by its checksums alone.

        recorded   `source` of the meta.json of its tokens
        """
        hub = recorded.get("hub")
        other = hub != self.source
        if self.is_pinned:
            other = recorded.get("sha256", self.sha256()) != self.sha256()
        if other:
            raise DataError(
                f"{what} has another source ({hub or 'text files'}) than"
                f" conf/data/{self.name}.yaml; give the changed corpus another name"
            )

    def sha256(self) -> dict[str, str]:
        """Computes the sha256 that identifies each split's text; a pinned corpus needs only its
        checksums.

        For a pinned split of several files it is that of its lines in data/checksums.txt. Raises as
        `texts` does, and DataError if both splits are the same text.
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
            joined = {split: "".join(texts) for split, texts in self.texts.items()}
            digests = {split: sha256(text.encode()) for split, text in joined.items()}
            # The same lines where the file ends or another part of it begins, too.
            shorter, longer = sorted(map(str.strip, joined.values()), key=len)
            same = shorter in longer
        if same:
            raise DataError(
                f"{self.name}: both splits are the same text, or one holds the other; give"
                " validation another text"
            )
        return digests

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """Reads and checks the canonical texts of each split (PG-19: one per book, otherwise one).

        Raises DataError if a text is blank, not UTF-8, not the pinned one or has no line break to
        be cut at. Messages name only the relative path: the report prints them.
        """
        if self.name == "tiny":
            return {split: [write_split(split)] for split in SPLITS}
        if self.share:
            text = self._read(self.files["train"][0])
            cut = text.rfind("\n", 0, round(len(text) * (1 - self.share))) + 1
            if cut == 0:
                raise DataError(
                    f"{self.name}.txt: no line break before its validation_share; give two files"
                )
            return {"train": [text[:cut]], "validation": [text[cut:]]}
        return {split: list(map(self._read, files)) for split, files in self.files.items()}

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Finds each file in data_dir or RAW_DIR, by its relative path; fetches missing ones."""
        paths = {}
        for relative in chain(*self.files.values()):
            own = self.data_dir / relative
            paths[relative] = own if own.is_file() else RAW_DIR / relative
        if missing := [relative for relative, path in paths.items() if not path.is_file()]:
            self._fetch(missing)
        return paths

    def _read(self, relative: str) -> str:
        try:
            text = self.paths[relative].read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{relative}: not UTF-8 ({error.reason}); convert it") from error
        return self._checked(relative, text)

    def _fetch(self, missing: list[str]) -> None:
        """Writes missing files to RAW_DIR in canonical form, from the first site that has the
        pinned content.

        Raises DataUnavailable if no site delivers it, ConfigError if `hub` does not fit the files,
        OSError if a write fails. Files that arrived are kept.
        """
        causes = []
        for site, read in sites(self.hub, missing[0]):
            log_line(f"fetching {self.name}: {len(missing)} files from {site}")
            try:
                for relative in [*missing]:
                    text = self._checked(relative, download(site, read, relative))
                    write_text(RAW_DIR / relative, text)
                    missing.remove(relative)
                return
            except DataError as error:
                causes.append(f"{site}: {error}")
        raise DataUnavailable(
            f"{self.name}: {len(missing)} files missing ({missing[0]}, ...);"
            f" {'; '.join(causes) or 'no site has them'}; put them into data/raw or the folder that"
            " CROPE_DATA_DIR names (data/README.md), set HF_ENDPOINT to a mirror, or use data=tiny"
            " scale=quick"
        )

    def _checked(self, relative: str, text: str) -> str:
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


def find_corpus(data: DataConfig | str, data_dir: Path) -> Corpus:
    """Finds the files of a corpus, from a run's section or by its name alone, and what
    data/checksums.txt says of them.

    PG-19 has the pinned books, sorted by id as text, or the first `books` of the training split.
    Raises ConfigError if there are fewer books, or if `hub` has no fixed revision.
    """
    lines = CHECKSUMS.read_text(encoding="utf-8").splitlines()
    checksums = {path: digest for digest, path in map(str.split, lines)}
    data = DataConfig(data) if isinstance(data, str) else data
    name = data.corpus
    if data.hub and data.hub.revision in (None, "main"):
        raise ConfigError(
            f"conf/data/{name}.yaml: hub.revision: give a commit, a tag or a named ref, no branch"
        )
    share = data.validation_share
    if share is not None and not 0 < share < 1:
        raise ConfigError(f"conf/data/{name}.yaml: validation_share: {share} is not within 0 and 1")
    if share and (data.hub or data.books or name in ("pg19", "tiny")):
        raise ConfigError(
            f"conf/data/{name}.yaml: validation_share: it cuts one file of your own; remove hub and"
            " books, or give the corpus another name"
        )
    files: dict[str, list[str]] = {split: [] for split in SPLITS}
    if name == "pg19" or data.books is not None:
        for split in SPLITS:
            files[split] = sorted(path for path in checksums if path.startswith(f"pg19/{split}/"))
        count = len(files["train"])
        if data.books is not None and not 1 <= data.books <= count:
            raise ConfigError(f"conf/data/{name}.yaml: books: {data.books} must be 1 to {count}")
        files["train"] = files["train"][: data.books]
    elif name != "tiny":
        folder = name
        if data.hub and f"{name}/train.txt" not in checksums:
            folder = f"{name}-{json_sha256(asdict(data.hub))[:8]}"
        files = {"train": [f"{folder}/train.txt"], "validation": [f"{folder}/valid.txt"]}
        if data.validation_share:
            files = {split: [f"{name}.txt"] for split in SPLITS}
    pinned = {path: checksums[path] for path in chain(*files.values()) if path in checksums}
    return Corpus(name, files, pinned, data.hub, data_dir, data.validation_share)


def canonical(corpus: str, text: str) -> str:
    """Returns the text with LF line endings and no byte order marks; each line of a word-level
    corpus is a space, words, a space (if empty, one space).

    Sources differ only in these points: official PG-19 files have CRLF, the hub strips the spaces
    of PTB and of WikiText's empty lines, joined files keep their marks. The function is idempotent
    and treats each line separately.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Only at the start of a line: WikiText-2 has 36 of these characters between words.
    text = re.sub("^\ufeff+", "", text, flags=re.MULTILINE)
    if corpus not in WORD_LEVEL:
        return text
    # strip(" "), because str.strip() would remove the no-break spaces that are words in WikiText-2.
    stripped = (line.strip(" ") for line in text.removesuffix("\n").split("\n"))
    return "".join(f" {words} \n" if words else " \n" for words in stripped)
