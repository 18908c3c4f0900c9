"""The paper's claims as data, the paired differences that test them, and the one rule from tests to a verdict.

A difference is first - second at equal seed, in nats per token. Every line (`describe`) has the same columns, here and
in studies.py: n, mean, standard deviation over seeds, Student's 95 % interval, the p-values of the paired t test and of
the equivalence test against MARGIN. A line without the seeds for a test has a `reason` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from crope import paper
from crope.report.frame import DATASET_LABELS, MODEL_LABELS, cell_runs
from crope.report.stats import (
    ALPHA,
    MIN_SEEDS,
    holm,
    interval,
    mean_std,
    p_above,
    p_below,
    p_different,
    p_equivalent,
    paired,
)
from crope.study import Cell

# Two models whose losses differ by less are equivalent; fixed before the runs of the paper scale were seen. It lies a
# little below the smallest ± of Table 1 (0.0224), the paper's range of noise (Sec. 6.1), and is a tenth of the smallest
# gap that the paper prints between XPOS and RoPE (0.22).
MARGIN = 0.02

MEASURES = {"final": "val_full.final_nats", "best": "val_full.best_nats"}
TRAIN = "train.final_nats"
BOTH = "final, best"  # lines that are the same at both measures are printed once
PAIRS = (("crope", "rope"), ("xpos", "rope"), ("xpos", "crope"))  # first - second
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, MISSING = "supported", "not supported", "inconclusive", "missing"
LOWER, EQUIVALENT, HIGHER = "lower", "equivalent", "higher"
Row = tuple[str, str]  # dataset, row of Table 2 (Table 1 is `base`)


@dataclass(frozen=True)
class Rule:
    """What a check must show: a test whose rejection speaks for the claim, and one that speaks against it.

    Tests against a claim are two-sided: alone, they reject exactly if a 95 % interval contradicts the claim.
    """

    text: str
    p_for: Callable[[ArrayLike], float]
    p_against: Callable[[ArrayLike], float]


RULES = {
    "markedly higher": Rule(
        f"above +{MARGIN:g} nats", lambda d: p_above(d, MARGIN), lambda d: min(1.0, 2 * p_below(d, MARGIN))
    ),
    "higher": Rule("above 0", lambda d: p_above(d), lambda d: min(1.0, 2 * p_below(d))),
    "equivalent": Rule(f"within ±{MARGIN:g} nats", lambda d: p_equivalent(d, MARGIN), lambda d: p_different(d, MARGIN)),
}


@dataclass(frozen=True)
class Claim:
    """One statement of the paper: `checks` are (first, second, name of a rule), each made in every one of `rows`."""

    name: str
    text: str
    quote: str
    source: str
    rows: tuple[Row, ...]
    checks: tuple[tuple[str, str, str], ...]
    measures: tuple[str, ...] = tuple(MEASURES)


TABLE1: tuple[Row, ...] = tuple((dataset, "base") for dataset in paper.DATASET_LABELS)
TABLE2: tuple[Row, ...] = tuple(("pg19", row) for row in paper.ROWS)
CLAIMS = (
    Claim(
        "xpos_worse",
        "XPOS is markedly worse than RoPE and than CRoPE on all three datasets",
        "Models that rely on absolute positional encodings show markedly higher loss than any variant that employs"
        " rotary encodings.",
        "Sec. 6.1, Table 1",
        TABLE1,
        (("xpos", "rope", "markedly higher"), ("xpos", "crope", "markedly higher")),
    ),
    Claim(
        "crope_within_noise",
        "CRoPE equals RoPE within noise on all three datasets",
        "the difference between RoPE and CRoPE losses are within the range of noise",
        "Sec. 6.1, Table 1",
        TABLE1,
        (("crope", "rope", "equivalent"),),
    ),
    Claim(
        "rows_within_noise",
        "CRoPE equals RoPE within noise in every row of Table 2",
        "the difference between the final losses of RoPE and CRoPE are non-substantial",
        "Sec. 6.2, Table 2",
        TABLE2,
        (("crope", "rope", "equivalent"),),
    ),
    Claim(
        "training_order",
        "Training loss: XPOS is highest, CRoPE very close to RoPE",
        "RoPE has the lowest in-sample loss, while XPOS has the highest in-sample loss. CRoPE is in between, but very"
        " close to the performance of RoPE.",
        "Sec. 6.1, Fig. 4",
        TABLE1,
        (("xpos", "crope", "higher"), ("crope", "rope", "equivalent")),
        ("train",),  # records hold the loss on the train split after the last step only
    ),
)


def collect(frame: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """The complete runs of the cells, one row per run; a run that stands in both tables once."""
    distinct = {cell.key: cell for cell in cells}.values()
    return pd.concat([cell_runs(frame, cell) for cell in distinct], ignore_index=True)


def losses(runs: pd.DataFrame, dataset: str, row: str, model: str, column: str = MEASURES["final"]) -> pd.Series:
    """The losses of one cell by seed, nats per token."""
    found = runs[(runs["dataset"] == dataset) & (runs["row"] == row) & (runs["model"] == model)]
    return found.set_index("seed")[column].dropna().astype(float)


def difference(losses: Mapping[str, pd.Series]) -> dict[str, Any]:
    """`describe` of first - second at equal seed; `losses` maps both models to their losses by seed."""
    absent = [model_label(model) for model, found in losses.items() if found.empty]
    values = paired(*losses.values())
    reason = f"no complete run of {' and of '.join(absent)}" if absent else "no seed that both models have"
    return describe(values, "" if len(values) else reason)


def describe(values: pd.Series, reason: str = "") -> dict[str, Any]:
    """Columns of one difference over seeds. Interval and p-values are NaN below MIN_SEEDS; `reason` says why."""
    n = len(values)
    mean, std = mean_std(values) if n else (np.nan, None)
    tested = n >= MIN_SEEDS
    low, high = interval(values) if tested else (np.nan, np.nan)
    return {
        "n": n,
        "mean_nats": mean,
        "std_over_seeds_nats": np.nan if std is None else std,
        "t_low_nats": low,
        "t_high_nats": high,
        "p_different": p_different(values) if tested else np.nan,
        "p_equivalent": p_equivalent(values, MARGIN) if tested else np.nan,
        "values": tuple(values),
        "reason": reason or ("" if tested else f"needs {MIN_SEEDS} seeds, has {n}"),
    }


def conclude(lines: pd.DataFrame) -> pd.DataFrame:
    """Adds Holm's p-values over the lines, which are one family, and the conclusion drawn from them.

    A line without a test counts with p = 1, so that a missing run makes nothing significant.
    """
    lines = lines.copy()
    for name in ("p_different", "p_equivalent"):
        lines[f"{name}_holm"] = np.where(lines[name].notna(), holm(lines[name].to_list()), np.nan)
    above = np.where(lines["mean_nats"] > 0, HIGHER, LOWER)
    found = np.where(lines["p_different_holm"] < ALPHA, above, INCONCLUSIVE)
    found = np.where(lines["p_equivalent_holm"] < ALPHA, EQUIVALENT, found)
    lines["conclusion"] = np.where(lines["p_different"].notna(), found, MISSING)
    return lines


def compare(runs: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """Every pair of PAIRS in each row at the final and the best loss: columns of `describe` and `conclude`, and the printed difference.

    Holm's family is all rows of one pair at one measure.
    """
    parts = []
    for first, second in PAIRS:
        by_measure = []
        for at, column in MEASURES.items():
            lines = []
            for dataset, row in rows:
                pair = {model: losses(runs, dataset, row, model, column) for model in (first, second)}
                line: dict[str, Any] = {"dataset": dataset, "row": row, "first": first, "second": second, "at": at}
                line |= {"paper_nats": _printed(dataset, row, first, second), "margin_nats": MARGIN}
                lines.append(line | difference(pair))
            by_measure.append(conclude(pd.DataFrame(lines)))
        parts += merge_measures(by_measure)
    return pd.concat(parts, ignore_index=True)


def merge_measures(by_measure: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Lines that are the same at every measure once, with `at` naming them all."""
    first, *others = by_measure
    same = all(first.drop(columns="at").equals(other.drop(columns="at")) for other in others)
    return [first.assign(at=BOTH)] if others and same else [*by_measure]


