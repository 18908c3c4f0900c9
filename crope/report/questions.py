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
from crope.report.frame import DATASET_LABELS, TINY
from crope.report.stats import ALPHA, SHARES, paired
from crope.report.tables import Table
from crope.study import StudyRow

HALVES = {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "halved outputs"}
SEED = ", seed "  # between setting and seed where settings are repetitions
AT_SIZE = ("equal_size", "size_cost")  # kinds that need the loss of one model at the size of another
LENGTHS = 4  # length at which `length` judges a model, over its training length
WORDS, ADJUSTED = ["conclusion", "answer", "seeds_needed"], ["p_different_adjusted", "p_equivalent_adjusted"]


@dataclass(frozen=True)
class Question:
    """One question of a study: what first - second is, on the mean over the study's datasets, widths and settings.

    answers   what a lower, an equivalent and a higher difference mean
    kind      loss        validation loss at equal seed
              equal_size  the loss of `second` is interpolated to the parameters of `first`, seed by seed
              size_cost   the loss of `second`, interpolated to the parameters of `first`, less its own
              length      loss of `first` at LENGTHS times its training length less that at this length, of the tokens
                          beyond it; there is no `second`
              best_rate   each model at its own best learning rate; a seed's rate is chosen on the other seeds
    """

    study: str
    text: str
    first: str
    second: str
    answers: dict[str, str]
    kind: str = "loss"


def _answers(lower: str, equivalent: str, higher: str, *, level: bool = False) -> dict[str, str]:
    """Also for differences that are shown, and shown to be below the margin."""
    small = {word: f"{text}, by less than {MARGIN:g}" for word, text in ((LOWER, lower), (HIGHER, higher))}
    if level:
        small = {word: f"{equivalent}, although {word}" for word in small}
    return {LOWER: lower, EQUIVALENT: equivalent, HIGHER: higher} | {SLIGHTLY[word]: small[word] for word in small}


