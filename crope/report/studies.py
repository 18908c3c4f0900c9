"""Studies: the runs of conf/study, a table of losses for each, and conversions of trained models."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from crope.report import claims
from crope.report.claims import DECIMALS, MEASURES, model_label
from crope.report.frame import ARMS, DATASET_LABELS, KIND, cell_runs, check_comparable, compact
from crope.report.questions import QUESTIONS
from crope.report.stats import mean_std, paired
from crope.report.tables import Table
from crope.study import TABLES, StudyRow, planned_seeds

REFERENCE = "rope"
DIVERGED = (
    "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its learning rate
)
COLUMNS = [  # of the frame, that a study needs
    "path", "status", "cell_key", "run_id", "model", "dataset", "row", "seed", "error.type", "parameters.qkv",
    "parameters.total", "config.train.seq_len", "config.train.lr", "config.model.projection", "config.model.d_model",
    MEASURES["final"], *KIND, "lengths", "positions",
]  # fmt: skip
PLACE = ["study", "dataset", "width", "setting"]
Place = tuple[str, str, int, str]


def collect_studies(
    frame: pd.DataFrame, rows: Sequence[StudyRow], *, tables: Collection[str]
) -> pd.DataFrame:
    """The runs of every started study, one row per run; of the length study, one row per run and
    length.

    Adds study, width, setting (values of further axes), own, seq_len, final (full validation loss,
    nats per token; infinite if a run diverged), and for lengths positions: (position, loss). A
    study is started by its first own run: of a cell that neither another study nor `tables` (their
    keys) have, or, without such a cell, of a seed that the tables do not plan; `length` by its
    first measurement. Raises UserError as `check_comparable` does.
    """
    for row in rows:
        check_comparable(frame, row.cells)
    owners: dict[str, set[str]] = {}
    for row in rows:
        for cell in row.cells:
            owners.setdefault(cell.key, {"tables"} if cell.key in tables else set()).add(row.study)
    with_own_cells = {next(iter(names)) for names in owners.values() if len(names) == 1}
    frame, parts = compact(frame.reindex(columns=COLUMNS)), []
    diverged = frame[(frame["status"] == "failed") & (frame["error.type"] == DIVERGED)]
    for row in rows:
        kinds = {question.kind for question in QUESTIONS if question.study == row.study}
        for cell in row.cells:
            runs = cell_runs(frame, cell)
            if (
                "best_rate" in kinds
            ):  # a diverged run counts if no other run of its seed is complete
                runs = pd.concat(
                    [runs, diverged[diverged["cell_key"] == cell.key]]
                ).drop_duplicates("seed")
            if runs.empty:
                continue
            known: dict[str, Any] = dict(zip(PLACE, _place(row), strict=True)) | {
                "own": len(owners[cell.key]) == 1
            }
            if row.study not in with_own_cells:
                known["own"] = ~runs["seed"].isin(planned_seeds(TABLES[0]))
            known["final"] = runs[MEASURES["final"]].mask(runs["status"] == "failed", np.inf)
            runs = runs.assign(**known, seq_len=runs["config.train.seq_len"])
            parts.append(_measured(runs) if "length" in kinds else runs)
    if not parts:
        return pd.DataFrame(
            columns=[*COLUMNS, "study", "setting", "width", "own", "seq_len", "final"]
        )
    found = pd.concat(parts, ignore_index=True)
    return compact(found[found.groupby("study")["own"].transform("any")].reset_index(drop=True))


def study_losses(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """One row per model (and length) of a started study; `reference`: the difference to RoPE at
    equal seed.
    """
    places, lines = _places(runs, rows), []
    for row in [row for row in rows if _place(row) in places]:
        of_row = places[_place(row)]
        for cell in row.cells:
            known = dict(
                zip(
                    (*PLACE, "model", "status", "n", "reference"),
                    (*_place(row), cell.model, "missing", 0, ""),
                    strict=True,
                )
            )
            found = of_row[of_row["model"] == cell.model]
            for seq_len, of in found.groupby("seq_len"):
                first, same_length = of.iloc[0], of_row[of_row["seq_len"] == seq_len]
                mean, std = (
                    mean_std(of["final"]) if np.isfinite(of["final"]).all() else (np.inf, None)
                )
                known |= {
                    "status": "complete",
                    "n": len(of),
                    "seq_len": seq_len,
                    "mean_nats": mean,
                    "std_nats": std,
                }
                known |= {
                    "projection": first["config.model.projection"],
                    "qkv": first["parameters.qkv"],
                }
                known |= {"parameters": first["parameters.total"]}
                if cell.model != REFERENCE:
                    both = {
                        model: claims.by_seed(same_length, model, "final")
                        for model in (cell.model, REFERENCE)
                    }
                    known["reference"] = claims.number(claims.difference(both))
                lines.append(dict(known))
            lines += [known] if found.empty else []
    return pd.DataFrame(lines)


def conversions(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that were converted, one row per run and arm; losses in nats per token."""
    columns = ["run_id", "dataset", "config.model.d_model", "seed", "conversion"]
    converted = runs.reindex(columns=columns).dropna(subset="conversion")
    lines = []
    for run in converted.rename(columns={columns[2]: "d_model"}).to_dict("records"):
        arms = run.pop("conversion")
        lines += [run | arm for arm in arms]
    return pd.DataFrame(lines)


