"""The paper's claims as data, the paired differences that test them, and the one rule from tests to a verdict.

A difference is first - second at equal seed, in nats per token; its columns are those of `describe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from crope import paper
from crope.report import stats
from crope.report.frame import DATASET_LABELS, MODEL_LABELS, cell_runs
from crope.report.stats import ALPHA, MIN_SEEDS, holm, paired
from crope.report.tables import Table
from crope.study import Cell

# Two models whose losses differ by less are equivalent; fixed before the runs of the paper scale were seen. It lies a
# little below the smallest ± of Table 1 (0.0224), the paper's range of noise (Sec. 6.1), and is a tenth of the smallest
# gap that the paper prints between XPOS and RoPE (0.22).
MARGIN = 0.02

MEASURES = {"final": "val_full.final_nats", "best": "val_full.best_nats", "train": "train.final_nats"}
COMPARED_AT = ("final", "best")
PAIRS = (("crope", "rope"), ("xpos", "rope"), ("xpos", "crope"))  # first - second
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, MISSING = "supported", "not supported", "inconclusive", "not tested"
DECIMALS = 6  # of CSV files
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
    "markedly higher": Rule(f"above +{MARGIN:g} nats", partial(stats.p_above, bound=MARGIN),
                            lambda d: 2 * stats.p_below(d, MARGIN)),
    "higher": Rule("above 0", stats.p_above, lambda d: 2 * stats.p_below(d)),
    "equivalent": Rule(f"within ±{MARGIN:g} nats", partial(stats.p_equivalent, margin=MARGIN),
                       partial(stats.p_different, margin=MARGIN)),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One statement of the paper: `checks` are (first, second, name of a rule), each made in every one of `rows`."""

    name: str
    text: str
    source: str
    quote: str
    rows: tuple[Row, ...]
    checks: tuple[tuple[str, str, str], ...]
    measures: tuple[str, ...] = COMPARED_AT


TABLE1: tuple[Row, ...] = tuple((dataset, "base") for dataset in paper.DATASET_LABELS)
TABLE2: tuple[Row, ...] = tuple(("pg19", row) for row in paper.ROWS)
CLAIMS = (
    Claim(
        "xpos_worse", "XPOS is markedly worse than RoPE and than CRoPE on all three datasets", "Sec. 6.1, Table 1",
        "Models that rely on absolute positional encodings show markedly higher loss than any variant that employs"
        " rotary encodings.",
        TABLE1, (("xpos", "rope", "markedly higher"), ("xpos", "crope", "markedly higher")),
    ),
    Claim(
        "crope_within_noise", "CRoPE equals RoPE within noise on all three datasets", "Sec. 6.1, Table 1",
        "the difference between RoPE and CRoPE losses are within the range of noise",
        TABLE1, (("crope", "rope", "equivalent"),),
    ),
    Claim(
        "rows_within_noise", "CRoPE equals RoPE within noise in every row of Table 2", "Sec. 6.2, Table 2",
        "the difference between the final losses of RoPE and CRoPE are non-substantial",
        TABLE2, (("crope", "rope", "equivalent"),),
    ),
    Claim(
        "training_order", "Training loss: XPOS is highest, CRoPE very close to RoPE", "Sec. 6.1, Fig. 4",
        "RoPE has the lowest in-sample loss, while XPOS has the highest in-sample loss. CRoPE is in between, but very"
        " close to the performance of RoPE.",
        TABLE1, (("xpos", "crope", "higher"), ("crope", "rope", "equivalent")),
        ("train",),  # records hold the loss on the train split after the last step only
    ),
)  # fmt: skip


