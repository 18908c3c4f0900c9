"""What the studies ask beyond the paper's claims: open questions, so that no answer is the hoped-for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crope.report.answers import (
    Answer,
    Check,
    Question,
    fit_slope,
    judged,
    of_models,
    of_pair,
    of_rows,
    too_few,
    words,
)
from crope.report.comparisons import COMPARED_AT, model_label, pair_label, read_losses, with_tests
from crope.report.details import stored_parameters
from crope.report.frame import CellResult
from crope.report.models import SCHEMES
from crope.report.stats import Difference, over_seeds, paired_difference
from crope.report.studies import Row, Study

MATCHED = {"lowrank": "low rank", "blockdiag": "diagonal blocks", "halved": "half the width"}
PARITY = ("crope", "rope")
WIDE = ("complex_wide", "rope")
NONE = "nope"
EQUAL_SIZE = "CRoPE − RoPE at CRoPE's parameters"


def build_answers(studies: Sequence[Study], margin: float) -> list[Answer]:
    """Every question of the studies that were begun; `margin` in nats per token, as `load_margin` gives it."""
    makers = {"controls": _controls, "schemes": _schemes, "length": _length, "scaling": _scaling}
    return [answer for study in studies if study.rows for answer in makers[study.name](study, margin)]


def _controls(study: Study, margin: float) -> list[Answer]:
    """The matched controls are one question in three forms, and one family."""
    matched = []
    for model, name in MATCHED.items():
        text = f"Does complex beat {name} at half the weights?"
        found = words(f"yes, {model_label('crope')} is lower", "no, equal", f"no, {model_label('crope')} is higher")
        matched += of_pair(study, f"complex_or_{model}", text, ("crope", model), found, margin)
    costs = words("no, even lower", "no, equal", "yes, higher")
    others = (
        ("alignment", "Must the complex pairs be the rotation's pairs?", ("complex_misaligned", "crope"),
         words("no, misaligned is lower", "no, equal", "yes, misaligned is higher")),
        ("qk_only", "Does Eq. 30 cost loss in Q and K alone, where the rotation acts?", ("complex_qk", "rope"), costs),
        ("v_only", "Does Eq. 30 cost loss in V alone, where no rotation acts?", ("complex_v", "rope"), costs),
        ("wide", "Do the saved weights, spent on attention width, win?", WIDE,
         words("yes, lower than RoPE", "no, equal", "no, higher than RoPE")),
    )  # fmt: skip
    return judged(matched) + [
        answer
        for name, text, pair, found in others
        for answer in judged(of_pair(study, name, text, pair, found, margin))
    ]


def _schemes(study: Study, margin: float) -> list[Answer]:
    """What a scheme is worth, what Eq. 30 costs under it, and whether it costs less under the rotation."""
    answers = []
    for name, (_, real) in SCHEMES.items():
        if real != NONE:
            text = f"{name}: better than no positions?"
            found = words("yes, lower", "no, equal", "no, higher")
            answers += judged(of_pair(study, f"worth_{real}", text, (real, NONE), found, margin))
    for name, pair in SCHEMES.items():
        text = f"Does Eq. 30 cost loss under {name}?"
        found = words("no, even lower", "no, equal", "yes, higher")
        answers += judged(of_pair(study, f"eq30_{pair[1]}", text, pair, found, margin))
    without = (f"complex_{NONE}", NONE)
    question = Question(
        "eq30_needs_rotation", study.name, "Does Eq. 30 cost less under the rotation than without positions?",
        f"({pair_label(*PARITY)}) − ({pair_label(*without)})", words("yes, less", "no, the same", "no, more"),
    )  # fmt: skip

    def interaction(row: Row, at: str) -> tuple[Difference | None, str]:
        parts = [of_models(row, pair, at) for pair in (PARITY, without)]
        reason = "; ".join(dict.fromkeys(reason for found, reason in parts if found is None))
        if reason:
            return None, reason
        losses = [{model: read_losses(row.results[model], at) for model in pair} for pair in (PARITY, without)]
        by_seed = [{s: one[a][s] - one[b][s] for s in one[a].keys() & one[b].keys()}
                   for one, (a, b) in zip(losses, (PARITY, without), strict=True)]  # fmt: skip
        found = paired_difference(*by_seed)
        return (found, too_few(found)) if found else (None, "no seed that all four models have")

    return answers + judged(of_rows(study, question, [*PARITY, *without], interaction, margin))


def _length(study: Study, margin: float) -> list[Answer]:
    """The change from the training length, of the tokens beyond it, at the weights after the last step."""
    factors = sorted({length // one.trained for row in study.rows for one in row.lengths.values()
                      for length in one.lengths} - {1})  # fmt: skip
    answers = []
    for model in study.models:
        for factor in factors:
            question = Question(
                f"extrapolates_{model}_{factor}", study.name,
                f"{model_label(model)}: does it hold at {factor} times its length?",
                f"loss at {factor} L − at L, beyond L", words("yes, and gains", "yes, equal", "no, it loses"),
            )  # fmt: skip
            checks = [_change(row, [model], factor, question.difference, margin) for row in study.rows]
            answers += judged([Answer(question, "final", tuple(checks))])
    for factor in factors:
        question = Question(
            f"extrapolates_as_rope_{factor}", study.name,
            f"Does CRoPE hold at {factor} times its length as RoPE does?",
            f"change from L to {factor} L of CRoPE − that of RoPE",
            words("it holds better", "yes, equal", "no, it loses more"),
        )  # fmt: skip
        checks = [_change(row, PARITY, factor, question.difference, margin) for row in study.rows]
        answers += judged([Answer(question, "final", tuple(checks))])
    return answers


def _change(row: Row, models: Sequence[str], factor: int, difference_of: str, margin: float) -> Check:
    """Of one model, or of the first less that of the second."""
    changes, reasons = [], []
    for model in models:
        found, result = row.lengths.get(model), row.results[model]
        length = found.trained * factor if found else 0
        change = found.change(length) if found else {}
        if found is None:
            reasons.append(
                f"{model_label(model)} {result.status if not result.runs else 'not measured beyond its length'}"
            )
        elif not change:
            reasons.append(found.notes.get(length, f"no loss at {length}"))
        changes.append(change)
    difference = None
    if not reasons:
        difference = paired_difference(*changes) if len(changes) == 2 else over_seeds([*changes[0].values()])
        reasons = [too_few(difference)] if difference else ["no seed that both models have"]
    keys = tuple(row.results[model].cell.key for model in models)
    return with_tests(Check(
        row.label, difference_of, keys, planned=row.testable, margin_nats=margin, difference=difference,
        reason=reasons[0],
    ))  # fmt: skip


def _scaling(study: Study, margin: float) -> list[Answer]:
    answers = []
    for dataset in dict.fromkeys(row.dataset for row in study.rows):
        one = Study(study.name, study.scale, tuple(row for row in study.rows if row.dataset == dataset), study.idle)
        on = f" ({one.rows[0].label})"
        level = words("no, CRoPE is lower", "yes, equal", "no, CRoPE is higher")
        text = f"Does CRoPE stay level with RoPE at every width?{on}"
        answers += judged(of_pair(one, f"parity_{dataset}", text, PARITY, level, margin, where=_width))
        answers += _drift(one, dataset, f"Does CRoPE − RoPE drift as the model grows?{on}", margin)
        text = f"Is CRoPE better than a RoPE of as many parameters?{on}"
        found = words("yes, lower", "no, equal", "no, higher")
        answers += _at_equal_size(one, Question(f"equal_size_{dataset}", study.name, text, EQUAL_SIZE, found), margin)
        found = words("yes, lower than RoPE", "no, equal", "no, higher than RoPE")
        text = f"Do the saved weights, spent on attention width, win at every width?{on}"
        answers += judged(of_pair(one, f"wide_{dataset}", text, WIDE, found, margin, where=_width))
    return answers


def _at_equal_size(study: Study, question: Question, margin: float) -> list[Answer]:
    """CRoPE less RoPE's loss, interpolated seed by seed in the logarithm of the parameters between RoPE's widths."""

    def difference(row: Row, at: str) -> tuple[Difference | None, str]:
        curves: dict[int, dict[float, float]] = {}  # seed -> log of the parameters -> loss, of RoPE
        for other in study.rows:
            rope = other.results.get("rope")
            if rope is not None and rope.runs:
                for seed, loss in read_losses(rope, at).items():
                    curves.setdefault(seed, {})[_log_size(rope)] = loss
        crope = row.results.get("crope")
        if crope is None or not crope.runs:
            return None, f"{model_label('crope')} {crope.status if crope else 'missing'}"
        size = _log_size(crope)
        values = []
        for seed, loss in sorted(read_losses(crope, at).items()):
            sizes = sorted(curves.get(seed, {}))
            if sizes and sizes[0] <= size <= sizes[-1]:
                values.append(loss - float(np.interp(size, sizes, [curves[seed][one] for one in sizes])))
        if not values:
            return None, "no smaller and larger RoPE with a seed in common"
        found = over_seeds(values)
        return found, too_few(found)

    return judged(of_rows(study, question, PARITY, difference, margin, where=_width))


def _log_size(result: CellResult) -> float:
    return math.log(stored_parameters(result.runs[0].summary).total)


def _drift(study: Study, dataset: str, text: str, margin: float) -> list[Answer]:
    """The slope against log2 of the width. No drift: over all the widths it changes by less than the margin."""
    question = Question(
        f"drift_{dataset}", study.name, text, "slope of CRoPE − RoPE",
        words("yes, towards CRoPE", "no, none", "yes, towards RoPE"),
    )  # fmt: skip
    answers = []
    for at in COMPARED_AT:
        slope, widths = fit_slope({row.width: _by_seed(row, at) for row in study.rows})
        reason = too_few(slope) if slope else "needs 2 widths at which both models have a seed in common"
        absent = [row.width for row in study.rows if row.width not in widths]
        if absent and not reason:  # a drift may lie in what was not run
            reason = f"D = {', '.join(map(str, absent))} missing"
        doublings = math.log2(widths[-1] / widths[0]) if slope else 1.0
        keys = tuple(row.results[m].cell.key for row in study.rows for m in PARITY if row.width in widths)
        check = Check(
            f"D = {', '.join(map(str, widths))}" if slope else "every width", question.difference, keys,
            " per doubling", margin_nats=margin / doublings, difference=slope, reason=reason,
        )  # fmt: skip
        answers.append(Answer(question, at, (with_tests(check),)))
    return judged(answers)


def _by_seed(row: Row, at: str) -> dict[int, float]:
    """CRoPE - RoPE of the seeds that both have."""
    first, second = (read_losses(row.results[model], at) if model in row.results else {} for model in PARITY)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def _width(row: Row) -> str:
    return f"D = {row.width}"
