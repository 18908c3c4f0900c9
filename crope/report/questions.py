"""The questions of the studies as data, and their answers: what the planned seeds show on the mean
of the datasets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import pchip_interpolate

from crope.report import claims
from crope.report.claims import (
    DECIMALS,
    EQUIVALENT,
    HIGHER,
    LOWER,
    MARGIN,
    SLIGHTLY,
    model_label,
    signed,
)
from crope.report.frame import DATASET_LABELS, TINY
from crope.report.stats import ALPHA, SHARES, paired
from crope.report.tables import Table
from crope.study import StudyRow

HALVES = {"lowrank": "low rank", "blockdiag": "block-diagonal", "halved": "halved outputs"}
AT_SIZE = (
    "equal_size",
    "size_cost",
)  # kinds that need the loss of one model at the size of another
LENGTHS = 4  # length at which `length` judges a model, over its training length
WORDS, ADJUSTED = (
    ["conclusion", "answer", "seeds_needed"],
    ["p_different_adjusted", "p_equivalent_adjusted"],
)


@dataclass(frozen=True)
class Question:
    """One question of a study: what first - second is, on the mean over the study's datasets,
    widths and settings.

    answers   what a lower, an equivalent and a higher difference mean; empty: the differences are
              shown, not judged
    kind      loss        validation loss at equal seed
              equal_size  the loss of `second` is interpolated to the parameters of `first`, seed by
                          seed
              size_cost   the loss of `second`, interpolated to the parameters of `first`, less its
                          own
              length      loss of `first` at LENGTHS times its training length less that at this
                          length, of the tokens beyond it; there is no `second`
              best_rate   each model at its own best learning rate; a seed's rate is chosen on the
                          other seeds
    """

    study: str
    text: str
    first: str
    second: str
    answers: dict[str, str]
    kind: str = "loss"

    @property
    def label(self) -> str:
        """What is subtracted from what."""
        first, second = model_label(self.first), model_label(self.second)
        labels = {
            "length": f"{first} beyond its training length L: at {LENGTHS} L − at L",
            "equal_size": f"{first} − {second} of its size",
            "size_cost": f"{second} of {first}'s size − {second}",
        }
        return labels.get(self.kind, claims.pair_label(self.first, self.second))


WITHIN = f"within ±{MARGIN:g}"


def _answers(lower: str, equivalent: str, higher: str, *, level: bool = False) -> dict[str, str]:
    """Also for differences that are shown, and shown to be below the margin."""
    small = {
        word: f"{text}, by less than {MARGIN:g}"
        for word, text in ((LOWER, lower), (HIGHER, higher))
    }
    if level:
        small = {word: f"{word}, but {WITHIN}" for word in small}
    return {LOWER: lower, EQUIVALENT: equivalent, HIGHER: higher} | {
        SLIGHTLY[word]: small[word] for word in small
    }


# A small difference may be real, so that an equivalent one is no "no"; a difference that is only
# shown not to be 0 may still lie within the margin.
BETTER = _answers("yes, lower", f"equal {WITHIN}", "no, higher")
COSTS = _answers("no, even lower", f"equal {WITHIN}", "yes, higher")
LEVEL = _answers(
    f"lower; not shown to be {WITHIN}",
    f"yes, {WITHIN}",
    f"higher; not shown to be {WITHIN}",
    level=True,
)
HOLDS = _answers("yes, it gains", f"yes, {WITHIN}", "it loses")
SHOWN: dict[str, str] = {}
QUESTIONS: list[Question] = [
    Question("base", "Is CRoPE level with RoPE?", "crope", "rope", LEVEL),
    *(Question("controls", f"Is CRoPE better than {name}, at half the Q/K/V weights?", "crope", model, BETTER)
      for model, name in HALVES.items()),
    Question("controls", "Does it cost loss if the complex pairs are not those of the rotation?", "complex_misaligned",
             "crope", COSTS),
    Question("controls", "Does Eq. 30 in Q and K alone cost loss?", "complex_qk", "rope", COSTS),
    Question("controls", "Does Eq. 30 in V alone cost loss?", "complex_v", "rope", COSTS),
    Question("baselines", "Is RoPE better than no positions?", "rope", "nope", BETTER),
    Question("baselines", "Does Eq. 30 cost loss without positions?", "complex_nope", "nope", COSTS),
    Question("baselines", "Is XPOS worse than no positions?", "xpos", "nope", COSTS),
    Question("baselines", "Is balanced XPOS worse than no positions?", "xpos_balanced", "nope", COSTS),
    Question("baselines", "Is balanced XPOS worse than RoPE?", "xpos_balanced", "rope", COSTS),
    Question("fair_lr", "Is CRoPE level with RoPE, each at its best rate?", "crope", "rope", LEVEL, "best_rate"),
    Question("horizon", "Is CRoPE level with RoPE after 3,200 steps?", "crope", "rope", LEVEL),
    *(Question("horizon", f"Is CRoPE better than {HALVES[model]} after 3,200 steps?", "crope", model, BETTER)
      for model in ("lowrank", "halved")),
    Question("pilot", "How far is CRoPE from RoPE in what the paper leaves open?", "crope", "rope", SHOWN),
    *(Question("schemes", f"{model_label(model)}: better than no positions after 3,200 steps?", model, "nope", BETTER)
      for model in ("rope", "alibi", "relative_bias", "learned", "xpos_balanced")),
    Question("scaling", "How far is CRoPE from RoPE at each width?", "crope", "rope", SHOWN),
    Question("scaling", "How far is CRoPE from a RoPE of as many parameters?", "crope", "rope", SHOWN, "equal_size"),
    Question("scaling", "What does a RoPE of CRoPE's size cost?", "crope", "rope", SHOWN, "size_cost"),
    Question("scaling", "How far is CRoPE from RoPE if the saved weights widen it?", "complex_wide", "rope", SHOWN),
    *(Question("length", f"Does {model_label(model)} hold at {LENGTHS} times its length?", model, "", HOLDS, "length")
      for model in ("xpos", "relative_bias", "alibi", "nope", "rope", "crope")),
]  # fmt: skip


def answer(runs: pd.DataFrame, rows: Sequence[StudyRow]) -> pd.DataFrame:
    """The answers of every started study: a row per question, and one for each of several datasets,
    widths, settings.

    `judged` rows have a conclusion and an answer, about the mean of the others at equal seed, on
    the planned seeds.
    """
    started, lines = set(runs["study"]), []
    for question in QUESTIONS:
        if question.study in started:
            own = [row for row in rows if row.study == question.study]
            of = runs[(runs["study"] == question.study) & runs["seed"].isin(own[0].seeds)]
            lines += [line | {"share": share(question)} for line in _lines(question, of, own)]
    if not lines:
        return pd.DataFrame(columns=["study", "dataset", "judged", "conclusion", "second"]).astype(
            {"judged": bool}
        )
    found = pd.DataFrame(lines)
    judged = claims.conclude(found[found["judged"]])
    answers = {(one.study, one.text): one.answers for one in QUESTIONS}
    keys = zip(judged["study"], judged["question"], judged["conclusion"], strict=True)
    judged = judged.assign(
        answer=[answers[study, text].get(word, word) for study, text, word in keys]
    )
    found = found.join(judged[[*WORDS, *ADJUSTED]])
    return found.assign(**{word: found[word].astype(object).fillna("") for word in WORDS})


def share(question: Question) -> float:
    """The part of the report's error rate of a question, whether or not the others of its study
    were run.
    """

    def part(one: Question) -> str:
        return one.study if one.study in SHARES else "own"

    tests = sum(part(one) == part(question) for one in QUESTIONS if one.answers)
    return SHARES[part(question)] / tests if question.answers else 0.0


def _lines(
    question: Question, runs: pd.DataFrame, rows: Sequence[StudyRow]
) -> Iterator[dict[str, Any]]:
    """The lines of one question; `runs` and `rows` are those of its study. `tiny` stands in for no
    other dataset.
    """
    rows = [row for row in rows if row.dataset != TINY] or rows
    if question.kind in AT_SIZE:  # the smallest CRoPE is smaller than every RoPE
        rows = [row for row in rows if row.width > min(one.width for one in rows)]
    found: dict[tuple[str, int, str], tuple[pd.Series, str]] = {}
    for row in rows:
        setting = "" if question.kind == "best_rate" else ", ".join(row.settings)
        of = runs[
            (runs["dataset"] == row.dataset)
            & (runs["setting"].eq(setting) | (question.kind == "best_rate"))
        ]
        found[row.dataset, row.width, setting] = _values(
            question, of, row.width, len({one.settings for one in rows})
        )
    several = [len({part[i] for part in found}) > 1 for i in range(3)]
    line = {
        "study": question.study,
        "question": question.text,
        "first": question.first,
        "second": question.second,
    }
    line["difference"] = question.label
    names = {}
    for (dataset, width, setting), (values, reason) in found.items():
        label = DATASET_LABELS.get(dataset, dataset)
        place = [*[f"D = {width}"] * several[1], *[setting] * bool(setting)]
        names[dataset, width, setting] = ", ".join([label, *place])
        yield line | {
            "dataset": dataset, "width": width, "where": ", ".join([label, *place]), "title": label, "by_part": "",
            "label": ", ".join([question.label, *place[: sum(several[1:])]]),
            "judged": len(found) == 1 and bool(question.answers),
        } | claims.describe(values, reason, len(rows[0].seeds))  # fmt: skip
    if len(found) > 1 and question.answers:
        both = pd.concat([values for values, _ in found.values()], axis=1).dropna()
        means = [
            f"{name} {signed(mean)}"
            for name, mean in zip(names.values(), both.mean(), strict=True)
            if len(both)
        ]
        reason = next((f"{names[part]}: {why}" for part, (_, why) in found.items() if why), "")
        yield line | {
            "dataset": "", "width": 0, "where": f"mean of {' and '.join(names.values())}", "title": "mean",
            "label": question.label, "judged": True, "by_part": "; ".join(means),
        } | claims.describe(both.mean(axis=1), reason, len(rows[0].seeds))  # fmt: skip


def _values(
    question: Question, runs: pd.DataFrame, width: int, settings: int
) -> tuple[pd.Series, str]:
    """The differences on one dataset by seed, or why there are none; `runs` are those of all
    widths.

    settings: how many the study has.
    """
    first, second, of = question.first, question.second, runs[runs["width"] == width]
    if question.kind == "length":
        values = change(of, first)
        return values, "" if len(values) else "not measured"
    if question.kind == "best_rate":
        rates = {name: of[of["model"] == name].pivot(index="seed", columns="config.train.lr", values="final")
                 for name in (first, second)}  # fmt: skip
        every = sorted(of["config.train.lr"].unique())
        if len(every) < settings:
            return pd.Series(dtype=float), f"{len(every)} of {settings} learning rates"
        return claims.paired_losses(
            {
                name: held_out(losses.reindex(columns=every).dropna())
                for name, losses in rates.items()
            }
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
    """By seed: the loss of one model at a size between those of its runs, by a monotone cubic in
    the log of the size.

    A chord would lie above the loss, which is convex in the log of the size.
    """
    found: dict[Any, float] = {}
    for seed, of in runs.dropna(subset="final").groupby("seed"):
        curve = of.groupby("parameters.total")["final"].mean()
        if len(curve) > 2 and curve.index.min() <= parameters <= curve.index.max():
            found[seed] = float(pchip_interpolate(np.log(curve.index), curve, np.log(parameters)))
    return pd.Series(found, dtype=float)


def held_out(losses_SR: pd.DataFrame) -> pd.Series:
    """By seed: its loss at the rate with the lowest mean over the other seeds, which is free of
    selection bias.

    `losses_SR` has a row per seed and a column per rate. Empty with one seed, or if that rate
    diverged.
    """
    seeds = list(losses_SR.index) if len(losses_SR) > 1 else []
    found = pd.Series(
        {seed: losses_SR.loc[seed, losses_SR.drop(seed).mean().idxmin()] for seed in seeds},
        dtype=float,
    )
    return found if np.isfinite(found).all() else found.iloc[:0]


def change(of: pd.DataFrame, model: str) -> pd.Series:
    """By seed: loss at LENGTHS times the training length less that at this length, of the tokens
    beyond it.

    Tokens before it have the same context at both lengths and contribute 0, so the difference of
    the means over all tokens is rescaled by the share of those beyond, 1 - 1 / LENGTHS. Below 0,
    more context helps.
    """
    times = of["seq_len"] / of["config.train.seq_len"]
    return paired(*(claims.by_seed(of[times == one], model, "final") for one in (LENGTHS, 1))) / (
        1 - 1 / LENGTHS
    )


def answers_table(lines: pd.DataFrame, scale: str) -> Table:
    """The judged lines and those of questions that are not judged, as printed; the CSV has all."""
    of = lines[lines["judged"] | (lines["share"] == 0)]
    frame = pd.DataFrame({
        "Question": of["question"], "Answer": [answer_text(line) for line in of.to_dict("records")],
        "Difference": of["difference"],
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
    caption, numbers = (
        f"Questions and answers. Scale: {scale}.",
        lines.drop(columns=["values"]).round(DECIMALS),
    )
    return Table("studies", caption, frame, notes, text=words, numbers=numbers)


def answer_text(line: Mapping[Any, Any]) -> str:
    """The answer of one line, with what an open one lacks."""
    if not line["judged"]:
        return "not judged"
    lacking = line["reason"] if line["conclusion"] == claims.MISSING else line["seeds_needed"]
    return f"{line['answer']}: {lacking}" if lacking else str(line["answer"])


def p_text(p: float) -> str:
    return "" if pd.isna(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