def judge(runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The verdict on every claim (one row per claim and measure), and the checks that it rests on.

    not supported   some check's test against the claim rejects, after Holm over the claim's checks
    supported       the test for the claim rejects in every check. All must, so each is made at ALPHA without
                    correction: an intersection-union test keeps its level
    missing         a check cannot be tested, for want of runs or seeds
    inconclusive    otherwise
    """
    verdicts, checks = [], []
    for claim in CLAIMS:
        found = merge_measures([_checks(runs, claim, at) for at in claim.measures])
        for lines in found:
            verdicts.append({"claim": claim.name, "at": lines["at"].iloc[0], "verdict": verdict(lines)})
        checks += found
    return pd.DataFrame(verdicts), pd.concat(checks, ignore_index=True)


def verdict(checks: pd.DataFrame) -> str:
    """The rule of `judge` on the columns p_for and p_against, one row per check; NaN where there is no test."""
    if (holm(checks["p_against"].to_list()) < ALPHA).any():
        return NOT_SUPPORTED
    if checks["p_for"].isna().any():
        return MISSING
    return SUPPORTED if (checks["p_for"] < ALPHA).all() else INCONCLUSIVE


def _checks(runs: pd.DataFrame, claim: Claim, at: str) -> pd.DataFrame:
    lines = []
    for dataset, row in claim.rows:
        for first, second, rule in claim.checks:
            pair = {model: losses(runs, dataset, row, model, MEASURES.get(at, TRAIN)) for model in (first, second)}
            line: dict[str, Any] = {"claim": claim.name, "at": at, "dataset": dataset, "row": row, "first": first, "second": second}
            line |= {"rule": rule} | difference(pair)
            for name, test in (("p_for", RULES[rule].p_for), ("p_against", RULES[rule].p_against)):
                line[name] = test(line["values"]) if line["n"] >= MIN_SEEDS else np.nan
            lines.append(line)
    return pd.DataFrame(lines)


def model_label(model: str) -> str:
    return MODEL_LABELS.get(model, model)


def pair_label(first: str, second: str) -> str:
    return f"{model_label(first)} − {model_label(second)}"


def row_label(dataset: str, row: str) -> str:
    label = DATASET_LABELS.get(dataset, dataset)
    return label if row == "base" else f"{label}, {paper.row_label(row)}"


def signed(value: float) -> str:
    """A difference as printed, with a true minus sign; empty for NaN."""
    return "" if pd.isna(value) else f"{value:+.4f}".replace("-", "−")


def number(line: pd.Series) -> str:
    """Mean, interval and n of a line in words, or why there is none."""
    if line["n"] == 0:
        return str(line["reason"])
    if pd.isna(line["t_low_nats"]):
        return f"{signed(line['mean_nats'])} (n = {line['n']})"
    return (
        f"{signed(line['mean_nats'])} (95 % {signed(line['t_low_nats'])} to {signed(line['t_high_nats'])},"
        f" n = {line['n']})"
    )


def _printed(dataset: str, row: str, first: str, second: str) -> float:
    """Difference of the final losses that the paper prints."""
    table = "table1" if row == "base" else "table2"
    pair = [paper.printed_loss(table, row, dataset, model) for model in (first, second)]
    return np.nan if pair[0] is None or pair[1] is None else pair[0].mean_nats - pair[1].mean_nats
