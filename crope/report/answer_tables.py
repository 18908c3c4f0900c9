"""The studies' questions and answers as sheets, as CSV (a line a check), and what they come to in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from crope.report.answers import Answer, Check
from crope.report.comparison_tables import format_nats, format_p, format_range
from crope.report.comparisons import EQUIVALENT, EVIDENCE, HIGHER, LOWER, OPEN
from crope.report.csv_files import to_csv
from crope.report.questions import MATCHED
from crope.report.sheets import Sheet
from crope.report.stats import ALPHA, MIN_SEEDS, POWER

CSV_COLUMNS = (
    "study", "question", "at", "answer", "where", "difference", "n", "mean_nats", "std_over_seeds_nats", "t_low_nats",
    "t_high_nats", "p_different", "p_different_holm", "p_equivalent", "p_equivalent_holm", "margin_nats", "conclusion",
)  # fmt: skip
HEADINGS = ("Study", "Question", "At", "Answer", "Number")
CHECK_HEADINGS = (
    "Study", "Question", "At", "Where", "Difference", "n", "Mean", "95 % (t)", "Conclusion", "± over seeds",
    "p different (Holm)", "p equivalent (Holm)",
)  # fmt: skip


def render_answers_csv(answers: Sequence[Answer]) -> str:
    """Nats per token (a slope: per doubling of the width) with six decimals, empty where there is none."""
    return to_csv(CSV_COLUMNS, [_csv_row(answer, check) for answer in answers for check in answer.checks])


def _csv_row(answer: Answer, check: Check) -> list[object]:
    found = check.difference
    numbers = (
        *((found.mean_nats, found.std_nats, found.low_nats, found.high_nats) if found else (None,) * 4),
        check.p_different, check.p_different_holm, check.p_equivalent, check.p_equivalent_holm, check.margin_nats,
    )  # fmt: skip
    texts = ["" if number is None else f"{number:.6f}" for number in numbers]
    head = [answer.question.study, answer.question.name, answer.at, answer.text, check.where, check.difference_of]
    return [*head, check.n, *texts, check.conclusion]


def answers_sheet(answers: Sequence[Answer], *, scale: str, machine: str = "") -> Sheet:
    """A line a question and measure; `machine` names published records that are not those of the tables."""
    return Sheet(
        name="studies",
        caption=f"What the studies ask, and how these runs answer. Scale: {scale}.",
        headings=HEADINGS,
        rows=tuple(
            (one.question.study, one.question.text, one.at, one.text, f"{one.question.difference}: {one.numbers}")
            for one in answers
        ),
        text_columns=tuple(range(len(HEADINGS))),
        notes=answer_notes(answers, machine),
    )


def answer_notes(answers: Sequence[Answer], machine: str = "") -> tuple[str, ...]:
    """How an answer is reached, and whose runs they are where those of the tables are another machine's."""
    margin = max((check.margin_nats for one in answers for check in one.checks), default=0.0)
    return (
        f"The same rule as for the comparisons, by Holm's p below {ALPHA:g} over the texts (or widths) of a question,"
        f" of the three maps of half the weights together: equal is within ±{margin:g} nats per token"
        f" (conf/{EVIDENCE.name}, two one-sided tests, so it is the 90 % interval that lies within), else lower or"
        f" higher (paired t test), else {OPEN}. Intervals are 95 % and unadjusted; they and the tests need {MIN_SEEDS}"
        " seeds, and a text on which no run of the study's own has them counts in no family. Nothing corrects for the"
        f" number of questions: {_asked(answers)} asked.",
        f"“n seeds could tell”: so many find equal models to be equal in {100 * POWER:.0f} % of such studies, if"
        " differences spread as they do here and no other test stood beside this one.",
        f"A slope is held to be none where it changes the difference by less than ±{margin:g} between the smallest and"
        " the largest width.",
        "At: full validation loss after the last step (final) or at its lowest (best); where runs overfit, the final"
        " loss favours the model with fewer parameters.",
        *([f"The runs of the studies are the published records of {machine}."] if machine else []),
    )


def _asked(answers: Sequence[Answer]) -> str:
    """How many questions could be tested, study by study."""
    names = {(one.question.study, one.question.name) for one in answers if one.tested}
    counts = Counter(study for study, _ in sorted(names))
    listed = ", ".join(f"{count} of {study}" for study, count in counts.items())
    return f"{len(names)} could be tested ({listed}) of those" if names else "none could be tested of those"


def answer_checks_sheet(answers: Sequence[Answer]) -> Sheet:
    """Every difference, with its tests."""
    return Sheet(
        name="study-checks",
        caption="Every check of the studies, nats per token",
        headings=CHECK_HEADINGS,
        rows=tuple(_check_row(answer, check) for answer in answers for check in answer.checks),
        text_columns=(0, 1, 2, 3, 4, CHECK_HEADINGS.index("Conclusion")),
        keys=tuple(check.keys for answer in answers for check in answer.checks),
        link_column=CHECK_HEADINGS.index("Difference"),
    )


def _check_row(answer: Answer, check: Check) -> tuple[str, ...]:
    found = check.difference
    head = (answer.question.study, answer.question.text, answer.at, check.where, check.difference_of, str(check.n))
    if found is None:
        return (*head, "", "", check.conclusion, "", "", "")
    return (
        *head, format_nats(found.mean_nats) + check.unit, format_range(found.low_nats, found.high_nats),
        check.conclusion, "" if found.std_nats is None else f"{found.std_nats:.4f}",
        format_p(check.p_different_holm), format_p(check.p_equivalent_holm),
    )  # fmt: skip


def controls_in_a_sentence(answers: Sequence[Answer]) -> str:
    """Complex, or any map with half the weights? Counted over the controls and texts; empty where nothing was asked."""
    names = {f"complex_or_{model}" for model in MATCHED}
    checks = [check for one in answers if one.question.name in names and "final" in one.at for check in one.checks]
    if not checks:
        return ""
    found = Counter(check.conclusion if check.p_different_holm is not None else OPEN for check in checks)
    counts = ", ".join(f"{found[word]} {word}" for word in (LOWER, EQUIVALENT, HIGHER, OPEN) if found[word])
    return (
        f"Against other maps of half the weights ({', '.join(MATCHED.values())}), CRoPE's final loss in {len(checks)}"
        f" comparisons: {counts}."
    )
