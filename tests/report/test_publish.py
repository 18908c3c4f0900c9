"""Publication of finished runs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from crope.errors import DataError, InvalidRecord, UserError
from crope.files import read_json, write_json
from crope.records.store import read_set
from crope.report import publish as module
from tests.report.records import failed, record

SHA256 = {"train": "t", "validation": "v"}
CLEAN = {
    "commit": "c",
    "dirty": False,
    "device": "a CPU",
    "python": "3.11",
    "packages": {"torch": "2.9"},
    "data": {"splits": {name: {"sha256": digest} for name, digest in SHA256.items()}},
}
TOKENS = {"used": SHA256, "other": SHA256 | {"train": "x"}, "damaged": None}


def open_tokens(folder):
    if digests := TOKENS[folder.name]:
        splits = {name: {"sha256": digest} for name, digest in digests.items()}
        return SimpleNamespace(meta={"corpus": folder.name, "splits": splits})
    return None


def ngram_entry(tokens):
    return {"corpus": tokens.meta["corpus"], "tokenizer": {}, "sha256": SHA256}


@pytest.fixture
def published(monkeypatch, tmp_path):
    """Publishes these records as the set `mine`, on a machine with TOKENS; returns the sets."""
    for name in TOKENS:
        (tmp_path / "tokens" / name).mkdir(parents=True)
    monkeypatch.setattr(module, "PUBLISHED", tmp_path / "sets")
    monkeypatch.setattr(module, "TOKENS_DIR", tmp_path / "tokens")
    monkeypatch.setattr(module, "open_tokens", open_tokens)
    monkeypatch.setattr(module, "ngram_entry", ngram_entry)

    def call(*records, scale="quick", invalid=(), **options):
        found = {tmp_path / "runs": (records, invalid)}
        monkeypatch.setattr(module, "read_runs", lambda folder: found.get(folder, ([], [])))
        module.publish(tmp_path, "mine", scale=scale, **options)
        return tmp_path / "sets"

    return call


@pytest.fixture
def clean(tmp_path):
    return replace(record(tmp_path, "complete"), provenance=CLEAN)


def test_complete_and_diverged_runs_of_the_scale_are_published(published, clean, tmp_path):
    diverged = replace(failed(tmp_path, "diverged", "NonFiniteLoss"), provenance=CLEAN)
    other = [failed(tmp_path, "failed", "ValueError"), record(tmp_path, "small", scale="smoke")]
    sets = published(clean, diverged, *other)
    assert [run.run_id for run in read_set(sets / "mine")] == ["complete", "diverged"]
    assert "a CPU" in (sets / "mine" / "README.md").read_text()


def test_runs_of_uncommitted_code_are_refused(published, clean):
    for made in (
        {"commit": None},
        {"dirty": True},
        {"dirty": None},
        {"resumed_from": [CLEAN | {"dirty": True}]},
    ):
        with pytest.raises(UserError, match="uncommitted"):
            published(replace(clean, provenance=CLEAN | made))


def test_runs_of_two_versions_of_the_code_need_a_reason(published, clean, tmp_path):
    older = replace(record(tmp_path, "older", code={"a.py": "000000"}), provenance=CLEAN)
    with pytest.raises(UserError, match=r"a\.py"):
        published(clean, older)
    sets = published(clean, older, why="a.py changed its messages alone")
    assert "messages alone" in (sets / "mine" / "README.md").read_text()
    oldest = replace(record(tmp_path, "oldest", code={"a.py": "111111"}), provenance=CLEAN)
    with pytest.raises(UserError, match=r"a\.py"):
        published(older, oldest)


def test_what_else_is_refused(published, clean):
    with pytest.raises(UserError, match="no complete run"):
        published(clean, scale="paper")
    with pytest.raises(DataError, match="torn"):
        published(clean, invalid=[InvalidRecord(clean.path, "torn")])


def test_ngram_losses_of_the_runs_tokens_join_the_published_ones(published, clean, tmp_path):
    """Once: those that are published are not computed again."""
    known = {"corpus": "known", "tokenizer": {}, "sha256": {}}
    write_json(tmp_path / "sets" / "ngrams.json", [known])
    used = {"corpus": "used", "tokenizer": {}, "sha256": SHA256}
    assert read_json(published(clean) / "ngrams.json") == [known, used]
    write_json(tmp_path / "sets" / "ngrams.json", [used | {"loss_nats": {}}])
    assert read_json(published(clean) / "ngrams.json") == [used | {"loss_nats": {}}]


def test_a_smoke_run_changes_no_ngram_losses(published, clean):
    clean.run["scale"] = "smoke"
    assert not (published(clean, scale="smoke") / "ngrams.json").exists()
