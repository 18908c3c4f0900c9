"""The data frame of finished runs, one row per run: the source of every reported number.

Runs come from folders of run directories (the user's own) and from published sets. `by_study` joins
them with the cells of the studies: every table and difference is a groupby of its result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crope import paper
from crope.errors import ConfigError, InvalidRecord, UserError, log_line
from crope.plan.compose import group_files, group_values
from crope.plan.identity import completed
from crope.plan.study import SCALES, TABLES, Cell
from crope.records.sources import code_note
from crope.records.store import Record, is_set, read_curves, read_runs, set_folders

TABLE_PAIR = ("rope", "crope")  # whose difference a row of the tables is about
OWN_SET = "yours"  # the record set of the user's own runs
DIVERGED = "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its rate
PUBLISHED_SCALE = "quick"  # of published runs whose study fixes none
LENGTHS = 4  # the length at which `longer_nats` is measured, over the training length
SUBSET_LABELS = {f"pg19_{books}books": f"PG-19, {books} books" for books in (2, 5, 14)}
DATASET_LABELS = paper.DATASET_LABELS | SUBSET_LABELS | {"tiny": "tiny (a grammar)"}
# Present also where no run has them, so that a selection from an empty frame is empty.
COLUMNS = [
    "run_id",
    "record_set",
    "folder",
    "status",
    "code",
    "model",
    "dataset",
    "row",
    "scale",
    "seed",
    "cell_key",
    "loss",
    "settings",
    "precision",
    "device_kind",
    "val_sampled.mean_nats",
    "val_sampled.std_nats",
    "val_full.best_nats",
    "train.final_nats",
    "beyond_nats",
    "longer_nats",
    "parameters.total",
    "time.total_s",
    "finished_utc",
    "error.type",
    "error.message",
    "error.step",
    "config.tokenizer.vocab_size",
    "config.train.lr",
    "config.train.seq_len",
    "config.train.batch_size",
    "config.train.max_steps",
    "config.train.warmup_steps",
    "config.train.qkv_lr_factor",
    "config.train.lr_step_size",
    "provenance.commit",
    "provenance.dirty",
    "provenance.device",
    "provenance.data.splits.train.sha256",
    "provenance.data.splits.validation.sha256",
]
# Equal in the runs that are compared: on one corpus of a study, in tokens of one kind, and at one
# seed of a row of a study.
CORPUS_KEYS = ["dataset", "config.tokenizer.vocab_size"]
COMPARED = {
    "provenance.data.splits.train.sha256": CORPUS_KEYS,
    "provenance.data.splits.validation.sha256": CORPUS_KEYS,
    "precision": ["seed", "row"],
    "device_kind": ["seed", "row"],
}


@cache
def model_labels() -> dict[str, str]:
    """Reads the labels in conf/model/<model>.yaml, by model; the name if there is none. Raises
    ConfigError for one that two models have: they could not be told apart.
    """
    models: dict[str, str] = {}
    for model in group_files("model"):
        label = group_values("model", model).get("label", model)
        if label in models:
            file = f"conf/model/{model}.yaml"
            raise ConfigError(f"{file}: label: {label} is that of {models[label]}; write another")
        models[label] = model
    return {model: label for label, model in models.items()}


def model_label(model: str) -> str:
    return model_labels().get(model, model)


def dataset_label(dataset: str) -> str:
    return DATASET_LABELS.get(dataset, dataset)


@dataclass(frozen=True)
class Runs:
    """The runs of a report: the user's own and the published ones.

    scale   of Tables 1 and 2
    """

    scale: str
    own: pd.DataFrame
    published: pd.DataFrame
    invalid: Sequence[InvalidRecord]

    @property
    def of_scale(self) -> pd.DataFrame:
        """Selects the user's runs of the scale."""
        return self.own[self.own["scale"] == self.scale]


