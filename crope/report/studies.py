"""Studies: losses, equal-size comparison, length, best learning rate, conversions; and their questions as data.

A study with an entry in QUESTIONS gets answers; every study of conf/study gets its table of losses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import pchip_interpolate

from crope.errors import DataError
from crope.report import claims
from crope.report.claims import (
    DECIMALS,
    EQUIVALENT,
    HIGHER,
    LOWER,
    MARGIN,
    MEASURES,
    SLIGHTLY,
    model_label,
    signed,
)
from crope.report.frame import DATASET_LABELS, cell_runs, check_comparable, compact
from crope.report.stats import ALPHA, SHARES, mean_std, paired
from crope.report.tables import Table
from crope.study import TABLES, StudyRow, planned_seeds

REFERENCE = "rope"
DIVERGED = "NonFiniteLoss"  # the error of a run whose loss became infinite: a result of its learning rate
HALVES = {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "half the width"}
ARMS = {"rope": "RoPE, tuned on", "best": "best structure", "random": "random structure", "fresh": "new Q, K, V"}
WORDS, ADJUSTED = ["conclusion", "answer", "seeds_needed"], ["p_different_adjusted", "p_equivalent_adjusted"]
COLUMNS = [  # of the frame, that a study needs
    "path", "status", "cell_key", "run_id", "model", "dataset", "row", "seed", "error.type", "parameters.qkv",
    "parameters.total", "config.train.seq_len", "config.train.lr", "config.model.projection", "config.model.d_model",
    MEASURES["final"],
]  # fmt: skip
PLACE = ["study", "dataset", "width", "setting"]
Place = tuple[str, str, int, str]


@dataclass(frozen=True)
class Question:
    """One question of a study: what first - second is, on the mean over its datasets, at each of its widths.

    answers   what a lower, an equivalent and a higher difference mean
    kind      loss        validation loss at equal seed
              equal_size  the loss of `second` is interpolated to the parameters of `first`, seed by seed
              size_cost   the loss of `second`, interpolated to the parameters of `first`, less its own
              length      loss of `first` at `factor` times its training length less that at this length, of the tokens
                          beyond it; there is no `second`
              best_rate   each model at its own best learning rate; a seed's rate is chosen on the other seeds
              settings    validation loss at equal seed and setting; the settings are repetitions
    """

    study: str
    text: str
    first: str
    second: str
    answers: dict[str, str]
    kind: str = "loss"
    factor: int = 1


BETTER = {LOWER: "yes, lower", EQUIVALENT: "no, equal", HIGHER: "no, higher"}
COSTS = {LOWER: "no, even lower", EQUIVALENT: "no, equal", HIGHER: "yes, higher"}
LEVEL = {LOWER: "no, lower", EQUIVALENT: "yes, equal", HIGHER: "no, higher"}
HOLDS = {LOWER: "yes, and gains", EQUIVALENT: "yes, equal", HIGHER: "no, it loses"}
SMALL = {  # both tests reject: a difference that is shown, and shown to be below the margin
    SLIGHTLY[LOWER]: f"lower, by less than {MARGIN:g}", SLIGHTLY[HIGHER]: f"higher, by less than {MARGIN:g}",
}  # fmt: skip
QUESTIONS: list[Question] = [
    Question("base", "Is CRoPE level with RoPE?", "crope", "rope", LEVEL),
    *(Question("controls", f"Is complex better than {name} at half the weights?", "crope", model, BETTER)
      for model, name in HALVES.items()),
    Question("controls", "Does it cost loss if the complex pairs are not those of the rotation?", "complex_misaligned",
             "crope", COSTS),
    Question("controls", "Does Eq. 30 cost loss in Q and K alone?", "complex_qk", "rope", COSTS),
    Question("controls", "Does Eq. 30 cost loss in V alone?", "complex_v", "rope", COSTS),
    Question("baselines", "Is RoPE better than no positions?", "rope", "nope", BETTER),
    Question("baselines", "Does Eq. 30 cost loss without positions?", "complex_nope", "nope", COSTS),
    Question("baselines", "Is XPOS worse than no positions?", "xpos", "nope", COSTS),
    Question("baselines", "Is balanced XPOS worse than no positions?", "xpos_balanced", "nope", COSTS),
    Question("baselines", "Is balanced XPOS worse than RoPE?", "xpos_balanced", "rope", COSTS),
    Question("fair_lr", "Is CRoPE level with RoPE, each at its best rate?", "crope", "rope", LEVEL, "best_rate"),
    Question("fair_lr", "Is XPOS worse than RoPE, each at its best rate?", "xpos", "rope", COSTS, "best_rate"),
    Question("horizon", "Is CRoPE level with RoPE after four times the steps?", "crope", "rope", LEVEL),
    *(Question("horizon", f"Is complex better than {HALVES[model]} after four times the steps?", "crope", model, BETTER)
      for model in ("lowrank", "halved")),
    Question("pilot", "Is CRoPE level with RoPE over the choices that the paper leaves open?", "crope", "rope", LEVEL,
             "settings"),
    *(Question("schemes", f"{model_label(model)}: better than no positions?", model, "nope", BETTER)
      for model in ("rope", "alibi", "relative_bias", "learned", "xpos_balanced")),
    Question("schemes", "Does Eq. 30 cost loss under ALiBi?", "complex_alibi", "alibi", COSTS),
    Question("schemes", "Does Eq. 30 cost loss without positions, after four times the steps?", "complex_nope", "nope",
             COSTS),
    Question("scaling", "Is CRoPE level with RoPE at every width?", "crope", "rope", LEVEL),
    Question("scaling", "Is CRoPE better than a RoPE of as many parameters?", "crope", "rope", BETTER, "equal_size"),
    Question("scaling", "Does a RoPE of CRoPE's size cost loss?", "crope", "rope", COSTS, "size_cost"),
    Question("scaling", "Is CRoPE better than RoPE if the saved weights widen it?", "complex_wide", "rope", BETTER),
    *(Question("length", f"Does {model_label(model)} hold at 4 times its length?", model, "", HOLDS, "length", 4)
      for model in ("xpos", "relative_bias", "alibi", "nope", "rope", "crope")),
]  # fmt: skip


def collect_studies(frame: pd.DataFrame, rows: Sequence[StudyRow], *, tables: Collection[str]) -> pd.DataFrame:
    """The runs of every started study, one row per run; of the length study, one row per run and length.

    Adds study, width, setting (values of further axes), own, seq_len, final (full validation loss, nats per token;
    infinite if a run diverged), and for lengths positions: (position, loss). A study is started on a dataset by its
    first own run there: of a cell that neither another study nor `tables` (their keys) have, or, without such a cell,
    of a seed that the tables do not plan; `length` by its first measurement. Raises UserError as `check_comparable`
    does.
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
            if "best_rate" in kinds:
                runs = pd.concat([runs, diverged[diverged["cell_key"] == cell.key]])
            if runs.empty:
                continue
            known: dict[str, Any] = dict(zip(PLACE, _place(row), strict=True)) | {"own": len(owners[cell.key]) == 1}
            if row.study not in with_own_cells:
                known["own"] = ~runs["seed"].isin(planned_seeds(TABLES[0]))
            known["final"] = runs[MEASURES["final"]].mask(runs["status"] == "failed", np.inf)
            runs = runs.assign(**known, seq_len=runs["config.train.seq_len"])
            parts.append(_measured(runs) if "length" in kinds else runs)
    if not parts:
        return pd.DataFrame(columns=[*COLUMNS, "study", "setting", "width", "own", "seq_len", "final"])
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
    """The answers of every started study: one row per question and width, and one per dataset where it has several.

    `judged` rows have a conclusion and an answer; it is about the mean over the study's datasets at equal seed, on the
    planned seeds. The rows of single datasets show whether they agree.
    """
    started, lines = set(runs["study"]), []
    for question in QUESTIONS:
        if question.study in started:
            own = [row for row in rows if row.study == question.study]
            of = runs[(runs["study"] == question.study) & runs["seed"].isin(own[0].seeds)]
            lines += [line | {"share": share(question, rows)} for line in _lines(question, of, own)]
    if not lines:
        return pd.DataFrame()
    found = claims.conclude(pd.DataFrame(lines))
    answers = {(one.study, one.text): one.answers | SMALL for one in QUESTIONS}
    words = [answers[study, text].get(word, word) for study, text, word in zip(
        found["study"], found["question"], found["conclusion"], strict=True)]  # fmt: skip
    found, judged = found.assign(answer=words), found["judged"]
    found[WORDS] = found[WORDS].where(judged, "")
    found[ADJUSTED] = found[ADJUSTED].where(judged)
    return found


