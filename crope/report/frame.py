"""The data frame of finished runs (one row per run) and the runs of a table cell: the source of
every reported number.

A run belongs to the cell whose names and `cell_key` it has. Complete runs of the current numerics
version count.
"""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from crope import paper
from crope.config import ROOT
from crope.data.ngrams import NGRAMS_FILE
from crope.errors import DataError, InvalidRecord, UserError, one_line
from crope.files import read_json, read_metrics
from crope.runs.identity import cell_key
from crope.runs.record import PUBLISHED, read_measurement, read_records, run_status
from crope.runs.study import SCALES, Cell, unavailable_datasets

TINY = "tiny"
DATASET_LABELS = paper.DATASET_LABELS | {TINY: "tiny (Python's help texts)"}
SCHEMES = {
    "xpos": "XPOS",
    "learned": "learned",
    "relative_bias": "T5 bias",
    "alibi": "ALiBi",
    "nope": "NoPE",
}
MODEL_LABELS = {
    **paper.MODEL_LABELS,
    **SCHEMES,
    **{f"complex_{name}": f"complex {label}" for name, label in SCHEMES.items()},
    "xpos_balanced": "balanced XPOS",
    "rope_linear": "linear RoPE",
    "crope_linear": "linear CRoPE",
    "lowrank": "low rank",
    "blockdiag": "block-diagonal",
    "complex_misaligned": "misaligned",
    "complex_qk": "Q/K only",
    "complex_v": "V only",
    "complex_wide": "wide CRoPE",
    "mqa": "multi-query",
    "thin_ffn": "thin FFN",
}
ARMS = {  # of a conversion
    "rope": "RoPE, tuned on",
    "best": "best structure",
    "random": "random structure",
    "fresh": "new Q, K, V",
}


def model_label(model: str) -> str:
    return MODEL_LABELS.get(model, model)


def row_label(dataset: str, row: str) -> str:
    """A row of Table 1 or 2."""
    label = dataset_label(dataset)
    return label if row == "base" else f"{label}, {paper.row_label(row)}"


# Present also where no run has them, so that a selection from an empty frame is empty.
COLUMNS = [
    "run_id", "status", "model", "dataset", "row", "scale", "seed", "cell_key", "path", "numerics_version", "precision",
    "device_kind", "val_sampled.mean_nats", "val_sampled.std_nats", "val_full.final_nats", "val_full.best_nats",
    "val_full.best_step", "val_full.tokens", "val_full.whole_split", "train.final_nats", "error.type", "error.message",
    "error.step", "finished_utc", "provenance.commit", "provenance.device",
    "provenance.data.splits.train.sha256", "provenance.data.splits.validation.sha256",
    "train_tokens", "parameters.total", "config.train.lr", "config.train.seq_len", "config.train.max_steps",
    "config.model.d_model", "lengths", "positions", "conversion",
]  # fmt: skip
KIND = ["precision", "device_kind"]  # columns that the runs of one seed have in common


def load_frame(folders: Iterable[Path]) -> tuple[pd.DataFrame, list[InvalidRecord]]:
    """Every finished run of `folders`, one row each, sorted by run_id; and the folders that hold no
    valid record, and invalid files that were measured on a run.

    Columns: `path`, `status` (complete, failed or stale), `cell_key`, `threads`, the fields of
    summary.json by their dotted names, `config.<dotted>` and `provenance.<dotted>`. Losses are in
    nats per token. Where a run has them, `lengths`, `positions` (of extrapolation.json) and
    `conversion`.
    """
    rows = []
    records, invalid = read_records(*folders)
    for record in records:
        row = record.summary | {
            "path": str(record.path),
            "status": run_status(record),
            "cell_key": cell_key(record.config),
            # The provenance of older runs states the threads before runtime.threads was set.
            "threads": record.config["runtime"].get("threads") or record.provenance["threads"],
            "config": record.config,
            "provenance": record.provenance,
        }
        for name, parse in MEASUREMENTS.items():
            path = record.path / name
            if path.exists():
                try:
                    row |= parse(read_measurement(path, record.summary))
                except InvalidRecord as error:
                    invalid.append(error)
        rows.append(row)
    frame = pd.json_normalize(rows)
    frame = frame.reindex(columns=list(dict.fromkeys([*COLUMNS, *frame.columns])))
    return compact(frame.sort_values(["run_id", "path"], ignore_index=True)), invalid


