"""Published records: whole, valid, anonymous; the README's generated block."""

import json
import shutil
from pathlib import Path

import pytest

from crope.config import ROOT
from crope.data.corpora import SPLITS
from crope.data.ngrams import NGRAMS_FILE
from crope.errors import DataError, UserError
from crope.files import write_json
from crope.report.frame import load_frame, read_ngrams
from crope.report.publish import FIGURE, publish, update_readme
from crope.runs.record import PUBLISHED, read_records
from tests.report.records import FAILED, make_extrapolation, make_ngrams, make_splits, write_run

ATTEMPT = {"commit": "c" * 40, "command": "train", "device": "a CPU", "started_utc": "2026-01-01"}
MARKERS = "before\n<!-- generated: tables -->\noutdated\n<!-- end of generated -->\nafter\n"


def test_complete_and_diverged_runs_of_the_scale_are_copied_without_weights(tmp_path: Path) -> None:
    runs, published = tmp_path / "runs", tmp_path / "published"
    path = write_run(runs, seed=0)
    (path / "weights.pt").write_bytes(b"weights")
    (path / "extrapolation.json").write_text(json.dumps(make_extrapolation()))
    write_run(runs, seed=1, error=FAILED)
    write_run(runs, seed=2, version=0)  # stale
    # A result of its learning rate.
    error = FAILED | {"type": "NonFiniteLoss"}
    diverged = write_run(runs, seed=3, error=error)
    names = publish(tmp_path, "machine", scale="quick", published=published)
    assert names == [path.name, diverged.name]
    files = {file.name for file in path.iterdir()} - {"weights.pt"}
    assert {file.name for file in (published / "machine" / path.name).iterdir()} == files
    before, after = (load_frame([folder])[0] for folder in (runs, published / "machine"))
    assert list(after["status"]) == ["complete", "failed"]
    before, after = (frame.iloc[0].drop("path").dropna().to_dict() for frame in (before, after))
    assert after == before
    readme = (published / "machine" / "README.md").read_text()
    assert f"| quick | fp32 | {'c' * 12} | a CPU | none |" in readme
    assert "| 2 | 2 | 1.00 |" in readme
    write_run(tmp_path / "alone" / "runs", error=error)
    publish(tmp_path / "alone", "alone", scale="quick", published=published)
    assert "| 1 | 1 | 0.00 |" in (published / "alone" / "README.md").read_text()


def test_no_absolute_path_is_published_and_the_record_stays_valid(tmp_path: Path) -> None:
    """Also in the command and in the place that the text was read from; with a blank, which YAML
    may fold at.
    """
    home = (
        tmp_path
        / "home of somebody with a name that is long enough to be folded by a writer of YAML"
    )
    hub = {"path": f"{home}/texts/", "revision": None, "train": "a", "validation": "b"}
    config = {
        "results_dir": str(home / "crope" / "results"),
        "data_dir": f"{home}/crope/",
        "data": {"corpus": "ptb", "hub": hub},
    }
    provenance = {
        "command": f"{ROOT}/scripts/train.py 'results_dir={config['results_dir']}' data=ptb",
        "data": {
            "source": {"kind": "local", "where": f"{home}/crope/ptb"},
            "splits": make_splits(),
        },
    }
    write_run(home / "runs", config=config, provenance=provenance)
    publish(home, "machine", scale="quick", published=tmp_path / "published")
    ((record,), _) = read_records(tmp_path / "published" / "machine")
    assert (record.config["results_dir"], record.config["data_dir"]) == ("results", "data/")
    assert record.provenance["command"] == "./scripts/train.py 'results_dir=results' data=ptb"
    assert record.provenance["data"]["source"]["where"] == "data/ptb"
    assert record.config["data"]["hub"]["path"] == "local/"


