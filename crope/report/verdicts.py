"""The paper's claims and what the runs say of each. The rule from checks to an outcome is in judgement.py.

Tests against a claim are two-sided, so that unadjusted they reject exactly where a 95 % interval contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from crope import paper
from crope.model.counting import savings
from crope.report import stats
from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import COMPARED_AT, model_label, pair_label, paired, read_losses, rows_by_model
from crope.report.details import stored_parameters
from crope.report.frame import DATASET_LABELS, CellResult
from crope.report.judgement import COUNT, Check, Claim, Verdict, judge
from crope.report.stats import MIN_SEEDS, Array, p_above, p_below, p_equivalent, p_outside

SPREAD_FACTOR = 2.0  # two standard deviations that differ by a smaller factor are held to be the same
COUNT_TOLERANCE = 0.05  # per cent; the paper prints shares with one decimal

Key = tuple[str, str]  # dataset, row
Pair = tuple[str, str]  # first - second
Tests = tuple[Callable[[Sequence[float]], Array], Callable[[Sequence[float]], Array]]  # for, against
Rows = Mapping[Key, Mapping[str, CellResult]]

CROPE_ROPE, XPOS_ROPE, XPOS_CROPE = ("crope", "rope"), ("xpos", "rope"), ("xpos", "crope")
TABLE1: list[Key] = [(dataset, "base") for dataset in paper.DATASET_LABELS]
TABLE2: list[Key] = [("pg19", row) for row in paper.ROWS]


def build_verdicts(results: Sequence[CellResult], margin: float) -> list[Verdict]:
    """Every claim at each of its measures; `margin` in nats per token, as `load_margin` gives it.

    The claims are about the paper's datasets and rows; other cells among `results` do not enter, missing ones do.
    """
    rows = rows_by_model(results)
    return [
        *_xpos_worse(rows, margin),
        *_within_noise(rows, margin),
        *_training_order(rows, margin),
        *_savings(rows),
        *_printed_spreads(rows),
    ]


def _xpos_worse(rows: Rows, margin: float) -> list[Verdict]:
    claim = Claim(
        name="xpos_worse",
        text="XPOS is worse than RoPE and than CRoPE on all three datasets",
        quote="Models that rely on absolute positional encodings show markedly higher loss than any variant that"
        " employs rotary encodings.",
        section="Sec. 6.1, Table 1",
        test="paired t test, one-sided",
        holds="XPOS is higher",
        contradicts=f"the difference is below +{margin:g} nats, not markedly higher",
    )
    tests = (lambda values: p_above(values, 0), lambda values: 2 * p_below(values, margin))
    return _at_both(rows, claim, TABLE1, {XPOS_ROPE: tests, XPOS_CROPE: tests})


def _within_noise(rows: Rows, margin: float) -> list[Verdict]:
    first = Claim(
        name="crope_within_noise",
        text="CRoPE is within noise of RoPE",
        quote="the difference between RoPE and CRoPE losses are within the range of noise",
        section="Sec. 6.1, Table 1",
        test="two one-sided paired t tests (TOST)",
        holds=f"the difference is within ±{margin:g} nats",
        contradicts=f"the difference is outside ±{margin:g} nats",
    )
    second = replace(
        first,
        name="rows_within_noise",
        text="CRoPE is within noise of RoPE in every row of Table 2",
        quote="the difference between the final losses of RoPE and CRoPE are non-substantial",
        section="Sec. 6.2, Table 2",
    )
    tests = (lambda values: p_equivalent(values, margin), lambda values: p_outside(values, margin))
    pairs: dict[Pair, Tests] = {CROPE_ROPE: tests}
    return [*_at_both(rows, first, TABLE1, pairs), *_at_both(rows, second, TABLE2, pairs)]


def _training_order(rows: Rows, margin: float) -> list[Verdict]:
    """Records hold the loss on the train split after the last step only, so there is no verdict at the best."""
    claim = Claim(
        name="training_order",
        text="Training loss is ordered RoPE ≤ CRoPE < XPOS",
        quote="RoPE has the lowest in-sample loss, while XPOS has the highest in-sample loss. CRoPE is in between, but"
        " very close to the performance of RoPE.",
        section="Sec. 6.1, Fig. 4",
        test="paired t test, one-sided, of losses on the train split",
        holds=f"XPOS is higher than CRoPE, or CRoPE at most {margin:g} nats lower than RoPE",
        contradicts="XPOS is lower than CRoPE, or CRoPE lower than RoPE",
    )
    pairs: dict[Pair, Tests] = {
        XPOS_CROPE: (lambda values: p_above(values, 0), lambda values: 2 * p_below(values, 0)),
        CROPE_ROPE: (lambda values: p_above(values, -margin), lambda values: 2 * p_below(values, 0)),
    }
    return [judge(claim, "final", _pair_checks(rows, TABLE1, pairs, "train"))]


def _at_both(rows: Rows, claim: Claim, keys: Iterable[Key], pairs: Mapping[Pair, Tests]) -> list[Verdict]:
    return [judge(claim, at, _pair_checks(rows, keys, pairs, at)) for at in COMPARED_AT]


def _pair_checks(rows: Rows, keys: Iterable[Key], pairs: Mapping[Pair, Tests], at: str) -> list[Check]:
    return [_pair_check(rows, key, pair, tests, at) for key in keys for pair, tests in pairs.items()]


def _pair_check(rows: Rows, key: Key, pair: Pair, tests: Tests, at: str) -> Check:
    row = rows.get(key, {})
    difference, reason = paired(row.get(pair[0]), row.get(pair[1]), at)
    label, cells = f"{_row_label(key)}: {pair_label(*pair)}", tuple((*key, model) for model in pair)
    check = Check(label, 0, reason=reason, cells=cells)
    if difference is None:
        return check
    number = format_nats(difference.mean_nats)
    check = replace(check, n=difference.n, number=number, value=difference.mean_nats)
    if reason:
        return check
    low, high = difference.low_nats, difference.high_nats
    p_for, p_against = (min(1.0, float(test(difference.values_nats))) for test in tests)
    number = f"{number} (95 % {format_range(low, high)})"
    return replace(check, number=number, low=low, high=high, p_for=p_for, p_against=p_against)


def _savings(rows: Rows) -> list[Verdict]:
    """Counted on the runs' own models. There is no chance in a count: its p is 0 or 1."""
    counted = {}
    for key, row in rows.items():
        pair = [row[model] for model in ("rope", "crope") if model in row and row[model].runs]
        if len(pair) == 2:
            model = pair[0].runs[0].config["model"]
            full, lean = (stored_parameters(result.runs[0].summary) for result in pair)
            n = min(result.n for result in pair)
            counted[key] = n, savings(full, lean, n_layers=model["n_layers"], d_model=model["d_model"])
    verdicts = []
    for part, stated in paper.SAVED_PERCENT.items():
        claim = Claim(
            name=f"saves_{part.lower().replace('/', '')}",
            text=f"CRoPE saves {stated.value:g} % of the {part} weights",
            quote=SAVINGS_QUOTES[part],
            section=f"Sec. {stated.section}",
            test="count of the stored parameters",
            holds=f"the share is {stated.value:g} % to one decimal",
            contradicts="the share is another",
        )
        checks = [_count_check(key, n, saved[part], stated.value) for key, (n, saved) in counted.items()] or [
            Check("every row", 0, reason="no row has runs of both RoPE and CRoPE")
        ]
        verdicts.append(judge(claim, COUNT, checks))
    return verdicts


