"""One number of Table 1 or 2, from the runs behind it to the printed text: `make explain
CELL=table1/ptb/crope`.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from crope.errors import UserError
from crope.record import LAST_SHARE
from crope.report.frame import cell_name, cell_runs, choose_source, load_curves, shown
from crope.report.tables import CellLosses, loss_text, mean_std, row_losses, settings_of, table_rows
from crope.study import TABLES, expected_cells


def explain(
    name: str | None, *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = ()
) -> str:
    """How the cell `name` is computed, step by step; without a name the list of cells. Runs as in
    `choose_source`.

    Raises UserError with similar names if there is no such cell.
    """
    source = choose_source(results_dir=results_dir, scale=scale, folders=folders)
    expected = expected_cells(source.scale, datasets=source.datasets)
    cells = {}
    for table in TABLES:
        for row in table_rows(expected, table):
            cells.update({cell_name(losses.cell): losses for losses in row_losses(source, row)})
    if name is None:
        lines = [f"{key}  {cell.status}, n = {len(cell.runs)}" for key, cell in cells.items()]
        return "\n".join([source.origin, *lines])
    if name not in cells:
        near = ", ".join(difflib.get_close_matches(name, cells) or list(cells)[:3])
        raise UserError(
            f"cell '{name}': no such cell; did you mean {near}? `make explain` without CELL lists all"
        )
    cell = cells[name]
    head = [f"{name}: {cell.status} ({source.origin})", *(f"  {note}" for note in cell.notes)]
    printed = loss_text(*cell.printed, cell.cell.table) if cell.printed else "no such cell"
    paper = [f"paper: {printed}"]
    others = sorted({*cell_runs(source.frame, cell.cell)["seed"]} - {*cell.runs["seed"]})
    if others:
        head.append(f"  left out, since not all models of the row have them: seeds {others}")
    if not cell.losses:
        return "\n".join([*head, *paper])
    head.append(f"  run with {settings_of(cell.runs)}, {cell.runs['steps'].iloc[0]:.0f} steps")
    runs = [_run_lines(run) for _, run in cell.runs.iterrows()]
    parts = [head, _full_lines(cell), _sampled_lines(cell), paper, *runs]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _full_lines(cell: CellLosses) -> list[str]:
    losses = cell.runs["val_full.final_nats"]
    tokens = f"{cell.runs['val_full.tokens'].iloc[0]:,.0f} tokens"
    mean, std = cell.losses["full"]
    split = f"{tokens} of the validation split (val_full of summary.json)"
    lines = [f"full: loss after the last step on {split}"]
    for seed, loss in zip(cell.runs["seed"], losses, strict=True):
        lines.append(f"  seed {seed}  {loss:.6f}")
    lines.append(_mean_line("mean over seeds", losses))
    if std is not None:
        squares = " + ".join(f"({loss - mean:.6f})²" for loss in losses)
        root = f"sqrt(({squares}) / {len(losses) - 1}) = {std:.6f}"
        lines.append(f"  ± over seeds, sample standard deviation: {root}")
    return [*lines, f"  in the table: {loss_text(mean, std, cell.cell.table)}"]


def _sampled_lines(cell: CellLosses) -> list[str]:
    """From metrics.jsonl, so that the values of summary.json are seen to follow from the curves."""
    lines = [
        f"sampled: val/loss_nats over the last {100 * LAST_SHARE:g} % of steps (val_sampled of summary.json)"
    ]
    means, stds = [], []
    for _, run in cell.runs.iterrows():
        curve = load_curves(run["path"]).dropna(subset="val/loss_nats")
        tail = curve[curve["step"] >= (1 - LAST_SHARE) * run["config.train.max_steps"]]
        mean, std = mean_std(tail["val/loss_nats"])
        steps = f"{len(tail)} losses at steps {tail['step'].iloc[0]} to {tail['step'].iloc[-1]}"
        spread = "" if std is None else f", standard deviation {std:.6f}"
        lines.append(f"  seed {run['seed']}  {steps}: mean {mean:.6f}{spread}")
        means.append(mean)
        if std is not None:
            stds.append(std)
    lines.append(_mean_line("mean over seeds", means))
    if len(stds) == len(means):
        name = "± over sampled batches, mean of the runs' standard deviations"
        lines.append(_mean_line(name, stds))
    return [*lines, f"  in the table: {loss_text(*cell.losses['sampled'], cell.cell.table)}"]


def _mean_line(name: str, values: Sequence[float] | pd.Series) -> str:
    total = " + ".join(f"{value:.6f}" for value in values)
    return f"  {name}: ({total}) / {len(values)} = {mean_std(values)[0]:.6f}"


def _run_lines(run: pd.Series) -> list[str]:
    best = f"best {run['val_full.best_nats']:.6f} at step {run['val_full.best_step']:.0f}"
    losses = f"final {run['val_full.final_nats']:.6f}, {best}, {run['precision']} on {run['provenance.device']}"
    changed = " with uncommitted changes" if run["provenance.dirty"] is True else ""
    stated = "unknown" if pd.isna(run["provenance.commit"]) else run["provenance.commit"]
    commit = f"  commit {stated}{changed}"
    return [shown(Path(run["path"])), f"  seed {run['seed']}, {losses}", commit]
