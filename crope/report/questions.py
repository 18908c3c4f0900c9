"""What the studies ask beyond the paper's claims: open questions, so that no answer is the hoped-for one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crope.report.answers import Answer, Check, Question, fit_slope, merged, of_pair, too_few, words
from crope.report.comparisons import COMPARED_AT, adjust, model_label, read_losses, with_tests
from crope.report.models import SCHEMES
from crope.report.studies import Row, Study

MATCHED = {"lowrank": "low rank", "blockdiag": "diagonal blocks", "halved": "half the width"}
PARITY = ("crope", "rope")
WIDE = ("complex_wide", "rope")


def build_answers(studies: Sequence[Study], margin: float) -> list[Answer]:
    """Every question of the studies that were begun; `margin` in nats per token, as `load_margin` gives it."""
    makers = {"controls": _controls, "schemes": _schemes, "length": _length, "scaling": _scaling}
    return [answer for study in studies if study.rows for answer in makers[study.name](study, margin)]


def _controls(study: Study, margin: float) -> list[Answer]:
    answers = []
    for model, name in MATCHED.items():
        text = f"Does complex beat {name}, which has half the weights as well?"
        found = words(f"yes, {model_label('crope')} is lower", "no, equal", f"no, {model_label('crope')} is higher")
        answers += of_pair(study, f"complex_or_{model}", text, ("crope", model), found, margin)
    answers += of_pair(
        study, "alignment", "Must the complex pairs be the rotation's pairs?", ("complex_misaligned", "crope"),
        words("no, misaligned is lower", "no, equal", "yes, misaligned is higher"), margin,
    )  # fmt: skip
    answers += of_pair(
        study, "qk_only", "Does Eq. 30 cost loss in Q and K alone, where the rotation acts?", ("complex_qk", "rope"),
        words("no, even lower", "no, equal", "yes, higher"), margin,
    )  # fmt: skip
    answers += of_pair(
        study, "v_only", "Does Eq. 30 cost loss in V alone, where no rotation acts?", ("complex_v", "rope"),
        words("no, even lower", "no, equal", "yes, higher"), margin,
    )  # fmt: skip
    return answers + of_pair(
        study, "wide", "Do the saved weights, spent on attention width, win?", WIDE,
        words("yes, lower than RoPE", "no, equal", "no, higher than RoPE"), margin,
    )  # fmt: skip


def _schemes(study: Study, margin: float) -> list[Answer]:
    """Under the rotation it is the paper's claim, which has a verdict."""
    return [
        answer
        for name, pair in SCHEMES.items()
        if pair != PARITY
        for answer in of_pair(
            study, f"eq30_{pair[1]}", f"Does Eq. 30 cost loss under {name}?", pair,
            words("no, even lower", "no, equal", "yes, higher"), margin,
        )
    ]  # fmt: skip


def _length(study: Study, margin: float) -> list[Answer]:
    """The change from the training length to the longest that was asked for, at the weights after the last step."""
    factor = max(one.lengths[-1] // one.trained for row in study.rows for one in row.lengths.values())
    answers = []
    for model in study.models:
        question = Question(
            f"extrapolates_{model}", study.name, f"{model_label(model)}: does it hold at {factor} times its length?",
            f"loss at {factor} L − loss at L", words("yes, and gains", "yes, equal", "no, it loses"),
        )  # fmt: skip
        checks = [_change(row, model, factor, question.difference, margin) for row in study.rows]
        answers.append(Answer(question, "final", tuple(adjust(checks))))
    return answers


def _change(row: Row, model: str, factor: int, difference_of: str, margin: float) -> Check:
    found, result = row.lengths.get(model), row.results[model]
    length = found.trained * factor if found else 0
    difference = found.change(length) if found else None
    if found is None:
        reason = f"{model_label(model)} {result.status if not result.runs else 'not measured beyond its length'}"
    elif difference is None:
        reason = found.notes.get(length, f"no loss at {length}")
    else:
        reason = too_few(difference)
    return with_tests(Check(
        row.label, difference_of, (result.cell.key,), margin_nats=margin, difference=difference, reason=reason
    ))  # fmt: skip


def _scaling(study: Study, margin: float) -> list[Answer]:
    answers = []
    for dataset in dict.fromkeys(row.dataset for row in study.rows):
        one = Study(study.name, study.scale, tuple(row for row in study.rows if row.dataset == dataset), study.idle)
        on = f" ({one.rows[0].label})"
        answers += of_pair(
            one, f"parity_{dataset}", f"Does CRoPE stay level with RoPE at every width?{on}", PARITY,
            words("no, CRoPE is lower", "yes, equal", "no, CRoPE is higher"), margin, where=_width,
        )  # fmt: skip
        answers += _drift(one, dataset, f"Does CRoPE − RoPE drift as the model grows?{on}", margin)
        answers += of_pair(
            one, f"wide_{dataset}", f"Do the saved weights, spent on attention width, win at every width?{on}", WIDE,
            words("yes, lower than RoPE", "no, equal", "no, higher than RoPE"), margin, where=_width,
        )  # fmt: skip
    return answers


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
        doublings = math.log2(widths[-1] / widths[0]) if slope else 1.0
        keys = tuple(row.results[m].cell.key for row in study.rows for m in PARITY if row.width in widths)
        check = Check(
            f"D = {', '.join(map(str, widths))}" if slope else "every width", question.difference, keys,
            " per doubling", margin_nats=margin / doublings, difference=slope, reason=reason,
        )  # fmt: skip
        answers.append(Answer(question, at, tuple(adjust([with_tests(check)]))))
    return merged(answers)


def _by_seed(row: Row, at: str) -> dict[int, float]:
    """CRoPE - RoPE of the seeds that both have."""
    first, second = (read_losses(row.results[model], at) if model in row.results else {} for model in PARITY)
    return {seed: first[seed] - second[seed] for seed in first.keys() & second.keys()}


def _width(row: Row) -> str:
    return f"D = {row.width}"
