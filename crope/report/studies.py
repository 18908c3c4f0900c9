"""Studies: losses, equal-size comparison, length, best learning rate, conversions; and their questions as data.

A study with an entry in QUESTIONS gets answers; every study of conf/study gets its table of losses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import pchip_interpolate

from crope.errors import DataError
from crope.report import claims
from crope.report.claims import COMPARED_AT, DECIMALS, EQUIVALENT, HIGHER, LOWER, MARGIN, MEASURES, model_label
from crope.report.frame import DATASET_LABELS, cell_runs, check_comparable, compact
from crope.report.stats import mean_std, paired
from crope.report.tables import Table
from crope.study import StudyRow

REFERENCE = "rope"
DIVERGED = "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its learning rate
SCHEMES = {  # name -> the model with complex and the one with real Q, K and V
    "XPOS": ("complex_xpos", "xpos"),
    "learned positions": ("complex_learned", "learned"),
    "T5's bias": ("complex_relative_bias", "relative_bias"),
    "ALiBi": ("complex_alibi", "alibi"),
    "no positions": ("complex_nope", "nope"),
    "RoPE": ("crope", "rope"),
    "RoPE with linear attention": ("crope_linear", "rope_linear"),
}
HALVES = {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "half the width"}
ARMS = {"rope": "RoPE, tuned on", "best": "best structure", "random": "random structure", "fresh": "new Q, K, V"}
COLUMNS = [  # of the frame, that a study needs
    "path", "status", "cell_key", "run_id", "model", "dataset", "row", "seed", "error.type", "parameters.qkv",
    "parameters.total", "config.train.seq_len", "config.train.lr", "config.model.projection", "config.model.d_model",
    *(MEASURES[at] for at in COMPARED_AT),
]  # fmt: skip
PLACE = ["study", "dataset", "width", "setting"]
Place = tuple[str, str, int, str]


@dataclass(frozen=True)
class Question:
    """One question of a study: what first - second is, in each row of the study (dataset and width).

    answers   what a lower, an equivalent and a higher difference mean
    kind      loss        validation loss at equal seed
              equal_size  the loss of `second` is interpolated to the parameters of `first`, seed by seed
              length      loss of `first` at `factor` times its training length less that at this length, of the tokens
                          beyond it; there is no `second`
              best_rate   each model at its own best learning rate; a seed's rate is chosen on the other seeds
    family    questions that Holm's correction takes together; by default each is a family of its own
    """

    study: str
    text: str
    first: str
    second: str
    answers: dict[str, str]
    kind: str = "loss"
    factor: int = 1
    family: str = ""


BETTER = {LOWER: "yes, lower", EQUIVALENT: "no, equal", HIGHER: "no, higher"}
COSTS = {LOWER: "no, even lower", EQUIVALENT: "no, equal", HIGHER: "yes, higher"}
LEVEL = {LOWER: "no, lower", EQUIVALENT: "yes, equal", HIGHER: "no, higher"}
HOLDS = {LOWER: "yes, and gains", EQUIVALENT: "yes, equal", HIGHER: "no, it loses"}
QUESTIONS: list[Question] = [
    *(Question("controls", f"Is complex better than {name} at half the weights?", "crope", model, BETTER, family="half")
      for model, name in HALVES.items()),
    Question("controls", "Does it cost loss if the complex pairs are not those of the rotation?", "complex_misaligned",
             "crope", COSTS),
    Question("controls", "Does Eq. 30 cost loss in Q and K alone?", "complex_qk", "rope", COSTS),
    Question("controls", "Does Eq. 30 cost loss in V alone?", "complex_v", "rope", COSTS),
    Question("controls", "Is CRoPE better than RoPE if the saved weights widen it?", "complex_wide", "rope", BETTER),
    *(Question("schemes", f"{name}: better than no positions?", real, "nope", BETTER)
      for name, (_, real) in SCHEMES.items() if real != "nope"),
    Question("schemes", "balanced XPOS: better than no positions?", "xpos_balanced", "nope", BETTER),
    *(Question("schemes", f"Does Eq. 30 cost loss under {name}?", *pair, COSTS) for name, pair in SCHEMES.items()),
    *(Question("length", f"Does {model_label(model)} hold at {factor} times its length?", model, "", HOLDS, "length",
               factor)
      for model in ("xpos", "relative_bias", "alibi", "nope", "rope", "crope") for factor in (2, 4)),
    Question("scaling", "Is CRoPE level with RoPE at every width?", "crope", "rope", LEVEL),
    Question("scaling", "Is CRoPE better than a RoPE of as many parameters?", "crope", "rope", BETTER, "equal_size"),
    Question("scaling", "Is CRoPE better than RoPE if the saved weights widen it?", "complex_wide", "rope", BETTER),
    Question("fair_lr", "Is CRoPE level with RoPE, each at its best rate?", "crope", "rope", LEVEL, "best_rate"),
    Question("fair_lr", "Is XPOS worse than RoPE, each at its best rate?", "xpos", "rope", COSTS, "best_rate"),
]  # fmt: skip


def collect_studies(frame: pd.DataFrame, rows: Sequence[StudyRow], *, tables: Collection[str]) -> pd.DataFrame:
    """The runs of every started study, one row per run; of the length study, one row per run and length.

    Adds study, width, setting (values of further axes), own (no cell of `tables`, their keys), seq_len, final and best
    (full validation loss, nats per token; infinite if a run diverged), and for lengths positions: (position, loss).
    A study is started on a dataset by its first own run there; `length` by its first measurement. Raises UserError as
    `check_comparable` does.
    """
    for row in rows:
        check_comparable(frame, row.cells)
    frame, parts = compact(frame.reindex(columns=COLUMNS)), []
    diverged = frame[(frame["status"] == "failed") & (frame["error.type"] == DIVERGED)]
    for row in rows:
        kinds = {question.kind for question in QUESTIONS if question.study == row.study}
        for cell in row.cells:
            runs = cell_runs(frame, cell)
            if "best_rate" in kinds:
                runs = pd.concat([runs, diverged[diverged["cell_key"] == cell.key]])
            if runs.empty:
                continue
            known: dict[str, Any] = dict(zip(PLACE, _place(row), strict=True)) | {"own": cell.key not in tables}
            known |= {at: runs[MEASURES[at]].mask(runs["status"] == "failed", np.inf) for at in COMPARED_AT}
            runs = runs.assign(**known, seq_len=runs["config.train.seq_len"])
            parts.append(_measured(runs) if "length" in kinds else runs)
    if not parts:
        return pd.DataFrame(columns=[*COLUMNS, "study", "setting", "width", "own", "seq_len", *COMPARED_AT])
    found = pd.concat(parts, ignore_index=True)
    return compact(found[found.groupby(["study", "dataset"])["own"].transform("any")].reset_index(drop=True))


def study_losses(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """One row per model (and length) of a started study; `reference`: the difference to RoPE at equal seed."""
    places, lines = _places(runs, rows), []
    for row in [row for row in rows if _place(row) in places]:
        of_row = places[_place(row)]
        for cell in row.cells:
            known = dict(zip((*PLACE, "model", "status", "n"), (*_place(row), cell.model, "missing", 0), strict=True))
            found = of_row[of_row["model"] == cell.model]
            for seq_len, of in found.groupby("seq_len"):
                first, same_length = of.iloc[0], of_row[of_row["seq_len"] == seq_len]
                mean, std = mean_std(of["final"]) if np.isfinite(of["final"]).all() else (np.inf, None)
                known |= {"status": "complete", "n": len(of), "seq_len": seq_len, "mean_nats": mean, "std_nats": std}
                known |= {"projection": first["config.model.projection"], "qkv": first["parameters.qkv"]}
                known |= {"parameters": first["parameters.total"]}
                if cell.model != REFERENCE:
                    both = {model: claims.by_seed(same_length, model, "final") for model in (cell.model, REFERENCE)}
                    known["reference"] = claims.number(claims.difference(both))
                lines.append(dict(known))
            lines += [known] if found.empty else []
    return pd.DataFrame(lines)


def answer(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """The answers of every started study: one row per question, row of the study and measure.

    A family of questions leaves out the datasets on which none of its tests can be made, unless there is no other.
    """
    families: dict[tuple[str, str], list[Question]] = {}
    for question in QUESTIONS:
        families.setdefault((question.study, question.family or question.text), []).append(question)
    places, parts = _places(runs, rows), []
    for (study, _), questions in families.items():
        asked = {place: of for place, of in places.items() if place[0] == study}
        measures = COMPARED_AT if questions[0].kind in ("loss", "equal_size") else ("final",)
        if asked:
            parts += claims.merge_measures([claims.conclude(_family(asked, questions, at)) for at in measures])
    if not parts:
        return pd.DataFrame()
    lines = pd.concat(parts, ignore_index=True)
    answers = {(one.study, one.text): one.answers for one in QUESTIONS}
    found = lines[["study", "question", "conclusion"]].to_numpy()
    return lines.assign(answer=[answers[study, text].get(word, word) for study, text, word in found])


def _family(places: dict[Place, pd.DataFrame], questions: Sequence[Question], at: str) -> pd.DataFrame:
    """One line per question and row of the study; with best_rate, rows that differ in the rate are one."""
    lines, several = [], len({place[2] for place in places}) > 1
    for question in questions:
        joined = question.kind == "best_rate"
        for study, dataset, width, setting in dict.fromkeys((*p[:3], "" if joined else p[3]) for p in places):
            of = [of for p, of in places.items() if p[1:3] == (dataset, width) and (joined or p[3] == setting)]
            others = [of for p, of in places.items() if p[1] == dataset]
            parts = [DATASET_LABELS.get(dataset, dataset), f"D = {width}" if several else "", setting]
            line: dict[str, Any] = {"study": study, "question": question.text, "dataset": dataset, "width": width}
            line |= {"first": question.first, "second": question.second, "where": ", ".join(filter(None, parts))}
            lines.append(line | {"at": at} | _difference(question, pd.concat(of), others, at))
    found = pd.DataFrame(lines)
    tested = found.groupby("dataset")["p_different"].transform("count") > 0
    return (found[tested] if tested.any() else found).reset_index(drop=True)


def _difference(question: Question, of: pd.DataFrame, others: list[pd.DataFrame], at: str) -> dict[str, Any]:
    """The difference in the runs `of` one row; `others` are those of every row (width) of its dataset."""
    first, second = question.first, question.second
    if question.kind == "length":
        values = change(of, first, question.factor)
        return claims.describe(values, "" if len(values) else "not measured")
    if question.kind == "best_rate":
        rates = {name: of[of["model"] == name].pivot(index="seed", columns="config.train.lr", values="final")
                 for name in (first, second)}  # fmt: skip
        every = sorted(of["config.train.lr"].unique())
        return claims.difference(
            {name: held_out(losses.reindex(columns=every).dropna()) for name, losses in rates.items()}
        )
    losses = {model: claims.by_seed(of, model, at) for model in (first, second)}
    if question.kind == "equal_size" and not losses[first].empty:
        size = int(of.loc[of["model"] == first, "parameters.total"].iloc[0])
        losses[second] = at_size(pd.concat([one[one["model"] == second] for one in others]), size, at)
    return claims.difference(losses)


def at_size(runs: pd.DataFrame, parameters: int, at: str) -> pd.Series:
    """By seed: the loss of one model at a size between those of its runs, by a monotone cubic in the log of the size.

    A chord would lie above the loss, which is convex in the log of the size.
    """
    found: dict[Any, float] = {}
    for seed, of in runs.dropna(subset=at).groupby("seed"):
        curve = of.groupby("parameters.total")[at].mean()
        if len(curve) > 1 and curve.index.min() <= parameters <= curve.index.max():
            found[seed] = float(pchip_interpolate(np.log(curve.index), curve, np.log(parameters)))
    return pd.Series(found, dtype=float)


def held_out(losses_SR: pd.DataFrame) -> pd.Series:
    """By seed: its loss at the rate with the lowest mean over the other seeds, which is free of selection bias.

    `losses_SR` has a row per seed and a column per rate. Empty with one seed, or if that rate diverged.
    """
    seeds = list(losses_SR.index) if len(losses_SR) > 1 else []
    found = pd.Series({seed: losses_SR.loc[seed, losses_SR.drop(seed).mean().idxmin()] for seed in seeds}, dtype=float)
    return found if np.isfinite(found).all() else found.iloc[:0]


def change(of: pd.DataFrame, model: str, factor: int) -> pd.Series:
    """By seed: loss at `factor` times the training length less that at this length, of the tokens beyond it.

    Tokens before it have the same context at both lengths and contribute 0, so the difference of the means over all
    tokens is rescaled by the share of those beyond, 1 - 1 / factor. Below 0, more context helps.
    """
    times = of["seq_len"] / of["config.train.seq_len"]
    return paired(*(claims.by_seed(of[times == one], model, "final") for one in (factor, 1))) / (1 - 1 / factor)


def conversions(runs: pd.DataFrame) -> pd.DataFrame:
    """conversion.json of the runs that have one, one row per run and arm; losses in nats per token."""
    lines = []
    for run in runs.to_dict("records"):
        found = _read(Path(run["path"]) / "conversion.json")
        for arm in ARMS if found else ():
            lines.append({
                "run_id": run["run_id"], "dataset": run["dataset"], "d_model": run["config.model.d_model"],
                "seed": run["seed"], "steps": found["steps"], "lr": found["lr"], "arm": arm,
                "trained_nats": found["loss_nats"]["trained"], "loss_nats": found["loss_nats"][arm],
                "tuned_loss_nats": found["tuned_loss_nats"][arm], "kept_share": found["kept_share"]["best"],
                "kept_share_by_chance": float(np.mean(found["kept_share"]["best_by_chance"])),
            })  # fmt: skip
    return pd.DataFrame(lines)


def losses_table(lines: pd.DataFrame, study: str, scale: str) -> Table:
    """The losses of one study; columns in which its lines do not differ are left out."""
    of = lines[lines["study"] == study]
    counts = of[["seq_len", "qkv", "parameters"]].map(lambda count: "" if pd.isna(count) else f"{count:,.0f}")
    frame = pd.DataFrame({
        "Dataset": [DATASET_LABELS.get(name, name) for name in of["dataset"]],
        "D": of["width"].astype(str), "Setting": of["setting"], "Model": of["model"].map(model_label),
        "L": counts["seq_len"], "Q/K/V weights": counts["qkv"], "Parameters": counts["parameters"],
        "n": of["n"].astype(str),
        "Loss": [_loss(*line) for line in of[["mean_nats", "std_nats", "status"]].itertuples(index=False)],
        "− RoPE": of["reference"].fillna(""),
    })  # fmt: skip
    frame = frame[[name for name in frame if name not in ("D", "Setting", "L") or frame[name].nunique() > 1]]
    notes = [
        "Loss: full validation after the last step, nats per token, mean ± sample standard deviation over seeds."
        " Differences are paired by seed, with Student's 95 % interval."
    ]
    words = [i for i, name in enumerate(frame) if name in ("Dataset", "Setting", "Model")]
    return Table(f"study-{study}", f"Study {study}: losses. Scale: {scale}.", frame, notes, text=words)


def answers_table(lines: pd.DataFrame, scale: str) -> Table:
    pairs = zip(lines["first"], lines["second"], strict=True)
    frame = pd.DataFrame({
        "Question": lines["question"], "Where": lines["where"],
        "Difference": [claims.pair_label(*pair) if pair[1] else "beyond L" for pair in pairs],
        "Loss": lines["at"], **claims.difference_columns(lines), "Answer": lines["answer"],
    })  # fmt: skip
    notes = [
        "Differences at equal seed, nats per token. Answers are after Holm over the rows of a question (for controls of"
        f" half the weights: of the three of them); equal: equivalent within ±{MARGIN:g}."
    ]
    frame = frame[[name for name in frame if name != "Loss" or frame[name].nunique() > 1]]
    words = [i for i, name in enumerate(frame) if name not in ("Mean, nats", "95 %", "n")]
    caption, numbers = f"Questions and answers. Scale: {scale}.", lines.drop(columns=["values"]).round(DECIMALS)
    return Table("studies", caption, frame, notes, text=words, numbers=numbers)


def conversions_table(lines: pd.DataFrame, scale: str) -> Table:
    rows = []
    for (dataset, width, steps, _), of in lines.groupby(["dataset", "d_model", "steps", "lr"]):
        tuned = {arm: part.set_index("seed")["tuned_loss_nats"] for arm, part in of.groupby("arm")}
        means = of.groupby("arm")[["loss_nats", "tuned_loss_nats"]].mean()
        row = {"Dataset": DATASET_LABELS.get(str(dataset), dataset), "D": str(width), "n": str(of["seed"].nunique())}
        row |= {"Steps": str(steps), "Trained": f"{of['trained_nats'].mean():.4f}"}
        row |= {name: " → ".join(f"{loss:.4f}" for loss in means.loc[arm]) for arm, name in ARMS.items()}
        for arm in ("random", "rope"):
            row[f"Best − {arm}, tuned"] = claims.number(claims.describe(paired(tuned["best"], tuned[arm])))
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
    return "diverged" if np.isinf(mean) else f"{mean:.4f}" + ("" if pd.isna(std) else f" ± {std:.4f}")


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with an extrapolation.json, one row per length: its loss is `final`."""
    lines = []
    for run in runs.to_dict("records"):
        found = _read(Path(run["path"]) / "extrapolation.json")
        segments = tuple(((s["first"] + s["last"] + 1) / 2, s["loss_nats"]) for s in found.get("by_position", ()))
        known = run | {"best": np.nan, "own": True, "positions": segments}
        parts = [part for part in found.get("lengths", ()) if part["loss_nats"] is not None]
        lines += [known | {"seq_len": part["seq_len"], "final": part["loss_nats"]} for part in parts]
    return pd.DataFrame(lines) if lines else runs.iloc[:0]


def _read(path: Path) -> dict[str, Any]:
    """A file that was added to a finished run; empty if there is none. Raises DataError."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove the file and make it again") from error


def _place(row: StudyRow) -> Place:
    return row.study, row.dataset, row.width, ", ".join(row.settings)


def _places(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> dict[Place, pd.DataFrame]:
    """The runs of each row of the started studies; none where a row has no run."""
    found = dict([*runs.groupby(PLACE)])
    started = {place[:2] for place in found}
    return {place: found.get(place, runs.iloc[:0]) for place in map(_place, rows) if place[:2] in started}
