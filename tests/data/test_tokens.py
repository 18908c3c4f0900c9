"""Tokenizers and token files, against whole-text encoding, known counts and published hashes;
corrupt files.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from crope.config import ROOT, TokenizerConfig
from crope.data.corpora import load_corpus, tiny_corpus
from crope.data.ngrams import load_ngrams
from crope.data.tokens import (
    GPT2_FILE,
    _gpt2_file,
    encode,
    load_gpt2,
    load_tokens,
    pieces,
    train_bpe,
    vocabulary_of,
)
from crope.errors import ConfigError, DataError, StorageError
from crope.report.frame import read_ngrams
from crope.runs.prepare import prepare
from tests.conftest import contents, raises_one_line
from tests.data.conftest import FILES, SMALL, write


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(tiny_corpus()["train"], 1000)


def test_pieces_change_no_token(bpe: Tokenizer) -> None:
    """Texts of the characters that the pre-tokenizer treats differently, cut every few characters."""
    parts = ["a", "word", "'s", "'", " ", "  ", "\n", "\n\n", "\t", " \n", "42", ".", "!?"]
    parts += ["é", "東", "\u00a0", "\x1c", "🙂"]
    draw, cuts = random.Random(0), 0
    for _ in range(300):
        text = "".join(draw.choices(parts, k=60))
        cut = list(pieces([text], draw.randrange(1, 9)))
        cuts += len(cut) - 1
        assert "".join(cut) == text
        assert [i for piece in cut for i in bpe.encode(piece).ids] == bpe.encode(text).ids
    assert cuts > 1000


def test_decoding_gives_the_text_back(bpe: Tokenizer) -> None:
    text = "".join(tiny_corpus()["validation"][0]) + "Ünïcödé 東京 🙂\u00a0\t \n\n <|endoftext|>"
    ids = list(chain(*encode(bpe, [[text], [text]])))
    assert bpe.decode(ids[: len(ids) // 2]) == text
    assert ids == 2 * bpe.encode(text).ids


def test_trained_merges_are_the_most_frequent_pairs() -> None:
    """ "ab" occurs five times, "abc" three times: the first merge is a + b, the second ab + c."""
    tokenizer = train_bpe([["ab\nab\nabc\nabc\nabc"]], 258)
    assert json.loads(tokenizer.to_str())["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert tokenizer.get_vocab_size() == 258
    with pytest.raises(ConfigError, match="vocab_size"):
        train_bpe([["ab ab"]], 300)


@pytest.mark.parametrize("corpus", ["ptb", "wikitext2", "pg19"])
def test_token_files_decode_to_the_canonical_text_of_their_split(
    data_dir: Path, corpus: str
) -> None:
    tokens = load_tokens(corpus, SMALL, data_dir=data_dir)
    tokenizer = Tokenizer.from_file(str(tokens.folder / "tokenizer.json"))
    for split, ids in (("train", tokens.train), ("validation", tokens.validation)):
        text = "".join(chain(*load_corpus(corpus, data_dir)[split]))
        assert tokenizer.decode(ids.tolist()) == text
        counts = tokens.meta["splits"][split]
        assert counts["tokens"] == ids.size and counts["bytes"] == len(text.encode())
        assert counts["words"] == len(text.split()) and counts["lines"] == text.count("\n")
    assert (
        tokens.vocab_size == 280
        and tokens.train.dtype == np.uint16
        and not tokens.train.flags.writeable
    )


def test_the_tokenizer_is_trained_on_the_train_split_only(data_dir: Path) -> None:
    """With the text of the validation split other pairs would be merged."""
    folder = load_tokens("ptb", SMALL, data_dir=data_dir).folder
    trained = vocabulary_of(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert trained == vocabulary_of(train_bpe([[FILES["ptb/train.txt"]]], 280))


def test_prepared_tokens_need_no_text_and_carry_no_private_path(data_dir: Path, capsys) -> None:
    first = load_tokens("ptb", SMALL, data_dir=data_dir)
    assert str(data_dir.parent) not in (first.folder / "meta.json").read_text()
    shutil.rmtree(data_dir)
    capsys.readouterr()
    second = load_tokens("ptb", SMALL, data_dir=data_dir)
    assert second.folder == first.folder and np.array_equal(second.train, first.train)
    assert capsys.readouterr().err == ""


def test_an_own_corpus_gets_other_files_when_its_text_changes(data_dir: Path, capsys) -> None:
    write(data_dir, "letters/train.txt", "A line of my letters.\r\n" * 400)
    write(data_dir, "letters/valid.txt", "Another line\n" * 40)
    small = TokenizerConfig(name="bpe", vocab_size=260)
    tokens = load_tokens("letters", small, data_dir=data_dir)
    assert tokens.meta["splits"]["train"]["bytes"] == 400 * 22
    assert "warning" in capsys.readouterr().err
    write(data_dir, "letters/valid.txt", "Another line\n" * 41)
    assert load_tokens("letters", small, data_dir=data_dir).folder != tokens.folder


@pytest.mark.parametrize("name", ["meta.json", "train.npy", "validation.npy", "tokenizer.json"])
def test_corrupt_token_files_are_made_again(data_dir: Path, capsys, name: str) -> None:
    """Cut, one bit of the first byte or of the last changed (of an array: of its last token id), and
    removed; meta.json has no checksum of its own.
    """
    folder = load_tokens("ptb", SMALL, data_dir=data_dir).folder
    expected = contents(folder)
    data = expected[name]
    first, last = bytes([data[0] ^ 1]) + data[1:], data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    for content in (data[:-3], first, last, None):
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        capsys.readouterr()
        load_tokens("ptb", SMALL, data_dir=data_dir)
        assert contents(folder) == expected
        printed = capsys.readouterr().err
        assert folder.name in printed and printed.count("making it again") == 1


def test_a_full_disk_is_one_line_and_leaves_no_folder(data_dir: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("crope.data.tokens.write_json", full)
    with raises_one_line(StorageError, "No space"):
        load_tokens("ptb", SMALL, data_dir=data_dir)
    assert not list((data_dir.parent / "tokens").glob("*ptb-*"))


def test_a_corpus_that_cannot_be_read_is_named(data_dir: Path, monkeypatch) -> None:
    def refuse(relative: str, folder: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(folder / relative))

    monkeypatch.setattr("crope.data.corpora.find_file", refuse)
    with pytest.raises(StorageError, match=r"ptb/train\.txt: Permission"):
        load_tokens("ptb", SMALL, data_dir=data_dir)


def test_of_two_processes_at_once_one_writes(tmp_path: Path) -> None:
    """Both get the same folder, and neither changes what the other wrote."""
    code = (
        "from crope.config import TokenizerConfig; from crope.data import tokens; import os;"
        "writer = tokens._write_tokens;"
        "tokens._write_tokens = lambda *a: (print('writes'), writer(*a))[1];"
        "t = tokens.load_tokens('tiny', TokenizerConfig('bpe', 300), data_dir=tokens.TOKENS_DIR);"
        "print(t.folder.name, os.stat(t.folder / 'train.npy').st_ino)"
    )
    environment = {**os.environ, "CROPE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [
        line for process in started for line in process.communicate(timeout=120)[0].splitlines()
    ]
    assert lines.count("writes") == 1
    assert len(lines) == 3 and len(set(lines) - {"writes"}) == 1


def test_the_file_of_gpt2_is_fetched_once(data_dir: Path, monkeypatch) -> None:
    """The callers hold the locks of their corpora only."""
    fetched = []

    def fetch(*_: object) -> None:
        fetched.append(1)
        time.sleep(0.2)
        write(data_dir, GPT2_FILE, "{}")

    monkeypatch.setattr("crope.data.tokens.fetch", fetch)
    with ThreadPoolExecutor(2) as pool:
        assert [path.name for path in pool.map(_gpt2_file, [data_dir, data_dir])] == 2 * [
            "tokenizer.json"
        ]
    assert fetched == [1]


def test_memory_does_not_grow_with_the_corpus(data_dir: Path, monkeypatch) -> None:
    line = " ".join(f"word{number}" for number in range(200)) + "\n"
    monkeypatch.setattr("crope.data.tokens._PIECES_AT_ONCE", 1)
    monkeypatch.setattr("crope.data.corpora.BLOCK_CHARS", 1 << 14)
    write(data_dir, "letters/valid.txt", line * 10)
    peaks = {}
    for thirds in (1, 3):
        write(data_dir, "letters/train.txt", line * (thirds * 330_000 // len(line)))
        tracemalloc.start()
        load_tokens("letters", SMALL, data_dir=data_dir)
        peaks[thirds] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[3] < 1.2 * peaks[1], peaks


def test_prepare_reports_each_corpus(data_dir: Path, capsys) -> None:
    write(data_dir, "wikitext2/train.txt", "corrupt")
    failed = prepare(["ptb", "wikitext2"], SMALL, data_dir=data_dir)
    assert list(failed) == ["wikitext2"]
    captured = capsys.readouterr()
    assert captured.out.startswith("ptb: ") and captured.err.count("error: ") == 1


@pytest.mark.parametrize(
    "content", ["", "{}", '{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}', "null"]
)
def test_a_wrong_gpt2_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_gpt2(tmp_path / "tokenizer.json")


def test_another_tokenizer_than_gpt2s_is_refused(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="not GPT-2's vocabulary"):
        load_gpt2(tmp_path / "tokenizer.json")


def test_gpt2_counts_and_both_formats_of_its_file(real_data: Path, tmp_path: Path) -> None:
    """Counts made with another encoder (tiktoken); older tokenizer.json files write merges as
    strings.
    """
    tokenizer = load_gpt2(real_data / "tokenizers" / "gpt2" / "tokenizer.json")
    for corpus, count in (("ptb", 92_830), ("wikitext2", 258_659)):
        assert (
            sum(map(len, encode(tokenizer, load_corpus(corpus, real_data)["validation"]))) == count
        )
    content = json.loads(
        (real_data / "tokenizers" / "gpt2" / "tokenizer.json").read_text(encoding="utf-8")
    )
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert load_gpt2(tmp_path / "tokenizer.json").encode("Hello world").ids == [15496, 995]


def test_token_ids_are_those_of_the_published_runs(
    real_data: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("crope.data.tokens.TOKENS_DIR", tmp_path)
    tokens = load_tokens("ptb", TokenizerConfig(name="bpe", vocab_size=4096), data_dir=real_data)
    records = [
        json.loads(path.read_text())
        for path in ROOT.glob("results/published/*/*-ptb-*/provenance.json")
    ]
    assert records
    assert load_ngrams(tokens) in read_ngrams()
    for record in records:
        assert record["data"]["splits"] == tokens.meta["splits"]
        assert record["data"]["tokenizer"]["sha256"] == tokens.meta["tokenizer"]["sha256"]