SAVINGS_QUOTES = {
    "Q/K/V": "it saves 50% of parameters compared to typical weights with the same shape",
    "attention": "the parameter saving ratio becomes around 37.5% when including output projection",
    "block": "12.5% when including feedforward layers with expansion ratio of 4",
}


def _count_check(key: Key, n: int, saved: float, stated: float) -> Check:
    differs = float(abs(saved - stated) >= COUNT_TOLERANCE)
    cells = tuple((*key, model) for model in CROPE_ROPE)
    return Check(_row_label(key), n, f"{saved:.1f} %", saved, p_for=differs, p_against=1 - differs, cells=cells)


def _printed_spreads(rows: Rows) -> list[Verdict]:
    """What the printed ± may be a spread of: two readings, as the paper gives none."""
    common = {
        "quote": "Tables 1 and 2 print mean ± spread and do not say of what.",
        "section": "Tables 1 and 2",
        "holds": f"the spread is within a factor of {SPREAD_FACTOR:g} of the printed ±",
        "contradicts": f"the spread differs from the printed ± by more than a factor of {SPREAD_FACTOR:g}",
    }
    seeds = Claim(
        name="spread_of_seeds",
        text="The printed ± is the spread of the final loss over seeds",
        test="chi-square tests of the standard deviation over seeds",
        **common,
    )
    batches = Claim(
        name="spread_of_batches",
        text="The printed ± is the spread of the loss over sampled validation batches",
        test="chi-square tests of the standard deviation within a run over the last 10 % of steps; eval.batches was"
        " chosen with the printed ± in view, so that the pattern over rows counts, not the level",
        **common,
    )
    keys = [(key, model) for key in dict.fromkeys(TABLE1 + TABLE2) for model in paper.MODEL_LABELS]
    return [
        judge(claim, "final", [_spread_check(rows, key, model, measure) for key, model in keys])
        for claim, measure in ((seeds, seeds_spread), (batches, batches_spread))
    ]


