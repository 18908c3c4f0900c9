"""The frame of runs: what a row holds, which runs count, from which record set, what is compared."""

import numpy as np
import pytest

from crope.errors import UserError
from crope.report import frame
from crope.report.frame import by_study, cell_frame, curves_of, load_curves, load_frame, load_runs
from crope.runs.published import add_runs
from tests.report.frames import cells, runs, together
from tests.report.records import failed, record
from tests.toy_runs import toy_corpus, train_toy


def test_one_row_per_published_run(tmp_path):
    """A diverged run has infinite losses, a failed one none."""
    diverged = failed(tmp_path, "diverged", "NonFiniteLoss")
    broken = failed(tmp_path, "failed", "ValueError")
    stale = record(tmp_path, "stale", numerics_version=99)
    add_runs(tmp_path / "set", [record(tmp_path, "good"), diverged, broken, stale])
    rows = load_frame([tmp_path / "set"])[0].set_index("run_id")
    assert list(rows["status"]) == ["failed", "failed", "complete", "stale"]
    assert list(rows["loss"].fillna(-1)) == [np.inf, -1, 5.0, 5.0]
    assert rows.loc["diverged", "val_sampled.mean_nats"] == np.inf
    good = rows.loc["good"]
    assert (good["record_set"], good["config.train.seq_len"]) == ("set", 16)


