"""Every run as one row of a data frame, and a dictionary of its columns, for statistics of one's own.

runs.csv and runs.parquet hold the same frame; the Parquet file carries each column's unit and meaning as metadata.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from crope import config
from crope.errors import DataError
from crope.record import Record
from crope.report.csv_files import to_csv
from crope.report.frame import error_line, one_line, printable, run_status
from crope.verify import DamagedRun

DICTIONARY_COLUMNS = ("name", "unit", "type", "meaning")
NATS = "nats per token"


@dataclass(frozen=True)
class Column:
    """`kind` is str, int, float or bool; any value may be absent. `unit` is empty for names, ratios and switches."""

    name: str
    unit: str
    kind: str
    meaning: str
    read: Callable[[Record], Any]


def _at(source: str, path: str) -> Callable[[Record], Any]:
    """Reads a dotted path of a record's summary, provenance or config; None where it ends early."""

    def read(run: Record) -> Any:
        value: Any = getattr(run, source)
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return read


def _summary(name: str, unit: str, kind: str, meaning: str, path: str = "") -> Column:
    return Column(name, unit, kind, meaning, _at("summary", path or name))


def _provenance(name: str, unit: str, kind: str, meaning: str, path: str = "") -> Column:
    return Column(name, unit, kind, meaning, _at("provenance", path or name))


FULL = "the fixed pass over the validation split"
SAMPLED = "sampled validation losses of the last 10 % of steps"

COLUMNS: tuple[Column, ...] = (
    _summary("run_id", "", "str", "model-dataset-row-seed-hash of what the run computes"),
    Column("status", "", "str", "complete, failed, damaged, or stale: complete under another version", run_status),
    _summary("model", "", "str", "the paper's column: file of conf/model"),
    _summary("dataset", "", "str", "file of conf/data"),
    _summary("row", "", "str", "row of Table 2: file of conf/ablation"),
    _summary("scale", "", "str", "how much of the paper's work: file of conf/scale"),
    _summary("seed", "", "int", "of initialisation, data order and dropout; equal seeds pair runs"),
    _summary("numerics_version", "", "int", "raised when the golden losses change; runs of different ones do not mix"),
    _summary("precision", "", "str", "fp32 or bf16 autocast, as resolved"),
    _summary("device_kind", "", "str", "cpu or cuda"),
    _provenance("device", "", "str", "name of the device"),
    _provenance("driver", "", "str", "version of the GPU driver"),
    _provenance("cuda", "", "str", "CUDA version of the torch build"),
    _provenance("threads", "threads", "int", "CPU threads of torch"),
    _provenance("commit", "", "str", "git commit of the code"),
    _provenance("dirty", "", "bool", "whether tracked files differed from the commit"),
    _provenance("python", "", "str", "version"),
    _provenance("torch", "", "str", "version", "packages.torch"),
    _provenance("numpy", "", "str", "version", "packages.numpy"),
    _provenance("tokenizers", "", "str", "version", "packages.tokenizers"),
    _provenance("tokenizer_sha256", "", "str", "of the tokenizer file", "data.tokenizer.sha256"),
    _provenance("train_sha256", "", "str", "of the train split's token file", "data.splits.train.sha256"),
    _provenance("validation_sha256", "", "str", "of the validation split's", "data.splits.validation.sha256"),
    _provenance("started_utc", "", "str", "ISO 8601"),
    _provenance("finished_utc", "", "str", "ISO 8601"),
    _summary("steps", "steps", "int", "optimiser updates done"),
    _summary("train_tokens", "tokens", "int", "tokens trained on: steps x batch_size x seq_len"),
    _summary("train_passes", "", "float", "train_tokens over the tokens of the train split"),
    _summary("val_sampled_mean_nats", NATS, "float", f"mean of the {SAMPLED}", "val_sampled.mean_nats"),
    _summary("val_sampled_std_nats", NATS, "float", f"standard deviation of the {SAMPLED}", "val_sampled.std_nats"),
    _summary("val_sampled_n", "", "int", f"number of the {SAMPLED}", "val_sampled.n"),
    _summary("val_sampled_best_nats", NATS, "float", "lowest sampled validation loss", "val_sampled.best_nats"),
    _summary("val_sampled_best_step", "steps", "int", "step of val_sampled_best_nats", "val_sampled.best_step"),
    _summary("val_full_final_nats", NATS, "float", f"after the last step, {FULL}", "val_full.final_nats"),
    _summary("val_full_best_nats", NATS, "float", f"lowest, {FULL}", "val_full.best_nats"),
    _summary("val_full_best_step", "steps", "int", "step of val_full_best_nats", "val_full.best_step"),
    _summary("val_full_tokens", "tokens", "int", "targets in the fixed pass", "val_full.tokens"),
    _summary("val_full_whole_split", "", "bool", "whether the fixed pass is the whole split", "val_full.whole_split"),
    _summary("train_full_final_nats", NATS, "float", "on the train split, measured as val_full", "train.final_nats"),
    _summary("train_full_tokens", "tokens", "int", "targets in train_full_final_nats", "train.tokens"),
    _summary("train_val_gap_nats", NATS, "float", "val_full_final_nats less train_full_final_nats"),
    _summary("val_nats_per_byte", "nats per byte", "float", "val_full_final_nats x tokens / bytes of the split"),
    _summary("unigram_nats", NATS, "float", "validation loss under the train split's token counts, one added to each"),
    _summary("parameters_qkv", "parameters", "int", "of the Q, K and V maps", "parameters.qkv"),
    _summary("parameters_output_projection", "parameters", "int", "after attention", "parameters.output_projection"),
    _summary("parameters_ffn", "parameters", "int", "of the feed-forward layers", "parameters.ffn"),
    _summary("parameters_norms", "parameters", "int", "of the layer norms", "parameters.norms"),
    _summary("parameters_embeddings", "parameters", "int", "a tied head counts once, here", "parameters.embeddings"),
    _summary("parameters_total", "parameters", "int", "sum of the parts", "parameters.total"),
    _summary("total_s", "seconds", "float", "wall-clock time of training and validation", "time.total_s"),
    _summary("median_step_ms", "milliseconds", "float", "median time of a training step", "time.median_step_ms"),
    _summary("tokens_per_s", "tokens per second", "float", "median pace of training", "time.tokens_per_s"),
    _summary("memory_peak_gib", "GiB", "float", "highest allocated device memory"),
    _summary("metrics_sha256", "", "str", "of metrics.jsonl"),
    Column("error", "", "str", "why a run failed or is damaged", lambda run: error_line(run.summary) or None),
)  # fmt: skip

