"""`make theory`: results/theory with one JSON file per topic, Figs. 1 to 3 and the decay figure,
and theory.md.

Everything is computed anew each time and depends on the code only, except the section on recall:
its runs take hours, so it is made of stored results. Every number in theory.md is read from the
data beside it. The same data give the same bytes: SVG with fixed ids, no date, text as outlines of
matplotlib's font.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from numpy.typing import ArrayLike

from crope.files import write_bytes, write_json, write_text
from crope.model.complex_linear import ComplexLinear
from crope.paper import MODEL_LABELS
from crope.report.figures import COLOURS, MUTED, TEXT, new_figure, render
from crope.runs.record import PUBLISHED
from crope.theory.complex_maps import (
    SIGMA,
    Array,
    as_complex,
    complex_fraction,
    complex_part,
    dense,
)
from crope.theory.constructions import construction_results
from crope.theory.pointer_task import EXAMPLE, Task, pointer_results, targets
from crope.theory.recall import (
    LABELS,
    Plan,
    plan_runs,
    recall_frame,
    run_recall,
    thresholds,
    with_halved,
)
from crope.theory.rotary import decay_curves

Data = Mapping[str, Any]

GRID, REFLECTED = "#e4e7eb", COLOURS["learned"]

# The letter F has no symmetry, so a rotation and a reflection of it cannot be confused. Corners,
# anticlockwise.
GLYPH: Array = np.array(
    [
        (0, 0),
        (0.25, 0),
        (0.25, 0.4),
        (0.6, 0.4),
        (0.6, 0.62),
        (0.25, 0.62),
        (0.25, 0.78),
        (0.75, 0.78),
        (0.75, 1),
        (0, 1),
    ]
)
MARKED = 8  # the corner that the first two maps of Fig. 2(b) take to the same place
BASE_NAMES = ("identity", "reflection about 45°", "rotation by 90°", "reflection about x")

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

## Recall: the head width that stored pairs need

{recall}
"""

RECALL_TEMPLATE = """One layer with one head (D = {d_model}) stores pairs of a key and a value and is asked for the
value of each key. Cells: the head width at which {level:.0f} % of the answers are right (median over seeds, lowest to
highest; ≤ and > mark the ends of the grid), by the number of pairs. `halved` is RoPE at half the head width.
Predicted: CRoPE needs twice RoPE's head width, as `halved` does. What speaks for and against it, and the plan of the
runs: `crope/theory/recall.py`. The runs: recall.csv.

![Left: accuracy at {most} pairs (mean, lowest to highest seed). Right: the head width for {level:.0f} %](recall.svg)

{table}
"""

NO_RECALL = "No runs yet: `python scripts/tools.py theory --part recall` (about 2.5 core-hours)."
RECALL_COLOURS = {
    "rope": COLOURS["rope"],
    "crope": COLOURS["crope"],
    "conjugate": COLOURS["relative_bias"],
    "halved": COLOURS["nope"],
    "lowrank": COLOURS["alibi"],
}


def make_theory(out_dir: Path, *, seeds: int = 5, task: Task | None = None) -> None:
    """Writes all files of `out_dir`. `seeds`: runs of the pointer task per model."""
    task = task or Task()
    data = {
        "function_space": function_space(),
        "decay": decay_curves(width=128, longest=256),
        "constructions": construction_results(EXAMPLE, width=task.width),
        "pointer_task": pointer_results(task, seeds=seeds),
    }
    for topic, values in data.items():
        write_json(out_dir / f"{topic}.json", values)
    figures = {
        "fig1": draw_entries(data["function_space"]["entries"]),
        "fig2": draw_function_space(data["function_space"]),
        "fig3": draw_attention(data),
        "decay": draw_decay(data["decay"]),
    }
    for name, figure in figures.items():
        write_bytes(out_dir / f"{name}.svg", render(figure))
    numbers = data["constructions"] | data["pointer_task"]["task"]
    text = TEMPLATE.format(
        limit=data["decay"]["limit"][1],
        pointers=pointer_table(data["pointer_task"]),
        recall=write_recall(out_dir, Plan()),
        **numbers,
    )
    write_text(out_dir / "theory.md", text)
    print(f"{out_dir / 'theory.md'}: written, with its data and figures", flush=True)


