"""Tokenizers and token files: against whole-text encoding, stated counts, hand counts; damage, and two at once."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from crope.config import ROOT, TokenizerConfig
from crope.data.corpora import Sources, load_corpus, tiny_text
from crope.data.loaders import GPT2_REPOSITORY
from crope.data.tokenizer import encode, load_gpt2, pieces, token_dtype, train_bpe, vocabulary_of
from crope.data.tokens import load_tokens, unavailable
from crope.errors import ConfigError, DataError, DataUnavailable
from tests.data.conftest import SMALL, load, places

GPT2 = TokenizerConfig(name="gpt2", vocab_size=50257)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(tiny_text()["train"], 1000)


def reasons(corpora: list[str], sources: Sources, tokenizer: TokenizerConfig = SMALL) -> dict[str, str]:
    return unavailable(corpora, tokenizer, **places(sources))


def test_pieces_change_no_token(bpe: Tokenizer) -> None:
    """Cut every few characters of text made of what the pre-tokenizer treats apart; ids are those of the whole."""
    parts = ["a", "word", "'s", "'", " ", "  ", "\n", "\n\n", "\t", " \n", "42", ".", "!?"]
    parts += ["é", "東", "\u00a0", "\x1c", "🙂"]
    draw = random.Random(0)
    cuts = 0
    for _ in range(300):
        text = "".join(draw.choices(parts, k=60))
        cut = list(pieces([text], draw.randrange(1, 9)))
        cuts += len(cut) - 1
        assert "".join(cut) == text
        assert [i for piece in cut for i in bpe.encode(piece).ids] == bpe.encode(text).ids
    assert cuts > 1000


def test_encoding_gives_the_text_back(bpe: Tokenizer) -> None:
    text = "".join(tiny_text()["validation"][0]) + "Ünïcödé 東京 🙂\u00a0\t \n\n <|endoftext|>"
    ids = np.concatenate(list(encode(bpe, [[text], [text]])))
    assert bpe.decode(ids[: ids.size // 2].tolist()) == text
    assert ids.dtype == np.uint16 and ids.tolist() == 2 * bpe.encode(text).ids


def test_trained_merges_are_the_most_frequent_pairs() -> None:
    # "ab" occurs five times, " a" and "bc" never in one word with it: the first merge is a + b, the next is ab + c.
    tokenizer = train_bpe([["ab\nab\nabc\nabc\nabc"]], 258)
    assert json.loads(tokenizer.to_str())["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert tokenizer.get_vocab_size() == 258


def test_training_is_deterministic_and_exact(bpe: Tokenizer) -> None:
    again = train_bpe(tiny_text()["train"], 1000)
    assert again.get_vocab_size() == 1000
    assert vocabulary_of(json.loads(again.to_str())) == vocabulary_of(json.loads(bpe.to_str()))


def test_text_too_small_for_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=300: .* ended at 257 entries"):
        train_bpe([["ab ab"]], 300)


@pytest.mark.parametrize(("name", "size"), [("gpt2", 4096), ("bpe", 256), ("word", 1000)])
def test_tokenizers_that_cannot_be(sources: Sources, name: str, size: int) -> None:
    with pytest.raises(ConfigError, match=r"^tokenizer\.(vocab_size|name)="):
        load("ptb", sources, TokenizerConfig(name=name, vocab_size=size))


def test_dtype_holds_every_id() -> None:
    assert (token_dtype(65536), token_dtype(65537)) == (np.uint16, np.uint32)


def test_token_files_hold_the_text_and_its_counts(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = load("pg19", sources)
    tokenizer = Tokenizer.from_file(str(tokens.folder / "tokenizer.json"))
    text = load_corpus("pg19", sources)
    assert tokenizer.decode(tokens.train.tolist()) == "".join(block for book in text.splits["train"] for block in book)
    counts = tokens.meta["splits"]["validation"]
    assert (counts["words"], counts["bytes"], counts["lines"]) == (6, 27, 2)
    assert counts["tokens"] == tokens.validation.size and counts["dtype"] == "uint16"
    assert tokens.meta["source"] == {"kind": "local", "where": str(sources.data_dir), "sha256": text.sha256}
    assert tokens.vocab_size == 280 and tokens.train.max() < 280
    assert capsys.readouterr().err == f"preparing pg19: tokenizer bpe (280), text from {sources.data_dir}\n"


def test_prepared_tokens_need_no_text_and_say_nothing(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    first = load("ptb", sources)
    shutil.rmtree(sources.data_dir)
    capsys.readouterr()
    second = load("ptb", sources)
    assert second.folder == first.folder and np.array_equal(second.train, first.train)
    assert capsys.readouterr().err == ""
    assert reasons(["ptb"], sources) == {}


def test_folders_are_named_by_content(sources: Sources) -> None:
    names = {load("ptb", sources).folder.name}
    names.add(load("ptb", sources, TokenizerConfig(name="bpe", vocab_size=270)).folder.name)
    pinned = sources.checksums.read_text(encoding="utf-8")
    changed = "".join(load_corpus("wikitext2", sources).splits["train"][0])
    (sources.data_dir / "ptb" / "train.txt").write_text(changed, encoding="utf-8")
    digest = hashlib.sha256(changed.encode()).hexdigest()
    sources.checksums.write_text(pinned.replace(sources.pinned["ptb/train.txt"], digest), encoding="utf-8")
    names.add(load("ptb", sources).folder.name)
    assert len(names) == 3


def test_damaged_text_is_an_error_not_unavailable(sources: Sources) -> None:
    (sources.data_dir / "ptb" / "train.txt").write_text("damaged", encoding="utf-8")
    assert reasons(["ptb"], sources) == {}
    with pytest.raises(DataError, match="sha256 differs") as caught:
        load("ptb", sources)
    assert not isinstance(caught.value, DataUnavailable)


def test_unavailable_gives_every_reason_within_five_seconds(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(*_: Any, **__: Any) -> None:
        time.sleep(30)
        raise OSError("resolved at last")

    monkeypatch.setattr("socket.getaddrinfo", hanging)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    shutil.rmtree(sources.data_dir / "ptb")
    (sources.data_dir / "pg19" / "train" / "9.txt").unlink()
    start = time.monotonic()
    found = reasons(["ptb", "wikitext2", "wikitext2_raw", "pg19", "tiny"], sources)
    assert time.monotonic() - start < 5
    assert list(found) == ["ptb", "wikitext2_raw", "pg19"]
    assert found["pg19"].startswith(f"pg19: pg19/train/9.txt not in {sources.data_dir} or {sources.raw_dir}")
    assert "hub.invalid: no answer in 3 s" in found["wikitext2_raw"]


def test_tiny_needs_a_download_only_for_gpt2(sources: Sources) -> None:
    assert reasons(["tiny"], sources) == {}
    reason = reasons(["tiny"], sources, GPT2)["tiny"]
    assert reason.startswith("tiny: tokenizers/gpt2/tokenizer.json not in")
    with pytest.raises(DataUnavailable, match=r"tokenizer gpt2: tokenizers/gpt2/tokenizer\.json not in"):
        load("tiny", sources, GPT2)


def test_load_raises_the_same_reason(sources: Sources) -> None:
    shutil.rmtree(sources.data_dir / "ptb")
    with pytest.raises(DataUnavailable) as caught:
        load("ptb", sources)
    assert str(caught.value) == reasons(["ptb"], sources)["ptb"]


def test_raw_wikitext_is_taken_as_it_came_with_a_warning(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sources.data_dir / "wikitext2", sources.data_dir / "wikitext2_raw")
    tokens = load("wikitext2_raw", sources)
    assert "warning: wikitext2_raw has no pinned checksum" in capsys.readouterr().err
    (sources.data_dir / "wikitext2_raw" / "valid.txt").write_text(" = Another = \n", encoding="utf-8")
    assert load("wikitext2_raw", sources).folder != tokens.folder


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}', "null"])
def test_a_wrong_gpt2_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: .*; remove or replace it$"):
        load_gpt2(path)


# Counts stated with the data set's description, made with another encoder (tiktoken agrees on them).
GPT2_COUNTS = {"ptb": (1_174_722, 92_830), "wikitext2": (2_448_382, 258_659), "pg19": (12_961_845, 4_592_150)}


@pytest.mark.parametrize("corpus", list(GPT2_COUNTS))
def test_gpt2_counts_of_the_real_text(real: Sources, tmp_path: Path, corpus: str) -> None:
    tokens = load_tokens(corpus, GPT2, data_dir=real.data_dir, tokens_dir=tmp_path)
    assert (tokens.train.size, tokens.validation.size) == GPT2_COUNTS[corpus]


def test_gpt2_pieces_are_the_whole_of_a_real_text(real: Sources) -> None:
    tokenizer = load_gpt2(real.data_dir / "tokenizers" / "gpt2" / "tokenizer.json")
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    original = Tokenizer.from_file(str(real.data_dir / "tokenizers" / "gpt2" / "tokenizer.json"))
    text = load_corpus("wikitext2", real).splits["validation"]
    assert np.concatenate(list(encode(tokenizer, text))).tolist() == original.encode("".join(text[0])).ids


def test_older_files_write_merges_as_strings(real: Sources, tmp_path: Path) -> None:
    """The hub's tokenizer.json is in the older format: the same vocabulary and merges, other bytes."""
    content = json.loads((real.data_dir / "tokenizers" / "gpt2" / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    content["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert load_gpt2(path).encode(" the chairman").ids == [262, 8900]
    assert GPT2_REPOSITORY == "openai-community/gpt2"


def test_the_script_prints_each_error_in_one_line_and_exits_1() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "prepare.py"), "ptbb", "wikitext_2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    assert "there is no conf/data/ptbb.yaml; did you mean ptb?" in lines[0]
