"""The verdicts as CSV (a line a check), as sheets of text, and as lines for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crope.report.comparison_tables import format_p
from crope.report.csv_files import to_csv
from crope.report.judgement import Check, Place, Verdict
from crope.report.markdown import escape_markdown, render_sheet
from crope.report.sheets import Sheet

CSV_COLUMNS = (
    "claim", "section", "at", "outcome", "check", "n", "value", "low", "high", "p_for", "p_for_holm", "p_against",
    "p_against_holm", "finding", "reason",
)  # fmt: skip
HEADINGS = ("Claim", "Paper", "At", "Test", "Number", "Outcome")
CHECK_HEADINGS = ("Claim", "At", "Check", "n", "Number", "p for (Holm)", "p against (Holm)", "Finding")
NOTES = (
    "At: the full validation loss after the last step (final) and at its lowest (best); where runs overfit, the final"
    " loss favours the model with fewer parameters. The training loss is measured after the last step only.",
    "Intervals are 95 % and unadjusted; findings go by p after Holm over the checks of one claim at one measure. A"
    " check without a test counts as p = 1.",
)


def render_verdicts_csv(verdicts: Sequence[Verdict]) -> str:
    """Values in nats per token, for counts in per cent; empty where there is none."""
    return to_csv(CSV_COLUMNS, [_csv_row(verdict, check) for verdict in verdicts for check in verdict.checks])


def _csv_row(verdict: Verdict, check: Check) -> list[object]:
    numbers = (
        check.value, check.low, check.high, check.p_for, check.p_for_holm, check.p_against, check.p_against_holm,
    )  # fmt: skip
    texts = ["" if number is None else f"{number:.6f}" for number in numbers]
    claim = verdict.claim
    head = [claim.name, claim.section, verdict.at, verdict.outcome, check.label, check.n]
    return [*head, *texts, check.finding, check.reason]


def verdicts_sheet(verdicts: Sequence[Verdict], *, scale: str) -> Sheet:
    return Sheet(
        name="verdicts",
        caption=f"The paper's claims, as these runs judge them. Scale: {scale}.",
        headings=HEADINGS,
        rows=tuple(_printed(verdict) for verdict in verdicts),
        text_columns=tuple(range(len(HEADINGS))),
        notes=(*scale_note(scale), *NOTES),
    )


def render_verdicts_markdown(verdicts: Sequence[Verdict], *, scale: str) -> str:
    """The verdicts, the rule of each claim and every check."""
    rules = "".join(f"- {escape_markdown(rule)}\n" for rule in printed_rules(verdicts))
    parts = [render_sheet(verdicts_sheet(verdicts, scale=scale)), f"**The rule of each claim**\n\n{rules}"]
    return "\n".join([*parts, render_sheet(checks_sheet(verdicts, {}))])


def render_verdicts_text(verdicts: Sequence[Verdict], *, scale: str) -> str:
    """For the terminal: a line a verdict."""
    rows = [(verdict.outcome_text, verdict.at, verdict.claim.text) for verdict in verdicts]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [f"  {outcome:<{widths[0]}}  {at:<{widths[1]}}  {text}" for outcome, at, text in rows]
    return "\n".join([f"Verdicts on the paper's claims (scale {scale})", *lines]) + "\n"


def scale_note(scale: str) -> tuple[str, ...]:
    if scale == "paper":
        return ()
    return (
        f"Scale {scale}: an outcome holds for models of this size and training; the paper's claims are about its own"
        " setting.",
    )


def _printed(verdict: Verdict) -> tuple[str, ...]:
    claim = verdict.claim
    return claim.text, claim.section, verdict.at, claim.test, number_text(verdict), verdict.outcome_text


def number_text(verdict: Verdict) -> str:
    """The number that the outcome hangs on; what is missing is named beside it."""
    missing = "; ".join(_shortened(verdict.missing))
    return f"{verdict.numbers}; not tested: {missing}" if missing else verdict.numbers


def _shortened(texts: Sequence[str], most: int = 3) -> list[str]:
    """The table of checks has them all."""
    return [*texts[:most], f"and {len(texts) - most} more"] if len(texts) > most else list(texts)


def printed_rules(verdicts: Sequence[Verdict]) -> list[str]:
    """One line a claim, with the paper's words."""
    return list(
        dict.fromkeys(
            f"{verdict.claim.text} ({verdict.claim.section}: “{verdict.claim.quote}”): {verdict.rule}."
            for verdict in verdicts
        )
    )


def checks_sheet(verdicts: Sequence[Verdict], keys: Mapping[Place, str]) -> Sheet:
    """Every check; those that all lack a test for one reason share a line. `keys` gives the cell_key of a cell."""
    rows = [row for verdict in verdicts for row in _check_rows(verdict)]
    return Sheet(
        name="checks",
        caption="Every check",
        headings=CHECK_HEADINGS,
        rows=tuple(row for row, _ in rows),
        text_columns=tuple(i for i, heading in enumerate(CHECK_HEADINGS) if heading != "n"),
        keys=tuple(tuple(keys[place] for place in places if place in keys) for _, places in rows),
        link_column=CHECK_HEADINGS.index("Check"),
    )


def _check_rows(verdict: Verdict) -> list[tuple[tuple[str, ...], tuple[Place, ...]]]:
    """Text under CHECK_HEADINGS, and the cells it is about."""
    head = (verdict.claim.text, verdict.at)
    if len(verdict.missing) == 1 and not any(check.number for check in verdict.checks):
        return [((*head, f"all {len(verdict.checks)}", "0", "", "", "", *verdict.missing), ())]
    return [
        (
            (
                *head,
                check.label,
                str(check.n),
                check.number,
                format_p(check.p_for_holm),
                format_p(check.p_against_holm),
                check.reason or check.finding,
            ),
            check.cells,
        )
        for check in verdict.checks
    ]