WITHIN = f"within ±{MARGIN:g}"
BETTER = _answers("yes, lower", f"no, equal {WITHIN}", "no, higher")
COSTS = _answers("no, even lower", f"no, equal {WITHIN}", "yes, higher")
# A difference that is only shown not to be 0 may still lie within the margin.
LEVEL = _answers(f"lower; not shown to be {WITHIN}", f"yes, {WITHIN}", f"higher; not shown to be {WITHIN}", level=True)
HOLDS = _answers("yes, it gains", f"yes, {WITHIN}", "no, it loses")
QUESTIONS: list[Question] = [
    Question("base", "Is CRoPE level with RoPE?", "crope", "rope", LEVEL),
    *(Question("controls", f"Is complex better than {name}, at half the weights?", "crope", model, BETTER)
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
    Question("horizon", "Is CRoPE level with RoPE after 3,200 steps?", "crope", "rope", LEVEL),
    *(Question("horizon", f"Is complex better than {HALVES[model]} after 3,200 steps?", "crope", model, BETTER)
      for model in ("lowrank", "halved")),
    Question("pilot", "Is CRoPE level with RoPE whatever the paper leaves open?", "crope", "rope", LEVEL),
    *(Question("schemes", f"{model_label(model)}: better than no positions after 3,200 steps?", model, "nope", BETTER)
      for model in ("rope", "alibi", "relative_bias", "learned", "xpos_balanced")),
    Question("schemes", "Does Eq. 30 cost loss under ALiBi?", "complex_alibi", "alibi", COSTS),
    Question("schemes", "Does Eq. 30 cost loss without positions after 3,200 steps?", "complex_nope", "nope", COSTS),
    Question("scaling", "Is CRoPE level with RoPE over the widths?", "crope", "rope", LEVEL),
    Question("scaling", "Is CRoPE better than a RoPE of as many parameters?", "crope", "rope", BETTER, "equal_size"),
    Question("scaling", "Does a RoPE of CRoPE's size cost loss?", "crope", "rope", COSTS, "size_cost"),
    Question("scaling", "Is CRoPE better than RoPE if the saved weights widen it?", "complex_wide", "rope", BETTER),
    *(Question("length", f"Does {model_label(model)} hold at {LENGTHS} times its length?", model, "", HOLDS, "length")
      for model in ("xpos", "relative_bias", "alibi", "nope", "rope", "crope")),
]  # fmt: skip


def answer(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """The answers of every started study: a row per question, and one for each of several datasets, widths, settings.

    `judged` rows have a conclusion and an answer, about the mean of the others at equal seed, on the planned seeds.
    """
    started, lines = set(runs["study"]), []
    for question in QUESTIONS:
        if question.study in started:
            own = [row for row in rows if row.study == question.study]
            of = runs[(runs["study"] == question.study) & runs["seed"].isin(own[0].seeds)]
            lines += [line | {"share": share(question)} for line in _lines(question, of, own)]
    if not lines:
        return pd.DataFrame(columns=["study", "dataset", "judged", "conclusion", "second"]).astype({"judged": bool})
    found = claims.conclude(pd.DataFrame(lines))
    answers = {(one.study, one.text): one.answers for one in QUESTIONS}
    keys = zip(found["study"], found["question"], found["conclusion"], strict=True)
    found = found.assign(answer=[answers[study, text].get(word, word) for study, text, word in keys])
    found[WORDS] = found[WORDS].where(found["judged"], "")
    found[ADJUSTED] = found[ADJUSTED].where(found["judged"])
    return found


def share(question: Question) -> float:
    """The part of the report's error rate of a question, whether or not the others of its study were run."""
    part = question.study if question.study in SHARES else "own"
    return SHARES[part] / sum(part == (one.study if one.study in SHARES else "own") for one in QUESTIONS)


def _lines(question: Question, runs: pd.DataFrame, rows: Sequence[StudyRow]) -> Iterator[dict[str, Any]]:
    """The lines of one question; `runs` and `rows` are those of its study. `tiny` stands in for no other dataset."""
    rows = [row for row in rows if row.dataset != TINY] or rows
    if question.kind in AT_SIZE:  # the smallest CRoPE is smaller than every RoPE
        rows = [row for row in rows if row.width > min(one.width for one in rows)]
    found: dict[tuple[str, int, str], tuple[pd.Series, str]] = {}
    for row in rows:
        setting = "" if question.kind == "best_rate" else ", ".join(row.settings)
        of = runs[(runs["dataset"] == row.dataset) & (runs["setting"].eq(setting) | (question.kind == "best_rate"))]
        found[row.dataset, row.width, setting] = _values(question, of, row.width)
    several = [len({part[i] for part in found}) > 1 for i in range(3)]
    pair = claims.pair_label(question.first, question.second) if question.second else question.text
    line = {"study": question.study, "question": question.text, "first": question.first, "second": question.second}
    line["at"] = "final"
    names = {}
    for (dataset, width, setting), (values, reason) in found.items():
        label = DATASET_LABELS.get(dataset, dataset)
        place = [*[f"D = {width}"] * several[1], *[setting] * bool(setting)]
        names[dataset, width, setting] = ", ".join([label, *place])
        yield line | {
            "dataset": dataset, "width": width, "where": ", ".join([label, *place]), "title": label, "by_part": "",
            "label": ", ".join([pair, *place[: sum(several[1:])]]), "judged": len(found) == 1,
        } | claims.describe(values, reason, len(rows[0].seeds))  # fmt: skip
    if len(found) > 1:
        both = pd.concat([values for values, _ in found.values()], axis=1).dropna()
        means = [f"{name} {signed(mean)}" for name, mean in zip(names.values(), both.mean(), strict=True) if len(both)]
        reason = next((f"{names[part]}: {why}" for part, (_, why) in found.items() if why), "")
        yield line | {
            "dataset": "", "width": 0, "where": f"mean of {' and '.join(names.values())}", "title": "mean",
            "label": pair, "judged": True, "by_part": "; ".join(means),
        } | claims.describe(both.mean(axis=1), reason, len(rows[0].seeds))  # fmt: skip


def _values(question: Question, runs: pd.DataFrame, width: int) -> tuple[pd.Series, str]:
    """The differences on one dataset by seed, or why there are none; `runs` are those of all widths."""
    first, second, of = question.first, question.second, runs[runs["width"] == width]
    if question.kind == "length":
        values = change(of, first)
        return values, "" if len(values) else "not measured"
    if question.kind == "best_rate":
        rates = {name: of[of["model"] == name].pivot(index="seed", columns="config.train.lr", values="final")
                 for name in (first, second)}  # fmt: skip
        every = sorted(of["config.train.lr"].unique())
        return claims.paired_losses(
            {name: held_out(losses.reindex(columns=every).dropna()) for name, losses in rates.items()}
        )
    losses = {model: claims.by_seed(of, model, "final") for model in (first, second)}
    if question.kind in AT_SIZE and not losses[first].empty:
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


def change(of: pd.DataFrame, model: str) -> pd.Series:
    """By seed: loss at LENGTHS times the training length less that at this length, of the tokens beyond it.

    Tokens before it have the same context at both lengths and contribute 0, so the difference of the means over all
    tokens is rescaled by the share of those beyond, 1 - 1 / LENGTHS. Below 0, more context helps.
    """
    times = of["seq_len"] / of["config.train.seq_len"]
    return paired(*(claims.by_seed(of[times == one], model, "final") for one in (LENGTHS, 1))) / (1 - 1 / LENGTHS)


def answers_table(lines: pd.DataFrame, scale: str) -> Table:
    """The judged lines as printed; the CSV has all."""
    of = lines[lines["judged"]]
    pairs = zip(of["first"], of["second"], strict=True)
    frame = pd.DataFrame({
        "Question": of["question"], "Answer": [answer_text(line) for line in of.to_dict("records")],
        "Difference": [claims.pair_label(*pair) if pair[1] else f"change at {LENGTHS} L" for pair in pairs],
        **claims.difference_columns(of),
        "p different": of["p_different_adjusted"].map(p_text), "p equivalent": of["p_equivalent_adjusted"].map(p_text),
        "Where": of["by_part"].where(of["by_part"] != "", of["where"]),
    })  # fmt: skip
    notes = [
        "Differences at equal seed, nats per token, on the planned seeds of conf/study; with several datasets, widths"
        " or settings the mean over them. Intervals are those of single differences; p and answers are adjusted for all"
        f" tests of the report, so that any false answer has a probability of at most {ALPHA:g}. Few seeds can answer"
        " about large differences only. Seeds needed: for the likelier answer at 80 % power, over the 80 % interval of"
        " the standard deviation."
    ]
    words = [0, 1, 2, frame.shape[1] - 1]
    caption, numbers = f"Questions and answers. Scale: {scale}.", lines.drop(columns=["values"]).round(DECIMALS)
    return Table("studies", caption, frame, notes, text=words, numbers=numbers)


def answer_text(line: Mapping[Any, Any]) -> str:
    """The answer of one judged line, with what an open one lacks."""
    lacking = line["reason"] if line["conclusion"] == claims.MISSING else line["seeds_needed"]
    return f"{line['answer']}: {lacking}" if lacking else str(line["answer"])


def p_text(p: float) -> str:
    return "" if pd.isna(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