def make_recall(out_dir: Path, *, plan: Plan | None = None) -> None:
    """Trains the missing runs of the recall experiment and prints its section of theory.md."""
    plan = plan or Plan()
    run_recall(plan, out_dir / "recall")
    print(write_recall(out_dir, plan), flush=True)


def write_recall(out_dir: Path, plan: Plan) -> str:
    """The section on recall; writes recall.csv and recall.svg from the results in `out_dir`/recall,
    without any from the published ones.
    """
    runs, published = recall_frame(plan, out_dir / "recall"), PUBLISHED / "recall.csv"
    if runs.empty and published.exists():
        runs = pd.read_csv(published)
    if runs.empty:
        return NO_RECALL
    by_pairs = {pairs: thresholds(runs, plan, pairs=pairs) for pairs in plan.pairs}
    figure = draw_recall(with_halved(runs), by_pairs, level=plan.level)
    write_text(out_dir / "recall.csv", runs.to_csv(index=False))
    write_bytes(out_dir / "recall.svg", render(figure))
    return RECALL_TEMPLATE.format(
        d_model=plan.d_model,
        level=100 * plan.level,
        most=max(plan.pairs),
        table=recall_table(by_pairs, plan),
    )


def publish_recall(published: Path, plan: Plan) -> str:
    """The README's line on recall.csv of `published`, whose figure it draws beside it; empty before
    all runs of the plan are there.
    """
    file = published / "recall.csv"
    runs = pd.read_csv(file) if file.exists() else pd.DataFrame()
    if len(runs) < len(plan_runs(plan)):
        return ""
    by_pairs = {pairs: thresholds(runs, plan, pairs=pairs) for pairs in plan.pairs}
    figure = draw_recall(with_halved(runs), by_pairs, level=plan.level)
    write_bytes(published / "recall.png", render(figure, "png"))
    most = max(plan.pairs)
    parts = [
        f"{label} {_over_rope(by_pairs[most], model, plan)}"
        for model, label in LABELS.items()
        if model != "rope"
    ]
    return (
        f"- **Associative recall.** Head width that finds {100 * plan.level:.0f} % of {most} stored pairs, over"
        f" RoPE's (median of {len(plan.seeds)} seeds): {', '.join(parts)}."
    )


def recall_table(by_pairs: Mapping[int, pd.DataFrame], plan: Plan) -> str:
    """The thresholds of each model by the number of pairs, and over RoPE's at the most pairs."""
    most = max(plan.pairs)
    rows = []
    for model, label in LABELS.items():
        scale = 2 if model == "halved" else 1
        text = partial(_width_text, first=scale * plan.widths[0], last=scale * plan.widths[-1])
        widths = [_with_range(table[model], "median", text) for table in by_pairs.values()]
        n = by_pairs[most][model].count()
        rows.append([f"{label} (n = {n})", *widths, _over_rope(by_pairs[most], model, plan)])
    headings = [f"{pairs} pairs" for pairs in plan.pairs]
    return _table(["model", *headings, f"over RoPE's, {most} pairs"], rows)


def _over_rope(widths: pd.DataFrame, model: str, plan: Plan) -> str:
    """Thresholds of a model over RoPE's, at the seeds at which RoPE has one. ≥ and ≤: one of the two
    lies beyond an end of the grid at some seed; of `halved`, RoPE itself, the ratio is known.
    """
    first, last = plan.widths[0], plan.widths[-1]
    rope = widths["rope"].where(np.isfinite(widths["rope"]))
    if model in ("rope", "halved"):
        return _with_range(widths[model] / rope, "median", "{:.2f}".format)
    at_least = "≥ " if (widths[model] > last).any() or (rope <= first).any() else ""
    at_most = "≤ " if (widths[model] <= first).any() else ""
    ratios = widths[model].clip(upper=last) / rope
    return at_least + at_most + _with_range(ratios, "median", "{:.2f}".format)