def collect(frame: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """The complete runs of the cells, one row per run; a run that is in both tables once."""
    distinct = {cell.key: cell for cell in cells}.values()
    return pd.concat([cell_runs(frame, cell) for cell in distinct], ignore_index=True)


def by_seed(runs: pd.DataFrame, model: str, column: str) -> pd.Series:
    """The finite losses of one model by seed."""
    of = runs[(runs["model"] == model) & np.isfinite(runs[column].astype(float))]
    return pd.Series(of[column].to_numpy(float), of["seed"].to_numpy())


def difference(losses: Mapping[str, pd.Series]) -> dict[str, Any]:
    """`describe` of first - second at equal seed; `losses` maps both models to their losses by seed."""
    absent = [model_label(model) for model, found in losses.items() if found.empty]
    values = paired(*losses.values())
    reason = f"no loss of {' and of '.join(absent)}" if absent else "no seed that both models have"
    return describe(values, "" if len(values) else reason)


def describe(values: pd.Series, reason: str = "") -> dict[str, Any]:
    """n, mean, standard deviation over seeds, Student's 95 % interval, and the p-values of the paired t test and of the
    equivalence test against MARGIN; NaN and a `reason` if there are not the seeds for a test.
    """
    n, tested = len(values), len(values) >= MIN_SEEDS
    mean, std = stats.mean_std(values) if n else (np.nan, None)
    low, high = stats.interval(values) if tested else (np.nan, np.nan)
    p = (stats.p_different(values), stats.p_equivalent(values, MARGIN)) if tested else (np.nan, np.nan)
    return {
        "n": n, "mean_nats": mean, "std_over_seeds_nats": np.nan if std is None else std, "t_low_nats": low,
        "t_high_nats": high, "p_different": p[0], "p_equivalent": p[1], "values": tuple(values),
        "reason": reason or ("" if tested else f"needs {MIN_SEEDS} seeds, has {n}"),
    }  # fmt: skip


def conclude(lines: pd.DataFrame) -> pd.DataFrame:
    """Adds Holm's p-values over the lines, which are one family, and the conclusion drawn from them.

    A line without a test counts with p = 1, so that a missing run makes nothing significant.
    """
    adjusted = {f"{p}_holm": holm(lines[p].to_list()) for p in ("p_different", "p_equivalent")}
    lines = lines.assign(**{name: np.where(lines["p_different"].notna(), p, np.nan) for name, p in adjusted.items()})
    found = np.where(lines["mean_nats"] > 0, HIGHER, LOWER)
    found = np.where(lines["p_different_holm"] < ALPHA, found, INCONCLUSIVE)
    found = np.where(lines["p_equivalent_holm"] < ALPHA, EQUIVALENT, found)
    return lines.assign(conclusion=np.where(lines["p_different"].notna(), found, MISSING))


def merge_measures(by_measure: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Lines that are the same at every measure once; `at` then names them all."""
    first, *others = by_measure
    same = all(first.drop(columns="at").equals(other.drop(columns="at")) for other in others)
    return [first.assign(at=", ".join(lines["at"].iloc[0] for lines in by_measure))] if same else [*by_measure]


def compare(runs: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """Every pair of PAIRS in each row at both losses; Holm's family is all rows of one pair at one measure."""
    parts = []
    for pair in PAIRS:
        found = [pd.DataFrame([_line(runs, row, pair, at) for row in rows]) for at in COMPARED_AT]
        parts += merge_measures([conclude(lines.assign(margin_nats=MARGIN)) for lines in found])
    return pd.concat(parts, ignore_index=True)


def judge(runs: pd.DataFrame) -> pd.DataFrame:
    """The checks of every claim at each of its measures, with the `verdict` that they give together.

    not supported   some check's test against the claim rejects, after Holm over the claim's checks
    not tested      runs or seeds of a check are missing
    supported       the test for the claim rejects in every check. All must, so each is made at ALPHA without
                    correction: an intersection-union test keeps its level
    inconclusive    otherwise
    """
    parts = []
    for claim in CLAIMS:
        found = []
        for at in claim.measures:
            lines = [_line(runs, row, (a, b), at) | {"rule": r} for row in claim.rows for a, b, r in claim.checks]
            for line in lines:
                for name, test in (("p_for", RULES[line["rule"]].p_for), ("p_against", RULES[line["rule"]].p_against)):
                    line[name] = test(line["values"]) if line["n"] >= MIN_SEEDS else np.nan
            checks = pd.DataFrame([{"claim": claim.name, **line} for line in lines])
            found.append(checks.assign(verdict=verdict(checks)))
        parts += merge_measures(found)
    return pd.concat(parts, ignore_index=True)


def verdict(checks: pd.DataFrame) -> str:
    """The rule of `judge` on the columns p_for and p_against, one row per check; NaN where there is no test."""
    if (holm(checks["p_against"].to_list()) < ALPHA).any():
        return NOT_SUPPORTED
    if checks["p_for"].isna().any():
        return MISSING
    return SUPPORTED if (checks["p_for"] < ALPHA).all() else INCONCLUSIVE


def verdicts(checks: pd.DataFrame) -> list[dict[str, Any]]:
    """For each claim and measure: the claim, the verdict, and in words the deciding check.

    That is the strongest check against a claim that is not supported, else the weakest check for it, or a missing one.
    """
    found = []
    for (name, at), of in checks.groupby(["claim", "at"], sort=False):
        claim, outcome = next(claim for claim in CLAIMS if claim.name == name), of["verdict"].iloc[0]
        against, untested = outcome == NOT_SUPPORTED, of["p_for"].isna()
        place = of["p_against"].argmin() if against else of["p_for"].fillna(np.inf).argmax()
        line = of.iloc[int(place)].to_dict()
        what = f"{row_label(line['dataset'], line['row'])}, {pair_label(line['first'], line['second'])}"
        text = f"{(of['p_for'] < ALPHA).sum()} of {len(of)} checks hold; {'against it' if against else 'weakest'}:"
        text += f" {what} {number(line)}, must be {RULES[line['rule']].text}"
        if outcome == MISSING:
            text = f"{untested.sum()} of {len(of)} checks cannot be made; {what}: {line['reason']}"
        found.append({"claim": claim, "at": at, "verdict": outcome, "text": text})
    return found


def verdict_table(checks: pd.DataFrame, scale: str) -> Table:
    of = [(one["claim"], one["at"], one["verdict"], one["text"]) for one in verdicts(checks)]
    found = [(f"{claim.text} ({claim.source})", *rest) for claim, *rest in of]
    notes = [
        f"Every check is a paired t test over at least {MIN_SEEDS} seeds. Supported: all checks of the claim reject"
        f" at {ALPHA:g} (an intersection-union test, without correction). Not supported: a test against it does,"
        " after Holm over its checks. Not tested: runs or seeds are missing. Inconclusive: none of these. Equivalence"
        f" margin: {MARGIN:g} nats per token, fixed before the runs of the paper scale.",
    ]
    frame = pd.DataFrame(found, columns=["Claim", "Loss", "Verdict", "Deciding check, nats per token"])
    caption, numbers = f"The paper's claims, judged by these runs. Scale: {scale}.", checks.drop(columns=["values"])
    return Table("claims", caption, frame, notes, text=(0, 1, 2, 3), numbers=numbers.round(DECIMALS))


def comparison_table(lines: pd.DataFrame, scale: str) -> Table:
    printed = {
        "Row": [row_label(*place) for place in zip(lines["dataset"], lines["row"], strict=True)],
        "Difference": [pair_label(*pair) for pair in zip(lines["first"], lines["second"], strict=True)],
        "Loss": lines["at"],
        "Paper": lines["paper_nats"].map(signed),
        **difference_columns(lines),
        "p different": lines["p_different_holm"].map(p_text),
        "p equivalent": lines["p_equivalent_holm"].map(p_text),
        "Conclusion": lines["conclusion"],
    }
    notes = [
        "Student's 95 % interval. p different: paired t test; p equivalent: two one-sided tests against"
        f" ±{MARGIN:g}; both after Holm over the rows of a pair."
    ]
    caption, numbers = f"Paired differences at equal seed. Scale: {scale}.", lines.drop(columns=["values", "reason"])
    frame = pd.DataFrame(printed)
    return Table("comparisons", caption, frame, notes, text=(0, 1, 2, 9), numbers=numbers.round(DECIMALS))


def difference_columns(lines: pd.DataFrame) -> dict[str, Any]:
    """Mean, interval and seeds of differences as printed columns."""
    bounds = zip(lines["t_low_nats"].map(signed), lines["t_high_nats"].map(signed), strict=True)
    intervals = [f"[{low}, {high}]" if low else "" for low, high in bounds]
    return {"Mean, nats": lines["mean_nats"].map(signed), "95 %": intervals, "n": lines["n"].astype(str)}


def model_label(model: str) -> str:
    return MODEL_LABELS.get(model, model)


def pair_label(first: str, second: str) -> str:
    return f"{model_label(first)} − {model_label(second)}"


def row_label(dataset: str, row: str) -> str:
    label = DATASET_LABELS.get(dataset, dataset)
    return label if row == "base" else f"{label}, {paper.row_label(row)}"


def signed(value: float) -> str:
    """A difference as printed, with a true minus sign; empty for NaN."""
    return "" if pd.isna(value) else f"{round(value, 4) + 0.0:+.4f}".replace("-", "−")


def p_text(p: float) -> str:
    return "" if pd.isna(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def number(line: Mapping[Any, Any]) -> str:
    """Mean, interval and n of a line in words, or why there is none."""
    if pd.isna(line["t_low_nats"]):
        return f"{signed(line['mean_nats'])} (n = {line['n']})" if line["n"] else str(line["reason"])
    low, high = signed(line["t_low_nats"]), signed(line["t_high_nats"])
    return f"{signed(line['mean_nats'])} (95 % {low} to {high}, n = {line['n']})"


def _line(runs: pd.DataFrame, place: Row, pair: tuple[str, str], at: str) -> dict[str, Any]:
    table = "table1" if place[1] == "base" else "table2"
    printed = [paper.printed_loss(table, place[1], place[0], model) for model in pair]
    stated = printed[0].mean_nats - printed[1].mean_nats if printed[0] and printed[1] else np.nan
    known = {"dataset": place[0], "row": place[1], "first": pair[0], "second": pair[1], "at": at, "paper_nats": stated}
    of = runs.loc[(runs["dataset"] == place[0]) & (runs["row"] == place[1]), ["model", "seed", MEASURES[at]]]
    return known | difference({model: by_seed(of, model, MEASURES[at]) for model in pair})
