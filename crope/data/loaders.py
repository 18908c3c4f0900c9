"""Reads files of one site through `datasets`: a process of its own that hub.py starts.

    python -m crope.data.loaders
        standard input: one job as JSON, {"loader", "url", "files", "silence_s", "cache"}
        standard output: a line {"path", "text"} a file, then {"cause": null or why it ended early}

A loader gets the site's URL, the relative paths that are wanted and a folder for its own use, and yields (path, text).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crope.data.client import ATTEMPTS, Attempts, SiteFailed
from crope.data.corpora import FILE_NAMES

GPT2_REPOSITORY = "openai-community/gpt2"

Texts = Iterator[tuple[str, str]]
Loader = Callable[[str, Sequence[str], Path], Texts]


def join_rows(rows: Iterable[str]) -> str:
    """Text of a split that comes one row a line, whether or not the rows bring their line feed."""
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows)


def _rows(column: str, path: str, **options: Any) -> str:
    from datasets import load_dataset

    return join_rows(load_dataset(path, split="train", **options)[column])


def _split_of(path: str) -> str:
    return "train" if path.endswith(FILE_NAMES["train"]) else "validation"


def _wikitext(config: str) -> Loader:
    def load(url: str, files: Sequence[str], cache: Path) -> Texts:
        for path in files:
            parquet = f"{config}/{_split_of(path)}-*.parquet"  # named, so that the test split is not even downloaded
            yield path, _rows("text", "Salesforce/wikitext", data_files={"train": parquet})

    return load


def _ptb_parquet(url: str, files: Sequence[str], cache: Path) -> Texts:
    for path in files:
        parquet = f"penn_treebank/{_split_of(path)}/*.parquet"
        options = {"revision": "refs/convert/parquet", "data_files": {"train": parquet}}
        yield path, _rows("sentence", "ptb-text-only/ptb_text_only", **options)


def _ptb_files(url: str, files: Sequence[str], cache: Path) -> Texts:
    copies, failure = _download({path: f"{url}/ptb.{Path(path).name}" for path in files}, cache)
    for path, copy in copies.items():
        yield path, _rows("text", "text", data_files={"train": copy}, keep_linebreaks=True)
    if failure is not None:
        raise failure


def _pg19_files(url: str, files: Sequence[str], cache: Path) -> Texts:
    from datasets import load_dataset

    copies, failure = _download({path: f"{url}/{path.removeprefix('pg19/')}" for path in files}, cache)
    if copies:
        names = {"train": list(copies.values())}
        books = load_dataset("text", data_files=names, sample_by="document", split="train")
        yield from zip(copies, books["text"], strict=True)  # in the order of data_files; the sha256 guards it
    if failure is not None:
        raise failure


def _download(urls: dict[str, str], cache: Path) -> tuple[dict[str, str], Exception | None]:
    """Local copies by key, several URLs at a time, by the hub's own client (its proxies and certificates).

    `datasets` 5 reads plain URLs only with aiohttp, which it does not install. The failure is that of a site that was
    given up, or that has none of the files; what it lacks beside others is left out.
    """
    from huggingface_hub import get_session

    def get(url: str) -> bytes | Exception:
        failure: Exception = SiteFailed(url)
        for _ in range(ATTEMPTS):  # one hiccup among 182 books must not cost the others
            try:
                answer = get_session().get(url)
            except Exception as error:  # of the client's many types
                failure = error
                continue
            if answer.status_code == 200:
                return bytes(answer.content)
            failure = FileNotFoundError(f"{url} answered HTTP {answer.status_code}")
            if answer.status_code < 500:
                break
        return failure

    copies: dict[str, str] = {}
    failures: list[Exception] = []
    with ThreadPoolExecutor(8) as pool:
        for (key, _), content in zip(urls.items(), pool.map(get, urls.values()), strict=True):
            if isinstance(content, bytes):
                copy = cache / f"{len(copies)}.txt"
                copy.write_bytes(content)
                copies[key] = str(copy)
            else:
                failures.append(content)
    given_up = next((error for error in failures if isinstance(error, SiteFailed)), None)
    return copies, given_up or (failures[-1] if not copies else None)


def _pg19_mirror(url: str, files: Sequence[str], cache: Path) -> Texts:
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


def _gpt2(url: str, files: Sequence[str], cache: Path) -> Texts:
    from huggingface_hub import hf_hub_download

    for path in files:
        yield path, Path(hf_hub_download(GPT2_REPOSITORY, Path(path).name)).read_text(encoding="utf-8")


LOADERS: dict[str, Loader] = {
    "wikitext-2-v1": _wikitext("wikitext-2-v1"),
    "wikitext-2-raw-v1": _wikitext("wikitext-2-raw-v1"),
    "ptb_parquet": _ptb_parquet,
    "ptb_files": _ptb_files,
    "pg19_files": _pg19_files,
    "pg19_mirror": _pg19_mirror,
    "gpt2": _gpt2,
}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals the whole group; the parent decides
    job = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    attempts = Attempts(job["url"], job["silence_s"])
    cause = None
    try:
        attempts.bound_client()
        for path, text in LOADERS[job["loader"]](job["url"], job["files"], Path(job["cache"])):
            print(json.dumps({"path": path, "text": text}), file=answers, flush=True)
    except Exception as error:  # the libraries' error types are many and change; all of them mean: not fetched
        cause = attempts.explain(error)
    print(json.dumps({"cause": cause}), file=answers, flush=True)


if __name__ == "__main__":
    main()
