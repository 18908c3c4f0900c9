"""The studies' losses, model by model, as sheets and as CSV."""

from __future__ import annotations

from collections.abc import Sequence

from crope.report.comparison_tables import format_nats, format_range
from crope.report.comparisons import model_label, pair_label, paired
from crope.report.csv_files import to_csv
from crope.report.details import stored_parameters
from crope.report.frame import DATASET_LABELS, CellResult
from crope.report.models import SCHEMES
from crope.report.sheets import Sheet
from crope.report.stats import Difference, Spread, over_seeds, spread_over_seeds
from crope.report.studies import BEYOND, Row, Study
from crope.report.tables import format_spread

CSV_COLUMNS = (
    "study", "dataset", "width", "model", "projection", "status", "n", "seq_len", "mean_nats", "std_nats", "qkv",
    "parameters",
)  # fmt: skip
TITLES = {
    "controls": "every Q, K and V map under the rotation",
    "schemes": "every way of telling positions, with real and with complex Q, K and V",
    "length": "trained at L, measured beyond it",
    "scaling": "growing width at equal tokens",
}
REMARK = "Remark"
SCALED = "Heads stay as many and grow with D; every run sees the same tokens."
LOSS = (
    "Loss: full validation after the last step, nats per token, mean ± sample standard deviation over seeds."
    " Differences are paired by seed, with Student's 95 % interval."
)


def study_sheet(study: Study) -> Sheet:
    """The table of a study that was begun."""
    makers = {"controls": _controls, "schemes": _schemes, "length": _length, "scaling": _scaling}
    return makers[study.name](study)


Line = tuple[tuple[str, ...], tuple[str, ...]]  # the texts of a row, and the cells behind it


def _sheet(
    study: Study, headings: tuple[str, ...], lines: Sequence[Line], *, words: int, notes: Sequence[str]
) -> Sheet:
    """The first `words` columns are text, of which the last leads to the runs."""
    return Sheet(
        name=f"study-{study.name}",
        caption=f"{study.name.capitalize()}: {TITLES[study.name]}. Scale: {study.scale}.",
        headings=headings,
        rows=tuple(texts for texts, _ in lines),
        text_columns=(*range(words), *(i for i, heading in enumerate(headings) if heading == REMARK)),
        notes=(*notes, *_training_time(study), *_absences(study)),
        keys=tuple(keys for _, keys in lines),
        link_column=words - 1,
    )


def _controls(study: Study) -> Sheet:
    """What each saves, and what it costs against CRoPE and RoPE."""
    headings = ("Dataset", "Model", "Q/K/V weights", "of RoPE's", "Parameters", "n", "Loss", "− CRoPE", "95 %",
                "− RoPE", "95 %")  # fmt: skip
    lines: list[Line] = []
    for row in study.rows:
        whole = _counts(row.results.get("rope"))
        for model, result in row.results.items():
            counts = _counts(result)
            share = 100 * counts[0] / whole[0] if counts and whole else None
            texts = (
                row.label, model_label(model), f"{counts[0]:,}" if counts else "",
                "" if share is None else f"{share:.1f} %", f"{counts[1]:,}" if counts else "", str(result.n),
                _loss(result), *_difference(row, model, "crope"), *_difference(row, model, "rope"),
            )  # fmt: skip
            lines.append((texts, (result.cell.key,)))
    notes = (
        LOSS,
        "Low rank, block-diagonal and halved have half of RoPE's Q/K/V weights without the complex structure; halved"
        " narrows the attention output as well. Misaligned is Eq. 30 with other pairs than the rotation's. Wide CRoPE"
        " is as large as RoPE.",
    )
    return _sheet(study, headings, lines, words=2, notes=notes)


def _schemes(study: Study) -> Sheet:
    headings = ("Dataset", "Positions", "Complex − real", "Real", "n", "Complex", "n", "Difference", "95 %")
    lines: list[Line] = []
    for row in study.rows:
        for name, (complex_, real) in SCHEMES.items():
            pair = [row.results[model] for model in (complex_, real) if model in row.results]
            if len(pair) == 2:
                texts = (
                    row.label, name, pair_label(complex_, real), _loss(pair[1]), str(pair[1].n), _loss(pair[0]),
                    str(pair[0].n), *_difference(row, complex_, real),
                )  # fmt: skip
                lines.append((texts, tuple(result.cell.key for result in pair)))
    return _sheet(study, headings, lines, words=3, notes=[LOSS])