# Units of configuration keys by their last part; the others are names, factors and switches.
CONFIG_UNITS = {
    "batch_size": "sequences", "seq_len": "tokens", "max_steps": "steps", "lr_step_size": "steps", "every": "steps",
    "full_every": "steps", "log_every": "steps", "checkpoint_every": "steps", "full_tokens": "tokens",
    "batches": "batches", "vocab_size": "tokens", "n_layers": "layers", "n_heads": "heads", "d_model": "channels",
    "threads": "threads",
}  # fmt: skip


def columns() -> list[Column]:
    """The record's columns, then every key of the configuration as `config.<key>`."""
    return [*COLUMNS, *(_config_column(key, item.type, item.metadata["text"]) for key, item in config.keys().items())]


def _config_column(key: str, kind: Any, text: str) -> Column:
    return Column(f"config.{key}", CONFIG_UNITS.get(key.rsplit(".", 1)[-1], ""), kind, text, _at("config", key))


def build_runs_frame(runs: Sequence[Record], damaged: Sequence[DamagedRun] = ()) -> pd.DataFrame:
    """One row a run, in the order given, the damaged last; the columns are `columns()`, absent values None."""
    names = [column.name for column in columns()]
    return pd.DataFrame([row for _, row in _rows(runs, damaged)], columns=names, dtype=object)


def _rows(runs: Sequence[Record], damaged: Sequence[DamagedRun]) -> list[tuple[Path, dict[str, Any]]]:
    """Directory and values of each run. Of a damaged one nothing is believed but its name."""
    wanted = columns()
    rows = [(run.path, {column.name: _plain(column.read(run)) for column in wanted}) for run in runs]
    for run in damaged:
        known = {"run_id": one_line(run.path.name), "status": "damaged", "error": one_line(run.reason)}
        rows.append((run.path, dict.fromkeys(column.name for column in wanted) | known))
    return rows


def _plain(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def render_runs_csv(runs: Sequence[Record], damaged: Sequence[DamagedRun] = ()) -> str:
    return build_runs_frame(runs, damaged).to_csv(index=False, lineterminator="\n")


def render_columns_csv() -> str:
    """The dictionary: name, unit, type and meaning of every column."""
    return to_csv(DICTIONARY_COLUMNS, [(column.name, column.unit, column.kind, column.meaning) for column in columns()])


def render_runs_parquet(runs: Sequence[Record], damaged: Sequence[DamagedRun] = ()) -> bytes:
    """The frame with a typed schema, so that a column keeps its type where every value is absent.

    Raises DataError, naming run and column, where a record holds a value of another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted, rows = columns(), _rows(runs, damaged)
    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    fields = [
        pa.field(column.name, types[column.kind], metadata={"unit": column.unit, "meaning": column.meaning})
        for column in wanted
    ]
    for path, row in rows:
        for column in wanted:
            if not _is_of_kind(row[column.name], column.kind):
                found = one_line(repr(row[column.name]))[:80]
                raise DataError(f"{path}: {column.name} is {found}, but must be {column.kind}; a file was changed")
    arrays = [pa.array([row[column.name] for _, row in rows], types[column.kind]) for column in wanted]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), buffer)
    return buffer.getvalue()


def _is_of_kind(value: Any, kind: str) -> bool:
    """Arrow itself would cut 3.5 to 3 in a column of integers."""
    if type(value) is int:
        return kind == "float" or (kind == "int" and abs(value) < 2**63)
    return value is None or type(value).__name__ == kind
