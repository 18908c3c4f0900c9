"""How a claim becomes a verdict: one rule for all, fixed before the runs.

A claim is a set of checks: table rows and pairs of models, counts, or printed ±. Each check has a test that can speak
for the claim and one that can speak against it; Holm adjusts each kind over the claim's checks, at each measure. Then

    not supported   in some check the test against the claim rejects (p < ALPHA)
    supported       else, where in every check the test for the claim rejects
    cannot tell     else: too few seeds, too wide a spread, or runs that are missing

A check that could not be made enters as p = 1: a missing run never helps a claim. That every check must reject keeps
the error of "supported" below ALPHA by itself; Holm is asked for on top, so that each check can be read alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crope.report.comparison_tables import format_p
from crope.report.stats import ALPHA, holm

SUPPORTED, NOT_SUPPORTED, CANNOT_TELL = "supported", "not supported", "cannot tell"
Place = tuple[str, str, str]  # dataset, row, model
COUNT = "count"  # the measure of claims that no loss enters


@dataclass(frozen=True)
class Claim:
    """What the paper says (quote, section), how it is tested, and which finding speaks for it and which against."""

    name: str
    text: str
    quote: str
    section: str
    test: str
    holds: str
    contradicts: str


@dataclass(frozen=True)
class Check:
    """One number of a claim, as text and as value with its 95 % interval; n is the seeds that it has.

    p-values are None where no test could be made; `reason` then says why. judge() sets those that end in _holm.
    `cells` are those whose runs the number is worked out from.
    """

    label: str
    n: int
    number: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p_for: float | None = None
    p_against: float | None = None
    reason: str = ""
    p_for_holm: float | None = None
    p_against_holm: float | None = None
    cells: tuple[Place, ...] = ()

    @property
    def finding(self) -> str:
        """for, against, open, or none."""
        if self.p_for_holm is None or self.p_against_holm is None:
            return "none"
        if self.p_against_holm < ALPHA:
            return "against"
        return "for" if self.p_for_holm < ALPHA else "open"


@dataclass(frozen=True)
class Verdict:
    """A claim at one measure: final or best loss, or COUNT."""

    claim: Claim
    at: str
    checks: tuple[Check, ...]

    @property
    def outcome(self) -> str:
        findings = {check.finding for check in self.checks}
        if "against" in findings:
            return NOT_SUPPORTED
        return SUPPORTED if findings == {"for"} else CANNOT_TELL

    @property
    def outcome_text(self) -> str:
        """The outcome as printed: one that is open names its seeds."""
        if self.outcome != CANNOT_TELL:
            return self.outcome
        counts = sorted({check.n for check in self.checks} - {0})
        if not counts:
            return f"{CANNOT_TELL}: nothing to test"
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{CANNOT_TELL} with {seeds} seed{'' if counts == [1] else 's'}"

    @property
    def numbers(self) -> str:
        """The check on which the outcome hangs (the strongest against, else the weakest for), and how many hold."""
        tested = [check for check in self.checks if check.finding != "none"]
        if not tested:
            return "no test"
        if self.outcome == NOT_SUPPORTED:
            found = min(tested, key=lambda check: check.p_against_holm or 0.0)
            word, p = "against it", found.p_against_holm
        else:
            found = max(tested, key=lambda check: check.p_for_holm or 0.0)
            word, p = "weakest", found.p_for_holm
        holding = sum(check.finding == "for" for check in self.checks)
        text = f"{holding} of {len(self.checks)} hold; {word}: {found.label} {found.number}"
        return text if self.at == COUNT else f"{text}, Holm's p {format_p(p)}"

    @property
    def missing(self) -> tuple[str, ...]:
        """What could not be tested and why; one reason that holds for every check stands alone."""
        reasons = {check.reason for check in self.checks}
        if len(reasons) == 1:
            return tuple(reasons - {""})
        return tuple(f"{check.label}: {check.reason}" for check in self.checks if check.reason)

    @property
    def rule(self) -> str:
        return (
            f"not supported where in some check {self.claim.contradicts}; else supported where in every check"
            f" {self.claim.holds}; else {CANNOT_TELL} (p < {ALPHA:g} after Holm over {len(self.checks)})"
        )


def judge(claim: Claim, at: str, checks: Sequence[Check]) -> Verdict:
    """Adjusts the checks' p-values over the claim."""
    p_for = holm([1.0 if check.p_for is None else check.p_for for check in checks])
    p_against = holm([1.0 if check.p_against is None else check.p_against for check in checks])
    adjusted = [
        check if check.p_for is None else replace(check, p_for_holm=float(p), p_against_holm=float(q))
        for check, p, q in zip(checks, p_for, p_against, strict=True)
    ]
    return Verdict(claim, at, tuple(adjusted))
