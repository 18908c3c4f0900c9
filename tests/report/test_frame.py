"""The frame of runs: what a row holds, which runs count, from which record set, what is compared."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from crope.errors import UserError
from crope.report import frame
from crope.report.frame import by_study, curves_of, load_curves, load_frame, load_runs
from crope.runs.published import add_runs
from tests.report.frames import runs, study_row, together
from tests.report.records import failed, record
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def a_set(tmp_path: Path) -> Path:
    """A published set of a complete, a diverged, a failed and a stale run."""
    complete = record(tmp_path / "runs")
    stale = record(tmp_path / "runs", "stale", numerics_version=99)
    diverged = failed(tmp_path / "runs", "diverged", "NonFiniteLoss")
    broken = failed(tmp_path / "runs", "failed", "ValueError")
    add_runs(tmp_path / "set", [complete, diverged, broken, stale])
    return tmp_path / "set"


def test_one_row_per_run(a_set: Path) -> None:
    rows, invalid = load_frame([a_set])
    by_id = rows.set_index("run_id")
    assert invalid == []
    assert by_id["status"].to_dict() == {
        "diverged": "failed",
        "failed": "failed",
        "rope-ptb-base-s0-1": "complete",
        "stale": "stale",
    }
    run = by_id.loc["rope-ptb-base-s0-1"]
    assert (run["loss"], run["record_set"], run["config.train.seq_len"]) == (5.0, "set", 16)
    assert run["provenance.commit"] == "c"


def test_a_diverged_run_has_infinite_losses_and_a_failed_one_none(a_set: Path) -> None:
    rows = load_frame([a_set])[0].set_index("run_id")
    assert rows.loc["diverged", "loss"] == np.inf
    assert rows.loc["diverged", "val_sampled.mean_nats"] == np.inf
    assert np.isnan(rows.loc["failed", "loss"])


def test_a_run_directory_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    with toy_corpus(tmp_path / "tokens"):
        run = train_toy(tmp_path, "seed=3")
    rows, invalid = load_frame([tmp_path / "runs", tmp_path / "runs"])
    (row,) = rows.to_dict("records")
    assert invalid == []
    assert (row["path"], row["seed"], row["record_set"]) == (str(run.path), 3, "yours")
    assert row["loss"] == run.summary["val_full"]["final_nats"]


def test_a_run_with_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    with toy_corpus(tmp_path / "tokens"):
        run = train_toy(tmp_path)
    (run.path / "extrapolation.json").write_text("{")
    rows, (error,) = load_frame([tmp_path / "runs"])
    assert rows.empty
    assert "extrapolation.json" in str(error)


def test_the_loss_beyond_the_training_length(tmp_path: Path) -> None:
    """5.3 at 64 tokens, 5.0 at 16: the three quarters beyond lose 0.3 / 0.75 = 0.4."""
    run = record(tmp_path / "runs")
    lengths = [{"seq_len": 16, "loss_nats": 5.0}, {"seq_len": 64, "loss_nats": 5.3}]
    measured = {"weights_sha256": "w", "lengths": lengths, "by_position": []}
    (run.path / "extrapolation.json").write_text(json.dumps(measured))
    add_runs(tmp_path / "set", [run, record(tmp_path / "runs", "other")])
    rows = load_frame([tmp_path / "set"])[0].set_index("run_id")["beyond_nats"]
    assert rows["rope-ptb-base-s0-1"] == pytest.approx(0.4)
    assert np.isnan(rows["other"])


def test_a_frame_without_runs_is_empty_and_can_be_selected_from(tmp_path: Path) -> None:
    rows, invalid = load_frame([tmp_path / "absent"])
    assert rows.empty
    assert invalid == []
    assert by_study(rows, [study_row()]).empty


def test_the_curves_of_a_run_are_those_of_its_metrics(tmp_path: Path) -> None:
    run = record(tmp_path / "runs")
    add_runs(tmp_path / "set", [run, record(tmp_path / "runs", "other")])
    published = load_curves(tmp_path / "set" / "rope-ptb-base-s0-1").reset_index(drop=True)
    assert published["step"].tolist() == [0, 10, 20]
    assert published["val/loss_nats"].dropna().tolist() == [9.25, 5.5]
    pd.testing.assert_frame_equal(published, load_curves(run.path), check_like=True)


def test_the_curves_of_many_runs_have_their_names(tmp_path: Path) -> None:
    own = record(tmp_path / "runs", "own")
    add_runs(tmp_path / "set", [record(tmp_path / "more", "a"), record(tmp_path / "more", "b")])
    chosen = runs(rope=[5.0, 5.0]).assign(path=[str(own.path), str(tmp_path / "set" / "b")])
    curves = curves_of(chosen)
    assert curves["seed"].tolist() == [0, 0, 0, 1, 1, 1]
    assert curves["step"].tolist() == [0, 10, 20, 0, 10, 20]


def seeds(joined: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(joined["model"], joined["seed"], strict=True))


def test_a_run_counts_for_the_cell_that_has_its_key() -> None:
    """Not one of the same names with another key, another model, row or corpus."""
    other = runs(rope=[1.0], columns={"cell_key": "other"})
    row = runs(rope=[2.0], row="b2_l512_d64")
    corpus = runs(rope=[3.0], dataset="wikitext2")
    every = together(runs(rope=[5.0], nope=[4.0]), other, row, corpus)
    (run,) = by_study(every, [study_row()]).to_dict("records")
    assert (run["study"], run["model"], run["loss"]) == ("mine", "rope", 5.0)


def test_only_planned_seeds_count() -> None:
    joined = by_study(runs(rope=[5.0] * 5), [study_row(seeds=(1, 3))])
    assert seeds(joined) == [("rope", 1), ("rope", 3)]


def test_complete_and_diverged_runs_count() -> None:
    """A stale or failed one does not, also not a stale one that diverged."""
    diverged = runs(crope=[np.inf], columns={"status": "failed"})
    stale = runs(crope=[5.0, np.inf], first_seed=1, columns={"status": "stale"})
    broken = runs(rope=[5.0], first_seed=1).assign(loss=np.nan, status="failed")
    joined = by_study(together(runs(rope=[5.0]), diverged, stale, broken), [study_row()])
    assert seeds(joined) == [("rope", 0), ("crope", 0)]


def test_the_setting_is_what_varies_within_a_row() -> None:
    rows = [
        study_row(setting="train.lr=1"),
        study_row(setting="train.lr=2"),
        study_row(study="other", setting="train.lr=3"),
    ]
    cells = frame.study_cells(rows).drop_duplicates("study", keep="last")
    assert cells["setting"].tolist() == ["train.lr=2", ""]
    assert cells["settings"].tolist() == [2, 1]


def test_the_corpora_of_a_row_are_counted() -> None:
    rows = [study_row(), study_row(dataset="wikitext2"), study_row(row="b2_l512_d64")]
    assert frame.study_cells(rows)["corpora"].tolist() == [2, 2, 2, 2, 1, 1]


def test_the_tables_take_every_seed_that_rope_and_crope_share() -> None:
    """Planned are 0 to 2; XPOS has what it has of these."""
    every = runs(rope=[5.0] * 5, crope=[5.0, None, 5.0, 5.0, 5.0], xpos=[6.0, 6.0])
    joined = by_study(every, [study_row("xpos", "rope", "crope", study="table1")])
    shared = [("rope", seed) for seed in (0, 2, 3, 4)] + [("crope", s) for s in (0, 2, 3, 4)]
    assert sorted(seeds(joined)) == sorted([("xpos", 0), *shared])


def test_a_row_with_rope_alone_keeps_its_seeds() -> None:
    joined = by_study(runs(rope=[5.0, 5.0]), [study_row(study="table1")])
    assert seeds(joined) == [("rope", 0), ("rope", 1)]


def in_set(name: str, **by_model: list[float | None]) -> pd.DataFrame:
    return runs(columns={"record_set": name}, **by_model)


def taken_from(*parts: pd.DataFrame) -> dict[int, str]:
    joined = by_study(together(*parts), [study_row()])
    return dict(zip(joined["seed"], joined["record_set"], strict=True))


def test_a_seed_is_taken_from_the_set_that_has_most_of_its_runs() -> None:
    a = in_set("a", rope=[5.0, 5.0], crope=[5.0, None])
    b = in_set("b", rope=[5.0, 5.0], crope=[None, 5.0])
    assert taken_from(a, b) == {0: "a", 1: "b"}


def test_of_equal_sets_the_one_with_most_of_the_study() -> None:
    a = in_set("a", rope=[5.0])
    b = in_set("b", rope=[5.0, 5.0])
    assert taken_from(a, b) == {0: "b", 1: "b"}


@pytest.mark.parametrize("fact", ["precision", "device_kind"])
def test_runs_of_a_seed_agree_in_precision_and_device(fact: str) -> None:
    """Seeds may differ."""
    first, second = runs(rope=[5.0], crope=[5.0]), runs(rope=[5.0], crope=[5.0], first_seed=1)
    by_study(together(first, second.assign(**{fact: "other"})), [study_row()])
    mixed = together(runs(rope=[5.0]), runs(crope=[5.0]).assign(**{fact: "other"}))
    with pytest.raises(UserError, match=f"mine, seed 0.*differ in {fact}.*--runs"):
        by_study(mixed, [study_row()])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_runs_on_one_corpus_agree_in_data(split: str) -> None:
    """Corpora may differ, and so may commits."""
    fact = f"provenance.data.splits.{split}.sha256"
    rope = runs(rope=[5.0], columns={fact: "a", "provenance.commit": "c"})
    other = runs(crope=[5.0], columns={fact: "b", "provenance.commit": "d"})
    by_study(together(rope, other.assign(dataset="wikitext2")), [study_row()])
    with pytest.raises(UserError, match=f"ptb.*{split}"):
        by_study(together(rope, other), [study_row()])


def loaded(own: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> frame.Runs:
    """`load_runs` with these runs of the user, and a published RoPE run of the scale medium."""
    public = runs(rope=[5.0], columns={"scale": "medium"})
    frames = iter([(own, []), (public, [])])
    monkeypatch.setattr(frame, "load_frame", lambda folders: next(frames))
    return load_runs(results_dir=tmp_path, published=tmp_path)


@pytest.mark.parametrize(
    ("scales", "reported"),
    [
        (["quick", "paper", "quick"], "quick"),
        (["quick", "paper"], "paper"),
        (["smoke", "medium", "smoke"], "medium"),
        (["smoke"], "smoke"),
        ([], "medium"),
    ],
)
def test_the_scale_of_most_runs_is_reported(
    scales: list[str], reported: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Smoke alone only, and the published ones where there is no other."""
    own = runs(rope=[5.0] * len(scales)).assign(scale=scales)
    assert loaded(own, monkeypatch, tmp_path).scale == reported


def test_own_runs_of_the_scale_stand_in_the_tables_before_published_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = loaded(runs(crope=[5.0]), monkeypatch, tmp_path)
    assert own.shown["model"].tolist() == ["crope"]
    none = loaded(runs(crope=[]), monkeypatch, tmp_path)
    assert none.shown["model"].tolist() == ["rope"]


def test_tiny_joins_the_tables_where_it_was_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert loaded(runs(rope=[5.0]), monkeypatch, tmp_path).datasets is None
    tiny = loaded(runs(rope=[5.0], dataset="tiny"), monkeypatch, tmp_path)
    assert tiny.datasets == ["pg19", "wikitext2", "ptb", "tiny"]
