"""`make theory`: results/theory with one JSON file per topic, Figs. 1 to 3 and the decay figure, and theory.md.

Everything is computed anew each time; the contents depend on the code only. Every number in theory.md is read from the
JSON data.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from crope import paper
from crope.record import write_bytes, write_json, write_text
from crope.theory import figures
from crope.theory.constructions import construction_results
from crope.theory.pointer_task import EXAMPLE, Task, pointer_results
from crope.theory.rotary import decay_curves

TEMPLATE = """# The theory in numbers

Written by `make theory`. Equations, code, tests and errata: `docs/equations.md`. Cells: mean (lowest to highest).

## Figs. 1 and 2: the function space of CRoPE

![Fig. 1: free numbers of a weight between 6 channels; hatched: the negative of another cell (Eq. 30)](fig1.svg)
![Fig. 2: a letter under the four bases of real 2x2 matrices (top) and under maps of the plane (bottom)](fig2.svg)

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
"""


def make_theory(out_dir: Path, *, seeds: int = 5, task: Task | None = None) -> None:
    """Writes all files of `out_dir`. `seeds`: runs of the pointer task per model."""
    task = task or Task()
    data = {
        "function_space": figures.function_space(),
        "decay": decay_curves(width=128, longest=256),
        "constructions": construction_results(EXAMPLE, width=task.width),
        "pointer_task": pointer_results(task, seeds=seeds),
    }
    for name, value in data.items():
        write_json(out_dir / f"{name}.json", value)
    ideal = [[float(t < 2 and n == m + t + 1) for n in range(len(EXAMPLE))] for m, t in enumerate(EXAMPLE)]
    by_hand, learned = data["constructions"]["attention"], data["pointer_task"]["attention"]
    panels = {"ideal": ideal} | {f"{name}, by hand": weights for name, weights in by_hand.items()}
    panels |= {f"{label}, learned": learned[model] for model, label in paper.MODEL_LABELS.items()}
    for name, draw, value, size in (
        ("fig1", figures.draw_entries, data["function_space"], (6.6, 3.3)),
        ("fig2", figures.draw_function_space, data["function_space"], (7.6, 4.0)),
        ("fig3", figures.draw_attention, {"tokens": EXAMPLE, "panels": panels}, (9.0, 4.3)),
        ("decay", figures.draw_decay, data["decay"], (7.6, 2.9)),
    ):
        write_bytes(out_dir / f"{name}.svg", figures.render_svg(draw, value, size=size))
    write_text(out_dir / "theory.md", render_markdown(data))
    print(f"{out_dir / 'theory.md'}: written, with {len(data)} JSON and 4 SVG files", flush=True)


def render_markdown(data: dict[str, Any]) -> str:
    """theory.md: figures, captions and tables; `data` as in the JSON files."""
    points, task = data["constructions"], data["pointer_task"]["task"]
    lengths = [f"{length} tokens" for length in task["lengths"]]
    return TEMPLATE.format(
        limit=data["decay"]["limit"][1],
        pointers=_table(["model", "measure", *lengths], _pointer_rows(data["pointer_task"]["runs"], task["lengths"])),
        **points,
        **task,
    )


def _pointer_rows(runs: Sequence[dict[str, Any]], lengths: Sequence[int]) -> list[list[str]]:
    rows = []
    for model, label in paper.MODEL_LABELS.items():
        found = [run["by_length"] for run in runs if run["model"] == model]
        for measure in ("accuracy", "weight"):
            cells = [_spread([one[str(length)][measure] for one in found]) for length in lengths]
            rows.append([f"{label} (n = {len(found)})", measure, *cells])
    return rows


def _spread(values: Sequence[float]) -> str:
    """Mean, and lowest to highest if they differ."""
    mean, low, high = (f"{value:.3f}" for value in (fmean(values), min(values), max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, ["---"] * len(headings), *rows])
