"""What a report of these runs can say and what it cannot, in sentences whose numbers are worked out from them."""

from __future__ import annotations

from collections import Counter

from crope.report.answer_tables import controls_in_a_sentence
from crope.report.comparisons import pair_label
from crope.report.findings import Findings
from crope.report.forest import forest_label
from crope.report.judgement import CANNOT_TELL, NOT_SUPPORTED, SUPPORTED
from crope.report.stats import MIN_SEEDS
from crope.report.tables import describe_seeds

OUTCOMES = (SUPPORTED, NOT_SUPPORTED, CANNOT_TELL)


def describe_runs(findings: Findings) -> str:
    """Scale, cells, seeds and whose runs they are."""
    complete = sum(result.status == "complete" for result in findings.results)
    machine = findings.source.machine
    whose = f"records of {machine} that are committed with the code" if machine else "your own runs"
    return f"{complete} of {len(findings.results)} table cells complete, {describe_seeds(findings.results)}: {whose}."


def can_say(findings: Findings) -> list[str]:
    """What follows from these runs."""
    outcomes = Counter(verdict.outcome for verdict in findings.verdicts)
    counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in OUTCOMES if outcomes[outcome])
    texts = [f"Of {len(findings.verdicts)} verdicts on the paper's claims: {counts}.", *_resolution(findings)]
    controls = controls_in_a_sentence(findings.answers)
    return [*texts, controls] if controls else texts


def _resolution(findings: Findings) -> list[str]:
    """How small a difference these seeds can tell."""
    widths = {}
    for one in findings.comparisons:
        found = one.difference
        if (one.first, one.second, one.at) == ("crope", "rope", "final") and found and found.high_nats is not None:
            widths[" ".join(forest_label(one.dataset, one.row).split())] = found.high_nats - found.mean_nats
    if not widths:
        return []
    (best, low), (worst, high) = (pick(widths.items(), key=lambda one: one[1]) for pick in (min, max))
    rows = f"{sum(width < findings.margin_nats for width in widths.values())} of {len(widths)} rows"
    known = f"±{low:.4f} ({best})" if len(widths) == 1 else f"±{low:.4f} ({best}) to ±{high:.4f} ({worst})"
    return [
        f"{pair_label('crope', 'rope')} is known to within {known} nats per token, half of its 95 % interval. Models"
        f" are held to be equal within ±{findings.margin_nats:g}: {rows} know it that closely."
    ]


def cannot_say(findings: Findings) -> list[str]:
    """What no number here shows."""
    texts = []
    if findings.scale != "paper":
        texts.append(
            f"At the {findings.scale} scale, models and grid are the paper's, but vocabulary, sequence length, batch"
            " and steps are smaller: levels do not compare with the paper's, only the order and the differences of the"
            " models are of interest, and an outcome does not test the paper's claim at its own size."
        )
    counts = [result.n for result in findings.results if result.n]
    if not counts:
        texts.append("There is no complete run: nothing is measured.")
    elif min(counts) < MIN_SEEDS:
        texts.append(
            f"Where a cell has fewer than {MIN_SEEDS} seeds, no interval and no test of a loss can be made: the claim"
            " stays open, however far apart the means are."
        )
    absent = [result for result in findings.results if not result.n]
    if counts and absent:
        texts.append(f"{len(absent)} cells have no complete run; a claim that needs them cannot be supported.")
    texts.append(
        "Nothing is said of other texts, larger models or longer training, and the test splits are never read."
    )
    return texts
