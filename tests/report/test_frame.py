"""The frame of runs: one row per record, the runs of a cell, why a cell is empty, what must not be
compared.
"""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from crope.data.ngrams import NGRAMS_FILE
from crope.errors import UserError
from crope.files import write_json
from crope.report.frame import (
    cell_runs,
    cell_status,
    check_comparable,
    choose_source,
    load_frame,
    load_published,
)
from tests.report import records
from tests.report.records import FAILED, make_cell, make_ngrams, write_run

CELL = make_cell("crope")


def status_of(folder: Path, **unavailable: str) -> tuple[str, str]:
    status, notes = cell_status(*load_frame([folder]), CELL, unavailable)
    return status, "; ".join(notes)


def check_models(folder: Path) -> None:
    check_comparable(load_frame([folder])[0], [CELL, make_cell("rope")])


def test_one_row_per_run_with_every_field_of_its_files(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, seed=seed, final=5 + seed) for seed in (1, 0)]
    frame, invalid = load_frame([tmp_path])
    assert not invalid
    assert list(frame["path"]) == [str(path) for path in reversed(paths)]
    assert list(frame["val_full.final_nats"]) == [5, 6]
    known = {
        "status": "complete", "cell_key": CELL.key, "parameters.qkv": 98_304, "config.train.lr": 0.001,
        "config.runtime.loss": "plain", "provenance.data.splits.train.sha256": "a" * 64,
    }  # fmt: skip
    assert frame.iloc[0][list(known)].to_dict() == known


@pytest.mark.parametrize(("configured", "recorded", "expected"), [(1, 2, 1), (0, 2, 2)])
def test_threads_are_the_configured_ones_unless_torch_chose(
    tmp_path: Path, configured: int, recorded: int, expected: int
) -> None:
    """Provenance of runs of one thread may state the number before it was set."""
    threads = {"runtime": {"threads": configured}}
    write_run(tmp_path, config=threads, provenance={"threads": recorded})
    assert list(load_frame([tmp_path])[0]["threads"]) == [expected]


def test_what_was_measured_on_the_weights_of_a_run_is_in_its_row(tmp_path: Path) -> None:
    path = write_run(tmp_path, "rope")
    (path / "extrapolation.json").write_text(json.dumps(records.make_extrapolation()))
    (path / "conversion.json").write_text(json.dumps(records.make_conversion()))
    write_run(tmp_path, "rope", seed=1)
    frame, invalid = load_frame([tmp_path])
    assert not invalid
    run, other = frame.to_dict("records")
    assert run["lengths"] == [(16, 5.25)]
    assert run["positions"] == [(4, 5.5), (12, 5)]
    tuned = {line["arm"]: line["tuned_loss_nats"] for line in run["conversion"]}
    assert tuned == {"rope": 4.95, "best": 5.05, "random": 5.25, "fresh": 5.95}
    assert run["conversion"][1]["kept_share_by_chance"] == 0.55
    assert pd.isna([other["lengths"], other["positions"], other["conversion"]]).all()


