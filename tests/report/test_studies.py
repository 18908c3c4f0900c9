"""The runs of a study on chosen losses, lengths and conversions of finished runs."""

import math

import pandas as pd
import pytest

from crope.errors import UserError
from crope.report import studies
from crope.report.frame import ARMS
from crope.report.questions import answer
from crope.report.studies import collect_studies, study_losses
from tests.report.frames import make_frame, make_row, make_runs
from tests.report.test_questions import NOISE, TABLES, answers_of, at, lines_of


def test_a_study_starts_with_a_run_of_its_own() -> None:
    rows = [make_row("controls", ["rope", "crope", "halved"])]
    tables_only = make_frame(make_runs("rope", at(5.0)), make_runs("crope", at(5.0)))
    assert collect_studies(tables_only, rows, tables=TABLES).empty
    assert answers_of(tables_only, rows).empty
    started = make_frame(
        make_runs("rope", at(5.0)), make_runs("crope", at(5.0)), make_runs("halved", {0: 5.2})
    )
    assert len(collect_studies(started, rows, tables=TABLES)) == 7
    both = [*rows, make_row("horizon", ["rope", "halved"])]  # no study alone has `halved`
    assert collect_studies(started, both, tables=TABLES).empty


def test_a_study_of_the_tables_models_starts_with_a_seed_of_its_own() -> None:
    rows = [make_row("base", ["rope", "crope"], seeds=range(4))]
    assert collect_studies(make_frame(make_runs("rope", at(5.0))), rows, tables=TABLES).empty
    assert (
        len(collect_studies(make_frame(make_runs("rope", at(5.0) | {5: 5.0})), rows, tables=TABLES))
        == 4
    )


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bf16"},
        {"device_kind": "cuda"},
        {"provenance.data.splits.train.sha256": "b"},
        {"provenance.data.splits.validation.sha256": "b"},
    ],
)
def test_a_study_of_runs_that_do_not_compare_is_refused(change: dict[str, str]) -> None:
    rows = [make_row("controls", ["rope", "halved"]), make_row("mine", ["alibi", "nope"])]
    columns = {f"provenance.data.splits.{split}.sha256": "a" for split in ("train", "validation")}
    columns |= {"precision": "fp32", "device_kind": "cpu"}
    frame = make_frame(
        *(make_runs(model, at(5.0), **columns) for model in ("rope", "halved", "alibi")),
        make_runs("nope", {0: 5.0, 1: 5.0}, **columns),
        make_runs("nope", {2: 5.0}, **columns | change),
    )
    with pytest.raises(UserError, match="nope"):
        collect_studies(frame, rows, tables=TABLES)


def test_losses_are_means_and_deviations_over_seeds_and_missing_models_are_named() -> None:
    rows = [make_row("controls", ["rope", "crope", "halved"])]
    frame = make_frame(make_runs("rope", {0: 5.0, 1: 5.2, 2: 5.7}), make_runs("halved", {0: 5.5}))
    lines = study_losses(collect_studies(frame, rows, tables=TABLES), rows).set_index("model")
    assert lines.loc["rope", ["n", "status"]].tolist() == [3, "complete"]
    assert lines.loc["rope", "mean_nats"] == pytest.approx(5.3)
    assert lines.loc["rope", "std_nats"] == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2))
    assert lines.loc["crope", ["n", "status"]].tolist() == [0, "missing"]
    assert pd.isna(lines.loc["halved", "std_nats"])
    assert "+0.5000" in lines.loc["halved", "reference"]
    printed = studies.losses_table(lines.reset_index(), "controls", "quick").frame
    assert printed["Loss"].tolist() == ["5.3000 ± 0.3606", "missing", "5.5000"]


def test_a_study_of_rope_alone_has_a_table_without_differences() -> None:
    rows = [make_row("mine", ["rope", "alibi"])]
    runs = collect_studies(make_frame(make_runs("rope", at(5.0))), rows, tables=set())
    printed = studies.losses_table(study_losses(runs, rows), "mine", "quick").frame
    assert printed["Loss"].tolist() == ["5.0000 ± 0.0010", "missing"]
    assert printed["− RoPE"].tolist() == ["", ""]


def test_a_study_without_questions_has_a_table_of_losses_by_its_own_setting() -> None:
    rows = [make_row("mine", ["rope", "alibi"], lr=lr) for lr in ("0.001", "0.003")]
    frame = make_frame(
        make_runs("alibi", at(5.0), lr="0.001"), make_runs("alibi", at(6.0), lr="0.003")
    )
    runs = collect_studies(frame, rows, tables=TABLES)
    lines = study_losses(runs, rows)
    found = lines[lines["n"] > 0].set_index("setting")["mean_nats"].to_dict()
    assert found == pytest.approx({"train.lr=0.001": 5.0, "train.lr=0.003": 6.0})
    assert answer(runs, rows).empty
    assert "Setting" in studies.losses_table(lines, "mine", "quick").frame


@pytest.fixture
def measured() -> pd.DataFrame:
    """ALiBi over three seeds: losses at 1 and 4 times the length of 256 tokens."""
    lines = make_runs("alibi", at(5.0))
    for line in lines:
        line["lengths"] = [(256, 5.1), (1024, 5.0 + 0.001 * line["seed"])]
        line["positions"] = [(128.0, 5.2), (384.0, 4.8)]
    return make_frame(lines, make_runs("rope", at(5.0)))


def test_the_length_study_compares_the_tokens_beyond_the_training_length(
    measured: pd.DataFrame,
) -> None:
    rows = [make_row("length", ["rope", "alibi"])]
    runs = collect_studies(measured, rows, tables=TABLES)
    lines = study_losses(runs, rows)
    assert lines[["model", "seq_len", "n"]].fillna(0).to_numpy().tolist() == [
        ["rope", 0, 0], ["alibi", 256, 3], ["alibi", 1024, 3]
    ]  # fmt: skip
    assert lines["mean_nats"].tolist()[1:] == pytest.approx([5.1, 5.001])
    found = lines_of(answer(runs, rows), "ALiBi hold at 4 times").iloc[0]
    # Three quarters of the tokens stand beyond 256: the difference of the means is 4/3 as large
    # there.
    assert found["values"] == pytest.approx(
        tuple(4 / 3 * value for value in (-0.1, -0.099, -0.098))
    )
    assert found["answer"] == "yes, it gains"
    assert (
        lines_of(answer(runs, rows), "RoPE hold at 4 times")["answer"].tolist()
        == ["not tested"] * 2
    )


def test_conversions_are_compared_by_seed() -> None:
    lines = make_runs("rope", at(5.0))
    for line in lines:
        tuned = {"rope": 5.0, "best": 5.1 + NOISE[line["seed"]], "random": 5.3, "fresh": 6.0}
        known = {"steps": 200, "lr": 1e-4, "trained_nats": 5.0}
        known |= {"kept_share": 0.7, "kept_share_by_chance": 0.55}
        line["conversion"] = [
            known | {"arm": arm, "loss_nats": loss, "tuned_loss_nats": loss}
            for arm, loss in tuned.items()
        ]
    found_lines = studies.conversions(make_frame(lines, make_runs("crope", at(5.0))))
    assert len(found_lines) == 3 * len(ARMS)
    (printed,) = studies.conversions_table(found_lines, "quick").frame.to_dict("records")
    assert printed["best structure"] == "5.1000 → 5.1000"
    assert printed["Best − random, tuned"].startswith("−0.2000 (95 % −0.2025 to −0.1975")
    assert printed["Kept"] == "0.700 (by chance 0.550)"