@pytest.mark.parametrize(
    ("machine", "scale", "provenance", "word"),
    [
        ("machine", "quick", {"dirty": True}, "uncommitted"),
        ("machine", "quick", {"commit": None}, "uncommitted"),
        (
            "machine",
            "quick",
            {"resumed_from": [ATTEMPT | {"dirty": n == 1} for n in range(3)]},
            "uncommitted",
        ),
        ("machine", "quick", {"resumed_from": [dict.fromkeys([*ATTEMPT, "dirty"])]}, "unknown"),
        ("machine", "quick", "metrics.jsonl", r"metrics\.jsonl"),  # an invalid record
        ("machine", "quick", "extrapolation.json", r"extrapolation\.json"),
        ("machine", "paper", {}, "no complete run"),
        ("../up", "quick", {}, "machine"),
    ],
)
def test_nothing_is_copied_when_one_run_cannot_be_published(
    tmp_path: Path, machine: str, scale: str, provenance: dict[str, object] | str, word: str
) -> None:
    write_run(tmp_path / "runs", seed=0)
    if isinstance(provenance, str):
        (write_run(tmp_path / "runs", seed=1) / provenance).write_text("{}\n")
    else:
        write_run(tmp_path / "runs", seed=1, provenance=provenance)
    with pytest.raises(UserError, match=word):
        publish(tmp_path, machine, scale=scale, published=tmp_path / "published")
    assert not (tmp_path / "published").exists()


def test_ngrams_of_prepared_tokens_are_merged_into_the_published_ones(tmp_path: Path) -> None:
    """New, renewed and kept entries; not those of stale files or of corpora that no run has."""
    published, tokens_dir = tmp_path / "published", tmp_path / "tokens"
    write_run(tmp_path / "runs", dataset="tiny")
    kept, renewed = make_ngrams("letters", "k", bigram=1.0), make_ngrams("ptb", "r", bigram=2.0)
    write_json(published / NGRAMS_FILE, [renewed, kept])
    renewed = make_ngrams("ptb", "r", bigram=3.0)
    new = [make_ngrams("ptb", "n"), make_ngrams("ptb", "n", "gpt2"), make_ngrams("tiny", "n")]
    stored = [*new, renewed, make_ngrams("diary", "d"), make_ngrams("wikitext2", "stale")]
    for number, ngrams in enumerate(stored):
        digests = {} if ngrams["corpus"] == "wikitext2" else ngrams["sha256"]
        splits = {split: {"sha256": digests.get(split)} for split in SPLITS}
        meta = {"corpus": ngrams["corpus"], "tokenizer": ngrams["tokenizer"], "splits": splits}
        write_json(tokens_dir / str(number) / "meta.json", meta)
        write_json(tokens_dir / str(number) / NGRAMS_FILE, ngrams)
    for _ in range(2):
        publish(tmp_path, "machine", scale="quick", published=published, tokens_dir=tokens_dir)
        assert read_ngrams(published) == [kept, new[0], renewed, new[1], new[2]]


def test_a_corrupt_file_of_ngrams_is_named(tmp_path: Path) -> None:
    (tmp_path / NGRAMS_FILE).write_text("<<<<<<< HEAD")
    with pytest.raises(DataError, match=NGRAMS_FILE):
        read_ngrams(tmp_path)


def test_the_committed_readme_is_what_the_published_records_give(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    committed = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(committed.replace("| PG-19 |", "| edited |"), encoding="utf-8")
    (tmp_path / "published").mkdir()
    for path in PUBLISHED.iterdir():
        if path.suffix != ".png":  # these are made anew
            (tmp_path / "published" / path.name).symlink_to(path)
    update_readme(readme, tmp_path / "published")
    assert readme.read_text(encoding="utf-8") == committed
    assert (tmp_path / "published" / FIGURE).read_bytes().startswith(b"\x89PNG")


def test_a_readme_needs_markers_and_records(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(MARKERS)
    with pytest.raises(UserError, match="records"):
        update_readme(readme, tmp_path / "published")
    write_run(tmp_path / "published" / "machine")
    update_readme(readme, tmp_path / "published")  # most cells are missing
    text = readme.read_text()
    first, *_, last = text.splitlines()
    assert (first, last) == ("before", "after") and "outdated" not in text
    assert "misaligned" not in text and "Right" not in text  # nothing of the kind is drawn
    invalid = write_run(tmp_path / "published" / "machine", seed=1)
    (invalid / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        update_readme(readme, tmp_path / "published")
    shutil.rmtree(invalid)
    readme.write_text("no markers")
    with pytest.raises(UserError, match="markers"):
        update_readme(readme, tmp_path / "published")
