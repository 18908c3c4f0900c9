"""`make theory`: results/theory with the numbers as JSON, the figures and theory.md; and the
recall experiment beside the published runs.

Everything is computed anew each time and depends on the code only, except the section on recall:
its runs take hours, so it is made of stored results. Every number in theory.md is read from the
data beside it. The same data give the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from crope.config import PUBLISHED
from crope.files import write_bytes, write_json, write_text
from crope.paper import MODEL_LABELS
from crope.style import render
from crope.theory.complex_maps import tied_entries
from crope.theory.constructions import construction_results
from crope.theory.figures import (
    draw_attention,
    draw_decay,
    draw_entries,
    draw_function_space,
    draw_recall,
)
from crope.theory.pointer_task import EXAMPLE, Task, pointer_results
from crope.theory.recall import LABELS, Plan, read_runs, run_recall, thresholds
from crope.theory.rotary import decay_curves

TEMPLATE = """# The theory in numbers

Written by `make theory`. Equations, code, tests and errata: `docs/equations.md`. Cells: mean (lowest to highest).

## Figs. 1 and 2: the function space of CRoPE

![Fig. 1: free numbers of a weight between 6 channels; one name is one number, − its negative (Eq. 30)](fig1.svg)
![Fig. 2: a letter (dotted) under the four bases of real 2x2 matrices (top) and under maps (bottom)](fig2.svg)

## Eqs. 21, 23 and 28: distance from a delta function

The sums are no delta function: for D → ∞ they keep {limit:.3f} of the peak at distance 1. The softmax weight that
misses the target (mean over {window} tokens, scores / √D) does fall: from {missed_by_width[0]:.3f} at D = {widths[0]}
to {missed_by_width[1]:.3f} at D = {widths[1]}; at D = {width}, from {missed_by_gain[0]:.3f} at gain 1 of the queries
to {missed_by_gain[1]:.3f} at gain {gain:.0f}.

## Fig. 3: attending to the targets of “next” and “nexnext”

