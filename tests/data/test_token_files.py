"""Token folders: what is not as its name and meta.json say is found, said, and rebuilt where the text is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from crope.data.corpora import Sources, load_corpus
from crope.data.token_files import write_tokens
from crope.data.tokenizer import train_bpe
from crope.data.tokens import unavailable
from crope.errors import DataError, DataUnavailable
from crope.record import sha256_file
from tests.data.conftest import SMALL, WIKITEXT2, load, places


def test_arrays_are_the_files_that_numpy_writes(sources: Sources, tmp_path: Path) -> None:
    tokens = load("pg19", sources)
    np.save(tmp_path / "same.npy", np.array(tokens.train))
    assert (tokens.folder / "train.npy").read_bytes() == (tmp_path / "same.npy").read_bytes()


def edit_meta(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-2]) and None


def unlink(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def flip(name: str) -> Callable[[Path], None]:
    """One bit in the middle, the size as before."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def meta(*keys: str, value: Any) -> Callable[[Path], None]:
    """Another value, or none, in meta.json."""

    def change(found: dict[str, Any]) -> None:
        for key in keys[:-1]:
            found = found[key]
        found.pop(keys[-1]) if value is None else found.__setitem__(keys[-1], value)

    return lambda folder: edit_meta(folder, change)


def array(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Another train.npy, with its hash in meta.json, as one who edits both would leave them."""

    def damage(folder: Path) -> None:
        np.save(folder / "train.npy", change(np.load(folder / "train.npy")))
        edit_meta(folder, lambda found: found["splits"]["train"].update(sha256=sha256_file(folder / "train.npy")))

    return damage


def tokenizer_of(text: str, size: int) -> Callable[[Path], None]:
    return lambda folder: train_bpe([text], size).save(str(folder / "tokenizer.json"))


def folder_of_another_corpus(folder: Path) -> None:
    other = next(path for path in folder.parent.iterdir() if path != folder)
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def a_file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder", encoding="utf-8")


DAMAGE = {
    "no meta": (unlink("meta.json"), "meta.json cannot be read (No such file or directory)"),
    "torn meta": (cut("meta.json"), "meta.json is damaged (JSONDecodeError)"),
    "binary meta": (write("meta.json", b"\xff\xfe"), "meta.json is damaged (UnicodeDecodeError)"),
    "a list": (write("meta.json", b"[]"), "meta.json is damaged (TypeError)"),
    "no counts": (meta("splits", "train", "bytes", value=None), "meta.json is damaged (KeyError)"),
    "a count of text": (meta("splits", "train", "tokens", value="9"), "meta.json is damaged (a count is not a number)"),
    "a hash of 0": (meta("tokenizer", "sha256", value=0), "meta.json is damaged (a sha256 is not text)"),
    "format": (meta("format", value=0), "meta.json has format 0, not 1"),
    "no array": (unlink("train.npy"), "train.npy cannot be read (No such file or directory)"),
    "empty array": (write("train.npy", b""), "train.npy is damaged (sha256 differs from meta.json)"),
    "cut array": (cut("validation.npy"), "validation.npy is damaged (sha256 differs from meta.json)"),
    "flipped bit": (flip("train.npy"), "train.npy is damaged (sha256 differs from meta.json)"),
    "fewer ids": (
        array(lambda ids: ids[:2]),
        "train.npy is uint16 of shape (2,), meta.json says uint16 of shape (1640,)",
    ),
    "wide ids": (
        array(lambda ids: ids.astype(np.int64)),
        "train.npy is int64 of shape (1640,), meta.json says uint16 of shape (1640,)",
    ),
    "no ids": (array(lambda ids: ids.astype(object)), "train.npy is no array of numbers (ValueError)"),
    "high ids": (array(lambda ids: ids + np.uint16(280)), "train.npy has token id "),
    "no tokenizer": (unlink("tokenizer.json"), "tokenizer.json cannot be read (No such file or directory)"),
    "torn tokenizer": (cut("tokenizer.json"), "tokenizer.json is damaged (JSONDecodeError)"),
    "null tokenizer": (write("tokenizer.json", b"null"), "tokenizer.json is damaged (TypeError)"),
    "larger tokenizer": (
        tokenizer_of(WIKITEXT2["train"], 285),
        "tokenizer.json has 285 entries, meta.json says 280",
    ),
    "another tokenizer": (
        tokenizer_of(WIKITEXT2["train"], 280),
        "tokenizer.json is another tokenizer than that of meta.json (sha256 of its vocabulary differs)",
    ),
    "another folder": (folder_of_another_corpus, "meta.json is that of wikitext2-bpe280-"),
    "a file": (a_file_in_its_place, "meta.json cannot be read (Not a directory)"),
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_a_damaged_folder_is_rebuilt_and_said(sources: Sources, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, message = DAMAGE[name]
    load("wikitext2", sources)
    good = load("ptb", sources)
    expected = {path.name: path.read_bytes() for path in good.folder.iterdir()}
    damage(good.folder)
    capsys.readouterr()
    load("ptb", sources)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[0].startswith(f"{good.folder}: {message}") and said[0].endswith("; rebuilding it")
    assert {path.name: path.read_bytes() for path in good.folder.iterdir()} == expected
    assert len(list(good.folder.parent.iterdir())) == 2  # no leftovers


@pytest.mark.parametrize("name", ["torn meta", "flipped bit", "another tokenizer"])
def test_a_damaged_folder_without_its_text_is_one_line(sources: Sources, name: str) -> None:
    damage, message = DAMAGE[name]
    folder = load("ptb", sources).folder
    damage(folder)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable) as caught:
        load("ptb", sources)
    start = f"{folder}: {message}, and it cannot be rebuilt: ptb: 2 files (ptb/train.txt, ...) not in "
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)
    assert unavailable(["ptb"], SMALL, **places(sources)) == {"ptb": str(caught.value)}


def test_a_damaged_folder_with_damaged_text_is_one_line(sources: Sources) -> None:
    folder = load("ptb", sources).folder
    (folder / "train.npy").unlink()
    text = sources.data_dir / "ptb" / "train.txt"
    text.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load("ptb", sources)
    assert not isinstance(caught.value, DataUnavailable)
    assert str(caught.value) == (
        f"{folder}: train.npy cannot be read (No such file or directory), and it cannot be rebuilt: "
        f"{text}: file is empty (0 bytes); replace it, or remove it to have it fetched"
    )


def test_a_disk_that_does_not_keep_what_is_written(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter("abcdefgh")
    monkeypatch.setattr("crope.data.token_files.sha256_file", lambda _: next(hashes))
    with pytest.raises(DataError, match=r"train\.npy is damaged .*, though just written; check the disk$"):
        load("ptb", sources)


def test_the_first_of_two_writers_stays(sources: Sources) -> None:
    first = load("ptb", sources)
    inode = (first.folder / "train.npy").stat().st_ino
    tokenizer = Tokenizer.from_file(str(first.folder / "tokenizer.json"))
    write_tokens(first.folder, "ptb", SMALL, load_corpus("ptb", sources), tokenizer)
    assert (first.folder / "train.npy").stat().st_ino == inode
    assert list(first.folder.parent.iterdir()) == [first.folder]


def _prepare_elsewhere(data_dir: Path, raw_dir: Path, checksums: Path) -> tuple[str, int]:
    tokens = load("wikitext2", Sources(data_dir, raw_dir, checksums))
    return str(tokens.folder), int(tokens.train.astype(np.int64).sum())


def test_of_two_processes_that_prepare_at_once_one_does_the_work(
    sources: Sources, capfd: pytest.CaptureFixture[str]
) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_prepare_elsewhere, sources.data_dir, sources.raw_dir, sources.checksums) for _ in range(4)]
        results = [job.result(timeout=60) for job in jobs]
    assert len(set(results)) == 1
    assert capfd.readouterr().err.count("preparing wikitext2:") == 1
    assert [str(path) for path in (sources.checksums.parent / "tokens").iterdir()] == [results[0][0]]


def test_an_interrupted_preparation_leaves_nothing(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crope.data.token_files.write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load("ptb", sources)
    assert list((sources.checksums.parent / "tokens").iterdir()) == []


def test_a_full_disk_is_one_line(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("crope.data.token_files.write_json", full)
    with pytest.raises(DataError, match=r"tokens: cannot write token files \(No space left on device\)$"):
        load("ptb", sources)