def load_runs(*, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = ()) -> Runs:
    """Reads the runs of `folders` (default: results_dir/runs) and all published ones.

    `scale` defaults to that of most of the user's runs, else of most published ones; `smoke` only
    if there is no other, of equal ones the first of SCALES.
    """
    own, invalid = load_frame(tuple(folders) or [results_dir / "runs"])
    public, damaged = load_frame(set_folders())
    counts = (own if len(own) else public)["scale"].value_counts()
    present = [name for name in SCALES if name in counts]
    usual = min(present, key=lambda name: (name == "smoke", -counts[name]), default="quick")
    return Runs(scale or usual, own, public, [*invalid, *damaged])


def load_frame(folders: Iterable[Path]) -> tuple[pd.DataFrame, list[InvalidRecord]]:
    """Reads the finished runs of run folders and published sets, one row each, and the invalid
    records.

    Columns: `record_set` (a set's name or OWN_SET), `folder`, `run_id`, `status` (complete, failed
    or stale), `code` (what `code_note` says), `loss` (final full validation loss, nats per token;
    infinite if the run diverged), those of run.json and summary.json, `config.<dotted>`,
    `provenance.<dotted>`, `beyond_nats` and `longer_nats`. Of copies in several run folders the
    first counts that has a loss. Raises DataError for a damaged set.
    """
    rows: list[dict[str, Any]] = []
    invalid: list[InvalidRecord] = []
    for folder in folders:
        records, damaged = read_runs(folder)
        record_set = folder.name if is_set(folder) else OWN_SET
        rows += [_row(record, record_set) for record in records]
        invalid += damaged
    frame = pd.json_normalize(rows)
    frame = frame.reindex(columns=list(dict.fromkeys([*COLUMNS, *frame.columns])))
    # A run that failed on one machine may be complete on another.
    results_first = frame.loc[frame["loss"].isna().sort_values(kind="stable").index]
    counted = results_first.drop_duplicates(["record_set", "run_id"]).sort_index()
    return counted.reset_index(drop=True), invalid


def _row(record: Record, record_set: str) -> dict[str, Any]:
    row = {
        **record.summary,
        **record.run,
        "record_set": record_set,
        "folder": str(record.folder),
        "status": record.status,
        "code": code_note(record.run),
        "loss": record.summary.get("val_full", {}).get("final_nats"),
        "config": completed(record.config),
        "provenance": record.provenance,
    }
    if record.status == "failed" and record.summary["error"]["type"] == DIVERGED:
        row |= {"loss": np.inf, "val_sampled": {"mean_nats": np.inf}}
        row |= {"val_full": {"best_nats": np.inf}, "train": {"final_nats": np.inf}}
    if record.extrapolation:
        row |= _longer(record.extrapolation, record.config["train"]["seq_len"])
    return row


def _longer(measured: Mapping[str, Any], trained: int) -> dict[str, float | None]:
    """Returns the loss at LENGTHS times the training length, and by how much it exceeds that at the
    training length: below 0, more context helps. None where one was not measured.
    """
    loss_at = {part["seq_len"]: part["loss_nats"] for part in measured["lengths"]}
    before, after = loss_at.get(trained), loss_at.get(LENGTHS * trained)
    excess = None if before is None or after is None else after - before
    return {"longer_nats": after, "beyond_nats": excess}


