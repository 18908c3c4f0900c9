"""One number, from the runs behind it to the printed text: a cell of Table 1 or 2 (`make explain
CELL=table1/ptb/crope`), a primary question (CELL=P1) or another difference (CELL=cost/mqa-rope).
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crope.errors import UserError
from crope.report.evidence import (
    CONTRASTS,
    OWN_SEEDS,
    PRIMARY,
    PRIMARY_LEVEL,
    Contrast,
    answer,
    ask,
    source_comparisons,
)
from crope.report.frame import Source, cell_name, cell_runs, choose_source, load_curves, shown
from crope.report.tables import (
    CellLosses,
    estimate,
    loss_text,
    mean_std,
    row_losses,
    settings_of,
    table_rows,
)
from crope.runs.compose import group_files
from crope.runs.record import LAST_SHARE
from crope.runs.study import TABLES, expected_cells, study_axes

DIFFERENCES = "Differences, of final losses also <study>/<first>-<second> of other models:"


def explain(
    name: str | None, *, results_dir: Path, scale: str | None = None, folders: Sequence[Path] = ()
) -> str:
    """How the cell or the difference `name` is computed, step by step; without a name the list of
    both. Runs as in `choose_source`.

    Raises UserError with similar names if there is no such number.
    """
    source = choose_source(results_dir=results_dir, scale=scale, folders=folders)
    contrasts = named_contrasts()
    if name and (chosen := contrasts.get(name) or _own_contrast(name)):
        return _explain_differences(chosen, source)
    expected = expected_cells(source.scale, datasets=source.datasets)
    cells = {}
    for table in TABLES:
        for row in table_rows(expected, table):
            cells.update({cell_name(losses.cell): losses for losses in row_losses(source, row)})
    if name is None:
        lines = [f"{key}  {cell.status}, n = {len(cell.runs)}" for key, cell in cells.items()]
        return "\n".join([source.origin, *lines, "", DIFFERENCES, *contrasts])
    if name not in cells:
        names = [*cells, *contrasts]
        near = ", ".join(difflib.get_close_matches(name, names) or names[:3])
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


def named_contrasts() -> dict[str, list[Contrast]]:
    """P1 to P5, and <study>/<first>-<second> of every other difference."""
    named = {planned.family: [planned, stand_in] for planned, stand_in in PRIMARY}
    for contrast in CONTRASTS:
        named.setdefault(f"{contrast.study}/{'-'.join(contrast.models)}", []).append(contrast)
    return named


def _own_contrast(name: str) -> list[Contrast]:
    """The final losses of two models of a study, by its name; none if it has no such name."""
    study, _, models = name.partition("/")
    first, *second = models.split("-")
    if study not in group_files("study") or len(second) != 1:
        return []
    if not {first, *second} <= set(study_axes(study)["model"]):
        return []
    return ask("", "After {steps} steps", name)


def _explain_differences(contrasts: Sequence[Contrast], source: Source) -> str:
    comparisons = source_comparisons(source)
    parts = []
    for contrast in contrasts:
        lines = answer(contrast, comparisons)
        parts += [_difference_lines(line, contrast, source) for line in lines]
        answered = lines and not any(line["reason"] for line in lines)
        if contrast.level == PRIMARY_LEVEL and answered:
            break  # nothing stands in for it
    if not parts:
        raise UserError(
            f"study {contrasts[0].study}: not planned at scale {source.scale}; name another (SCALE=...)"
        )
    return "\n\n".join("\n".join(lines) for lines in parts)


def _difference_lines(line: Mapping[str, Any], contrast: Contrast, source: Source) -> list[str]:
    """The losses and runs of each seed, their mean, and the interval with its words; of several
    corpora, whose own lines stand above, the last alone.
    """
    head = f"{line['question']} {line['difference']}; {line['where']} (study {line['study']})"
    level = f"{100 * line['level']:.0f} %"
    last = f"  printed: {estimate(line)}, {level}: {line['answer']}"
    if line["reason"]:
        last += f"; `make reproduce STUDY={line['study']}` trains the missing runs"
    if not line["dataset"]:
        over = "  mean of the means above; their variances added, Welch's degrees of freedom"
        return [head, over, last]
    lines, runs = [head], line["runs"]
    values = pd.Series(line["values"], line["seeds"], dtype=float)
    compared = runs["model"].isin(contrast.models)
    runs = runs[compared & runs["seed"].isin(values.index)]
    for seed, value in values.items():
        losses = [
            f"{run['model']} {run['final']:.6f} ({Path(run['path']).name})"
            for run in runs[runs["seed"] == seed].to_dict("records")
            if contrast.value not in OWN_SEEDS  # which also use other runs
        ]
        lines.append(f"  seed {seed}  {value:+.6f}  {', '.join(losses)}".rstrip())
    if len(values):
        lines.append(_mean_line("mean over seeds", values))
    if len(values) > 1:
        lines.append(f"  sample standard deviation {values.std():.6f}")
    made = source.all_runs[source.all_runs["path"].isin(runs["path"])]
    made = made.assign(folder=made["path"].map(lambda path: shown(Path(path).parent)))
    keys = ["folder", "provenance.commit", "precision", "provenance.device"]
    lines += [f"  {', '.join(map(str, facts))}" for facts in made[keys].drop_duplicates().values]
    return [*lines, last]


def _full_lines(cell: CellLosses) -> list[str]:
    losses = cell.runs["val_full.final_nats"]
    tokens = f"{cell.runs['val_full.tokens'].iloc[0]:,.0f} tokens"
    mean, std = cell.losses["full"]
    split = f"{tokens} of the validation split (val_full of summary.json)"
    lines = [f"full: loss after the last step on {split}"]
    for seed, loss in zip(cell.runs["seed"], losses, strict=True):
        lines.append(f"  seed {seed}  {loss:.6f}")
    lines.append(_mean_line("mean over seeds", losses))
    if len(losses) > 1:
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
        spread = "" if math.isnan(std) else f", standard deviation {std:.6f}"
        lines.append(f"  seed {run['seed']}  {steps}: mean {mean:.6f}{spread}")
        means.append(mean)
        stds.append(std)
    lines.append(_mean_line("mean over seeds", means))
    if not any(map(math.isnan, stds)):
        name = "± over sampled batches, mean of the runs' standard deviations"
        lines.append(_mean_line(name, stds))
    return [*lines, f"  in the table: {loss_text(*cell.losses['sampled'], cell.cell.table)}"]


def _mean_line(name: str, values: Sequence[float] | pd.Series) -> str:
    total = " + ".join(f"{value:.6f}" for value in values)
    return f"  {name}: ({total}) / {len(values)} = {np.mean(values):.6f}"


def _run_lines(run: pd.Series) -> list[str]:
    best = f"best {run['val_full.best_nats']:.6f} at step {run['val_full.best_step']:.0f}"
    losses = f"final {run['val_full.final_nats']:.6f}, {best}, {run['precision']} on {run['provenance.device']}"
    changed = " with uncommitted changes" if run["provenance.dirty"] is True else ""
    stated = "unknown" if pd.isna(run["provenance.commit"]) else run["provenance.commit"]
    commit = f"  commit {stated}{changed}"
    return [shown(Path(run["path"])), f"  seed {run['seed']}, {losses}", commit]
