"""Pairs of models at equal seed, row by row: the difference, its intervals, and whether it is equivalent to none.

Each pair is compared at the final and at the best full validation loss: where runs overfit, the final loss favours the
model with fewer parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from crope import paper
from crope.config import ROOT
from crope.errors import ConfigError
from crope.report import stats
from crope.report.frame import CellResult, distinct_cells
from crope.report.models import MODEL_LABELS
from crope.report.stats import ALPHA, MIN_SEEDS, Difference, holm, p_equivalent, p_outside

EVIDENCE = ROOT / "conf" / "evidence.yaml"
MARGIN = "equivalence_margin_nats"

PAIRS = (("crope", "rope"), ("xpos", "rope"), ("xpos", "crope"))  # first - second
REFERENCE = "rope"  # what a model that the paper does not have is compared with
MEASURES = {  # name -> where summary.json holds it
    "final": ("val_full", "final_nats"),
    "best": ("val_full", "best_nats"),
    "train": ("train", "final_nats"),
}
COMPARED_AT = ("final", "best")
LOWER, EQUIVALENT, HIGHER, OPEN = "lower", "equivalent", "higher", "cannot tell"

T = TypeVar("T", bound="Tested")


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A difference over seeds and its tests; p-values are None below MIN_SEEDS, `reason` says why there is no test.

    p_different  the paired t test, two-sided; p_equivalent  the two one-sided tests against the margin
    *_holm       adjusted over the family that the test belongs to
    conclusion   equivalent, higher, lower (after Holm), cannot tell, or the reason
    """

    margin_nats: float
    difference: Difference | None
    reason: str = ""
    p_different: float | None = None
    p_equivalent: float | None = None
    p_different_holm: float | None = None
    p_equivalent_holm: float | None = None

    @property
    def n(self) -> int:
        return self.difference.n if self.difference else 0

    @property
    def equivalent(self) -> bool:
        return self.p_equivalent_holm is not None and self.p_equivalent_holm < ALPHA

    @property
    def conclusion(self) -> str:
        if self.difference is None or self.p_different_holm is None:
            return self.reason
        if self.equivalent:
            return EQUIVALENT
        if self.p_different_holm < ALPHA:
            return HIGHER if self.difference.mean_nats > 0 else LOWER
        return OPEN


@dataclass(frozen=True)
class Comparison(Tested):
    """first - second in one row at one measure; Holm goes over all rows of the same pair and measure."""

    dataset: str
    row: str
    first: str
    second: str
    at: str

    @property
    def pair(self) -> str:
        return pair_label(self.first, self.second)

    @property
    def printed_nats(self) -> float | None:
        """Difference of the means that the paper prints, which are of the final loss."""
        table = "table1" if self.row == "base" else "table2"
        first, second = (paper.printed_loss(table, self.row, self.dataset, m) for m in (self.first, self.second))
        return None if first is None or second is None or self.at != "final" else first.mean_nats - second.mean_nats


def load_margin(path: Path = EVIDENCE) -> float:
    """The declared equivalence margin in nats per token. Raises ConfigError unless it is one finite number above 0."""
    try:
        declared = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())}); it declares {MARGIN}") from error
    if not isinstance(declared, dict) or set(declared) != {MARGIN}:
        found = ", ".join(map(str, declared)) if isinstance(declared, dict) and declared else "none"
        raise ConfigError(f"{path}: must hold the one key {MARGIN}; keys found: {found}")
    margin = declared[MARGIN]
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not (0 < margin < math.inf):
        raise ConfigError(f"{path}: {MARGIN}={margin}: must be a finite number above 0, in nats per token")
    return float(margin)


def build_comparisons(results: Sequence[CellResult], margin: float) -> list[Comparison]:
    """Every pair of every distinct row, at the final loss and then at the best one."""
    rows = rows_by_model(results)
    compared = []
    for at in COMPARED_AT:
        for first, second in _pairs(rows):
            family = [
                _compare(row, key, (first, second), at, margin)
                for key, row in rows.items()
                if first in row and second in row
            ]
            compared += adjust(family)
    return compared


def rows_by_model(results: Sequence[CellResult]) -> dict[tuple[str, str], dict[str, CellResult]]:
    """(dataset, row) -> model -> result; the base row, which stands in both tables, once."""
    rows: dict[tuple[str, str], dict[str, CellResult]] = {}
    for result in distinct_cells(results):
        rows.setdefault((result.cell.dataset, result.cell.row), {})[result.cell.model] = result
    return rows


def _pairs(rows: dict[tuple[str, str], dict[str, CellResult]]) -> list[tuple[str, str]]:
    models = dict.fromkeys(model for row in rows.values() for model in row)
    return [*PAIRS, *((model, REFERENCE) for model in models if model not in paper.MODEL_LABELS)]


def _compare(
    row: dict[str, CellResult], key: tuple[str, str], pair: tuple[str, str], at: str, margin: float
) -> Comparison:
    difference, reason = paired(row.get(pair[0]), row.get(pair[1]), at)
    return with_tests(Comparison(*key, *pair, at, margin_nats=margin, difference=difference, reason=reason))


def with_tests(one: T) -> T:
    """Adds the unadjusted p-values, where there is no reason against a test."""
    if one.difference is None or one.reason:
        return one
    values = one.difference.values_nats
    return replace(
        one, p_different=float(p_outside(values, 0.0)), p_equivalent=float(p_equivalent(values, one.margin_nats))
    )


def adjust(family: Sequence[T]) -> list[T]:
    """Holm over the family; a row without a test counts in it, so that a missing run makes nothing significant."""
    different = holm([1.0 if one.p_different is None else one.p_different for one in family])
    equivalent = holm([1.0 if one.p_equivalent is None else one.p_equivalent for one in family])
    return [
        one if one.p_different is None else replace(one, p_different_holm=float(p), p_equivalent_holm=float(q))
        for one, p, q in zip(family, different, equivalent, strict=True)
    ]


def paired(first: CellResult | None, second: CellResult | None, at: str) -> tuple[Difference | None, str]:
    """first - second at one of MEASURES, and why no test can be made of it; the reason is empty where one can.

    Both are of one row, whose runs share precision, device and data (mixing.py).
    """
    both = [result for result in (first, second) if result is not None]
    if len(both) < 2:
        return None, "not among the runs that were asked for"
    absent = [f"{model_label(result.cell.model)} {result.status}" for result in both if not result.runs]
    if absent:
        return None, ", ".join(absent)
    losses = [read_losses(result, at) for result in both]
    silent = [model_label(result.cell.model) for result, found in zip(both, losses, strict=True) if not found]
    if silent:
        return None, f"no {at} loss in the records of {' and '.join(silent)}"
    difference = stats.paired_difference(*losses)
    if difference is None:
        return None, "no seed that both models have"
    return difference, "" if difference.n >= MIN_SEEDS else stats.seeds_needed(difference.n)


def read_losses(result: CellResult, at: str) -> dict[int, float]:
    """Seed -> loss in nats per token at one of MEASURES, of the runs whose record has it."""
    part, name = MEASURES[at]
    found: dict[int, Any] = {run.summary["seed"]: (run.summary.get(part) or {}).get(name) for run in result.runs}
    return {seed: loss for seed, loss in found.items() if loss is not None}


def model_label(model: str) -> str:
    return MODEL_LABELS.get(model, model)


def pair_label(first: str, second: str) -> str:
    return f"{model_label(first)} − {model_label(second)}"