def _width_text(width: float, *, first: int, last: int) -> str:
    """≤ the first width of the grid and > the last mark bounds."""
    if width <= first:
        return f"≤ {width:g}"
    return f"> {last}" if width > last else f"{width:.1f}"


def pointer_table(results: Data) -> str:
    """Accuracy and attention weight of the pointer task by model and length."""
    runs = pd.json_normalize(results["runs"])
    lengths = results["task"]["lengths"]
    rows = []
    for model, label in MODEL_LABELS.items():
        of_model = runs[runs["model"] == model]
        for measure in ("accuracy", "weight"):
            columns = [f"by_length.{length}.{measure}" for length in lengths]
            cells = [_with_range(of_model[name], "mean", "{:.3f}".format) for name in columns]
            rows.append([f"{label} (n = {len(of_model)})", measure, *cells])
    return _table(["model", "measure", *(f"{length} tokens" for length in lengths)], rows)


def _with_range(values: pd.Series, middle: str, text: Callable[[float], str]) -> str:
    """Mean or median (`middle`), and lowest to highest if they differ."""
    finished = values.dropna()
    if finished.empty:
        return "—"
    centre, low, high = map(text, finished.agg([middle, "min", "max"]))
    return centre if low == high else f"{centre} ({low} to {high})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _figure(width: float, height: float) -> Figure:
    return new_figure(width, height, **{"axes.grid": False, "hatch.linewidth": 0.6})


