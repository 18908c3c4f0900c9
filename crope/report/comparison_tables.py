"""The comparisons as CSV and as a sheet."""

from __future__ import annotations

from collections.abc import Sequence

from crope import paper
from crope.report.comparisons import EVIDENCE, Comparison
from crope.report.csv_files import to_csv
from crope.report.frame import DATASET_LABELS, CellResult
from crope.report.sheets import Sheet
from crope.report.stats import ALPHA, MIN_SEEDS
from crope.report.tables import describe_seeds

CSV_COLUMNS = (
    "dataset", "row", "first", "second", "at", "n", "paper_nats", "mean_nats", "std_over_seeds_nats", "t_low_nats",
    "t_high_nats", "bootstrap_low_nats", "bootstrap_high_nats", "p_different", "p_different_holm", "p_equivalent",
    "p_equivalent_holm", "margin_nats", "conclusion",
)  # fmt: skip
HEADINGS = (
    "Dataset", "Configuration", "Difference", "At", "n", "Paper", "Mean", "95 % (t)", "Conclusion", "± over seeds",
    "95 % (bootstrap)", "p different", "Holm", "p equivalent", "Holm",
)  # fmt: skip
TEXT_COLUMNS = (0, 1, 2, 3, HEADINGS.index("Conclusion"))


def render_comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """One line a pair, row and measure; losses and p-values with six decimals, empty where there is none."""
    rows = []
    for one in comparisons:
        found = one.difference
        losses: tuple[float | None, ...] = (None,) * 6
        if found is not None:
            intervals = (found.low_nats, found.high_nats, found.boot_low_nats, found.boot_high_nats)
            losses = (found.mean_nats, found.std_nats, *intervals)
        numbers = (one.printed_nats, *losses, *_p_values(one), one.margin_nats)
        texts = ["" if number is None else f"{number:.6f}" for number in numbers]
        rows.append([one.dataset, one.row, one.first, one.second, one.at, one.n, *texts, one.conclusion])
    return to_csv(CSV_COLUMNS, rows)


def comparisons_sheet(comparisons: Sequence[Comparison], results: Sequence[CellResult], *, scale: str) -> Sheet:
    keys = {(result.cell.dataset, result.cell.row, result.cell.model): result.cell.key for result in results}
    return Sheet(
        name="comparisons",
        caption=f"Differences at equal seed, nats per token. Scale: {scale}. {describe_seeds(results)}.",
        headings=HEADINGS,
        rows=tuple(_printed(one) for one in comparisons),
        text_columns=TEXT_COLUMNS,
        notes=_notes(comparisons),
        keys=tuple(tuple(keys[one.dataset, one.row, m] for m in (one.first, one.second)) for one in comparisons),
        link_column=HEADINGS.index("Difference"),
    )


def _printed(one: Comparison) -> tuple[str, ...]:
    found = one.difference
    mean, interval, spread, bootstrap = "", "", "", ""
    if found is not None:
        mean, interval = format_nats(found.mean_nats), format_range(found.low_nats, found.high_nats)
        spread = "" if found.std_nats is None else f"{found.std_nats:.4f}"
        bootstrap = format_range(found.boot_low_nats, found.boot_high_nats)
    decimals = paper.PRINTED_DECIMALS["table1" if one.row == "base" else "table2"]
    printed = "" if one.printed_nats is None else format_nats(one.printed_nats, decimals)
    dataset, row = DATASET_LABELS.get(one.dataset, one.dataset), paper.row_label(one.row)
    head = (dataset, row, one.pair, one.at, str(one.n), printed, mean, interval, one.conclusion)
    return (*head, spread, bootstrap, *map(format_p, _p_values(one)))


def _p_values(one: Comparison) -> tuple[float | None, ...]:
    return one.p_different, one.p_different_holm, one.p_equivalent, one.p_equivalent_holm


def _notes(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """What the columns are and how the conclusion is reached."""
    margins = ", ".join(sorted({f"{one.margin_nats:g}" for one in comparisons}))
    return (
        "Difference: loss of the first model less that of the second on the same seed; below zero, the first is better."
        " At: full validation loss after the last step (final) or at its lowest (best; the same where it was measured"
        " once). Paper: difference of its printed means. ±: sample standard deviation of the differences over seeds.",
        "95 % (t): Student's interval of the mean difference. 95 % (bootstrap): percentiles of the mean over redrawn"
        " seeds, a check that assumes no distribution and is narrower by construction (about 40 % of t's width at 3"
        " seeds, 80 % at 10).",
        f"p different: paired t test, two-sided. p equivalent: two one-sided tests against ±{margins} nats per token"
        f" (conf/{EVIDENCE.name}). Holm: adjusted over all rows of the same difference and measure; rows without a test"
        " count in it.",
        f"Conclusion, by Holm's p below {ALPHA:g}: equivalent (within the margin, whether zero or not), else higher or"
        f" lower, else cannot tell. Intervals and tests need {MIN_SEEDS} seeds.",
    )


def format_nats(value: float, decimals: int = 4) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


def format_range(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{format_nats(low)} to {format_nats(high)}"


def format_p(p: float | None) -> str:
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
