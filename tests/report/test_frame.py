"""The frame of runs: what a row holds, which runs count, from which record set, what is compared."""

import numpy as np
import pandas as pd
import pytest

from crope.config import PUBLISHED
from crope.errors import ConfigError, UserError
from crope.records.store import add_runs
from crope.report import frame
from crope.report.frame import (
    by_study,
    cell_frame,
    load_curves,
    load_frame,
    load_runs,
    model_label,
    model_labels,
)
from tests.report.frames import cells, runs, together
from tests.report.records import failed, record
from tests.toy_runs import toy_corpus, train_toy


def test_one_row_per_published_run(tmp_path):
    """A diverged run has infinite losses, a failed one none."""
    made = [
        record(tmp_path, "good"),
        failed(tmp_path, "diverged", "NonFiniteLoss"),
        failed(tmp_path, "failed", "ValueError"),
        record(tmp_path, "stale", numerics_version=99),
        failed(tmp_path, "stale too", "NonFiniteLoss", numerics_version=99),
    ]
    add_runs(tmp_path / "set", made)
    rows, _ = load_frame([tmp_path / "set"])
    assert list(rows["status"]) == ["failed", "failed", "complete", "stale", "stale"]
    diverged, broken, good, *_ = rows.to_dict("records")
    assert diverged["loss"] == diverged["val_sampled.mean_nats"] == np.inf
    assert diverged["val_full.best_nats"] == diverged["train.final_nats"] == np.inf
    assert np.isnan(broken["loss"])
    assert (good["loss"], good["record_set"], good["config.train.seq_len"]) == (5.0, "set", 16)


def test_a_run_has_the_keys_that_were_added_to_the_schema_after_it():
    rows, _ = load_frame([PUBLISHED / "quick-fp32"])
    assert set(rows["config.train.warmup_steps"]) == {0}
    assert set(rows["config.model.rope_base"]) == {10000.0}