EXTRAPOLATION, CONVERSION = records.make_extrapolation(), records.make_conversion()
INVALID = {
    "extrapolation.json": [
        "{",
        "[]",
        "[" * 100_000,
        EXTRAPOLATION | {"weights_sha256": "e" * 64},
        EXTRAPOLATION | {"lengths": [{"seq_len": 16, "loss_nats": "5"}]},
        EXTRAPOLATION | {"lengths": [{"seq_len": 16, "loss_nats": math.nan}]},
    ],
    "conversion.json": [
        {key: value for key, value in CONVERSION.items() if key != "lr"},
        CONVERSION | {"kept_share": {"best": 0.7, "best_by_chance": []}},
    ],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name, cases in INVALID.items() for content in cases]
)
def test_an_invalid_measurement_is_named_and_costs_only_itself(
    tmp_path: Path, name: str, content: object
) -> None:
    path = write_run(tmp_path, "rope")
    (path / "extrapolation.json").write_text(json.dumps(EXTRAPOLATION))
    (path / "conversion.json").write_text(json.dumps(CONVERSION))
    (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    frame, (error,) = load_frame([tmp_path])
    assert str(path / name) in str(error) and "remove the file" in str(error)
    (run,) = frame.to_dict("records")
    assert run["status"] == "complete"
    assert isinstance(run["lengths"], list) == (name == "conversion.json")
    assert isinstance(run["conversion"], list) == (name == "extrapolation.json")


def test_a_frame_without_runs_is_empty_and_can_be_selected_from(tmp_path: Path) -> None:
    frame, invalid = load_frame([tmp_path / "absent"])
    assert frame.empty and not invalid
    assert cell_runs(frame, CELL).empty
    check_comparable(frame, [CELL])


def test_runs_of_a_cell_are_its_complete_ones_by_seed(tmp_path: Path) -> None:
    for seed in (3, 0, 2):
        write_run(tmp_path, seed=seed)
    write_run(tmp_path, seed=1, error=FAILED)
    write_run(tmp_path, seed=4, version=0)  # stale
    write_run(tmp_path, "rope", seed=5)
    write_run(tmp_path, "crope", "wikitext2", seed=6)
    # Under the cell's name, but not its experiment.
    write_run(tmp_path, seed=8, config={"eval": {"every": 10, "full_every": 50, "batches": 40}})
    # The same numbers under another name: a sweep of the user's own.
    other = write_run(tmp_path, seed=7)
    renamed = other.with_name(other.name.replace("-base-", "-mine-"))
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(
        json.dumps(summary | {"row": "mine", "run_id": renamed.name})
    )
    other.rename(renamed)
    frame, invalid = load_frame([tmp_path])
    assert not invalid and len(frame) == 9
    assert list(cell_runs(frame, CELL)["seed"]) == [0, 2, 3]


def test_one_seed_twice_in_a_cell_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_run(tmp_path / name)
    with pytest.raises(UserError, match="seed"):
        cell_runs(load_frame([tmp_path / "one", tmp_path / "other"])[0], CELL)


def test_an_empty_cell_says_why(tmp_path: Path) -> None:
    status, reason = status_of(tmp_path / "none")
    assert status == "missing" and "SCALE=quick" in reason
    missing = ("missing", "Penn Treebank: no network")
    assert status_of(tmp_path / "none", ptb="ptb: no network") == missing
    for version in (0, 99):
        stale = write_run(tmp_path / f"stale{version}", version=version)
        status, reason = status_of(tmp_path / f"stale{version}")
        assert status == "stale" and stale.name in reason and f"version {version}" in reason
    write_run(tmp_path / "failed", error=FAILED)
    status, reason = status_of(tmp_path / "failed")
    assert status == "failed" and reason.endswith("ValueError: loss is nan (step 20)")
    broken = write_run(tmp_path / "invalid")
    (broken / "summary.json").write_text("{")  # torn
    status, reason = status_of(tmp_path / "invalid")
    assert status == "invalid" and str(broken) in reason


@pytest.mark.parametrize("change", [{"precision": "bf16"}, {"device_kind": "cuda"}])
def test_models_are_compared_within_a_seed_on_one_device_in_one_precision(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Seeds, other rows and the commit may differ."""
    write_run(tmp_path, "crope", seed=0)
    write_run(tmp_path, "rope", seed=0, provenance={"commit": "d" * 40})
    write_run(tmp_path, "crope", "wikitext2", seed=0, **change)
    for model in ("crope", "rope"):
        write_run(tmp_path, model, seed=1, **change)
    write_run(tmp_path, "crope", seed=2)
    check_models(tmp_path)
    write_run(tmp_path, "rope", seed=2, **change)
    with pytest.raises(UserError, match="seed 2"):
        check_models(tmp_path)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("model", ["crope", "rope"])
def test_runs_on_other_tokens_are_not_compared(tmp_path: Path, split: str, model: str) -> None:
    """Neither averaged (two seeds of one model) nor subtracted (two models); other rows may
    differ.
    """
    other = {"data": {"splits": records.make_splits(**{split: "b" * 64})}}
    write_run(tmp_path, "crope", seed=0)
    write_run(tmp_path, "crope", "wikitext2", seed=0, provenance=other)
    check_models(tmp_path)
    write_run(tmp_path, model, seed=1, provenance=other)
    with pytest.raises(UserError, match="data"):
        check_models(tmp_path)


def test_own_runs_are_reported_before_published_ones(tmp_path: Path) -> None:
    results, published = tmp_path / "results", tmp_path / "published"
    for seed in (0, 1):
        write_run(published / "large", seed=seed)
    write_run(published / "small", "rope")
    ngrams = [make_ngrams("ptb", "d")]
    write_json(published / NGRAMS_FILE, ngrams)

    def chosen(**options: object) -> tuple[str, str, list[str]]:
        source = choose_source(results_dir=results, published=published, **options)
        assert source.ngrams == ngrams
        return source.machine, source.scale, list(source.frame["model"])

    assert chosen() == ("large", "quick", ["crope", "crope"])
    write_run(results / "runs", "xpos")
    assert chosen() == ("", "quick", ["xpos"])
    # No folder has one: the own folder, whose cells are missing.
    assert chosen(scale="paper") == ("", "paper", ["xpos"])
    assert chosen(folders=[published / "small"]) == ("", "quick", ["rope"])


def test_the_scale_of_most_runs_is_reported_and_smoke_only_alone(tmp_path: Path) -> None:
    def chosen(*scales: str) -> str:
        folder = tmp_path / "-".join(scales)
        for seed, scale in enumerate(scales):
            write_run(folder / "runs", seed=seed, scale=scale)
        return choose_source(results_dir=folder).scale

    assert chosen("quick", "paper", "quick") == "quick"
    assert chosen("quick", "paper") == "paper"
    assert chosen("smoke", "medium", "smoke") == "medium"
    assert chosen("smoke") == "smoke"


def test_an_invalid_own_run_does_not_make_way_for_published_ones(tmp_path: Path) -> None:
    write_run(tmp_path / "published" / "machine")
    (write_run(tmp_path / "runs") / "metrics.jsonl").unlink()
    found = choose_source(results_dir=tmp_path, published=tmp_path / "published")
    assert not found.machine and len(found.invalid) == 1


def test_without_published_records_of_a_scale_there_are_none() -> None:
    assert load_published("smoke") is None


def test_tiny_joins_the_tables_if_it_was_run_because_a_dataset_is_unavailable(
    tmp_path: Path,
) -> None:
    """As the last `make reproduce` noted it."""
    folders = {"results_dir": tmp_path, "published": tmp_path / "published"}
    write_run(tmp_path / "runs", dataset="ptb")
    (tmp_path / "unavailable.json").write_text('{"pg19": "no network"}')
    source = choose_source(**folders)
    assert (source.unavailable, source.datasets) == ({"pg19": "no network"}, None)
    write_run(tmp_path / "runs", dataset="tiny")
    assert choose_source(**folders).datasets == ["pg19", "wikitext2", "ptb", "tiny"]
    (tmp_path / "unavailable.json").unlink()
    assert choose_source(**folders).datasets is None