def seeds_spread(result: CellResult) -> tuple[float, int] | str:
    """Sample standard deviation of the final full loss over seeds and its degrees of freedom; or why there is none."""
    spread = stats.spread_over_seeds(list(read_losses(result, "final").values()))
    if spread.std_nats is None or spread.n < MIN_SEEDS:
        return stats.seeds_needed(spread.n)
    return spread.std_nats, spread.n - 1


def batches_spread(result: CellResult) -> tuple[float, int] | str:
    """Standard deviation of the sampled losses within a run, pooled over runs, and its degrees of freedom."""
    sampled = [run.summary["val_sampled"] for run in result.runs]
    parts = [(one["n"] - 1, one["std_nats"]) for one in sampled if one["std_nats"] is not None]
    degrees = sum(part for part, _ in parts)
    if degrees < MIN_SEEDS - 1:
        return f"needs at least {MIN_SEEDS} sampled losses"
    return math.sqrt(sum(part * std**2 for part, std in parts) / degrees), degrees


def _spread_check(rows: Rows, key: Key, model: str, measure: Callable[[CellResult], tuple[float, int] | str]) -> Check:
    label = f"{_row_label(key)}: {model_label(model)}"
    result = rows.get(key, {}).get(model)
    printed = paper.printed_loss("table1", key[1], key[0], model) or paper.printed_loss("table2", key[1], key[0], model)
    if result is None or printed is None or not result.runs:
        return Check(label, 0, reason="no run" if result is None else result.status)
    if result.cell.scale != "paper":
        return Check(label, 0, reason=f"spreads of the {result.cell.scale} scale do not compare with the paper's")
    found = measure(result)
    if isinstance(found, str):
        return Check(label, result.n, reason=found)
    std, degrees = found
    low, high = stats.std_interval(std, degrees)
    return Check(
        label, result.n, f"{std:.4f} (95 % {low:.4f} to {high:.4f}), printed {printed.std_nats:g}", std, low, high,
        p_for=stats.p_std_within(std, degrees, printed.std_nats, SPREAD_FACTOR),
        p_against=stats.p_std_outside(std, degrees, printed.std_nats, SPREAD_FACTOR), cells=((*key, model),),
    )  # fmt: skip


def _row_label(key: Key) -> str:
    dataset, row = key
    label = DATASET_LABELS.get(dataset, dataset)
    return label if row == "base" else f"{label}, {paper.row_label(row)}"
