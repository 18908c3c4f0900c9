"""From a corpus' name and a tokenizer to token arrays: the one entry to the data stage.

    load_tokens(corpus, tokenizer, data_dir=...)     opens the token files, preparing them first where needed
    unavailable(corpora, tokenizer, data_dir=...)    which could not be had at all, and why, within 5 s

For a pinned corpus the name of the token files needs no raw text, so a prepared dataset opens in milliseconds and
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from crope.config import CACHE_DIR, TokenizerConfig
from crope.data import hub
from crope.data.corpora import (
    CHECKSUMS,
    PINNED,
    RAW_DIR,
    CorpusText,
    Sources,
    load_corpus,
    missing_files,
    shown,
    source_sha256,
)
from crope.data.preflight import preflight, site
from crope.data.token_files import TokenSet, folder_name, open_tokens, write_tokens
from crope.data.tokenizer import GPT2_FILE, check_tokenizer, load_gpt2, train_bpe
from crope.errors import DataError
from crope.lock import locked

__all__ = ["TOKENS_DIR", "TokenSet", "load_tokens", "unavailable"]

TOKENS_DIR = CACHE_DIR / "tokens"


def load_tokens(
    corpus: str,
    tokenizer: TokenizerConfig,
    *,
    data_dir: Path,
    tokens_dir: Path = TOKENS_DIR,
    raw_dir: Path = RAW_DIR,
    checksums: Path = CHECKSUMS,
) -> TokenSet:
    """Opens the token files of a corpus, preparing them first where they are absent or damaged.

    Raw text is looked for in `data_dir`, then `raw_dir`, then fetched into `raw_dir`. Raises DataUnavailable where it
    is nowhere to be had, DataError for damaged text, ConfigError for a tokenizer that cannot be made.
    """
    sources = Sources(Path(data_dir), raw_dir, checksums)
    check_tokenizer(tokenizer)
    fetched = None
    folder = _folder(corpus, tokenizer, sources, tokens_dir)
    if folder is None:  # only the text itself can name it, and it is not here
        fetched = hub.fetch(corpus, missing_files(corpus, sources), sources)
        folder = _folder(corpus, tokenizer, sources, tokens_dir)
        assert folder is not None
    if (found := _open(folder))[0]:
        return found[0]
    try:
        with locked(tokens_dir / f".{folder.name}.lock", busy=lambda who: hub.say(f"{who} prepares {corpus}; waiting")):
            ready, damage = _open(folder)  # another process may have made it just now
            if damage:
                hub.say(f"{damage}; rebuilding it")
            return ready or _prepare(corpus, tokenizer, sources, folder, fetched)
    except OSError as error:
        raise DataError(f"{shown(tokens_dir)}: cannot write token files ({error.strerror or error})") from error
    except DataError as error:
        if not damage:
            raise
        raise type(error)(_beyond_repair(damage, str(error))) from None


def _open(folder: Path) -> tuple[TokenSet | None, str]:
    """The token files, or None and the damage: empty where there are none."""
    if not folder.exists():
        return None, ""
    try:
        return open_tokens(folder), ""
    except ValueError as error:
        return None, f"{shown(folder)}: {error}"


def unavailable(
    corpora: Sequence[str],
    tokenizer: TokenizerConfig,
    *,
    data_dir: Path,
    tokens_dir: Path = TOKENS_DIR,
    raw_dir: Path = RAW_DIR,
    checksums: Path = CHECKSUMS,
) -> dict[str, str]:
    """Reason by corpus, for those neither prepared nor local nor on a site that answers; within 5 s in all.

    Damaged local files are not unavailable: load_tokens raises for them.
    """
    sources = Sources(Path(data_dir), raw_dir, checksums)
    check_tokenizer(tokenizer)
    wanting: dict[str, list[tuple[list[str], list[str]]]] = {}  # corpus -> (files, sites that could have them)
    damaged: dict[str, str] = {}
    for corpus in corpora:
        try:
            folder = _folder(corpus, tokenizer, sources, tokens_dir)
        except DataError:  # of local text: load_tokens raises it
            folder = None
        ready, damage = _open(folder) if folder else (None, "")
        if ready:
            continue
        if damage:
            damaged[corpus] = damage
        files = missing_files(corpus, sources)
        needs = [(files, [origin.url for origin in hub.origins(corpus)])] if files else []
        if tokenizer.name == "gpt2" and sources.find(GPT2_FILE) is None:
            needs.append(([GPT2_FILE], [hub.endpoint()]))
        wanting[corpus] = needs
    down = preflight([url for needs in wanting.values() for _, urls in needs for url in urls])
    reasons: dict[str, str] = {}
    for corpus, needs in wanting.items():
        for files, urls in needs:
            if all(url in down for url in urls):
                reason = hub.unavailable_text(corpus, files, [f"{site(url)}: {down[url]}" for url in urls], sources)
                reasons.setdefault(corpus, _beyond_repair(damaged[corpus], reason) if corpus in damaged else reason)
    return reasons


def _beyond_repair(damage: str, reason: str) -> str:
    return f"{damage}, and it cannot be rebuilt: {reason}"


def _folder(corpus: str, tokenizer: TokenizerConfig, sources: Sources, tokens_dir: Path) -> Path | None:
    source = source_sha256(corpus, sources)
    return None if source is None else tokens_dir / folder_name(corpus, tokenizer, source)


def _prepare(
    corpus: str, config: TokenizerConfig, sources: Sources, folder: Path, fetched: list[str] | None
) -> TokenSet:
    if missing := missing_files(corpus, sources):
        fetched = hub.fetch(corpus, missing, sources)
    text = load_corpus(corpus, sources)
    if fetched:
        text = replace(text, kind="hub", where=", ".join(fetched))
    if corpus not in (*PINNED, "tiny"):
        hub.say(f"warning: {corpus} has no pinned checksum; its text is taken as it came")
    hub.say(f"preparing {corpus}: tokenizer {config.name} ({config.vocab_size:,}), text from {text.where}")
    tokenizer = _tokenizer(config, text, sources)
    return write_tokens(folder, corpus, config, text, tokenizer)


def _tokenizer(config: TokenizerConfig, text: CorpusText, sources: Sources) -> Tokenizer:
    if config.name == "bpe":
        return train_bpe(text.splits["train"], config.vocab_size)
    return load_gpt2(sources.find(GPT2_FILE) or hub.fetch_gpt2(sources, GPT2_FILE))