def _length(study: Study) -> Sheet:
    measured = [one for row in study.rows for one in row.lengths.values()]
    lengths = sorted({length for one in measured for length in one.lengths})
    factors = sorted({length // one.trained for one in measured for length in one.lengths} - {1})
    beyond = (text for factor in factors for text in (f"{factor} L − L, beyond L", "95 %"))
    headings = ("Dataset", "Model", "n", *(f"L = {n:,}" for n in lengths), *beyond, REMARK)
    lines: list[Line] = []
    for row in study.rows:
        for model, result in row.results.items():
            found = row.lengths.get(model)
            changes = [found.change(found.trained * factor) if found else {} for factor in factors]
            losses = [_spread(found.losses.get(length)) if found else "" for length in lengths]
            remark = "; ".join(dict.fromkeys(found.notes.values())) if found else _why_unmeasured(result)
            n = max((len(by_seed) for by_seed in found.losses.values()), default=0) if found else 0
            head = (row.label, model_label(model), str(n))
            printed = [
                text for by_seed in changes for text in _printed(over_seeds([*by_seed.values()]) if by_seed else None)
            ]
            lines.append(((*head, *losses, *printed, remark), (result.cell.key,)))
    tokens = ", ".join(f"{n:,}" for n in sorted({one.tokens for one in measured}))
    notes = (
        f"Trained at L = {', '.join(f'{n:,}' for n in sorted({one.trained for one in measured}))}. The validation split"
        f" ({tokens} tokens of it) is cut into spans of the longest length, and each is read whole and in pieces: every"
        " length predicts the same tokens, with more or less before them. Beyond L: of the tokens at positions that no"
        " training sequence had; the others read the same at every length. Weights after the last step; ± over seeds.",
    )
    return _sheet(study, headings, lines, words=2, notes=notes)


def _scaling(study: Study) -> Sheet:
    headings = ("Dataset", "D", "Model", "n", "Parameters", "Q/K/V weights", "Loss", "− RoPE", "95 %")
    lines: list[Line] = []
    for row in study.rows:
        for model, result in row.results.items():
            counts = _counts(result)
            texts = (
                row.label, str(row.width), model_label(model), str(result.n),
                f"{counts[1]:,}" if counts else "", f"{counts[0]:,}" if counts else "", _loss(result),
                *_difference(row, model, "rope"),
            )  # fmt: skip
            lines.append((texts, (result.cell.key,)))
    return _sheet(study, headings, lines, words=3, notes=[LOSS, SCALED])


def _training_time(study: Study) -> tuple[str, ...]:
    """What the runs cost, each counted once, as their records say."""
    runs = {run.path.name: run.summary for result in study.results for run in result.runs}
    seconds = [(summary.get("time") or {}).get("total_s") for summary in runs.values()]
    known = [value for value in seconds if value is not None]
    if not known:
        return ()
    devices = " and ".join(sorted({summary["device_kind"] for summary in runs.values()}))
    return (f"{len(known)} runs, {sum(known) / 3600:.1f} hours of training one after another, on {devices}.",)


def _counts(result: CellResult | None) -> tuple[int, int] | None:
    """Weights of Q, K and V, and of the whole model."""
    if result is None or not result.runs:
        return None
    found = stored_parameters(result.runs[0].summary)
    return found.qkv, found.total


def _loss(result: CellResult) -> str:
    return format_spread(result.full, 4) if result.full else result.status


def _spread(by_seed: dict[int, float] | None) -> str:
    return format_spread(spread_over_seeds(list(by_seed.values())), 4) if by_seed else ""


def _difference(row: Row, model: str, reference: str) -> tuple[str, str]:
    if model == reference:
        return "", ""
    return _printed(paired(row.results.get(model), row.results.get(reference), "final")[0])


def _printed(found: Difference | None) -> tuple[str, str]:
    return ("", "") if found is None else (format_nats(found.mean_nats), format_range(found.low_nats, found.high_nats))


def _why_unmeasured(result: CellResult) -> str:
    return "not measured beyond its length" if result.runs else result.status


def _absences(study: Study) -> tuple[str, ...]:
    """What is missing and what was left out, each reason once."""
    missing: dict[str, list[str]] = {}
    reasons: list[str] = []
    for row in study.rows:
        where = row.label + (f", D = {row.width}" if study.name == "scaling" else "")
        for model, result in row.results.items():
            if result.status == "missing":
                missing.setdefault(where, []).append(model_label(model))
            else:
                reasons += [text for text in (result.reason, *result.notes) if text]
        reasons += [text for one in row.lengths.values() for text in one.left_out]
    idle = ", ".join(DATASET_LABELS.get(name, name) for name in study.idle)
    texts = [
        f"Missing on {where}: {', '.join(models)}; {study.command} makes them." for where, models in missing.items()
    ]
    texts += [f"Not begun on {idle}, which is no part of the questions."] if idle else []
    return (*texts, *dict.fromkeys(reasons))


def render_losses_csv(studies: Sequence[Study]) -> str:
    """A line a model, and for the length study a line a length; nats per token, empty where there is none."""
    rows: list[list[object]] = []
    for study in studies:
        for row in study.rows:
            for model, result in row.results.items():
                counts, run = _counts(result) or ("", ""), result.runs[0] if result.runs else None
                projection = run.config["model"]["projection"] if run else ""
                head = [study.name, row.dataset, row.width, model, projection, result.status]
                for length, spread in _losses(study, row, model):
                    seq_len = length or (run.config["train"]["seq_len"] if run else "")
                    rows.append([*head, spread.n if spread else 0, seq_len, *_numbers(spread), *counts])
    return to_csv(CSV_COLUMNS, rows)


def _losses(study: Study, row: Row, model: str) -> list[tuple[int | None, Spread | None]]:
    """(length, loss); of the training length alone, as the run itself measured it, in all studies but one."""
    if study.name != BEYOND:
        return [(None, row.results[model].full)]
    found = row.lengths.get(model)
    if found is None:
        return [(None, None)]
    spreads = {n: spread_over_seeds(list(by_seed.values())) for n, by_seed in found.losses.items()}
    return [(length, spreads.get(length)) for length in found.lengths]


def _numbers(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "", ""
    return f"{spread.mean_nats:.6f}", "" if spread.std_nats is None else f"{spread.std_nats:.6f}"
