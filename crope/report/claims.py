"""The paper's claims as data, the paired differences that test them, and the one rule from tests to
a verdict.

A difference is first - second at equal seed, in nats per token; its columns are those of
`describe`.
"""

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
from crope.report.stats import ALPHA, MIN_SEEDS, SHARES, paired, seeds_range
from crope.report.tables import Table
from crope.study import TABLES, Cell, planned_seeds

# Two models whose losses differ by less are equivalent; fixed before the runs of the paper scale
# were seen. It lies a little below the smallest ± of Table 1 (0.0224), the paper's range of noise
# (Sec. 6.1), and is a tenth of the smallest gap that the paper prints between XPOS and RoPE (0.22).
MARGIN = 0.02

MEASURES = {"final": "val_full.final_nats", "train": "train.final_nats"}
PAIRS = (("crope", "rope"), ("xpos", "rope"), ("xpos", "crope"))  # first - second
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, MISSING = (
    "supported",
    "not supported",
    "inconclusive",
    "not tested",
)
DECIMALS = 6  # of CSV files
LOWER, EQUIVALENT, HIGHER = "lower", "equivalent", "higher"
SLIGHTLY = {
    LOWER: "lower within the margin",
    HIGHER: "higher within the margin",
}  # both tests of a line reject
ABSOLUTE = "absolute"  # the study of the models that claims on absolute positions need besides those of the tables
Row = tuple[str, str]  # dataset, row of Table 2 (Table 1 is `base`)


