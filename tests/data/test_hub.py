"""Fetching from the raw files' own sites: what `datasets` delivers becomes the pinned files, or one line."""

from __future__ import annotations

import shutil

import pytest

from crope.data import hub
from crope.data.corpora import Sources, load_corpus
from crope.data.preflight import site
from crope.errors import DataError, DataUnavailable
from tests.data.conftest import fake_files, load
from tests.data.hub_server import Site


def test_the_message_names_host_cause_and_ways_out(sources: Sources) -> None:
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable) as caught:
        load("wikitext2", sources)
    message = str(caught.value)
    assert message.startswith(f"wikitext2: 2 files (wikitext2/train.txt, ...) not in {sources.data_dir} or ")
    assert "(127.0.0.1:9: Connection refused)" in message and "\n" not in message
    for way_out in ("CROPE_DATA_DIR", "data/README.md", "HF_ENDPOINT", "data=tiny"):
        assert way_out in message


def test_missing_books_are_fetched_with_crlf_and_kept(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    books = {path.removeprefix("pg19"): text for path, text in fake_files().items() if path.startswith("pg19/")}
    served.files = {path: text.replace("\n", "\r\n").encode() for path, text in books.items()}
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    (sources.data_dir / "pg19" / "train" / "10.txt").unlink()
    (sources.data_dir / "pg19" / "validation" / "7.txt").unlink()
    tokens = load("pg19", sources)
    assert set(served.asked()) == {"/train/10.txt", "/validation/7.txt"}
    assert f"fetching pg19: 2 files from {site(served.url)}" in capsys.readouterr().err
    assert (tokens.meta["source"]["kind"], tokens.meta["source"]["where"]) == ("hub", site(served.url))
    kept = sources.raw_dir / "pg19" / "train" / "10.txt"
    assert kept.read_bytes().decode() == books["/train/10.txt"]
    assert [path.name for path in sources.raw_dir.iterdir()] == ["pg19"]  # no cache is left behind
    monkeypatch.setattr(hub, "PG19_URL", "http://127.0.0.1:9")
    assert load_corpus("pg19", sources).kind == "local"


def test_ptb_comes_from_its_raw_files_where_the_hub_is_away(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {path: text for path, text in fake_files().items() if path.startswith("ptb/")}
    served.files = {path.replace("ptb/", "/ptb."): text.encode() for path, text in texts.items()}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    load("ptb", sources)
    assert {path: (sources.raw_dir / path).read_text(encoding="utf-8") for path in texts} == texts


def test_another_text_is_refused_and_not_kept(sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    served.files = {"/ptb.train.txt": b" another edition \n", "/ptb.valid.txt": b" the chairman is new \n"}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataError, match=r"ptb/train\.txt from 127\.0\.0\.1:\d+ has another sha256 than") as caught:
        load("ptb", sources)
    assert not isinstance(caught.value, DataUnavailable)
    assert not (sources.raw_dir / "ptb" / "train.txt").exists()
    assert (sources.raw_dir / "ptb" / "valid.txt").exists()


def test_a_site_that_lacks_the_file_is_unavailable(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=r"/ptb\.valid\.txt answered HTTP 404\);") as caught:
        load("ptb", sources)
    assert "\n" not in str(caught.value)
    assert list(sources.raw_dir.rglob("*.txt")) == []


def test_books_that_a_site_lacks_do_not_cost_the_others(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files = {"/train/9.txt": fake_files()["pg19/train/9.txt"].encode()}
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=r"pg19: 2 files \(pg19/train/10\.txt, \.\.\.\) not in"):
        load("pg19", sources)
    assert [path.name for path in sources.raw_dir.rglob("*.txt")] == ["9.txt"]
    with pytest.raises(DataUnavailable, match=rf"{site(served.url)}: {served.url}/train/10\.txt answered HTTP 404"):
        hub.fetch("pg19", ["pg19/train/10.txt"], sources)
    with pytest.raises(DataUnavailable, match=rf"{site(served.url)}: does not have all of them"):
        hub.fetch("pg19", ["pg19/train/9.txt", "pg19/train/10.txt"], sources)


def test_a_raw_folder_that_cannot_be_written_is_one_line(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files = {"/ptb.train.txt": fake_files()["ptb/train.txt"].encode()}
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    (sources.data_dir / "ptb" / "train.txt").unlink()
    sources.raw_dir.write_text("a file in its place", encoding="utf-8")
    with pytest.raises(DataError, match=r"ptb/train\.txt: cannot be written \(.*\); free it or set CROPE_DATA_DIR$"):
        load("ptb", sources)


def test_a_book_that_stalls_costs_three_attempts_and_not_the_others(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = {path.removeprefix("pg19"): text for path, text in fake_files().items() if path.startswith("pg19/")}
    served.files = {path: text.encode() for path, text in books.items()}
    served.faults["/train/9.txt"] = "stall"
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    monkeypatch.setattr(hub, "SILENCE_S", 1.0)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=r"pg19/train/9\.txt not in .*") as caught:
        load("pg19", sources)
    assert f"({site(served.url)}: /train/9.txt: no data for 1 s, 3 times in a row; " in str(caught.value)
    assert len(served.asked("/train/9.txt")) == 3
    assert sorted(path.name for path in sources.raw_dir.rglob("*") if path.is_file()) == ["10.txt", "7.txt"]


def test_a_site_that_stalls_is_given_up_for_all_files_at_once(
    sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"pg19/train/{n}.txt" for n in range(40)]
    served.files = {f"/train/{n}.txt": b"a book\n" * 99 for n in range(40)}
    served.faults["/train/"] = "stall"
    monkeypatch.setattr(hub, "PG19_URL", served.url)
    monkeypatch.setattr(hub, "SILENCE_S", 1.0)
    with pytest.raises(DataUnavailable, match=r"/train/\d+\.txt: no data for 1 s, 3 times in a row; "):
        hub.fetch("pg19", files, sources)
    assert len(served.asked("/train/")) <= 8 * 3  # eight at a time
    assert not sources.raw_dir.exists()


def test_a_hiccup_costs_nothing(sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is cut short, the second one is whole."""
    served.files = {"/ptb.train.txt": fake_files()["ptb/train.txt"].encode()}
    served.faults, served.fault_count = {"/ptb.train.txt": "cut"}, 1
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    assert hub.fetch("ptb", ["ptb/train.txt"], sources) == [site(served.url)]
    assert len(served.asked("/ptb.train.txt")) == 2