By hand: Eqs. 27 to 29 with the conjugate phase (CRoPE's weights), and absolute sinusoids in one layer, which Sec. 4.3
calls impossible and a finite window allows. Learned: one attention layer (D = {width}), trained on {seq_len} tokens to
predict the target; accuracy of pointers to words (chance 1/{words}), mean weight on the target. High accuracy with a
weight near one half: the layer decodes the answer from a mixture.

![Fig. 3: attention of the pointers of one sequence; frames mark the targets](fig3.svg)

{pointers}

## Long-term decay (RoFormer, Eqs. 35 to 37)

![Left: mean of |S_j| of Eq. 37. Right: score of equal queries and keys](decay.svg)

The bound decays as a trend and not at every step.

{recall}
"""

RECALL_TEMPLATE = """## Recall: the head width that stored pairs need

One layer with one head (D = {d_model}) stores pairs of a key and a value and is asked for the value of each key.
Cells: the head width at which {level:.0f} % of the answers are right (median over seeds, lowest to highest; ≤ and >: it
lies outside the widths tried), by the number of pairs. `halved` is RoPE at half the head width, so its widths are
twice RoPE's by definition. Predicted: CRoPE needs twice RoPE's head width, as `halved` does. What speaks for and
against it, and the plan of the runs: `crope/theory/recall.py`.

![Accuracy at {most} pairs by head width (mean, lowest to highest seed)](recall.svg)

{table}
"""

NO_RECALL = """## Recall

No runs yet: `python scripts/tools.py theory --part recall` (about 2.5 core-hours).
"""


def make_theory(
    out_dir: Path,
    *,
    seeds: int = 5,
    task: Task | None = None,
    plan: Plan | None = None,
    published: Path = PUBLISHED,
) -> None:
    """Writes all files of `out_dir`, and the section on the published runs of recall.

    seeds       runs of the pointer task per model
    published   recall.csv in it, if it is there, becomes recall.svg and recall.md, and stands in
                for own runs that are not there

    Raises UserError if a recall.csv cannot be read.
    """
    task, plan = task or Task(), plan or Plan()
    # RoFormer's Fig. 2 has this width and these distances.
    decay = decay_curves(width=128, longest=256)
    by_hand = construction_results(EXAMPLE, width=task.width)
    learned = pointer_results(task, seeds=seeds)
    data = {"decay": decay, "constructions": by_hand, "pointer_task": learned}
    # What Figs. 1 and 2 show is exact and needs no numbers.
    for topic, values in data.items():
        write_json(out_dir / f"{topic}.json", values)
    figures = {
        "fig1": draw_entries(tied_entries(width=6)),
        "fig2": draw_function_space(),
        "fig3": draw_attention(by_hand["attention"], learned["attention"]),
        "decay": draw_decay(decay),
    }
    for name, figure in figures.items():
        write_bytes(out_dir / f"{name}.svg", render(figure))
    runs = read_runs(published / "recall.csv", plan)
    if len(runs):
        write_text(published / "recall.md", write_recall(published, runs, plan))
    # Not copied to out_dir: they would pass for own runs, and `make_recall` would train none.
    own = read_runs(out_dir / "recall.csv", plan)
    text = TEMPLATE.format(
        limit=decay["limit"][1],
        pointers=pointer_table(learned),
        recall=write_recall(out_dir, own if len(own) else runs, plan),
        **by_hand,
        **learned["task"],
    )
    write_text(out_dir / "theory.md", text)
    print(f"{out_dir / 'theory.md'}: written, with its data and figures", flush=True)


def make_recall(out_dir: Path, *, plan: Plan | None = None) -> None:
    """Trains the missing runs of the recall experiment and prints its section of theory.md."""
    plan, file = plan or Plan(), out_dir / "recall.csv"
    run_recall(plan, file)
    print(write_recall(out_dir, read_runs(file, plan), plan), flush=True)


def write_recall(folder: Path, runs: pd.DataFrame, plan: Plan) -> str:
    """The section on recall, with its picture in `folder`."""
    if runs.empty:
        return NO_RECALL
    by_pairs = {pairs: thresholds(runs, plan, pairs=pairs) for pairs in plan.pairs}
    rope = runs[runs["model"] == "rope"]
    halved = rope.assign(model="halved", width=2 * rope["width"])
    figure = draw_recall(pd.concat([runs, halved]), plan)
    write_bytes(folder / "recall.svg", render(figure))
    return RECALL_TEMPLATE.format(
        d_model=plan.d_model,
        level=100 * plan.level,
        most=max(plan.pairs),
        table=recall_table(by_pairs, plan),
    )


def recall_table(by_pairs: Mapping[int, pd.DataFrame], plan: Plan) -> str:
    """The thresholds of each model by the number of pairs, and over RoPE's at the most pairs."""
    most = max(plan.pairs)
    at_most = by_pairs[most]
    rows = []
    for model, label in LABELS.items():
        scale = 2 if model == "halved" else 1  # its grid is RoPE's under twice the width
        text = partial(_width_text, first=scale * plan.widths[0], last=scale * plan.widths[-1])
        widths = [_with_range(table[model], "median", text) for table in by_pairs.values()]
        # Both models at the same seed saw the same batches, so their ratio is taken within it.
        finished = at_most[model].notna() & at_most["rope"].notna()
        own, rope = at_most.loc[finished, model], at_most.loc[finished, "rope"]
        # Outside the grid a width is 0 or inf, and its ratio not known.
        known = np.isfinite(own * rope) & (own * rope > 0)
        ratio = _with_range(own / rope, "median", "{:.2f}".format) if known.all() else "—"
        rows.append([f"{label} (n = {at_most[model].count()})", *widths, ratio])
    headings = [f"{pairs} pairs" for pairs in plan.pairs]
    return _table(["model", *headings, f"over RoPE's, {most} pairs"], rows)


def _width_text(width: float, *, first: int, last: int) -> str:
    """≤ the first width of the grid and > the last mark bounds."""
    if width <= first:  # 0: the smallest width of the grid is wide enough
        return f"≤ {first}"
    return f"> {last}" if width > last else f"{width:.1f}"


def pointer_table(results: Mapping[str, Any]) -> str:
    """Accuracy and attention weight of the pointer task by model and length."""
    runs = pd.json_normalize(results["runs"])  # by_length.<tokens>.<measure>
    lengths = results["task"]["lengths"]
    rows = []
    for model, label in MODEL_LABELS.items():
        of_model = runs[runs["model"] == model]
        for measure in ("accuracy", "weight"):
            columns = [of_model[f"by_length.{length}.{measure}"] for length in lengths]
            cells = [_with_range(column, "mean", "{:.3f}".format) for column in columns]
            rows.append([f"{label} (n = {len(of_model)})", measure, *cells])
    return _table(["model", "measure", *(f"{length} tokens" for length in lengths)], rows)


def _with_range(values: pd.Series, middle: str, text: Callable[[float], str]) -> str:
    """Mean or median (`middle`), and lowest to highest if they differ."""
    finished = values.dropna()
    if finished.empty:  # no seed has all widths, or no run was made
        return "—"
    # As text: two seeds that differ by less than is printed have no range.
    centre, low, high = map(text, finished.agg([middle, "min", "max"]))
    return centre if low == high else f"{centre} ({low} to {high})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