def load_curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Reads the runs' curves: folder, run_id, dataset, row, model, seed, step, val/loss_nats, ..."""
    parts = []
    for folder, of_folder in runs.groupby("folder"):
        curves = read_curves(Path(str(folder)), list(of_folder["run_id"]))
        names = of_folder[["folder", "run_id", "dataset", "row", "model", "seed"]].drop_duplicates()
        parts.append(names.merge(curves, on="run_id"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def by_study(runs: pd.DataFrame, cells: Iterable[Cell]) -> pd.DataFrame:
    """Joins cells of studies with their runs, one line each: the columns of `cell_frame` and
    COLUMNS.

    A run counts if it is complete or diverged and its seed planned. Tables 1 and 2 take every seed
    that RoPE and CRoPE share: a row and its difference are of the same runs.

    Raises UserError as check_comparable does.
    """
    counted = runs.loc[runs["loss"].notna() & (runs["status"] != "stale"), COLUMNS]
    planned_cells = cell_frame(cells).drop(columns="scale")
    joined = planned_cells.merge(counted, on=["cell_key", "model", "dataset", "row"])
    assert not joined.duplicated(["study", "record_set", "run_id"]).any()  # no run counts twice
    pairs = zip(joined["seed"], joined["planned"], strict=True)
    planned = pd.Series([seed in seeds for seed, seeds in pairs], joined.index, dtype=bool)
    joined = _one_set_for_each_seed(joined[planned | joined["study"].isin(TABLES)])
    of_table = joined["study"].isin(TABLES)
    joined = pd.concat([common_seeds(joined[of_table]), joined[~of_table]], ignore_index=True)
    # In selections as small as those of one difference, strings of Arrow cost twice the time.
    joined = joined.astype(dict.fromkeys(joined.select_dtypes("str"), object))
    check_comparable(joined)
    return joined


def cell_frame(cells: Iterable[Cell]) -> pd.DataFrame:
    """Makes one line per cell; `corpora` and `plan_settings` count those of its row in the plan."""
    frame = pd.DataFrame(map(vars, cells), columns=[field.name for field in fields(Cell)])
    of_row = frame.groupby(["study", "row"])
    frame["corpora"] = of_row["dataset"].transform("nunique")
    frame["plan_settings"] = of_row["setting"].transform("nunique")
    return frame


def _one_set_for_each_seed(joined: pd.DataFrame) -> pd.DataFrame:
    """Takes the runs of each seed of a row from the record set with most of them, of equal ones
    that with most runs of the study. A difference within a seed, which is of one row, is then of
    one machine.
    """
    keys = ["study", "row", "seed"]
    of_seed = joined.groupby([*keys, "record_set"])["run_id"].transform("size")
    of_study = joined.groupby(["study", "record_set"])["run_id"].transform("size")
    order = joined.assign(of_seed=of_seed, of_study=of_study)
    order = order.sort_values(["of_seed", "of_study", "record_set"], ascending=[False, False, True])
    chosen = order.drop_duplicates(keys)
    counted = joined.merge(chosen[[*keys, "record_set"]])
    for study, runs in joined[joined["record_set"] == OWN_SET].groupby("study"):
        if left := sorted(set(runs["run_id"]) - set(counted["run_id"])):
            log_line(
                f"{study}: {len(left)} of your runs are left out ({left[0]}, ...): of each seed of a"
                " row one set counts, that with most runs; name your own folder alone"
            )
    return counted


def common_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Keeps the seeds that both RoPE and CRoPE have. A row with only one of them keeps all its
    seeds.
    """
    keys = ["study", "dataset", "row"]
    paired = runs.assign(pair=runs["model"].where(runs["model"].isin(TABLE_PAIR)))
    of_seed = paired.groupby([*keys, "seed"])["pair"].transform("nunique")
    of_row = paired.groupby(keys)["pair"].transform("nunique")
    return runs[of_seed == of_row]


def check_comparable(joined: pd.DataFrame) -> None:
    """Raises UserError if the runs of one study on one corpus differ in data, or those of one seed
    of a row in precision or device kind.

    Commits may differ: the numerics version says whether a commit changed more than rounding.
    """
    for fact, of in COMPARED.items():
        keys = ["study", *of]
        kinds = joined.drop_duplicates([*keys, fact])
        several = kinds[kinds.duplicated(keys, keep=False)]
        for (study, which, *_), group in several.groupby(keys, dropna=False):
            paths = ", ".join((group["folder"] + "/" + group["run_id"]).head(2))
            raise UserError(
                f"{study}, {of[0]} {which}: runs differ in {fact} ({paths});"
                " move one kind to a folder of its own and name it with --runs"
            )