def _extrapolation(measured: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """`lengths`: (length, loss); `positions`: (middle of a segment of positions, loss)."""
    lengths = [
        (part["seq_len"], part["loss_nats"])
        for part in measured["lengths"]
        if part["loss_nats"] is not None
    ]
    positions = [
        ((part["first"] + part["last"] + 1) / 2, part["loss_nats"])
        for part in measured["by_position"]
    ]
    return {"lengths": lengths, "positions": positions}


def _conversion(measured: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """`conversion`: one line per arm."""
    fractions = measured["kept_share"]
    lines = [
        {
            "steps": measured["steps"],
            "lr": measured["lr"],
            "arm": arm,
            "trained_nats": measured["loss_nats"]["trained"],
            "loss_nats": measured["loss_nats"][arm],
            "tuned_loss_nats": measured["tuned_loss_nats"][arm],
            "kept_share": fractions["best"],
            "kept_share_by_chance": statistics.fmean(fractions["best_by_chance"]),
        }
        for arm in ARMS
    ]
    return {"conversion": lines}


MEASUREMENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "extrapolation.json": _extrapolation,
    "conversion.json": _conversion,
}


def compact(frame: pd.DataFrame) -> pd.DataFrame:
    """The same values in one block of memory per type, from which rows are selected ten times as
    fast.
    """
    return frame.astype(dict.fromkeys(frame.select_dtypes("str"), object)).copy()


def load_curves(path: Path | str) -> pd.DataFrame:
    """metrics.jsonl of one run directory: `step`, `val/loss_nats`, `train/loss_nats`, ...; NaN
    where not logged.
    """
    return pd.DataFrame(read_metrics(Path(path) / "metrics.jsonl"))


def cell_runs(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """The complete runs of one table cell, sorted by seed.

    Raises UserError for two runs of one seed.
    """
    runs = _of_cell(frame, cell)
    runs = runs[runs["status"] == "complete"].sort_values("seed", ignore_index=True)
    twice = runs.loc[runs["seed"].duplicated(keep=False), "path"]
    if len(twice):
        raise UserError(f"{cell_name(cell)}: two runs have one seed ({', '.join(twice)}); keep one")
    return runs


def check_comparable(frame: pd.DataFrame, cells: Sequence[Cell]) -> None:
    """Raises UserError if the complete runs of one table row differ in data, or those of one seed
    in precision or device kind.

    Differences are formed within a seed, so that another seed may have another precision or device.
    Commits may differ: the numerics version says whether a commit changed more than rounding.
    Corpora without a pinned text (tiny, the user's own) may differ between machines.
    """
    runs = pd.concat([_of_cell(frame, cell) for cell in cells])
    runs = runs[runs["status"] == "complete"]
    splits = [f"provenance.data.splits.{split}.sha256" for split in ("train", "validation")]
    checks = [("runs", "data", splits, runs)]
    for seed, block in runs.groupby("seed"):
        checks.append((f"runs of seed {seed}", "precision or device", KIND, block))
    for which, what, columns, block in checks:
        groups = block.groupby(columns, dropna=False)
        if len(groups) > 1:
            kinds = [
                f"{' '.join(str(value)[:12] for value in kind)}: {', '.join(group['run_id'])}"
                for kind, group in groups
            ]
            row = cell_name(cells[0]).rpartition("/")[0]
            remedy = "move one kind to a folder of its own and name it with --runs"
            raise UserError(f"{row}: {which} differ in {what} ({'; '.join(kinds)}); {remedy}")


def mixture(runs: pd.DataFrame) -> list[str]:
    """One line that names the seeds of each precision and device kind; none if all runs have the
    same.
    """
    kinds = [
        f"{precision} on {device} ({', '.join(map(str, sorted(group['seed'].unique())))})"
        for (precision, device), group in runs.groupby(KIND)
    ]
    return [f"seeds differ in precision or device: {', '.join(kinds)}"] if len(kinds) > 1 else []


def cell_status(
    frame: pd.DataFrame,
    invalid: Sequence[InvalidRecord],
    cell: Cell,
    unavailable: Mapping[str, str],
) -> tuple[str, list[str]]:
    """complete, failed, invalid, stale or missing; and one line for each reason why runs do not
    count.
    """
    again = f"`make reproduce SCALE={cell.scale}`"
    of_cell = _of_cell(frame, cell)
    failed = [
        f"{run['run_id']} failed: {error_line(run)}"
        for run in of_cell[of_cell["status"] == "failed"].to_dict("records")
    ]
    name = re.compile(re.escape(f"{cell.model}-{cell.dataset}-{cell.row}-s") + r"\d+-\w+")
    corrupt = [str(error) for error in invalid if name.fullmatch(error.path.name)]
    stale = [
        f"stale, of numerics version {version}, which is not this code's:"
        f" {', '.join(runs['run_id'])}; {again} trains them again"
        for version, runs in of_cell[of_cell["status"] == "stale"].groupby("numerics_version")
    ]
    reasons = [*failed, *corrupt, *stale]
    if (of_cell["status"] == "complete").any():
        return "complete", reasons
    for status, notes in (("failed", failed), ("invalid", corrupt), ("stale", stale)):
        if notes:
            return status, reasons
    why = one_line(unavailable.get(cell.dataset, f"no finished run; {again} trains it"))
    label = dataset_label(cell.dataset)
    return "missing", [f"{label}: {why.removeprefix(f'{cell.dataset}: ')}"]


def dataset_label(dataset: str) -> str:
    return DATASET_LABELS.get(dataset, dataset)


def error_line(run: Mapping[Any, Any] | pd.Series) -> str:
    """The error of a failed run without its traceback, e.g. `ValueError: loss is nan (step 20)`."""
    at = "" if pd.isna(run["error.step"]) else f" (step {run['error.step']:.0f})"
    return one_line(f"{run['error.type']}: {run['error.message']}{at}")


def shown(path: Path) -> str:
    """A path for printing: relative to the repository if it lies in it."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def cell_name(cell: Cell) -> str:
    """table1/<dataset>/<model> or table2/<row>/<dataset>/<model>."""
    return "/".join(
        [cell.table, *([] if cell.table == "table1" else [cell.row]), cell.dataset, cell.model]
    )


def _of_cell(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """By name as well as by key: a sweep of the user's own may compute what a cell computes, under
    another name.
    """
    runs = frame[frame["cell_key"] == cell.key]
    same_names = (
        (runs["model"] == cell.model)
        & (runs["dataset"] == cell.dataset)
        & (runs["row"] == cell.row)
    )
    return runs[same_names]


@dataclass(frozen=True)
class Source:
    """The runs of some folders, of all scales, and the scale that is reported.

    `machine` is the folder of results/published that they were read from; empty for the user's own
    runs. `unavailable` maps a dataset to the reason why it could not be had. `others` are the
    published runs of other folders, by folder. `ngrams` are the published n-gram losses.
    """

    scale: str
    folders: tuple[Path, ...]
    frame: pd.DataFrame
    invalid: list[InvalidRecord]
    unavailable: Mapping[str, str]
    machine: str = ""
    others: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    ngrams: Sequence[Mapping[str, Any]] = ()

    @property
    def datasets(self) -> list[str] | None:
        """For `expected_cells`: None stands for all of the paper's; tiny joins if it was run
        because one is missing.
        """
        has_tiny = ((self.frame["scale"] == self.scale) & (self.frame["dataset"] == TINY)).any()
        return list(DATASET_LABELS) if self.unavailable and has_tiny else None

    @property
    def all_runs(self) -> pd.DataFrame:
        """Published runs with those of the other folders: a part of the plan has one of its own."""
        others = self.others.values() if self.machine else ()
        return pd.concat([self.frame, *others], ignore_index=True)

    @property
    def origin(self) -> str:
        return f"scale {self.scale}, runs of {', '.join(map(shown, self.folders))}"


def choose_source(
    *,
    results_dir: Path,
    scale: str | None = None,
    folders: Sequence[Path] = (),
    published: Path = PUBLISHED,
) -> Source:
    """The runs of `folders` (default: results_dir/runs), or the published ones if no folder is
    named and none is there.

    `scale` defaults to the one with most runs, `smoke` only if there is no other; of equal ones
    the first of SCALES.
    """
    read = tuple(folders) or (results_dir / "runs",)
    frame, invalid = load_frame(read)
    scales = [scale] if scale else SCALES
    runs = frame["scale"].value_counts()
    present = [name for name in scales if name in runs]
    present.sort(key=lambda name: (name == "smoke", -runs[name]))
    if not (present or folders or invalid):
        source = load_published(*scales, published=published)
        if source:
            return source
    return Source(
        scale=(present or [scale or "quick"])[0],
        folders=read,
        frame=frame,
        invalid=invalid,
        unavailable=unavailable_datasets(results_dir),
        others={path.name: load_frame([path])[0] for path in sorted(published.glob("*/"))},
        ngrams=read_ngrams(published),
    )


def load_published(*scales: str, published: Path = PUBLISHED) -> Source | None:
    """The published folder and scale with most runs, of equal ones the first; None if there is
    none.
    """
    frames, invalid = {}, []
    for path in sorted(published.glob("*/")):
        frames[path], rejected = load_frame([path])
        invalid += rejected
    most, chosen = 0, None
    for path, frame in frames.items():
        for scale in scales:
            count = int((frame["scale"] == scale).sum())
            if count > most:
                most, chosen = count, Source(scale, (path,), frame, invalid, {}, path.name)
    if chosen is None:
        return None
    others = {path.name: frame for path, frame in frames.items() if path.name != chosen.machine}
    return replace(chosen, others=others, ngrams=read_ngrams(published))


def read_ngrams(published: Path = PUBLISHED) -> list[dict[str, Any]]:
    """The n-gram losses of <published>/ngrams.json, one entry per pair of token files; none if
    there is no file.

    Raises DataError if it cannot be read.
    """
    path = published / NGRAMS_FILE
    try:
        return read_json(path) if path.exists() else []
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); restore the committed file") from error
