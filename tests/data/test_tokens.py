"""Tokenizers and token files, against whole-text encoding, known counts and digests; damaged files."""

import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from unittest import mock

import numpy as np
import pytest
from tokenizers import Tokenizer

from crope.config import TokenizerConfig
from crope.data.grammar import write_split
from crope.data.ngrams import ngram_entry
from crope.data.tokens import (
    _write_split,
    _write_tokens,
    encode,
    load_gpt2,
    load_tokens,
    make_tokens,
    pieces,
    train_bpe,
    vocabulary_of,
)
from crope.errors import ConfigError, DataError
from crope.files import sha256_file
from tests.conftest import contents, raises_one_line
from tests.data.conftest import FILES, SMALL, corpus_of, section, write


@pytest.fixture(scope="module")
def bpe():
    return train_bpe([write_split("validation")], 1000)


def load(corpus, data_dir):
    return load_tokens(section(corpus), SMALL, data_dir=data_dir)


# Tokenizers


def test_pieces_change_no_token(bpe):
    """Texts of the characters that the pre-tokenizer treats differently, cut every few characters."""
    parts = [*"a'.é東🙂\t\n \u00a0\x1c", "word", "'s", "  ", "\n\n", " \n", "42", "!?"]
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choices(parts, k=60))
        cut = list(pieces(text, draw.randrange(1, 9)))
        assert len(cut) > 1
        assert "".join(cut) == text
        ids = encode(bpe, cut)
        assert list(chain(*ids)) == bpe.encode(text).ids


def test_pairs_that_occur_twice_are_merged():
    """c + d, and cd + e; the pair of "ab" occurs once."""
    merges = vocabulary_of(train_bpe(["ab\ncd\ncde\ncde"], 258))[1]
    assert merges == [("c", "d"), ("cd", "e")]
    with raises_one_line(ConfigError, "tokenizer.vocab_size=258: .* 257"):
        train_bpe(["ab\ncd\ncd"], 258)