def share(question: Question, rows: Sequence[StudyRow]) -> float:
    """The part of the report's error rate of each test of a question, whether or not the others were run."""

    def family(study: str) -> str:
        return study if study in SHARES else "other"

    widths = {study: len({row.width for row in rows if row.study == study}) for study in {row.study for row in rows}}
    same = [one for one in QUESTIONS if family(one.study) == family(question.study)]
    return SHARES[family(question.study)] / sum(widths.get(one.study, 1) for one in same)


def _lines(question: Question, runs: pd.DataFrame, rows: Sequence[StudyRow]) -> Iterator[dict[str, Any]]:
    """The lines of one question; `runs` and `rows` are those of its study."""
    widths, datasets = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("width", "dataset"))
    settings = list(dict.fromkeys(", ".join(row.settings) for row in rows))
    planned = len(rows[0].seeds) * (len(settings) if question.kind == "settings" else 1)
    for width in widths:
        found = {dataset: _values(question, runs[runs["dataset"] == dataset], width) for dataset in datasets}
        context = [f"D = {width}"] * (len(widths) > 1) + settings[:1] * (len(settings) == 1)
        line: dict[str, Any] = {"study": question.study, "question": question.text, "width": width, "at": "final"}
        line |= {"first": question.first, "second": question.second}
        for dataset, (values, reason) in found.items():
            where = ", ".join(filter(None, [DATASET_LABELS.get(dataset, dataset), *context]))
            one = line | {"dataset": dataset, "where": where, "judged": len(found) == 1, "by_dataset": ""}
            yield one | claims.describe(values, reason, planned)
        if len(found) > 1:
            labels = {dataset: DATASET_LABELS.get(dataset, dataset) for dataset in found}
            parts = [f"{labels[name]} {signed(values.mean())}" for name, (values, _) in found.items() if len(values)]
            where = ", ".join([f"mean of {' and '.join(labels.values())}", *context])
            one = line | {"dataset": "", "where": where, "judged": True, "by_dataset": ", ".join(parts)}
            mean = pd.concat([values for values, _ in found.values()], axis=1).dropna().mean(axis=1)
            reason = next((f"{DATASET_LABELS.get(name, name)}: {why}" for name, (_, why) in found.items() if why), "")
            yield one | claims.describe(mean, reason, planned)