def tied_entries(width: int) -> dict[str, list[list[int]]]:
    """Fig. 1: the number of the free parameter at each entry of a width x width weight, negative
    for its negative.

    Numbers count from 1; RoPE has width^2 of them, CRoPE (Eq. 30) half as many.
    """
    layer = ComplexLinear(width, width)
    numbers = torch.arange(1, width**2 + 1)
    with torch.no_grad():
        halves = numbers[: width**2 // 2].view(2, width // 2, width // 2)
        layer.a.copy_(halves[0])
        layer.b.copy_(halves[1])
        crope = layer.weight.int().tolist()
    return {"rope": numbers.view(width, width).tolist(), "crope": crope}


def function_space() -> dict[str, Any]:
    """Data of Figs. 1 and 2: tied entries; GLYPH under each basis (a) and under four maps of the
    plane (b).

    The maps: a rotation with scaling, the reflection that moves the marked corner to the same
    place, a map with both, and the complex part of that.
    """
    w = 0.9 * np.exp(1j * np.pi / 3)
    corner = as_complex(GLYPH[MARKED])[0]
    rotation = dense(np.array([[w]]))
    # z -> c conj(z): the reflections are the maps of sigma_1 and sigma_3
    c = w * corner / np.conj(corner)
    mirror = c.imag * SIGMA[1] + c.real * SIGMA[3]
    mixed = 0.8 * rotation + 0.35 * mirror
    maps = {"complex": rotation, "mirrored": mirror, "mixed": mixed, "kept": complex_part(mixed)}
    return {
        "entries": tied_entries(6),
        "glyph": GLYPH.tolist(),
        "marked": MARKED,
        "bases": [_picture(f"σ{index}", matrix) for index, matrix in enumerate(SIGMA)],
        "maps": [_picture(name, matrix) for name, matrix in maps.items()],
    }


def _picture(name: str, matrix: Array) -> dict[str, Any]:
    return {
        "name": name,
        "matrix": matrix.tolist(),
        "image": (GLYPH @ matrix.T).tolist(),
        "fraction": complex_fraction([matrix]),
    }


def draw_entries(entries: Data) -> Figure:
    """Fig. 1: the free numbers of a weight. Cells with the same letter and index are one number."""
    figure = _figure(6.6, 3.3)
    for axis, model in zip(figure.subplots(1, 2), ("rope", "crope"), strict=True):
        weight = np.array(entries[model])
        width, free = len(weight), len(np.unique(np.abs(weight)))
        letters, block = ("w", 1) if model == "rope" else ("ab", 2)
        axis.set_title(f"{MODEL_LABELS[model]}: {free} free numbers")
        for (y, x), entry in np.ndenumerate(weight):
            letter = letters[(abs(entry) - 1) * len(letters) // free]
            label = f"{letter}{y // block + 1}{x // block + 1}"
            strength = 0.42 if letter == "b" else 0.15
            cell = Rectangle((x, y), 1, 1, edgecolor="white", linewidth=1.5)
            red, green, blue = strength * np.array(to_rgb(COLOURS[model])) + (1 - strength)
            cell.set_facecolor((red, green, blue))
            if entry < 0:
                label = f"−{label}"
                cell.set_hatch("////")
            axis.add_patch(cell)
            axis.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=8)
        ends = [0, width]
        for edge in range(0, width + 1, 2):
            axis.plot(ends, [edge, edge], [edge, edge], ends, color=MUTED, linewidth=0.8)
        axis.set(xlim=(0, width), ylim=(width, 0), aspect="equal")
        axis.set_axis_off()
    return figure


def draw_function_space(data: Data) -> Figure:
    """Fig. 2: (a) a letter under the four bases; (b) what complex maps can do to it, and what they
    cannot.
    """
    figure = _figure(7.6, 4.0)
    axes = figure.subplots(2, 4, height_ratios=[2.3, 1.35])
    for axis, picture, name in zip(axes[0], data["bases"], BASE_NAMES, strict=True):
        _draw_glyph(axis, data, picture, bottom=-1.15)
        axis.set_title(f"{picture['name']}: {name}", fontsize=8.5)
        axis.set_xlabel("kept by CRoPE" if picture["fraction"] > 0.5 else "lost")
    names = ("a complex map", "a reflection", "a real map", "its complex part")
    for axis, picture, name in zip(axes[1], data["maps"], names, strict=True):
        _draw_glyph(axis, data, picture, bottom=-0.15)
        axis.set_title(name, fontsize=8.5)
        axis.set_xlabel(f"complex-linear fraction {picture['fraction']:.2f}")
        if picture["name"] in ("complex", "mirrored"):
            axis.plot(*picture["image"][data["marked"]], "o", color=TEXT, markersize=5)
    return figure


def _draw_glyph(axis: Axes, data: Data, picture: Data, *, bottom: float) -> None:
    outline = Polygon(data["glyph"], fill=False, edgecolor=MUTED, linestyle=(0, (2, 1.5)))
    image = Polygon(picture["image"], edgecolor=TEXT, alpha=0.75)
    if picture["fraction"] > 0.999:
        image.set(facecolor=COLOURS["crope"])
    else:
        image.set(facecolor=REFLECTED, hatch="////")
    axis.add_patch(outline)
    axis.add_patch(image)
    axis.set(xlim=(-1.15, 1.15), ylim=(bottom, 1.2), aspect="equal", xticks=[], yticks=[])
    axis.axhline(0, color=GRID, linewidth=0.8, zorder=0)
    axis.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    axis.spines[:].set_visible(False)


def draw_attention(data: Data) -> Figure:
    """Fig. 3: attention of the pointers of EXAMPLE, ideal, set by hand and learned (six panels);
    frames mark the targets.
    """
    target_BT, asked_BT = targets(torch.tensor([EXAMPLE]))
    panels: dict[str, ArrayLike] = {"ideal": np.eye(len(EXAMPLE))[target_BT[0]]}
    for name, weights in data["constructions"]["attention"].items():
        panels[f"{name}, by hand"] = weights
    for model, label in MODEL_LABELS.items():
        panels[f"{label}, learned"] = data["pointer_task"]["attention"][model]
    words = [f"word {number}" for number in range(1, max(EXAMPLE))]
    names = [["next", "nexnext", *words][token] for token in EXAMPLE]
    rows = asked_BT[0].nonzero().flatten().tolist()
    shades = LinearSegmentedColormap.from_list("shades", ["white", TEXT])
    figure = _figure(9.0, 4.3)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, (title, weights) in zip(axes.flat, panels.items(), strict=True):
        image = axis.imshow(np.array(weights)[rows], cmap=shades, vmin=0, vmax=1, aspect="equal")
        for y, target in enumerate(target_BT[0, rows].tolist()):
            corner = (target - 0.46, y - 0.46)
            frame = Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=REFLECTED, linewidth=1.3)
            axis.add_patch(frame)
        axis.set_title(title)
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(rows)), [f"{names[row]} ({row})" for row in rows])
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    return figure


