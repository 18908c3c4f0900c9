"""Studies: losses, equal-size comparison, length, best learning rate, conversions; and their questions as data.

The runs of a study are one data frame (`collect_study`), one row per run, and for the length study one row per run and
length. A study with an entry in QUESTIONS gets answers; every study of conf/study gets its table of losses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator

from crope.errors import DataError
from crope.report.claims import (
    EQUIVALENT,
    HIGHER,
    LOWER,
    MEASURES,
    MISSING,
    conclude,
    describe,
    difference,
    merge_measures,
    model_label,
    pair_label,
)
from crope.report.frame import DATASET_LABELS, cell_runs
from crope.report.stats import mean_std, paired
from crope.study import StudyRow

REFERENCE = "rope"
DIVERGED = "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its learning rate
SCHEMES = {  # name -> the model with complex and the one with real Q, K and V
    "XPOS (sinusoids)": ("complex_xpos", "xpos"),
    "learned positions": ("complex_learned", "learned"),
    "T5's bias": ("complex_relative_bias", "relative_bias"),
    "ALiBi": ("complex_alibi", "alibi"),
    "no positions (NoPE)": ("complex_nope", "nope"),
    "RoPE": ("crope", "rope"),
    "RoPE with linear attention": ("crope_linear", "rope_linear"),
}
ARMS = {"rope": "RoPE, tuned on", "best": "best structure", "random": "random structure", "fresh": "new Q, K, V"}
COLUMNS = (  # of the frame, that a study needs
    "path status cell_key run_id model dataset row seed error.type parameters.qkv parameters.total config.train.seq_len"
    " config.train.lr config.model.projection"
).split() + list(MEASURES.values())
LOSS_COLUMNS = (
    "study dataset width model projection status n seq_len mean_nats std_nats qkv parameters setting"
).split()

Place = tuple[str, str, int, str]  # study, dataset, width, setting
Places = dict[Place, pd.DataFrame]


@dataclass(frozen=True)
class Question:
    """One question of a study: what first - second is, in each row of the study (dataset and width).

    kind      loss        validation loss at equal seed
              equal_size  the loss of `second` is interpolated to the parameters of `first`, seed by seed
              length      loss of `first` at `factor` times its training length less that at this length, of the tokens
                          beyond it; there is no `second`
              best_rate   each model at its own best learning rate; a seed's rate is chosen on the other seeds
    less      a second pair, whose difference is subtracted
    answers   what a lower, an equivalent and a higher difference mean
    family    questions that Holm's correction takes together; by default each is a family of its own
    """

    study: str
    text: str
    first: str
    second: str
    answers: tuple[str, str, str]
    kind: str = "loss"
    less: tuple[str, str] | None = None
    factor: int = 1
    family: str = ""


COSTS = ("no, even lower", "no, equal", "yes, higher")
BETTER = ("yes, lower", "no, equal", "no, higher")
LEVEL = ("no, CRoPE is lower", "yes, equal", "no, CRoPE is higher")
QUESTIONS: list[Question] = [
    *(
        Question("controls", f"Is complex better than {name} at half the weights?", "crope", model, BETTER, family="half")
        for model, name in {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "half the width"}.items()
    ),
    Question(
        "controls", "Must the complex pairs be the pairs of the rotation?", "complex_misaligned", "crope",
        ("no, other pairs are lower", "no, equal", "yes, other pairs are higher"),
    ),
    Question("controls", "Does Eq. 30 cost loss in Q and K alone?", "complex_qk", "rope", COSTS),
    Question("controls", "Does Eq. 30 cost loss in V alone?", "complex_v", "rope", COSTS),
    Question(
        "controls", "Is CRoPE better than RoPE if the saved weights widen the attention?", "complex_wide", "rope", BETTER
    ),
    *(
        Question("schemes", f"{name}: better than no positions?", real, "nope", BETTER)
        for name, (_, real) in SCHEMES.items()
        if real != "nope"
    ),
    *(Question("schemes", f"Does Eq. 30 cost loss under {name}?", *pair, COSTS) for name, pair in SCHEMES.items()),
    Question(
        "schemes", "Does Eq. 30 cost less under the rotation than without positions?", "crope", "rope",
        ("yes, less", "no, the same", "no, more"), less=("complex_nope", "nope"),
    ),
    *(
        Question(
            "length", f"Does {model_label(model)} hold at {factor} times its training length?", model, "",
            ("yes, and gains", "yes, equal", "no, it loses"), kind="length", factor=factor,
        )
        for model in ("xpos", "relative_bias", "alibi", "nope", "rope", "crope")
        for factor in (2, 4)
    ),
    Question("scaling", "Is CRoPE level with RoPE at every width?", "crope", "rope", LEVEL),
    Question("scaling", "Is CRoPE better than a RoPE of as many parameters?", "crope", "rope", BETTER, "equal_size"),
    Question(
        "scaling", "Is CRoPE better at every width if the saved weights widen the attention?", "complex_wide", "rope",
        BETTER,
    ),
    Question(
        "fair_lr", "Is CRoPE level with RoPE, each at its best learning rate?", "crope", "rope", LEVEL, "best_rate"
    ),
    Question(
        "fair_lr", "Is XPOS worse than RoPE, each at its best learning rate?", "xpos", "rope",
        ("no, lower", "no, equal", "yes, higher"), "best_rate",
    ),
]  # fmt: skip


def collect_studies(frame: pd.DataFrame, rows: Sequence[StudyRow], *, tables: Collection[str]) -> pd.DataFrame:
    """The runs of every started study, one row per run; of the length study, one row per run and length.

    Adds to the frame's columns: study, width, setting (values of further axes), own (no cell of the tables), seq_len,
    final and best (full validation loss, nats per token; infinite if a run diverged), tokens and positions (length).
    A study is started on a dataset with the first run of its own there; of `length`, with the first measurement.
    """
    frame = frame.reindex(columns=COLUMNS)
    empty = dict.fromkeys(("study", "setting"), "") | {
        "width": 0,
        "own": False,
        "seq_len": 0,
        "final": 0.0,
        "best": 0.0,
    }
    parts = [frame.iloc[:0].assign(**empty)]
    for row in rows:
        kinds = _kinds(row.study)
        for cell in row.cells:
            runs = cell_runs(frame, cell)
            if "best_rate" in kinds:
                failed = (
                    (frame["cell_key"] == cell.key) & (frame["model"] == cell.model) & (frame["status"] == "failed")
                )
                runs = pd.concat([runs, frame[failed & (frame["error.type"] == DIVERGED)]])
            if runs.empty:
                continue
            diverged = runs["status"] == "failed"
            runs = runs.assign(
                study=row.study, width=row.width, setting=_place(row)[3], own=cell.key not in tables,
                seq_len=runs["config.train.seq_len"],
                **{at: runs[column].mask(diverged, math.inf) for at, column in MEASURES.items()},
            )  # fmt: skip
            parts.append(_measured(runs) if "length" in kinds else runs)
    runs = pd.concat(parts[1:] or parts, ignore_index=True)
    return runs[runs.groupby(["study", "dataset"])["own"].transform("any")].reset_index(drop=True)


def loss_lines(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """LOSS_COLUMNS: one row per model of a started study, and per length of the length study; n = 0 if it is missing."""
    lines, started = [], _started(runs, rows)
    places = _places(runs, started)
    for row in started:
        for cell in row.cells:
            known = {"study": row.study, "dataset": row.dataset, "width": row.width, "model": cell.model}
            known |= {"setting": _place(row)[3], "status": MISSING, "n": 0}
            found = places[_place(row)].query("model == @cell.model")
            for seq_len, of in found.groupby("seq_len"):
                first, (mean, std) = of.iloc[0], mean_std(of["final"])
                known |= {"status": "complete", "n": len(of), "seq_len": seq_len, "mean_nats": mean, "std_nats": std}
                known |= {"projection": first["config.model.projection"], "qkv": first["parameters.qkv"]}
                lines.append(known | {"parameters": first["parameters.total"]})
            lines += [known] if found.empty else []
    return pd.DataFrame(lines, columns=LOSS_COLUMNS)


def answer(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """The answers of every started study: one row per question, row of the study and measure.

    Columns: study, question, difference, where, at, those of `claims.describe` and `claims.conclude`, and answer.
    A family of questions leaves out the datasets on which none of its tests can be made, unless there is no other.
    """
    families: dict[str, list[Question]] = {}
    for question in QUESTIONS:
        families.setdefault(f"{question.study} {question.family or question.text}", []).append(question)
    started, parts = _started(runs, rows), []
    places = _places(runs, started)
    for questions in families.values():
        asked = [row for row in started if row.study == questions[0].study]
        measures = tuple(MEASURES) if questions[0].kind in ("loss", "equal_size") else ("final",)
        if asked:
            by_measure = [_family(places, questions, asked, at) for at in measures]
            parts += merge_measures([conclude(lines) for lines in by_measure])
    if not parts:
        return pd.DataFrame(columns=["study", "question"])
    lines = pd.concat(parts, ignore_index=True)
    words = {question.text: dict(zip((LOWER, EQUIVALENT, HIGHER), question.answers)) for question in QUESTIONS}
    lines["answer"] = [words[q].get(found, found) for q, found in zip(lines["question"], lines["conclusion"])]
    return lines


def _family(places: Places, questions: Sequence[Question], rows: Sequence[StudyRow], at: str) -> pd.DataFrame:
    """One line per question and row of the study; with best_rate, rows that differ in the rate are one."""
    lines = []
    for question in questions:
        joined = question.kind == "best_rate"
        asked = dict.fromkeys((*_place(row)[:3], "" if joined else _place(row)[3]) for row in rows)
        several = len({width for _, _, width, _ in asked}) > 1
        for study, dataset, width, setting in asked:
            of_dataset = {place: of for place, of in places.items() if place[:2] == (study, dataset)}
            of = [of for (*_, w, s), of in of_dataset.items() if w == width and (joined or s == setting)]
            parts = [DATASET_LABELS.get(dataset, dataset), f"D = {width}" if several else "", setting]
            line = {"study": study, "question": question.text, "difference": _difference_label(question)}
            line |= {"dataset": dataset, "where": ", ".join(filter(None, parts)), "at": at}
            lines.append(line | _difference(question, pd.concat(of), pd.concat(of_dataset.values()), at))
    found = pd.DataFrame(lines)
    tested = found.groupby("dataset")["p_different"].transform("count") > 0
    return (found[tested] if tested.any() else found).reset_index(drop=True)


def _difference(question: Question, of: pd.DataFrame, of_dataset: pd.DataFrame, at: str) -> dict[str, Any]:
    """The difference in the runs `of` one row; `of_dataset` are those of all rows (widths) of its dataset."""
    models = (question.first, question.second)
    if question.kind == "length":
        values = change(of[of["model"] == question.first], question.factor)
        return describe(values, "" if len(values) else "not measured")
    if question.kind == "best_rate":
        pair = [held_out(rates(of, model)) for model in models]
    else:
        pair = [by_seed(of, model, at) for model in models]
    if question.kind == "equal_size" and not pair[0].empty:
        size = int(of.loc[of["model"] == question.first, "parameters.total"].iloc[0])
        pair[1] = at_size(of_dataset[of_dataset["model"] == question.second], size, at)
    if question.less:
        less = paired(*(by_seed(of, model, at) for model in question.less))
        pair, models = [paired(*pair), less], ("first pair", "second pair")
    return difference(*pair, models)


def by_seed(of: pd.DataFrame, model: str, at: str = "final") -> pd.Series:
    return of[of["model"] == model].set_index("seed")[at].dropna()


def at_size(runs: pd.DataFrame, parameters: int, at: str) -> pd.Series:
    """By seed: the loss of one model at a size between those of its runs, by a monotone cubic in the log of the size.

    A chord would lie above the loss, which is convex in the log of the size.
    """
    found = {}
    for seed, of in runs.dropna(subset=at).groupby("seed"):
        curve = of.groupby("parameters.total")[at].mean()
        if len(curve) > 1 and curve.index.min() <= parameters <= curve.index.max():
            found[seed] = float(PchipInterpolator(np.log(curve.index), curve)(math.log(parameters)))
    return pd.Series(found, dtype=float)


def rates(of: pd.DataFrame, model: str) -> pd.DataFrame:
    """The losses of one model, a row per seed and a column per learning rate; only seeds that have every rate."""
    runs = of[of["model"] == model].assign(lr=of["config.train.lr"])
    losses = runs.pivot(index="seed", columns="lr", values="final")
    return losses.reindex(columns=sorted(of["config.train.lr"].unique())).dropna()


def held_out(losses_SR: pd.DataFrame) -> pd.Series:
    """By seed: its loss at the rate with the lowest mean over the other seeds, which is free of selection bias.

    Empty with one seed, or if that rate diverged.
    """
    if len(losses_SR) < 2:
        return pd.Series(dtype=float)
    chosen = {seed: losses_SR.loc[seed, losses_SR.drop(seed).mean().idxmin()] for seed in losses_SR.index}
    found = pd.Series(chosen, dtype=float)
    return found if np.isfinite(found).all() else found.iloc[:0]


def change(of: pd.DataFrame, factor: int) -> pd.Series:
    """By seed: loss at `factor` times the training length less that at this length, of the tokens beyond it.

    Tokens before it have the same context at both lengths and contribute 0, so the difference of the means over all
    tokens is rescaled to the tokens beyond. Below 0, more context helps.
    """
    if of.empty:
        return pd.Series(dtype=float)
    trained, longest = int(of["config.train.seq_len"].iloc[0]), int(of["seq_len"].max())
    at = {length: part.set_index("seed")["final"] for length, part in of.groupby("seq_len")}
    if not {trained, factor * trained} <= at.keys():
        return pd.Series(dtype=float)
    tokens = int(of["tokens"].iloc[0])
    beyond = tokens_beyond(trained, factor * trained, longest=longest, tokens=tokens)
    return paired(at[factor * trained], at[trained]) * tokens / beyond


def tokens_beyond(trained: int, length: int, *, longest: int, tokens: int) -> int:
    """How many tokens stand at positions from `trained` on if spans of `longest` are read in pieces of `length`."""
    spans, rest = divmod(tokens, longest)

    def of_span(size: int) -> int:
        pieces, left = divmod(size, length)
        return pieces * max(0, length - trained) + max(0, left - trained)

    return spans * of_span(longest) + of_span(rest)


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


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with an extrapolation.json, one row per length: its loss is `final`."""
    lines: list[dict[str, Any]] = []
    for run in runs.to_dict("records"):
        found = _read(Path(run["path"]) / "extrapolation.json")
        segments = tuple(((s["first"] + s["last"] + 1) / 2, s["loss_nats"]) for s in found.get("by_position", ()))
        measured = [part for part in found.get("lengths", ()) if part["loss_nats"] is not None]
        for part in measured:
            own = {"seq_len": part["seq_len"], "final": part["loss_nats"], "best": math.nan, "tokens": part["tokens"]}
            lines.append(run | own | {"own": True, "positions": segments})
    return pd.DataFrame(lines) if lines else runs.iloc[:0]


def _read(path: Path) -> dict[str, Any]:
    """A file that was added to a finished run; empty if there is none. Raises DataError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove the file and make it again") from error
    return found


def _kinds(study: str) -> set[str]:
    return {question.kind for question in QUESTIONS if question.study == study}


def _started(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> list[StudyRow]:
    started = set(zip(runs["study"], runs["dataset"], strict=True))
    return [row for row in rows if (row.study, row.dataset) in started]


def _place(row: StudyRow) -> Place:
    return row.study, row.dataset, row.width, ", ".join(row.settings)


def _places(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> Places:
    """The runs of each row of the studies, of none where a row has no run."""
    found = {key: of for key, of in runs.groupby(["study", "dataset", "width", "setting"])}
    return {_place(row): found.get(_place(row), runs.iloc[:0]) for row in rows}


def _difference_label(question: Question) -> str:
    if question.kind == "length":
        return f"{model_label(question.first)} at {question.factor} L less at L"
    label = pair_label(question.first, question.second)
    return f"({label}) − ({pair_label(*question.less)})" if question.less else label