def _values(question: Question, runs: pd.DataFrame, width: int) -> tuple[pd.Series, str]:
    """The differences on one dataset by seed, or why there are none; `runs` are those of all widths."""
    first, second, of = question.first, question.second, runs[runs["width"] == width]
    if question.kind == "length":
        values = change(of, first, question.factor)
        return values, "" if len(values) else "not measured"
    if question.kind == "best_rate":
        rates = {name: of[of["model"] == name].pivot(index="seed", columns="config.train.lr", values="final")
                 for name in (first, second)}  # fmt: skip
        every = sorted(of["config.train.lr"].unique())
        return claims.paired_losses(
            {name: held_out(losses.reindex(columns=every).dropna()) for name, losses in rates.items()}
        )
    if question.kind == "settings":
        of = of.assign(seed=of["setting"] + ", seed " + of["seed"].astype(str))
    losses = {model: claims.by_seed(of, model, "final") for model in (first, second)}
    if question.kind in ("equal_size", "size_cost") and not losses[first].empty:
        size = int(of.loc[of["model"] == first, "parameters.total"].iloc[0])
        interpolated = at_size(runs[runs["model"] == second], size)
        if question.kind == "equal_size":
            losses[second] = interpolated
        else:
            losses[first] = interpolated
    return claims.paired_losses(losses)


def at_size(runs: pd.DataFrame, parameters: int) -> pd.Series:
    """By seed: the loss of one model at a size between those of its runs, by a monotone cubic in the log of the size.

    A chord would lie above the loss, which is convex in the log of the size.
    """
    found: dict[Any, float] = {}
    for seed, of in runs.dropna(subset="final").groupby("seed"):
        curve = of.groupby("parameters.total")["final"].mean()
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
    """The judged lines as printed; the CSV has all."""
    of = lines[lines["judged"]]
    pairs = zip(of["first"], of["second"], strict=True)
    frame = pd.DataFrame({
        "Question": of["question"], "Where": of["where"],
        "Difference": [claims.pair_label(*pair) if pair[1] else "beyond L" for pair in pairs],
        **claims.difference_columns(of), "By dataset": of["by_dataset"],
        "p different": of["p_different_adjusted"].map(p_text), "p equivalent": of["p_equivalent_adjusted"].map(p_text),
        "Answer": [answer_text(line) for line in of.to_dict("records")],
    })  # fmt: skip
    notes = [
        "Differences at equal seed, nats per token, on the planned seeds of conf/study; with several datasets the mean"
        " over them. p: adjusted for all tests of the report, whose conclusions together are false with a probability"
        f" of at most {ALPHA:g}. Equal: equivalent within ±{MARGIN:g}. Seeds needed: for the likelier conclusion at"
        " 80 % power, over the 80 % interval of the standard deviation."
    ]
    frame = frame[[name for name in frame if name != "By dataset" or frame[name].any()]]
    words = [i for i, name in enumerate(frame) if name in ("Question", "Where", "Difference", "By dataset", "Answer")]
    caption, numbers = f"Questions and answers. Scale: {scale}.", lines.drop(columns=["values"]).round(DECIMALS)
    return Table("studies", caption, frame, notes, text=words, numbers=numbers)


def answer_text(line: Mapping[Any, Any]) -> str:
    """The answer of one judged line, with what an open one lacks."""
    lacking = line["reason"] if line["conclusion"] == claims.MISSING else line["seeds_needed"]
    return f"{line['answer']}: {lacking}" if lacking else str(line["answer"])


def p_text(p: float) -> str:
    return "" if pd.isna(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


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
        known = run | {"own": True, "positions": segments}
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