@dataclass(frozen=True)
class Rule:
    """What a check must show: a test whose rejection speaks for the claim, and one that speaks
    against it.

    Tests against a claim are two-sided: alone, they reject exactly if a 95 % interval contradicts
    the claim.
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
    """One statement of the paper: `checks` are (first, second, name of a rule), each made in every
    one of `rows`.

    At the quick scale the paper's sinusoids drown the token embedding, so that XPOS is worse than
    no positions. A claim on absolute positions must therefore hold for `xpos_balanced` as well.
    """

    name: str
    text: str
    source: str
    quote: str
    rows: tuple[Row, ...]
    checks: tuple[tuple[str, str, str], ...]
    measure: str = "final"
    study: str = ""  # with models that the tables do not have


TABLE1: tuple[Row, ...] = tuple((dataset, "base") for dataset in paper.DATASET_LABELS)
TABLE2: tuple[Row, ...] = tuple(("pg19", row) for row in paper.ROWS)
CLAIMS = (
    Claim(
        "xpos_worse", "XPOS is markedly worse than RoPE and than CRoPE on all three datasets", "Sec. 6.1, Table 1",
        "Models that rely on absolute positional encodings show markedly higher loss than any variant that employs"
        " rotary encodings.",
        TABLE1, tuple((absolute, rotary, "markedly higher") for absolute in ("xpos", "xpos_balanced")
                      for rotary in ("rope", "crope")),
        study=ABSOLUTE,
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
        TABLE1, (("xpos", "crope", "higher"), ("xpos_balanced", "crope", "higher"), ("crope", "rope", "equivalent")),
        "train", ABSOLUTE,  # records hold the loss on the train split after the last step only
    ),
)  # fmt: skip


LOOKS = 2  # verdicts at the quick scale were first drawn from three seeds, then from five: each look has half the rate
LEVEL = ALPHA * SHARES["claims"] / len(CLAIMS) / LOOKS  # of one verdict


def collect(frame: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """The complete runs of the cells, one row per run; a run that is in both tables once."""
    distinct = {cell.key: cell for cell in cells}.values()
    return pd.concat(
        [frame.iloc[:0], *(cell_runs(frame, cell) for cell in distinct)], ignore_index=True
    )


def by_seed(
    runs: pd.DataFrame, model: str, column: str, seeds: Sequence[int] | None = None
) -> pd.Series:
    """The finite losses of one model by seed, of `seeds` only if they are given."""
    of = runs[(runs["model"] == model) & np.isfinite(runs[column].astype(float))]
    of = of if seeds is None else of[of["seed"].isin(seeds)]
    return pd.Series(of[column].to_numpy(float), of["seed"].to_numpy())


def difference(losses: Mapping[str, pd.Series], planned: int = 0) -> dict[str, Any]:
    """`describe` of first - second at equal seed; `losses` maps both models to their losses by
    seed.
    """
    return describe(*paired_losses(losses), planned)


def paired_losses(losses: Mapping[str, pd.Series]) -> tuple[pd.Series, str]:
    """First - second by seed, or why there is none."""
    absent = [model_label(model) for model, found in losses.items() if found.empty]
    values = paired(*losses.values())
    reason = f"no loss of {' and of '.join(absent)}" if absent else "no seed that both models have"
    return values, "" if len(values) else reason


def describe(values: pd.Series, reason: str = "", planned: int = 0) -> dict[str, Any]:
    """n, mean, standard deviation over seeds, Student's 95 % interval, the smallest margin within
    which the mean is shown to lie (the larger end of the 90 % interval), and the p-values of the
    paired t test and of the equivalence test against MARGIN.

    There are p-values only with all `planned` seeds, so that nobody can look at them and then add
    seeds; `reason` says what is missing.
    """
    n, enough = len(values), len(values) >= MIN_SEEDS
    tested = enough and n >= planned
    mean, std = stats.mean_std(values) if n else (np.nan, None)
    low, high = stats.interval(values) if enough else (np.nan, np.nan)
    p = (
        (stats.p_different(values), stats.p_equivalent(values, MARGIN))
        if tested
        else (np.nan, np.nan)
    )
    lacking = (
        f"{n} of {planned} planned seeds"
        if planned >= MIN_SEEDS
        else f"needs {MIN_SEEDS} seeds, has {n}"
    )
    return {
        "n": n, "mean_nats": mean, "std_over_seeds_nats": np.nan if std is None else std, "t_low_nats": low,
        "t_high_nats": high, "margin_shown_nats": max(map(abs, stats.interval(values, 0.9))) if enough else np.nan,
        "p_different": p[0], "p_equivalent": p[1], "values": tuple(values),
        "reason": reason or ("" if tested else lacking),
    }  # fmt: skip


def conclude(lines: pd.DataFrame) -> pd.DataFrame:
    """Adds p-values that are adjusted for all tests of the report, the conclusion, and the seeds
    that an inconclusive line needs (from 5 seeds on; below, the standard deviation is hardly
    known).

    `share` of a line is its part of the report's error rate. A difference cannot be 0 and at least
    MARGIN at once, so at most one of a line's two tests can err: the probability of any false
    conclusion is at most the sum of the shares times ALPHA (Bonferroni).
    """
    adjusted = {
        f"{p}_adjusted": (lines[p] / lines["share"]).clip(upper=1.0)
        for p in ("p_different", "p_equivalent")
    }
    lines = lines.assign(**adjusted)
    sign = np.where(lines["mean_nats"] > 0, HIGHER, LOWER)
    differs, equivalent = (lines[p] < ALPHA for p in adjusted)
    found = np.where(differs, sign, np.where(equivalent, EQUIVALENT, INCONCLUSIVE))
    found = np.where(differs & equivalent, [SLIGHTLY[str(word)] for word in sign], found)
    found = np.where(lines["p_different"].notna(), found, MISSING)
    open_lines = zip(
        lines["values"], lines["share"], (found == INCONCLUSIVE) & (lines["n"] >= 5), strict=True
    )
    needed = [
        seeds_text(values, share * ALPHA) if is_open else ""
        for values, share, is_open in open_lines
    ]
    return lines.assign(conclusion=found, seeds_needed=needed)


def seeds_text(values: ArrayLike, level: float) -> str:
    """The seeds that a new study needs for the likelier conclusion about differences like `values`."""
    ends = seeds_range(values, MARGIN, level)
    low, high = (f"more than {n - 1}" if n == stats.MAX_SEEDS else str(n) for n in ends)
    mean, _ = stats.mean_std(values)
    what = (
        "a difference" if stats.likely_different(mean, MARGIN) else f"equality within ±{MARGIN:g}"
    )
    return (
        f"a new study needs {low if low == high else f'about {low} to {high}'} seeds to show {what}"
    )


def compare(runs: pd.DataFrame, rows: Sequence[Row]) -> pd.DataFrame:
    """Every pair of PAIRS in each row, at the final loss."""
    return pd.DataFrame([_line(runs, row, pair, "final") for pair in PAIRS for row in rows]).assign(
        margin_nats=MARGIN
    )


def judge(runs: pd.DataFrame) -> pd.DataFrame:
    """The checks of every claim, with the `verdict` that they give together.

    not supported   some check's test against the claim rejects, after Bonferroni over the claim's
                    checks
    not tested      runs or planned seeds of a check are missing
    supported       the test for the claim rejects in every check. All must, so each is made at
                    LEVEL without correction: an intersection-union test keeps its level
    inconclusive    otherwise
    """
    parts = []
    for claim in CLAIMS:
        lines = [
            _line(runs, row, (a, b), claim.measure) | {"rule": r}
            for row in claim.rows
            for a, b, r in claim.checks
        ]
        for line in lines:
            for name, test in (
                ("p_for", RULES[line["rule"]].p_for),
                ("p_against", RULES[line["rule"]].p_against),
            ):
                line[name] = np.nan if np.isnan(line["p_different"]) else test(line["values"])
        checks = pd.DataFrame([{"claim": claim.name, **line} for line in lines])
        parts.append(checks.assign(verdict=verdict(checks)))
    return pd.concat(parts, ignore_index=True)


def verdict(checks: pd.DataFrame) -> str:
    """The rule of `judge` on the columns p_for and p_against, one row per check; NaN where there is
    no test.
    """
    if len(checks) * checks["p_against"].min() < LEVEL:
        return NOT_SUPPORTED
    if checks["p_for"].isna().any():
        return MISSING
    return SUPPORTED if (checks["p_for"] < LEVEL).all() else INCONCLUSIVE


def verdicts(checks: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """For each claim: the claim, the verdict, and in words the deciding check; NoPE's place beside
    absolute positions.

    That is the strongest check against a claim that is not supported, else the weakest check for
    it, or a missing one.
    """
    found = []
    for name, of in checks.groupby("claim", sort=False):
        claim, outcome = (
            next(claim for claim in CLAIMS if claim.name == name),
            of["verdict"].iloc[0],
        )
        against, untested = outcome == NOT_SUPPORTED, of["p_for"].isna()
        place = of["p_against"].argmin() if against else of["p_for"].fillna(np.inf).argmax()
        line = of.iloc[int(place)].to_dict()
        what = f"{row_label(line['dataset'], line['row'])}, {pair_label(line['first'], line['second'])}"
        text = f"{(of['p_for'] < LEVEL).sum()} of {len(of)} checks hold; {'against it' if against else 'weakest'}:"
        text += f" {what} {number(line)}, must be {RULES[line['rule']].text}"
        if outcome == MISSING:
            text = f"{untested.sum()} of {len(of)} checks cannot be made; {what}: {line['reason']}"
        if claim.study:
            text += (
                f" (`make reproduce STUDY={claim.study}` trains what it needs)"
                if outcome == MISSING
                else ""
            )
            text += f". {_worth_of_positions(runs, claim)}"
        found.append({"claim": claim, "verdict": outcome, "text": text})
    return found


def _worth_of_positions(runs: pd.DataFrame, claim: Claim) -> str:
    """RoPE - NoPE in each row of a claim, without which no model with absolute positions can be
    judged.
    """
    pair = ("rope", "nope")
    lines = [(row_label(*row), _line(runs, row, pair, claim.measure)) for row in claim.rows]
    known = [
        f"{where} {signed(line['mean_nats'])} (n = {line['n']})"
        for where, line in lines
        if line["n"]
    ]
    what = f"{pair_label(*pair)}{' of the training loss' if claim.measure == 'train' else ''}"
    return f"{what}: {', '.join(known)}" if known else "No run without positions to compare with"


def verdict_table(checks: pd.DataFrame, runs: pd.DataFrame, scale: str) -> Table:
    of = [(one["claim"], one["verdict"], one["text"]) for one in verdicts(checks, runs)]
    found = [(f"{claim.text} ({claim.source})", *rest) for claim, *rest in of]
    notes = [
        "Every check is a paired t test on the planned seeds. Supported: all checks of the claim reject at"
        f" {LEVEL:.3g} (an intersection-union test, without correction). Not supported: a test against it does, after"
        " Bonferroni over its checks. Not tested: runs or planned seeds are missing. Inconclusive: none of these."
        f" Equivalence margin: {MARGIN:g} nats per token, fixed before the runs of the paper scale. The probability"
        f" that this report draws any false conclusion is at most {ALPHA:g}, if differences are normally distributed.",
    ]
    frame = pd.DataFrame(found, columns=["Claim", "Verdict", "Deciding check, nats per token"])
    caption, numbers = (
        f"The paper's claims, judged by these runs. Scale: {scale}.",
        checks.drop(columns=["values"]),
    )
    return Table("claims", caption, frame, notes, text=(0, 1, 2), numbers=numbers.round(DECIMALS))


def comparison_table(lines: pd.DataFrame, scale: str) -> Table:
    printed = {
        "Row": [row_label(*place) for place in zip(lines["dataset"], lines["row"], strict=True)],
        "Difference": [
            pair_label(*pair) for pair in zip(lines["first"], lines["second"], strict=True)
        ],
        "Paper": lines["paper_nats"].map(signed),
        **difference_columns(lines),
    }
    notes = [
        "Student's 95 % interval. Margin shown: the larger end of the 90 % interval, the smallest margin within"
        " which the two would be equivalent."
    ]
    caption, numbers = (
        f"Paired differences at equal seed. Scale: {scale}.",
        lines.drop(columns=["values", "reason"]),
    )
    return Table(
        "comparisons",
        caption,
        pd.DataFrame(printed),
        notes,
        text=(0, 1, 2),
        numbers=numbers.round(DECIMALS),
    )


def difference_columns(lines: pd.DataFrame) -> dict[str, Any]:
    """Mean, interval, seeds and smallest margin shown of differences as printed columns."""
    bounds = zip(lines["t_low_nats"].map(signed), lines["t_high_nats"].map(signed), strict=True)
    intervals = [f"[{low}, {high}]" if low else "" for low, high in bounds]
    shown = ["" if np.isnan(margin) else f"{margin:.4f}" for margin in lines["margin_shown_nats"]]
    return {"Mean, nats": lines["mean_nats"].map(signed), "95 %": intervals, "n": lines["n"].astype(str),
            "Margin shown": shown}  # fmt: skip


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


def number(line: Mapping[Any, Any]) -> str:
    """Mean, interval and n of a line in words, or why there is none."""
    if pd.isna(line["t_low_nats"]):
        return (
            f"{signed(line['mean_nats'])} (n = {line['n']})" if line["n"] else str(line["reason"])
        )
    low, high = signed(line["t_low_nats"]), signed(line["t_high_nats"])
    return f"{signed(line['mean_nats'])} (95 % {low} to {high}, n = {line['n']})"


def _of_row(runs: pd.DataFrame, place: Row) -> pd.DataFrame:
    return runs[(runs["dataset"] == place[0]) & (runs["row"] == place[1])]


def _line(runs: pd.DataFrame, place: Row, pair: tuple[str, str], at: str) -> dict[str, Any]:
    """`difference` in one row of a table on its planned seeds, beside the paper's."""
    table = TABLES[place[1] != "base"]
    printed = [paper.printed_loss(table, place[1], place[0], model) for model in pair]
    stated = printed[0].mean_nats - printed[1].mean_nats if printed[0] and printed[1] else np.nan
    known = {
        "dataset": place[0],
        "row": place[1],
        "first": pair[0],
        "second": pair[1],
        "at": at,
        "paper_nats": stated,
    }
    of, seeds = _of_row(runs, place), planned_seeds(table)
    return known | difference(
        {model: by_seed(of, model, MEASURES[at], seeds) for model in pair}, len(seeds)
    )