def test_a_run_directory_counts_once_however_often_it_is_named(tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        run = train_toy(tmp_path, "seed=3")
    (row,) = load_frame([tmp_path / "runs"] * 2)[0].to_dict("records")
    assert (row["folder"], row["run_id"], row["seed"]) == (str(run.folder), run.run_id, 3)
    assert row["loss"] == run.summary["val_full"]["final_nats"]
    (run.path / "extrapolation.json").write_text("{")
    _, (error,) = load_frame([tmp_path / "runs"])
    assert "extrapolation.json" in str(error)


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_of_copies_the_result_counts_and_not_the_failure(order, tmp_path, monkeypatch):
    """A run that one machine had no memory for, and another completed."""
    copies = {"A": failed(tmp_path / "A", "a", "Killed"), "B": record(tmp_path / "B", "a")}
    monkeypatch.setattr(frame, "read_runs", lambda folder: ([copies[folder.name]], []))
    (row,) = load_frame([tmp_path / name for name in order])[0].to_dict("records")
    assert (row["status"], row["loss"], row["folder"]) == ("complete", 5.0, str(tmp_path / "B"))


def test_the_loss_at_four_times_the_training_length_and_how_much_higher_it_is():
    lengths = [{"seq_len": 16, "loss_nats": 5.0}, {"seq_len": 64, "loss_nats": 5.25}]
    lengths.append({"seq_len": 32, "loss_nats": 9.0})
    assert frame._longer({"lengths": lengths}, 16) == {"longer_nats": 5.25, "beyond_nats": 0.25}
    lengths[1]["loss_nats"] = None
    assert frame._longer({"lengths": lengths}, 16) == {"longer_nats": None, "beyond_nats": None}


def test_curves_of_own_and_published_runs(tmp_path):
    """Of `a` from its folder, of `b` from the set that has both."""
    a, b = record(tmp_path, "a"), record(tmp_path, "b")
    (b.path / "metrics.jsonl").write_text('{"step": 30, "val/loss_nats": 7.5}\n')
    add_runs(tmp_path / "set", [a, b])
    folders = [str(tmp_path), f"{tmp_path}/set"]
    two = runs(rope=[5.0, 5.0]).assign(folder=folders, run_id=["a", "b"])
    curves = load_curves(two)
    assert curves["folder"].unique().tolist() == folders
    lines = curves[["seed", "step", "val/loss_nats"]].dropna()
    assert lines.to_numpy().tolist() == [[0, 0, 9.25], [0, 20, 5.5], [1, 30, 7.5]]


def chosen(every, study="mine", **options):
    """Model and seed of the runs that count for the cells of a study."""
    joined = by_study(every, cells("xpos", "rope", "crope", study=study, **options))
    return sorted(joined["model"] + " " + joined["seed"].astype(str))


def test_a_run_counts_for_the_cell_that_has_its_key():
    """Not one of the same names with another key, nor one of another row or model with this key."""
    own = runs(rope=[5.0])
    others = [own.assign(cell_key="other"), own.assign(row="mine"), own.assign(model="nope")]
    assert chosen(together(own, *others)) == ["rope 0"]


def test_only_planned_seeds_count():
    assert chosen(runs(rope=[5.0] * 5), seeds=(1, 3)) == ["rope 1", "rope 3"]


def test_complete_and_diverged_runs_count():
    """A stale or failed one does not, also not a stale one that diverged."""
    every = runs(rope=[5.0] * 5).assign(
        status=["complete", "failed", "failed", "stale", "stale"],
        loss=[5.0, np.inf, np.nan, 5.0, np.inf],
    )
    assert chosen(every, seeds=range(5)) == ["rope 0", "rope 1"]


def test_the_corpora_and_settings_of_a_row_are_counted():
    base = cells("rope") + cells("rope", dataset="wikitext2") + cells("rope", dataset="pg19")
    base += cells("rope", setting="train.lr=1")
    found = cell_frame(base + cells("rope", row="b2_l512_d64") + cells("rope", study="other"))
    assert list(found["corpora"]) == [3, 3, 3, 3, 1, 1]
    assert list(found["plan_settings"]) == [2, 2, 2, 2, 1, 1]


def test_the_tables_take_every_seed_that_rope_and_crope_share():
    """Planned are 0 to 2. XPOS has what it has of these."""
    every = runs(rope=[5.0] * 4, crope=[5.0, None, 5.0, 5.0], xpos=[6.0, 6.0])
    shared = ["crope 0", "crope 2", "crope 3", "rope 0", "rope 2", "rope 3"]
    assert chosen(every, study="table1") == [*shared, "xpos 0"]


@pytest.mark.parametrize(
    ("a", "b", "taken"),
    [
        (runs(rope=[5.0], crope=[5.0]), runs(rope=[5.0, 5.0, 5.0]), ["a", "b", "b"]),
        (runs(rope=[5.0]), runs(rope=[5.0, 5.0]), ["b", "b"]),
    ],
)
def test_a_seed_is_of_the_set_with_most_of_its_runs_then_of_the_study(a, b, taken):
    both = together(a.assign(record_set="a"), b.assign(record_set="b"))
    of_rope = by_study(both, cells()).query("model == 'rope'")
    assert list(of_rope.sort_values("seed")["record_set"]) == taken


def test_the_corpora_of_a_seed_are_of_one_set():
    """Set a has two runs of the seed, set b one, the only one of the second corpus."""
    a = runs(rope=[5.0], crope=[5.1]).assign(record_set="a")
    b = runs(rope=[6.0], dataset="wikitext2").assign(record_set="b")
    counted = by_study(together(a, b), cells() + cells(dataset="wikitext2"))
    assert list(counted["record_set"]) == ["a", "a"]


def test_own_runs_that_another_set_displaces_are_told(capsys):
    """Set b has a run more of seed 0."""
    b = runs(rope=[5.0], crope=[5.0]).assign(record_set="b")
    by_study(together(runs(xpos=[5.0]), b), cells() + cells("xpos"))
    assert "mine: 1 of your runs are left out (xpos-ptb-base-s0" in capsys.readouterr().err


def test_a_row_has_a_seed_of_the_only_set_with_it_though_another_has_more_rows():
    """Set a has seed 0 of two rows, set b of the third: all three pairs count."""
    parts = [runs(rope=[5.0], crope=[5.0], row=row) for row in ("base", "one", "two")]
    every = together(*(part.assign(record_set=of) for part, of in zip(parts, "aab", strict=True)))
    planned = cells() + cells(row="one") + cells(row="two")
    counted = by_study(every, planned).groupby("row")["record_set"].agg("".join)
    assert counted.to_dict() == {"base": "aa", "one": "aa", "two": "bb"}


@pytest.mark.parametrize(
    ("fact", "apart"),
    [
        ("precision", {"first_seed": 1}),
        ("precision", {"row": "b2_l512_d64"}),
        ("device_kind", {"first_seed": 1}),
        ("device_kind", {"row": "b2_l512_d64"}),
        ("provenance.data.splits.train.sha256", {"dataset": "pg19"}),
        ("provenance.data.splits.validation.sha256", {"dataset": "pg19"}),
        ("provenance.data.splits.train.sha256", {"vocabulary": 512}),
    ],
)
def test_runs_that_are_compared_agree(fact, apart):
    """Those of other seeds or rows, on other corpora or in other tokens may differ."""
    rope = runs(rope=[5.0]).assign(**{fact: "a"})
    here, there = [runs(crope=[5.0], **place).assign(**{fact: "b"}) for place in ({}, apart)]
    planned = cells() + cells(dataset="pg19") + cells(row="b2_l512_d64")
    by_study(together(rope, there), planned)
    with pytest.raises(UserError, match=f"mine, .*differ in {fact}.*--runs"):
        by_study(together(rope, here), planned)


@pytest.mark.parametrize(
    ("scales", "reported"),
    [
        ("quick paper quick", "quick"),
        ("quick paper", "paper"),
        ("smoke medium smoke", "medium"),
        ("smoke", "smoke"),
        ("", "medium"),
    ],
)
def test_the_scale_of_most_runs_is_reported(scales, reported, monkeypatch, tmp_path):
    """Smoke alone only; that of the published runs where there is no other."""
    own = pd.DataFrame({"scale": scales.split()})
    public = pd.DataFrame({"scale": ["medium"]})
    monkeypatch.setattr(frame, "set_folders", lambda: [])
    monkeypatch.setattr(frame, "load_frame", lambda folders: (own if folders else public, []))
    assert load_runs(results_dir=tmp_path).scale == reported


@pytest.mark.parametrize(
    ("model", "label"),
    [("thin_ffn", "thin FFN"), ("learned", "learned"), ("alibi+complex", "alibi+complex")],
)
def test_a_model_is_called_by_the_label_of_its_file(model, label):
    """By its name where the file has no label, or where there is no file."""
    assert model_label(model) == label


def test_a_label_that_two_models_have_is_refused(own_conf):
    """A difference of the two would be 0: it has a column for each label."""
    (own_conf / "model" / "twin.yaml").write_text("label: CRoPE\n")
    model_labels.cache_clear()
    with pytest.raises(ConfigError, match=r"twin.yaml: label: CRoPE is that of crope"):
        model_label("rope")
