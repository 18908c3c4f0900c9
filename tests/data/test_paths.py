"""Nothing from outside is written outside the data folder: names in the checksum list, links, what a hub may say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crope.data import hub
from crope.data.corpora import Sources, place_below
from crope.errors import DataError, DataUnavailable
from tests.data.conftest import fake_files, kept, load
from tests.data.hub_server import Hub, Site

OUTSIDE = ["../../x.txt", "/x.txt", "pg19/train/../../../x.txt", "pg19/train//x.txt", "./x.txt", "..", "pg19\\..\\x"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the data, with a file that must stay as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_checksum_list_that_names_a_path_outside_is_refused(sources: Sources, name: str) -> None:
    with sources.checksums.open("a", encoding="utf-8") as file:
        file.write(f"{'0' * 64}  {name}\n")
    line = len(fake_files()) + 1
    with pytest.raises(DataError) as caught:
        load("pg19", sources)
    assert str(caught.value) == (
        f"{sources.checksums}, line {line}: {name!r} leads out of the data folder; restore it from the repository"
    )


@pytest.mark.parametrize("name", ["../x.txt", "ptb/../../x.txt", "/x.txt"])
def test_a_place_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"^\S+: not written, \S+ leads out of \S+/raw, to /"):
        place_below(tmp_path / "raw", name)
    assert place_below(tmp_path / "raw", "ptb/x.txt") == tmp_path / "raw" / "ptb" / "x.txt"


@pytest.fixture
def fetching(sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Nothing local; PTB on its raw files' site."""
    served.files = {path.replace("ptb/", "/ptb."): text.encode() for path, text in fake_files().items()}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    return sources


def test_a_link_out_of_the_raw_folder_is_not_written_through(fetching: Sources, outside: Path) -> None:
    fetching.raw_dir.mkdir()
    (fetching.raw_dir / "ptb").symlink_to(outside)
    with pytest.raises(DataError) as caught:
        load("ptb", fetching)
    assert str(caught.value) == (
        f"ptb/train.txt: not written, {fetching.raw_dir}/ptb leads out of {fetching.raw_dir}, to {outside}; "
        "put a folder in place of the link, or set CROPE_CACHE_DIR"
    )
    assert contents(outside) == {"mine.txt": "mine"}


def test_a_link_in_place_of_a_file_is_replaced(fetching: Sources, outside: Path) -> None:
    (fetching.raw_dir / "ptb").mkdir(parents=True)
    (fetching.raw_dir / "ptb" / "train.txt").symlink_to(outside / "absent.txt")
    load("ptb", fetching)
    assert not (fetching.raw_dir / "ptb" / "train.txt").is_symlink()
    assert contents(outside) == {"mine.txt": "mine"}


def test_a_link_to_a_wrong_file_is_read_and_left(fetching: Sources, outside: Path) -> None:
    (fetching.raw_dir / "ptb").mkdir(parents=True)
    link = fetching.raw_dir / "ptb" / "train.txt"
    link.symlink_to(outside / "mine.txt")
    with pytest.raises(DataError, match=rf"{link}: sha256 differs from .*; remove it to fetch it again$"):
        load("ptb", fetching)
    assert contents(outside) == {"mine.txt": "mine"}


def test_the_raw_folder_itself_may_be_a_link(fetching: Sources, outside: Path) -> None:
    fetching.raw_dir.symlink_to(outside)
    load("ptb", fetching)
    assert (outside / "ptb" / "train.txt").read_bytes().decode() == fake_files()["ptb/train.txt"]


def test_a_link_in_place_of_a_token_folder_is_replaced(
    sources: Sources, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = load("ptb", sources).folder
    shutil.rmtree(folder)
    folder.symlink_to(outside)
    load("ptb", sources)
    assert f"{folder}: meta.json cannot be read (No such file or directory); rebuilding it" in capsys.readouterr().err
    assert not folder.is_symlink() and contents(outside) == {"mine.txt": "mine"}


def everything_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Temporary folders are made four folders below this one."""
    deep = tmp_path / "tmp" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "tokens").mkdir()  # where load_tokens puts its lock before it fetches
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    return tmp_path


def escape(surroundings: Path, how: str) -> str:
    return str(surroundings / "escaped") if how == "absolute" else "../" * 8 + "escaped"


@pytest.mark.parametrize("how", ["relative", "absolute"])
@pytest.mark.parametrize("header", ["X-Repo-Commit", "X-Linked-ETag"])
def test_a_hub_cannot_name_files_outside_the_cache(
    full_hub: Hub, sources: Sources, surroundings: Path, header: str, how: str
) -> None:
    """Its client writes blobs/<ETag> and snapshots/<commit> below its cache, whatever they say."""
    full_hub.headers[header] = escape(surroundings, how)
    before = everything_below(surroundings)
    with pytest.raises(DataUnavailable, match=rf"README\.md: refused, its {header} leads out of the cache\); set"):
        load("wikitext2", sources)
    assert everything_below(surroundings) == before


@pytest.mark.parametrize("how", ["relative", "absolute"])
def test_a_hub_cannot_name_a_revision_outside_the_cache(
    full_hub: Hub, sources: Sources, surroundings: Path, how: str
) -> None:
    """Without README.md the commit is what the API says; the client makes a file refs/<commit> of it."""
    full_hub.api_commit = escape(surroundings, how)
    before = everything_below(surroundings)
    with pytest.raises(DataUnavailable, match=r"/resolve/\S+: refused, its revision leads out of the cache; "):
        load("ptb", sources)
    assert everything_below(surroundings) == before


def test_a_hub_cannot_list_files_outside_the_repository(full_hub: Hub, sources: Sources) -> None:
    """What is listed under such a name matches no pattern, so it is not even asked for."""
    listed = "wikitext-2-v1/train-/../../../../../../escaped.parquet"
    full_hub.listed.append({"type": "file", "path": listed, "oid": "0", "size": 1})
    load("wikitext2", sources)
    assert full_hub.asked("/tree/") != [] and full_hub.asked("escaped") == []
    assert kept(sources) == ["wikitext2/train.txt", "wikitext2/valid.txt"]