def losses_table(lines: pd.DataFrame, study: str, scale: str) -> Table:
    """The losses of one study; columns in which its lines do not differ are left out."""
    of = lines[lines["study"] == study]
    counts = of[["seq_len", "qkv", "parameters"]].map(
        lambda count: "" if pd.isna(count) else f"{count:,.0f}"
    )
    frame = pd.DataFrame({
        "Dataset": [DATASET_LABELS.get(name, name) for name in of["dataset"]],
        "D": of["width"].astype(str), "Setting": of["setting"], "Model": of["model"].map(model_label),
        "L": counts["seq_len"], "Q/K/V weights": counts["qkv"], "Parameters": counts["parameters"],
        "n": of["n"].astype(str),
        "Loss": [_loss(*line) for line in of[["mean_nats", "std_nats", "status"]].itertuples(index=False)],
        "− RoPE": of["reference"],
    })  # fmt: skip
    frame = frame[
        [name for name in frame if name not in ("D", "Setting", "L") or frame[name].nunique() > 1]
    ]
    notes = [
        "Loss: full validation after the last step, nats per token, mean ± sample standard deviation over seeds."
        " Differences are paired by seed, with Student's 95 % interval."
    ]
    words = [i for i, name in enumerate(frame) if name in ("Dataset", "Setting", "Model")]
    return Table(
        f"study-{study}", f"Study {study}: losses. Scale: {scale}.", frame, notes, text=words
    )


def conversions_table(lines: pd.DataFrame, scale: str) -> Table:
    rows = []
    for (dataset, width, steps, _), of in lines.groupby(["dataset", "d_model", "steps", "lr"]):
        tuned = {arm: part.set_index("seed")["tuned_loss_nats"] for arm, part in of.groupby("arm")}
        means = of.groupby("arm")[["loss_nats", "tuned_loss_nats"]].mean()
        row = {
            "Dataset": DATASET_LABELS.get(str(dataset), dataset),
            "D": str(width),
            "n": str(of["seed"].nunique()),
        }
        row |= {"Steps": str(steps), "Trained": f"{of['trained_nats'].mean():.4f}"}
        row |= {
            name: " → ".join(f"{loss:.4f}" for loss in means.loc[arm]) for arm, name in ARMS.items()
        }
        for arm in ("random", "rope"):
            row[f"Best − {arm}, tuned"] = claims.number(
                claims.describe(paired(tuned["best"], tuned[arm]))
            )
        shares = (of["kept_share"].mean(), of["kept_share_by_chance"].mean())
        rows.append(row | {"Kept": f"{shares[0]:.3f} (by chance {shares[1]:.3f})"})
    notes = [
        "Trained RoPE models with Q, K and V projected onto Eq. 30: validation loss in nats per token, right after the"
        " conversion → after tuning at the run's last learning rate, means over seeds. Kept: complex-linear fraction of"
        " Q, K, V in the best structure; by chance: that of the same projections after a random rotation of channels."
    ]
    caption = f"RoPE models converted to CRoPE. Scale: {scale}."
    return Table("conversion", caption, pd.DataFrame(rows), notes, numbers=lines.round(DECIMALS))


def _loss(mean: float, std: float, status: str) -> str:
    if pd.isna(mean):
        return status
    return (
        "diverged" if np.isinf(mean) else f"{mean:.4f}" + ("" if pd.isna(std) else f" ± {std:.4f}")
    )


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that were measured at several lengths, one row per length: its loss is `final`."""
    lines = [
        run | {"own": True, "seq_len": length, "final": loss}
        for run in runs.dropna(subset="lengths").to_dict("records")
        for length, loss in run["lengths"]
    ]
    return pd.DataFrame(lines) if lines else runs.iloc[:0]


def _place(row: StudyRow) -> Place:
    return row.study, row.dataset, row.width, ", ".join(row.settings)


def _places(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> dict[Place, pd.DataFrame]:
    """The runs of each row of the started studies; none where a row has no run."""
    found = dict([*runs.groupby(PLACE)])
    started = {place[:2] for place in found}
    return {
        place: found.get(place, runs.iloc[:0])
        for place in map(_place, rows)
        if place[:2] in started
    }