def test_a_file_that_is_not_gpt2s_is_refused(bpe, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(bpe.to_str())
    with pytest.raises(DataError, match=r"tokenizer\.json: not"):
        load_gpt2(file)


def test_gpt2_has_the_ids_and_counts_of_another_encoder(real_data):
    """tiktoken's."""
    tokenizer = load_gpt2(real_data / "tokenizers/gpt2/tokenizer.json")
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    texts = corpus_of("wikitext2", real_data).texts["validation"]
    assert sum(map(len, encode(tokenizer, texts))) == 258_659


# Token files


def tokenizer_of(tokens):
    return Tokenizer.from_file(str(tokens.folder / "tokenizer.json"))


@pytest.mark.parametrize("corpus", ["wikitext2", "pg19"])
def test_token_files_decode_to_the_text_of_their_split(data_dir, corpus, split):
    tokens = load(corpus, data_dir)
    ids = getattr(tokens, split)
    text = "".join(corpus_of(corpus, data_dir).texts[split])
    assert tokenizer_of(tokens).decode(ids.tolist()) == text
    size = {"tokens": ids.size, "bytes": len(text.encode()), "words": len(text.split())}
    counts = tokens.meta["splits"][split]
    assert counts == counts | size | {"lines": text.count("\n")}


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_no_id_wraps(tmp_path, monkeypatch, vocab_size, dtype):
    """The largest id of a vocabulary that 16 bits hold, and of one that they do not."""
    ids = [1, vocab_size - 1]
    monkeypatch.setattr("crope.data.tokens.encode", lambda *_: [ids])
    tokenizer = mock.Mock(get_vocab_size=lambda: vocab_size)
    assert _write_split(tmp_path / "train.npy", tokenizer, [])["dtype"] == dtype
    assert np.load(tmp_path / "train.npy").tolist() == ids


def test_the_tokenizer_is_trained_on_the_train_split_only(data_dir):
    """With the text of the validation split other pairs would be merged."""
    expected = train_bpe([FILES["ptb/train.txt"]], 280)
    assert vocabulary_of(tokenizer_of(load("ptb", data_dir))) == vocabulary_of(expected)


def test_prepared_tokens_need_no_text_and_carry_no_private_path(data_dir):
    first = load("ptb", data_dir)
    assert str(data_dir.parent) not in (first.folder / "meta.json").read_text()
    shutil.rmtree(data_dir)
    assert np.array_equal(load("ptb", data_dir).train, first.train)


def test_an_own_corpus_gets_other_files_when_its_text_changes(data_dir):
    write(data_dir, "letters/train.txt", FILES["ptb/train.txt"])
    write(data_dir, "letters/valid.txt", "Another line\n")
    tokens = load("letters", data_dir)
    write(data_dir, "letters/valid.txt", "A changed line\n")
    assert load("letters", data_dir).folder != tokens.folder


@pytest.mark.parametrize("name", ["meta.json", "train.npy", "validation.npy", "tokenizer.json"])
def test_a_token_file_that_is_changed_is_made_again(data_dir, name):
    """By one bit, that of an id in the last token."""
    folder = load("ptb", data_dir).folder
    expected = contents(folder)
    changed = bytearray(expected[name])
    changed[-2] ^= 1
    (folder / name).write_bytes(changed)
    load("ptb", data_dir)
    assert contents(folder) == expected


def test_a_full_disk_leaves_no_folder(data_dir, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("crope.data.tokens.write_json", full)
    with pytest.raises(OSError, match="No space"):
        load("ptb", data_dir)
    assert not list((data_dir.parent / "tokens").glob("*ptb-*"))


def test_of_two_that_need_a_corpus_at_once_one_writes(data_dir, monkeypatch):
    both, write_tokens = threading.Barrier(2), mock.Mock(wraps=_write_tokens)

    def load_at_once(_):
        both.wait()
        return load("ptb", data_dir).folder

    monkeypatch.setattr("crope.data.tokens._write_tokens", write_tokens)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(load_at_once, range(2))
    assert write_tokens.call_count == 1
    assert first == second


def test_token_ids_are_those_of_the_published_runs(real_data, tmp_path, monkeypatch):
    """Frozen: the digests of Penn Treebank's ids, and the losses of n-gram models on them."""
    monkeypatch.setattr("crope.data.tokens.TOKENS_DIR", tmp_path)
    tokens = load_tokens(section("ptb"), TokenizerConfig("bpe", 4096), data_dir=real_data)
    assert tokens.folder.name == "ptb-bpe4096-d76580ffaded"
    train = "56530693afc00449d58b935f303b736a7de4da87eed0213c7519f39fa60673a7"
    validation = "64f9f2e4c3ef931bc3279e9e7e84875becfdc158c8e99d5c00a6625a8a9d02d6"
    assert sha256_file(tokens.folder / "train.npy") == train
    assert sha256_file(tokens.folder / "validation.npy") == validation
    losses = {"unigram": 6.360068, "bigram": 4.372086, "trigram": 4.066469}
    assert ngram_entry(tokens)["loss_nats"] == losses


def test_the_tokens_of_each_corpus_are_printed(data_dir, capsys):
    assert make_tokens([section("ptb")], SMALL, data_dir=data_dir) == {}
    tokens = load("ptb", data_dir)
    counts = f"train {len(tokens.train):,} tokens, validation {len(tokens.validation):,} tokens"
    assert capsys.readouterr().out == f"ptb: {counts}\n  {tokens.folder}\n"


def test_a_corpus_that_fails_costs_no_other(data_dir, capsys):
    write(data_dir, "ptb/train.txt", "")
    assert list(make_tokens(map(section, ("ptb", "pg19")), SMALL, data_dir=data_dir)) == ["ptb"]
    printed = capsys.readouterr()
    assert printed.out.startswith("pg19: train")
    assert "error: ptb/train.txt: the file is empty" in printed.err
