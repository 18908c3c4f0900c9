"""Publication, and what README.md may hold."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from crope.config import ROOT
from crope.errors import DataError, InvalidRecord, UserError
from crope.files import read_json, write_json
from crope.report import publish as module
from crope.report.frame import load_frame
from crope.report.publish import publish
from crope.report.tables import Table
from tests.report.records import failed, record

SHA256 = {"train": "t", "validation": "v"}
SPLITS = {name: {"sha256": digest} for name, digest in SHA256.items()}
CLEAN = {"commit": "c", "dirty": False, "device": "a CPU", "data": {"splits": SPLITS}}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Publishes these records as the set `mine`, with stored n-gram losses of two corpora."""
    for name, digests in (("used", SHA256), ("other", SHA256 | {"train": "x"})):
        (tmp_path / "tokens" / name).mkdir(parents=True)
        entry = {"corpus": name, "tokenizer": {"name": "bpe"}, "sha256": digests}
        write_json(tmp_path / "tokens" / name / "ngrams.json", entry)
    monkeypatch.setattr(module, "stored_ngrams", lambda folder: read_json(folder / "ngrams.json"))

    def call(*records, scale: str = "quick", invalid: tuple = (), name: str = "mine") -> Path:
        monkeypatch.setattr(module, "read_records", lambda folder: (records, invalid))
        folders = {"published": tmp_path / "sets", "tokens_dir": tmp_path / "tokens"}
        publish(tmp_path, name, scale=scale, **folders)
        return tmp_path / "sets"

    return call


def clean(folder: Path, run_id: str = "rope-ptb-base-s0-1", **summary):
    return replace(record(folder, run_id, **summary), provenance=CLEAN)


def test_complete_and_diverged_runs_of_the_scale_are_published(published, tmp_path: Path) -> None:
    diverged = replace(failed(tmp_path, "diverged", "NonFiniteLoss"), provenance=CLEAN)
    other = [failed(tmp_path, "failed", "ValueError"), clean(tmp_path, "small", scale="smoke")]
    sets = published(clean(tmp_path, "complete"), diverged, *other)
    assert load_frame([sets / "mine"])[0]["run_id"].tolist() == ["complete", "diverged"]
    assert "a CPU" in (sets / "mine" / "README.md").read_text()


@pytest.mark.parametrize(
    "provenance",
    [
        {"commit": None},
        {"dirty": True},
        {"resumed_from": [CLEAN | {"dirty": True}]},
    ],
)
def test_runs_of_uncommitted_code_are_refused(provenance: dict, published, tmp_path: Path) -> None:
    run = replace(clean(tmp_path), provenance=CLEAN | provenance)
    with pytest.raises(UserError, match="uncommitted"):
        published(run)
    assert not (tmp_path / "sets").exists()


def test_what_else_is_refused(published, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete run"):
        published(clean(tmp_path), scale="paper")
    with pytest.raises(UserError, match=r"\.\./mine"):
        published(clean(tmp_path / "again"), name="../mine")
    with pytest.raises(DataError, match="torn"):
        published(invalid=(InvalidRecord(tmp_path, "torn"),))


def test_ngram_losses_of_the_runs_tokens_join_the_published_ones(published, tmp_path: Path) -> None:
    """Those of other tokens stay where they are."""
    known = {"corpus": "known", "tokenizer": {"name": "bpe"}, "sha256": {"train": "k"}}
    write_json(tmp_path / "sets" / "ngrams.json", [known])
    entries = read_json(published(clean(tmp_path / "runs")) / "ngrams.json")
    assert [entry["corpus"] for entry in entries] == ["known", "used"]


def test_a_smoke_run_changes_no_ngram_losses(published, tmp_path: Path) -> None:
    sets = published(clean(tmp_path, scale="smoke"), scale="smoke")
    assert not (sets / "ngrams.json").exists()


def test_the_ngram_table_has_the_papers_loss_beside_gpt2s_tokens_only() -> None:
    losses = {"unigram": 6.0, "bigram": 5.0, "trigram": 4.5}
    entry = {"corpus": "ptb", "loss_nats": losses}
    ngrams = []
    for name, size in (("gpt2", 50257), ("bpe", 4096)):
        ngrams.append(entry | {"tokenizer": {"name": name, "vocab_size": size}})
    ngrams.append(ngrams[0] | {"corpus": "tiny"})
    assert module.ngram_table(ngrams).frame.to_numpy().tolist() == [
        ["Penn Treebank", "bpe 4,096", "6.000", "5.000", "4.500", ""],
        ["Penn Treebank", "gpt2 50,257", "6.000", "5.000", "4.500", "4.016"],
    ]


def test_the_readmes_tables_have_the_full_losses_alone() -> None:
    lines = [["PTB", "paper"], ["here B=2", "full"], ["", "sampled"], ["", "full, paper's size"]]
    table = Table("t", "", pd.DataFrame([*lines, ["Parameters", ""]], columns=["Dataset", ""]))
    kept = module.without_sampled(table).frame.to_numpy().tolist()
    assert kept == [["PTB", "paper"], ["", "full"], ["", "full, paper's size"]]


def test_runs_and_hours_by_how_they_were_made() -> None:
    frame = pd.DataFrame({"device": ["a", "a", None], "run_id": ["x", "y", "z"], "seed": [0, 0, 1]})
    frame["time.total_s"] = [1800.0, 3600.0, None]
    table = module.made_by(frame, {"device": "device"})
    assert table["Runs"].tolist() == [2, 1]
    assert table["Seeds"].tolist() == [1, 1]
    assert table["Hours"].tolist() == ["1.5", "0.0"]


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(text.split()) <= 900
    assert len(re.findall(r"\d[\d.,]*", "\n".join(prose))) <= 60