def test_a_run_directory_counts_once_however_often_it_is_named(tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        run = train_toy(tmp_path, "seed=3")
    (row,) = load_frame([tmp_path / "runs"] * 2)[0].to_dict("records")
    assert (row["path"], row["seed"], row["record_set"]) == (str(run.path), 3, "yours")
    assert row["loss"] == run.summary["val_full"]["final_nats"]
    (run.path / "extrapolation.json").write_text("{")
    rows, (error,) = load_frame([tmp_path / "runs"])
    assert rows.empty
    assert "extrapolation.json" in str(error)


def test_the_loss_beyond_the_training_length():
    """5.3 at 64 tokens, 5.0 at 16: the three quarters beyond lose 0.3 / 0.75 = 0.4."""
    lengths = [{"seq_len": 16, "loss_nats": 5.0}, {"seq_len": 64, "loss_nats": 5.3}]
    assert frame._beyond({"lengths": lengths}, 16) == pytest.approx(0.4)
    lengths[1]["loss_nats"] = None
    assert frame._beyond({"lengths": lengths}, 16) is None


def test_a_frame_without_runs_is_empty_and_can_be_selected_from(tmp_path):
    rows, _ = load_frame([tmp_path / "absent"])
    assert by_study(rows, cells()).empty


def test_curves_of_own_and_published_runs(tmp_path):
    own = record(tmp_path, "own")
    add_runs(tmp_path / "set", [record(tmp_path, "a"), record(tmp_path, "b")])
    chosen = runs(rope=[5.0, 5.0]).assign(path=[str(own.path), str(tmp_path / "set" / "b")])
    for _, curve in curves_of(chosen).groupby("seed"):
        assert list(curve["step"]) == [0, 10, 20]
        assert list(curve["val/loss_nats"].dropna()) == [9.25, 5.5]
    assert list(load_curves(tmp_path / "set" / "a")["step"]) == [0, 10, 20]


def seeds(joined):
    return sorted(zip(joined["model"], joined["seed"], strict=True))


def test_a_run_counts_for_the_cell_that_has_its_key():
    """Not one of the same names with another key, nor one of another row or model with this key."""
    other = runs(rope=[1.0], columns={"cell_key": "other"})
    row = runs(rope=[2.0], columns={"row": "mine"})
    model = runs(nope=[3.0], columns={"cell_key": "rope-ptb-base"})
    joined = by_study(together(runs(rope=[5.0]), other, row, model), cells())
    assert list(joined["loss"]) == [5.0]


def test_only_planned_seeds_count():
    joined = by_study(runs(rope=[5.0] * 5), cells(seeds=(1, 3)))
    assert seeds(joined) == [("rope", 1), ("rope", 3)]


def test_complete_and_diverged_runs_count():
    """A stale or failed one does not, also not a stale one that diverged."""
    diverged = runs(crope=[np.inf], columns={"status": "failed"})
    stale = runs(crope=[5.0, np.inf], first_seed=1, columns={"status": "stale"})
    broken = runs(rope=[5.0], first_seed=1).assign(loss=np.nan, status="failed")
    joined = by_study(together(runs(rope=[5.0]), diverged, stale, broken), cells())
    assert seeds(joined) == [("crope", 0), ("rope", 0)]


def test_the_corpora_and_settings_of_a_row_are_counted():
    base = [*cells("rope"), *cells("rope", setting="train.lr=1"), *cells(dataset="wikitext2")]
    frame = cell_frame([*base, *cells("rope", row="b2_l512_d64"), *cells("rope", study="other")])
    assert list(frame["corpora"]) == [2, 2, 2, 2, 1, 1]
    assert list(frame["settings"]) == [2, 2, 2, 2, 1, 1]


def test_the_tables_take_every_seed_that_rope_and_crope_share():
    """Planned are 0 to 2. XPOS has what it has of these."""
    every = runs(rope=[5.0] * 4, crope=[5.0, None, 5.0, 5.0], xpos=[6.0, 6.0])
    joined = by_study(every, cells("xpos", "rope", "crope", study="table1"))
    shared = [(model, seed) for model in ("crope", "rope") for seed in (0, 2, 3)]
    assert seeds(joined) == [*shared, ("xpos", 0)]


def taken_from(**by_set):
    """The record set of seed 0 and of seed 1."""
    parts = [part.assign(record_set=name) for name, part in by_set.items()]
    joined = by_study(together(*parts), cells())
    return list(joined.drop_duplicates("seed").sort_values("seed")["record_set"])


def test_a_seed_is_taken_from_the_set_that_has_most_of_its_runs():
    a, b = runs(rope=[5.0, 5.0], crope=[5.0]), runs(rope=[5.0, 5.0], crope=[None, 5.0])
    assert taken_from(a=a, b=b) == ["a", "b"]


def test_of_equal_sets_the_one_with_most_of_the_study():
    assert taken_from(a=runs(rope=[5.0]), b=runs(rope=[5.0, 5.0])) == ["b", "b"]


@pytest.mark.parametrize("fact", ["precision", "device_kind"])
def test_runs_of_a_seed_agree_in_precision_and_device(fact):
    """Seeds may differ."""
    rope, crope = runs(rope=[5.0]), runs(crope=[5.0], columns={fact: "other"})
    by_study(together(rope, crope.assign(seed=1)), cells())
    with pytest.raises(UserError, match=f"mine, seed 0.*differ in {fact}.*--runs"):
        by_study(together(rope, crope), cells())


@pytest.mark.parametrize("split", ["train", "validation"])
def test_runs_on_one_corpus_agree_in_data(split):
    """Corpora may differ."""
    fact = f"provenance.data.splits.{split}.sha256"
    rope = runs(rope=[5.0], columns={fact: "a"})
    by_study(together(rope, runs(crope=[5.0], dataset="pg19", columns={fact: "b"})), cells())
    with pytest.raises(UserError, match=f"ptb.*{split}"):
        by_study(together(rope, runs(crope=[5.0], columns={fact: "b"})), cells())


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """`load_runs` with own runs of these scales, and a published one of the scale medium."""

    def call(*scales, dataset="ptb"):
        own = runs(rope=[5.0] * len(scales), dataset=dataset).assign(scale=list(scales))
        frames = iter([(own, []), (runs(crope=[5.0], columns={"scale": "medium"}), [])])
        monkeypatch.setattr(frame, "load_frame", lambda folders: next(frames))
        return load_runs(results_dir=tmp_path, published=tmp_path)

    return call


def test_the_scale_of_most_runs_is_reported(loaded):
    """Smoke alone only; that of the published runs where there is no other."""
    assert loaded("quick", "paper", "quick").scale == "quick"
    assert loaded("quick", "paper").scale == "paper"
    assert loaded("smoke", "medium", "smoke").scale == "medium"
    assert loaded("smoke").scale == "smoke"
    assert loaded().scale == "medium"


def test_tiny_joins_the_tables_where_it_was_trained(loaded):
    assert loaded("quick").datasets is None
    assert loaded("quick", dataset="tiny").datasets == ["pg19", "wikitext2", "ptb", "tiny"]
