"""One number of a table, from the runs behind it to the printed text: `make explain CELL=table1/ptb/crope`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from crope import paper
from crope.errors import UserError
from crope.lookup import PUBLISHED, did_you_mean, shown
from crope.record import Record
from crope.report.frame import CellResult
from crope.report.sources import Source, choose_source, load_unavailable, resolve
from crope.report.tables import format_spread
from crope.study import Cell
from crope.summary import LAST_SHARE

RECORD_FILES = ("config.yaml", "provenance.json", "summary.json")


@dataclass(frozen=True)
class Evidence:
    """The cells of one scale with their runs, and where those were read."""

    source: Source
    results: tuple[CellResult, ...]


def load_evidence(
    *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = (), published: Path = PUBLISHED
) -> Evidence:
    """Cells from `folders`, else from results_dir/runs, else, where that has no run, from the committed records."""
    source = choose_source(results_dir=results_dir, scale=scale, folders=folders, published=published)
    return Evidence(source, tuple(resolve(source, unavailable=load_unavailable(results_dir / "unavailable.json"))))


def cell_name(cell: Cell) -> str:
    """table1/<dataset>/<model> or table2/<row>/<dataset>/<model>."""
    middle = [cell.dataset] if cell.table == "table1" else [cell.row, cell.dataset]
    return "/".join([cell.table, *middle, cell.model])


def explain(name: str, evidence: Evidence) -> str:
    """How the cell `name` comes about, step by step. Raises UserError with near misses where there is no such cell."""
    by_name = {cell_name(result.cell): result for result in evidence.results}
    if name not in by_name:
        forms = "table1/<dataset>/<model> or table2/<row>/<dataset>/<model>"
        raise UserError(f"cell '{name}': there is none of that name ({forms});{did_you_mean(name, list(by_name))}")
    return render_explanation(by_name[name], evidence)


def list_cells(evidence: Evidence) -> str:
    lines = [f"{cell_name(result.cell)}  {result.status}, n = {result.n}" for result in evidence.results]
    return "\n".join([_place(evidence), *lines]) + "\n"


def render_explanation(result: CellResult, evidence: Evidence) -> str:
    head = [f"{cell_name(result.cell)}: {result.status} ({_place(evidence)})"]
    if not result.runs:
        return "\n".join([*head, f"  {result.reason}", *_paper_lines(result)]) + "\n"
    train, model = result.runs[0].config["train"], result.runs[0].config["model"]
    label = paper.configuration_label(
        train["batch_size"], train["seq_len"], model["d_model"], train["lr_gamma"], train["lr_step_size"]
    )
    head.append(f"  run with {label}, {train['max_steps']} steps")
    parts = [head, *([_full_lines(result)] if result.full else []), _sampled_lines(result), _paper_lines(result)]
    parts += [_run_lines(run) for run in result.runs]
    parts += [[f"not counted: {note}"] for note in result.notes]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _place(evidence: Evidence) -> str:
    return f"scale {evidence.source.scale}, runs of {evidence.source.places}"


def _full_lines(result: CellResult) -> list[str]:
    losses = [run.summary["val_full"]["final_nats"] for run in result.runs]
    tokens = result.runs[0].summary["val_full"]["tokens"]
    lines = [f"full: loss after the last step on {tokens:,} tokens of the validation split (val_full of summary.json)"]
    for run, loss in zip(result.runs, losses, strict=True):
        lines.append(f"  seed {run.summary['seed']}  {loss:.6f}")
    lines.append(_mean_line("mean over seeds", losses))
    if len(losses) > 1:
        squares = " + ".join(f"({loss - fmean(losses):.6f})²" for loss in losses)
        root = f"sqrt(({squares}) / {len(losses) - 1}) = {stdev(losses):.6f}"
        lines.append(f"  ± over seeds, sample standard deviation: {root}")
    return [*lines, _printed_line(result, "full")]


def _sampled_lines(result: CellResult) -> list[str]:
    lines = [f"sampled: val/loss_nats over the last {100 * LAST_SHARE:g} % of steps (val_sampled of summary.json)"]
    lines += [f"  seed {run.summary['seed']}  {_tail_line(run)}" for run in result.runs]
    stored = [run.summary["val_sampled"] for run in result.runs]
    lines.append(_mean_line("mean over seeds", [one["mean_nats"] for one in stored]))
    stds = [one["std_nats"] for one in stored]
    if None not in stds:
        lines.append(_mean_line("± over sampled batches, mean of the runs' standard deviations", stds))
    return [*lines, _printed_line(result, "sampled")]


def _tail_line(run: Record) -> str:
    """From metrics.jsonl, which the summary agrees with in every run that was found sound."""
    first = (1 - LAST_SHARE) * run.config["train"]["max_steps"]
    curve = [(row["step"], row["val/loss_nats"]) for row in run.metrics() if "val/loss_nats" in row]
    tail = [(step, loss) for step, loss in curve if step >= first]
    losses = [loss for _, loss in tail]
    text = f"{len(tail)} losses at steps {tail[0][0]} to {tail[-1][0]}: mean {fmean(losses):.6f}"
    return text if len(losses) == 1 else f"{text}, standard deviation {stdev(losses):.6f}"


def _mean_line(name: str, values: Sequence[float]) -> str:
    total = " + ".join(f"{value:.6f}" for value in values)
    return f"  {name}: ({total}) / {len(values)} = {fmean(values):.6f}"


def _printed_line(result: CellResult, protocol: str) -> str:
    spread = result.losses(protocol)
    decimals = paper.PRINTED_DECIMALS[result.cell.table]
    return f"  in the table: {format_spread(spread, decimals)}" if spread else "  in the table: nothing"


def _paper_lines(result: CellResult) -> list[str]:
    printed, decimals = result.printed, paper.PRINTED_DECIMALS[result.cell.table]
    if printed is None:
        return ["paper: prints no such cell"]
    number = result.cell.table.removeprefix("table")
    return [f"paper: {printed.mean_nats:.{decimals}f} ± {printed.std_nats:.{decimals}f} (Table {number})"]


def _run_lines(run: Record) -> list[str]:
    facts, full = run.provenance, run.summary["val_full"]
    commit = facts.get("commit") or "unknown"
    changed = " with uncommitted changes" if facts.get("dirty") else ""
    lines = [
        f"{run.summary['run_id']}",
        f"  seed {run.summary['seed']}, final {full['final_nats']:.6f}, best {full['best_nats']:.6f} at step"
        f" {full['best_step']}, {run.summary['precision']} on {facts.get('device') or run.summary['device_kind']}",
        f"  commit      {commit}{changed}",
    ]
    lines += [f"  {name.partition('.')[0]:<11} {shown(run.path / name)}" for name in RECORD_FILES]
    return [*lines, f"  {'curve':<11} {shown(run.path / 'metrics.jsonl')}"]
