"""The hub: `datasets.load_dataset` against a hub on this machine, from HF_ENDPOINT to the checked text in raw_dir.

The loading process imports the hub's client afresh, so HF_ENDPOINT acts as it does for a user. What is asserted of each
fault is the line that the user sees, that nothing half-written stays, and how often the site was asked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from crope.config import TokenizerConfig
from crope.data import hub
from crope.data.corpora import Sources
from crope.data.preflight import site
from crope.data.tokenizer import GPT2_FILE, train_bpe, vocabulary_of, vocabulary_sha256
from crope.errors import DataError, DataUnavailable
from tests.data.conftest import PTB, fake_files, kept, load
from tests.data.hub_server import Hub, Site, parquet

TRAIN = "wikitext-2-v1/train-00000-of-00001.parquet"


def wikitext(hub_site: Hub) -> dict[str, bytes]:
    return hub_site.repositories["datasets", "Salesforce/wikitext", "main"]


@pytest.mark.parametrize("corpus", ["wikitext2", "ptb"])
def test_rows_become_the_pinned_files_and_are_asked_for_once(full_hub: Hub, sources: Sources, corpus: str) -> None:
    tokens = load(corpus, sources)
    assert tokens.meta["source"]["kind"] == "hub" and tokens.meta["source"]["where"] == site(full_hub.url)
    assert kept(sources) == [f"{corpus}/train.txt", f"{corpus}/valid.txt"]
    for path in kept(sources):
        assert (sources.raw_dir / path).read_bytes().decode() == fake_files()[path]
    assert len(full_hub.asked("/cdn/")) == 2  # train and validation; not the test split
    shutil.rmtree(tokens.folder)
    full_hub.requests.clear()
    assert load(corpus, sources).meta["source"]["kind"] == "local"
    assert full_hub.requests == []


def test_through_a_proxy(full_hub: Hub, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", full_hub.url)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid/")
    assert hub.fetch("wikitext2", ["wikitext2/valid.txt"], sources) == ["hub.invalid"]
    assert kept(sources) == ["wikitext2/valid.txt"]


@pytest.mark.parametrize(
    ("part", "fault", "cause", "requests"),
    [
        ("/cdn/", "stall", r"localhost:\d+/cdn/\w+/TRAIN: no data for 1 s, 3 times in a row", 3),
        ("/cdn/", "cut", r"localhost:\d+/cdn/\w+/TRAIN: peer closed connection .*, 3 times in a row", 3),
        ("/cdn/", 503, r"localhost:\d+/cdn/\w+/TRAIN: HTTP 503", 1),
        ("/tree/", "silent", r"/api/datasets/Salesforce/wikitext/tree/\w+/wikitext-2-v1: no data for 1 s, 3 .*", 3),
        ("/tree/", 429, r"/api/datasets/Salesforce/wikitext/tree/\w+/wikitext-2-v1: HTTP 429", 1),
        (
            "README.md",
            "silent",
            r"/datasets/Salesforce/wikitext/resolve/main/README\.md: no data for 1 s, 3 times in a row",
            0,
        ),
        ("/Salesforce/", 404, r"/datasets/Salesforce/wikitext/resolve/main/README\.md: HTTP 404", 0),
        ("/revision/", 500, r"/api/datasets/Salesforce/wikitext/revision/\w+: HTTP 500", 1),
    ],
)
def test_faults(
    full_hub: Hub,
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    fault: str | int,
    cause: str,
    requests: int,
) -> None:
    monkeypatch.setattr(hub, "SILENCE_S", 1.0)
    full_hub.faults[part] = fault
    host, cause = site(full_hub.url), cause.replace("TRAIN", TRAIN)
    where = rf"wikitext2: 2 files \(wikitext2/train\.txt, \.\.\.\) not in {sources.data_dir} or {sources.raw_dir}"
    with pytest.raises(
        DataUnavailable, match=rf"^{where}, and fetching failed \({host}: {cause}\); set CROPE_DATA_DIR"
    ):
        load("wikitext2", sources)
    assert len(full_hub.asked(part)) == requests
    assert kept(sources) == []


PARQUETS = {
    "not parquet": b"<html>Please log in.</html>",
    "blank rows": parquet("text", ["", " ", ""]),
}


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        ("no repository", "Dataset 'Salesforce/wikitext' doesn't exist on the Hub or cannot be accessed."),
        ("no file", "No (supported) data files found in Salesforce/wikitext"),
        ("not parquet", "Parquet magic bytes not found in footer."),
        ("blank rows", "wikitext2/train.txt came empty"),
    ],
)
def test_contents_that_are_no_text(full_hub: Hub, sources: Sources, damage: str, cause: str) -> None:
    if damage == "no repository":
        full_hub.repositories.clear()
    elif damage == "no file":
        del wikitext(full_hub)[TRAIN]
    else:
        wikitext(full_hub)[TRAIN] = PARQUETS[damage]
    with pytest.raises(DataUnavailable) as caught:
        load("wikitext2", sources)
    assert f", and fetching failed ({site(full_hub.url)}: {cause}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert kept(sources) == []


def test_another_text_is_refused_and_the_right_one_kept(full_hub: Hub, sources: Sources) -> None:
    wikitext(full_hub)[TRAIN] = parquet("text", [" another edition \n"])
    with pytest.raises(DataError) as caught:
        load("wikitext2", sources)
    wrong = f"wikitext2: wikitext2/train.txt from {site(full_hub.url)} has another sha256 than {sources.checksums} says"
    assert str(caught.value) == f"{wrong}; {hub.WAYS_OUT}"
    assert kept(sources) == ["wikitext2/valid.txt"]


def test_what_came_before_a_stall_is_kept_and_not_fetched_again(
    full_hub: Hub, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SILENCE_S", 1.0)
    full_hub.faults["/validation-"] = "stall"
    with pytest.raises(DataUnavailable, match=r"wikitext2: wikitext2/valid\.txt not in"):
        load("wikitext2", sources)
    assert kept(sources) == ["wikitext2/train.txt"]
    full_hub.faults.clear()
    full_hub.requests.clear()
    load("wikitext2", sources)
    assert [path.rpartition("/")[2] for path in full_hub.asked("/cdn/")] == ["validation-00000-of-00001.parquet"]


def test_ptb_goes_on_to_its_other_site(
    full_hub: Hub, sources: Sources, served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SILENCE_S", 1.0)
    monkeypatch.setattr(hub, "PTB_URL", served.url)
    full_hub.faults["/api/"] = 503
    served.files = {f"/ptb.{name}.txt": text.encode() for name, text in PTB.items()}
    assert load("ptb", sources).meta["source"]["where"] == site(served.url)


def test_a_hub_that_accepts_and_never_answers(
    sources: Sources, silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://{silent}")
    monkeypatch.setattr("crope.data.preflight.PREFLIGHT_S", 0.4)
    shutil.rmtree(sources.data_dir)
    with pytest.raises(DataUnavailable, match=rf"fetching failed \({silent}: no answer in 0\.4 s\); set"):
        load("wikitext2", sources)
    assert capsys.readouterr().err == ""  # no fetching was begun
    assert kept(sources) == []


def test_gpt2_is_verified_before_it_is_kept(hub_site: Hub, sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = train_bpe([PTB["train"]], 280).to_str()
    hub_site.repositories["models", "openai-community/gpt2", "main"] = {"tokenizer.json": stand_in.encode()}
    with pytest.raises(DataError) as caught:
        load("tiny", sources, TokenizerConfig(name="gpt2", vocab_size=50257))
    wrong = f"tokenizer gpt2 from {site(hub_site.url)}: vocabulary or merges are not GPT-2's (sha256 differs)"
    assert str(caught.value) == f"{wrong}; {hub.WAYS_OUT}"
    assert kept(sources) == []
    monkeypatch.setattr("crope.data.tokenizer.GPT2_SHA256", vocabulary_sha256(*vocabulary_of(json.loads(stand_in))))
    assert hub.fetch_gpt2(sources, GPT2_FILE) == sources.raw_dir / GPT2_FILE
    assert (sources.raw_dir / GPT2_FILE).read_text(encoding="utf-8") == stand_in


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo Traceback >&2; echo 'ModuleNotFoundError: no datasets' >&2; exit 1", "ModuleNotFoundError: no datasets"),
        ("kill -KILL $$", "loading ended with status -9"),
        ("""printf '{"path": "wikitext2/tr'; kill -KILL $$""", "loading ended with status -9"),
    ],
)
def test_a_loading_process_that_dies_is_one_line(
    full_hub: Hub, sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, cause: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(DataUnavailable, match=rf": {cause}\); set CROPE_DATA_DIR"):
        load("wikitext2", sources)
    assert kept(sources) == []


def test_an_interrupt_ends_the_loading_process(
    full_hub: Hub, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Remembered(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def interrupt() -> None:
        while not full_hub.asked("/tree/"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Remembered)
    full_hub.faults["/tree/"] = "silent"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            load("wikitext2", sources)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert kept(sources) == []
