"""The questions of the studies as data, and their answers: what the planned seeds show on the mean of the datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import pchip_interpolate

from crope.report import claims
from crope.report.claims import DECIMALS, EQUIVALENT, HIGHER, LOWER, MARGIN, SLIGHTLY, model_label, signed
from crope.report.frame import DATASET_LABELS
from crope.report.stats import ALPHA, SHARES, paired
from crope.report.tables import Table
from crope.study import StudyRow

HALVES = {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "half the width"}
SEED = ", seed "  # between setting and seed where settings are repetitions
WORDS, ADJUSTED = ["conclusion", "answer", "seeds_needed"], ["p_different_adjusted", "p_equivalent_adjusted"]


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


JOINED = ("best_rate", "settings")  # kinds whose lines are about all settings together
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


def answer(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """The answers of every started study: one row per question and width, and one for each of several datasets or
    repeated settings.

    `judged` rows have a conclusion and an answer; it is about the mean over the study's datasets at equal seed, on the
    planned seeds. The other rows show whether datasets or settings agree.
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
    part = question.study if question.study in SHARES else "own"
    same = [one for one in QUESTIONS if one.study == part or (part == "own" and one.study not in SHARES)]
    return SHARES[part] / sum(len(_tests(one, [row for row in rows if row.study == one.study])) for one in same)


def _tests(question: Question, rows: Sequence[StudyRow]) -> list[tuple[int, str | None]]:
    """Width and setting of each test of a question; None stands for all settings."""
    joined = question.kind in JOINED
    return list(dict.fromkeys((row.width, None if joined else ", ".join(row.settings)) for row in rows))


def _lines(question: Question, runs: pd.DataFrame, rows: Sequence[StudyRow]) -> Iterator[dict[str, Any]]:
    """The lines of one question; `runs` and `rows` are those of its study."""
    datasets, widths = ({getattr(row, name): None for row in rows} for name in ("dataset", "width"))
    settings = len({row.settings for row in rows}) if question.kind == "settings" else 1
    planned = len(rows[0].seeds) * settings
    for width, setting in _tests(question, rows):
        of = runs if setting is None else runs[runs["setting"] == setting]
        found = {dataset: _values(question, of[of["dataset"] == dataset], width) for dataset in datasets}
        context = [*[f"D = {width}"] * (len(widths) > 1), *filter(None, [setting])]
        line: dict[str, Any] = {"study": question.study, "question": question.text, "width": width, "at": "final"}
        line |= {"first": question.first, "second": question.second}
        line["label"] = claims.pair_label(question.first, question.second) if question.second else question.text
        for dataset, (values, reason) in found.items():
            where = ", ".join([DATASET_LABELS.get(dataset, dataset), *context])
            one = line | {"dataset": dataset, "where": where, "judged": len(found) == 1, "by_dataset": ""}
            if question.kind == "settings":
                for repeated, of_setting in values.groupby(lambda name: name.rpartition(SEED)[0], sort=False):
                    yield one | {"label": repeated, "judged": False} | claims.describe(of_setting)
            yield one | claims.describe(values, reason, planned)
        if len(found) > 1:
            labels = {dataset: DATASET_LABELS.get(dataset, dataset) for dataset in found}
            parts = [f"{labels[name]} {signed(values.mean())}" for name, (values, _) in found.items() if len(values)]
            where = ", ".join([f"mean of {' and '.join(labels.values())}", *context])
            one = line | {"dataset": "", "where": where, "judged": True, "by_dataset": ", ".join(parts)}
            mean = pd.concat([values for values, _ in found.values()], axis=1).dropna().mean(axis=1)
            reason = next((f"{labels[name]}: {why}" for name, (_, why) in found.items() if why), "")
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
        of = of.assign(seed=of["setting"] + SEED + of["seed"].astype(str))
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