def draw_decay(data: Data) -> Figure:
    """RoFormer's Fig. 2 (left) and the score of equal queries and keys, which the bound is about
    (right).
    """
    figure = _figure(7.6, 2.9)
    left, right = figure.subplots(1, 2)
    distance, width = data["distance"], f"D = {data['width']}"
    dashed = {"color": MUTED, "linestyle": (0, (4, 1.6)), "label": "D → ∞"}
    left.plot(distance, data["bound"], color=TEXT, linewidth=1.3)
    right.plot(distance, data["kernel"], color=TEXT, linewidth=1.3, label=width)
    right.plot(distance, data["limit"], linewidth=1.3, **dashed)
    left.set(title=f"relative upper bound, {width}", ylim=(0, None))
    right.set(title="score of equal queries and keys")
    right.set(ylabel="fraction of its peak", ylim=(0, 1.05))
    right.legend(loc="upper right")
    for axis in (left, right):
        axis.set_xlabel("relative distance (tokens)")
        axis.grid(color=GRID, linewidth=0.7)
    return figure


def draw_recall(
    runs: pd.DataFrame, by_pairs: Mapping[int, pd.DataFrame], *, level: float
) -> Figure:
    """Accuracy at the most pairs by head width (mean, band from lowest to highest seed), and the
    head width for `level` by the number of pairs (median, lowest to highest).
    """
    figure = _figure(7.6, 3.3)
    left, right = figure.subplots(1, 2)
    most = max(by_pairs)
    for model, colour in RECALL_COLOURS.items():
        style = {"color": colour, "label": LABELS[model], "marker": "o", "markersize": 3}
        by_width = runs[runs["model"] == model].groupby("width")[f"accuracy_{most}"]
        accuracy = by_width.agg(["mean", "min", "max"])
        left.plot(accuracy.index, accuracy["mean"], **style)
        left.fill_between(
            accuracy.index, accuracy["min"], accuracy["max"], color=colour, alpha=0.15
        )
        widths = pd.DataFrame({pairs: table[model] for pairs, table in by_pairs.items()})
        finite, middle = widths.where(np.isfinite(widths)), widths.median()
        right.plot(widths.columns, middle.where(np.isfinite(middle)), **style)
        right.vlines(widths.columns, finite.min(), finite.max(), color=colour)
    left.axhline(level, color=MUTED, linewidth=0.8, linestyle="--")
    left.set(title=f"accuracy at {most} pairs", xlabel="head width", ylim=(0, 1.02))
    right.set(title=f"head width for {100 * level:.0f} %", xlabel="pairs stored")
    right.legend(loc="upper left")
    _log_ticks(left, sorted(runs["width"].unique()))
    _log_ticks(right, list(by_pairs))
    return figure


def _log_ticks(axis: Axes, ticks: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.grid(color=GRID, linewidth=0.7)
