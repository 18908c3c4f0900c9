"""The second table: what the final loss alone hides (overfitting, length of training, distance to a unigram model).

With 164 M training tokens the paper's setting passes over small corpora dozens of times, so final and best loss can
differ (DESIGN 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from crope import paper
from crope.config import GPT2_VOCAB_SIZE
from crope.model.counting import Parameters, savings
from crope.paper import SAVED_PERCENT
from crope.record import Record
from crope.report.csv_files import to_csv
from crope.report.frame import DATASET_LABELS, CellResult, distinct_cells, group_rows
from crope.report.sheets import Sheet
from crope.report.tables import describe_seeds

COLUMNS = (
    "table", "row", "dataset", "model", "scale", "status", "n", "final_nats", "best_nats", "best_step", "train_tokens",
    "train_passes", "train_val_gap_nats", "val_nats_per_byte", "unigram_nats", "below_unigram_nats",
)  # fmt: skip
HEADINGS = (
    "Dataset", "Configuration", "Model", "n", "Final", "Best", "at step", "Train tokens", "Passes", "Train-val. gap",
    "Nats per byte", "Unigram", "Below unigram",
)  # fmt: skip
NOTES = (
    "Means over seeds. Final and best: full validation loss after the last step and at its lowest, nats per token; with"
    " several seeds the steps of the lowest are given as a range.",
    "Passes: training tokens over the tokens of the train split. Train-val. gap: final full validation loss less the"
    " loss on the train split, measured in the same way at the same step, nats per token.",
    "Best is the lowest of the full measurements; where there is only the one at the end, it is the final loss.",
    "Nats per byte compare across tokenizers, nats per token do not; they are nats per token times the tokens per byte"
    " of the whole validation split. Unigram: cross-entropy of the validation split under the train split's token"
    " counts, one added to each, nats per token; a model that uses context ends below it.",
)


@dataclass(frozen=True)
class Detail:
    """Means over the seeds of one cell; None where no run has the number."""

    result: CellResult
    values: dict[str, float | None]
    best_steps: tuple[int, ...]


def build_details(results: Sequence[CellResult]) -> list[Detail]:
    return [_build_detail(result) for result in distinct_cells(results)]


def _build_detail(result: CellResult) -> Detail:
    values = {
        "final_nats": _mean(result.runs, lambda summary: summary["val_full"].get("final_nats")),
        "best_nats": _mean(result.runs, lambda summary: summary["val_full"].get("best_nats")),
    }
    for name in ("train_tokens", "train_passes", "train_val_gap_nats", "val_nats_per_byte", "unigram_nats"):
        values[name] = _mean(result.runs, lambda summary, name=name: summary.get(name))  # type: ignore[misc]
    final, unigram = values["final_nats"], values["unigram_nats"]
    values["below_unigram_nats"] = None if final is None or unigram is None else unigram - final
    return Detail(result, values, tuple(run.summary["val_full"]["best_step"] for run in result.runs))


def _mean(runs: Sequence[Record], read: Callable[[dict[str, Any]], float | None]) -> float | None:
    known = [value for run in runs if (value := read(run.summary)) is not None]
    return fmean(known) if known else None


def render_details_csv(details: Sequence[Detail]) -> str:
    """One line a distinct cell. `best_step` holds one step a seed, separated by blanks."""
    rows = []
    for detail in details:
        cell = detail.result.cell
        identity = (cell.table, cell.row, cell.dataset, cell.model, cell.scale, detail.result.status, detail.result.n)
        rows.append([*identity, *(_csv_value(detail, name) for name in COLUMNS[len(identity) :])])
    return to_csv(COLUMNS, rows)


def _csv_value(detail: Detail, name: str) -> str:
    if name == "best_step":
        return " ".join(map(str, detail.best_steps))
    value = detail.values[name]
    if value is None:
        return ""
    return f"{value:.0f}" if name == "train_tokens" else f"{value:.6f}"


def details_sheet(details: Sequence[Detail], *, scale: str) -> Sheet:
    return Sheet(
        name="details",
        caption=f"Details of every cell. Scale: {scale}. {describe_seeds([detail.result for detail in details])}.",
        headings=HEADINGS,
        rows=tuple(_printed_row(detail) for detail in details),
        text_columns=(0, 1, 2),
        notes=NOTES,
        keys=tuple((detail.result.cell.key,) for detail in details),
        link_column=HEADINGS.index("Model"),
    )


def _printed_row(detail: Detail) -> tuple[str, ...]:
    cell, values, result = detail.result.cell, detail.values, detail.result
    identity = [
        DATASET_LABELS.get(cell.dataset, cell.dataset),
        paper.row_label(cell.row),
        paper.MODEL_LABELS.get(cell.model, cell.model),
    ]
    if not result.n:
        return (*identity, "0", result.status, *[""] * (len(HEADINGS) - len(identity) - 2))
    low, high = min(detail.best_steps), max(detail.best_steps)
    return (
        *identity,
        str(result.n),
        _number(values["final_nats"], 4),
        _number(values["best_nats"], 4),
        f"{low:,}" if low == high else f"{low:,} to {high:,}",
        _number(values["train_tokens"], 0),
        _number(values["train_passes"], 2),
        _number(values["train_val_gap_nats"], 4, sign="+"),
        _number(values["val_nats_per_byte"], 4),
        _number(values["unigram_nats"], 4),
        _number(values["below_unigram_nats"], 4),
    )


def _number(value: float | None, decimals: int, *, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign},.{decimals}f}".replace("-", "−")


def savings_line(results: Sequence[CellResult]) -> str:
    """What CRoPE saves against RoPE, counted on the runs' own models; empty until both stand in one row."""
    for row in group_rows(results, "table1"):
        runs = {result.cell.model: result.runs[0] for result in row if result.runs}
        if {"crope", "rope"} <= runs.keys():
            model = runs["rope"].config["model"]
            full, lean = (stored_parameters(runs[name].summary) for name in ("rope", "crope"))
            saved = savings(full, lean, n_layers=model["n_layers"], d_model=model["d_model"])
            parts = [
                f"{name} {saved[name]:.1f} % (paper: {stated.value:g} %)" for name, stated in SAVED_PERCENT.items()
            ]
            whole = f"{saved['model']:.1f} % ({full.total:,} to {lean.total:,} parameters)"
            if model["tied_head"] and runs["rope"].config["tokenizer"]["vocab_size"] != GPT2_VOCAB_SIZE:
                share = (
                    100 * (full.qkv - lean.qkv) / (full.total - full.embeddings + GPT2_VOCAB_SIZE * model["d_model"])
                )
                whole += f", with GPT-2's vocabulary {share:.1f} %"
            return f"Weights that CRoPE saves against RoPE: {', '.join(parts)}; whole model with embeddings {whole}."
    return ""


def stored_parameters(summary: dict[str, Any]) -> Parameters:
    return Parameters(**{field.name: summary["parameters"][field.name] for field in fields(Parameters)})
