"""The data frame and its dictionary: each column has one entry, and every format holds the same values."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from crope.config import NUMERICS_VERSION, keys
from crope.errors import DataError
from crope.record import read_records
from crope.report.runs_frame import (
    build_runs_frame,
    columns,
    render_columns_csv,
    render_runs_csv,
    render_runs_parquet,
)
from crope.verify import read_runs

UNITS = {"_nats": "nats per token", "_step": "steps", "_tokens": "tokens", "_s": "seconds", "_ms": "milliseconds",
         "_gib": "GiB", "nats_per_byte": "nats per byte", "tokens_per_s": "tokens per second"}  # fmt: skip


@pytest.fixture
def runs(write_run, runs_dir):
    write_run("crope", "ptb", final=4.0)
    write_run("rope", "ptb", error={"type": "NonFiniteLoss", "message": "loss is\nnan", "step": 17})
    write_run("xpos", "ptb", numerics_version=NUMERICS_VERSION + 1)
    return read_records(runs_dir)


@pytest.fixture
def damaged(write_run, tmp_path):
    (write_run("crope", "pg19", folder=tmp_path / "broken") / "config.yaml").unlink()
    return read_runs(tmp_path / "broken")[1]


def test_the_dictionary_has_an_entry_for_every_column_and_none_besides(runs) -> None:
    dictionary = list(csv.DictReader(io.StringIO(render_columns_csv())))
    names = [entry["name"] for entry in dictionary]
    header = next(csv.reader(io.StringIO(render_runs_csv(runs))))
    assert names == header == list(build_runs_frame(runs).columns) == list(build_runs_frame([]).columns)
    assert len(set(names)) == len(names)
    assert all(entry["meaning"] and entry["type"] in ("str", "int", "float", "bool") for entry in dictionary)


def test_names_that_end_in_a_unit_have_it() -> None:
    for column in columns():
        ending = max((end for end in UNITS if f"_{column.name}".endswith(end)), key=len, default=None)
        if ending and not column.name.startswith("config."):
            assert column.unit == UNITS[ending], column.name
    units = {column.name: column.unit for column in columns()}
    assert (units["config.train.seq_len"], units["config.train.max_steps"]) == ("tokens", "steps")
    assert units["config.train.lr"] == units["seed"] == ""


def test_values_are_those_of_the_records(runs) -> None:
    frame = build_runs_frame(runs).set_index("model")
    assert frame["status"].to_dict() == {"crope": "complete", "rope": "failed", "xpos": "stale"}
    crope = frame.loc["crope"]
    assert (crope["val_full_final_nats"], crope["val_full_best_nats"], crope["val_full_best_step"]) == (4.0, 3.875, 80)
    assert (crope["train_full_final_nats"], crope["parameters_qkv"]) == (3.75, 4 * 3 * 128**2 // 2)
    assert (crope["commit"], crope["config.model.projection"], crope["seed"]) == ("0123456789abcdef", "complex", 0)
    assert frame.loc["rope", "error"] == "NonFiniteLoss: loss is nan (step 17)"
    assert frame.loc["rope", "val_full_final_nats"] is None


def test_every_key_of_the_configuration_is_a_column(runs) -> None:
    names = set(build_runs_frame(runs).columns)
    assert {f"config.{key}" for key in keys()} <= names
    nested = yaml.safe_load((runs[0].path / "config.yaml").read_text("utf-8"))
    frame = build_runs_frame(runs)
    for section, found in nested.items():
        for key, value in found.items() if isinstance(found, dict) else [(None, found)]:
            name = f"config.{section}.{key}" if key else f"config.{section}"
            assert frame.loc[0, name] == value, name


def test_parquet_holds_the_frame_with_its_types_units_and_meanings(runs) -> None:
    data = render_runs_parquet(runs)
    frame, back = build_runs_frame(runs), pd.read_parquet(io.BytesIO(data))
    assert list(back.columns) == list(frame.columns)
    for name in frame.columns:
        pairs = zip(frame[name], back[name], strict=True)
        assert all((pd.isna(one) and pd.isna(two)) or one == two for one, two in pairs), name
    schema = pq.read_schema(io.BytesIO(data))
    assert str(schema.field("memory_peak_gib").type) == "double"  # though no run has a value
    for column in columns():
        stored = schema.field(column.name).metadata
        assert (stored[b"unit"].decode(), stored[b"meaning"].decode()) == (column.unit, column.meaning)


def test_csv_and_parquet_agree_and_have_the_same_bytes_twice(runs) -> None:
    again = read_records(runs[0].path.parent)
    assert render_runs_parquet(runs) == render_runs_parquet(again)
    assert render_runs_csv(runs) == render_runs_csv(again)
    table = pd.read_csv(io.StringIO(render_runs_csv(runs)))
    back = pd.read_parquet(io.BytesIO(render_runs_parquet(runs)))
    assert table["val_full_final_nats"].tolist()[0] == back["val_full_final_nats"].tolist()[0] == 4.0
    assert len(render_runs_parquet([])) > 0 and pd.read_parquet(io.BytesIO(render_runs_parquet([]))).shape[0] == 0


def test_a_damaged_run_has_a_name_and_a_reason_and_no_number(runs, damaged) -> None:
    frame = build_runs_frame(runs, damaged)
    assert frame["status"].tolist() == ["complete", "failed", "stale", "damaged"]
    last = frame.iloc[-1].dropna().to_dict()
    assert last.keys() == {"run_id", "status", "error"} and "config.yaml" in last["error"]
    assert last["run_id"] == damaged[0].path.name
    back = pd.read_parquet(io.BytesIO(render_runs_parquet(runs, damaged)))
    assert back["run_id"].tolist() == frame["run_id"].tolist()
    assert render_runs_csv(runs, damaged).count("\n") == 1 + 4


@pytest.mark.parametrize("value", ["many", 3.5, True, [1], 2**63])
def test_a_value_of_another_type_is_one_line_with_the_run_and_the_column(runs, value) -> None:
    runs[1].summary["steps"] = value
    with pytest.raises(DataError, match=r"rope-ptb-base-s0-\w+: steps is .*, but must be int") as caught:
        render_runs_parquet(runs)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_text_is_made_printable(runs) -> None:
    runs[0].summary["model"] = "a\ud800\x1b\u202eb"
    back = pd.read_parquet(io.BytesIO(render_runs_parquet(runs)))
    assert back["model"][0] == "a\ufffd\ufffd\ufffdb" == build_runs_frame(runs)["model"][0]
