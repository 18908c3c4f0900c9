"""`make theory`: results/theory with one JSON file per topic, Figs. 1 to 3 and the decay figure,
and theory.md.

Everything is computed anew each time and depends on the code only, except the section on recall:
its runs take hours, so it is made of stored results. Every number in theory.md is read from the
data beside it. The same data give the same bytes: SVG with fixed ids, no date, text as outlines of
matplotlib's font.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from crope.model.complex_linear import ComplexLinear
from crope.paper import MODEL_LABELS
from crope.record import PUBLISHED, write_bytes, write_json, write_text
from crope.report.figures import COLOURS, MUTED, STYLE, TEXT, render
from crope.theory.complex_maps import (
    SIGMA,
    Array,
    as_complex,
    complex_fraction,
    complex_part,
    dense,
)
from crope.theory.constructions import construction_results
from crope.theory.pointer_task import EXAMPLE, Task, pointer_results
from crope.theory.recall import LABELS, Plan, recall_frame, run_recall, thresholds, with_halved
from crope.theory.rotary import decay_curves

Data = Mapping[str, Any]

GRID, REFLECTED = STYLE["grid.color"], COLOURS["learned"]

# The letter F has no symmetry, so a rotation and a reflection of it cannot be confused. Corners,
# anticlockwise.
GLYPH: Array = np.array(
    [(0, 0), (0.25, 0), (0.25, 0.4), (0.6, 0.4), (0.6, 0.62), (0.25, 0.62), (0.25, 0.78), (0.75, 0.78), (0.75, 1),
     (0, 1)]
)  # fmt: skip
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
    for name, value in data.items():
        write_json(out_dir / f"{name}.json", value)
    ideal = [
        [float(t < 2 and n == m + t + 1) for n in range(len(EXAMPLE))]
        for m, t in enumerate(EXAMPLE)
    ]
    by_hand, learned = data["constructions"]["attention"], data["pointer_task"]["attention"]
    panels = {"ideal": ideal} | {f"{name}, by hand": weights for name, weights in by_hand.items()}
    panels |= {f"{label}, learned": learned[model] for model, label in MODEL_LABELS.items()}
    for name, draw, value, size in (
        ("fig1", draw_entries, data["function_space"], (6.6, 3.3)),
        ("fig2", draw_function_space, data["function_space"], (7.6, 4.0)),
        ("fig3", draw_attention, {"tokens": EXAMPLE, "panels": panels}, (9.0, 4.3)),
        ("decay", draw_decay, data["decay"], (7.6, 2.9)),
    ):
        write_bytes(out_dir / f"{name}.svg", render_svg(draw, value, size=size))
    write_text(out_dir / "theory.md", render_markdown(data, recall=write_recall(out_dir, Plan())))
    print(f"{out_dir / 'theory.md'}: written, with {len(data)} JSON and 4 SVG files", flush=True)


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
    write_text(out_dir / "recall.csv", runs.to_csv(index=False))
    by_pairs = {pairs: thresholds(runs, plan, pairs=pairs) for pairs in plan.pairs}
    data = {"runs": with_halved(runs), "thresholds": by_pairs, "level": plan.level}
    write_bytes(out_dir / "recall.svg", render_svg(draw_recall, data, size=(7.6, 3.3)))
    most = max(plan.pairs)
    headings = [*(f"{pairs} pairs" for pairs in plan.pairs), f"over RoPE's, {most} pairs"]
    rows = []
    for model, label in LABELS.items():
        scale = 2 if model == "halved" else 1
        first, last = scale * plan.widths[0], scale * plan.widths[-1]
        cells = [_widths(table[model].dropna(), first, last) for table in by_pairs.values()]
        ratio = (by_pairs[most][model] / by_pairs[most]["rope"]).dropna()
        finished = by_pairs[most][model].count()
        rows.append([f"{label} (n = {finished})", *cells, _widths(ratio, 0, math.inf, digits=2)])
    return RECALL_TEMPLATE.format(
        d_model=plan.d_model,
        level=100 * plan.level,
        most=most,
        table=_table(["model", *headings], rows),
    )


def _widths(values: pd.Series, first: float, last: float, *, digits: int = 1) -> str:
    """Median, lowest and highest; ≤ the first width of the grid and > the last mark bounds."""
    if values.empty:
        return "—"
    median, low, high = (
        f"≤ {value:g}"
        if value <= first
        else f"> {last:g}"
        if value > last
        else f"{value:.{digits}f}"
        for value in (values.median(), values.min(), values.max())
    )
    cell = median if low == high else f"{median} ({low} to {high})"
    return cell.replace("inf", "∞")


def render_markdown(data: dict[str, Any], *, recall: str) -> str:
    """theory.md: figures, captions and tables; `data` as in the JSON files."""
    points, task = data["constructions"], data["pointer_task"]["task"]
    lengths = [f"{length} tokens" for length in task["lengths"]]
    return TEMPLATE.format(
        limit=data["decay"]["limit"][1],
        recall=recall,
        pointers=_table(
            ["model", "measure", *lengths],
            _pointer_rows(data["pointer_task"]["runs"], task["lengths"]),
        ),
        **points,
        **task,
    )


def _pointer_rows(runs: Sequence[dict[str, Any]], lengths: Sequence[int]) -> list[list[str]]:
    rows = []
    for model, label in MODEL_LABELS.items():
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


def render_svg(
    draw: Callable[[Figure, Data], None], data: Data, *, size: tuple[float, float]
) -> bytes:
    """The figure as an SVG file in the report's style, `size` in inches."""
    matplotlib.style.use(["default", STYLE, {"axes.grid": False, "hatch.linewidth": 0.6}])
    figure = Figure(figsize=size, layout="constrained")
    draw(figure, data)
    return render(figure)


def tied_entries(width: int) -> dict[str, list[list[int]]]:
    """Fig. 1: the number of the free parameter at each entry of a width x width weight, negative
    for its negative.

    Numbers count from 1; RoPE has width^2 of them, CRoPE (Eq. 30) half as many.
    """
    pairs = width // 2
    layer = ComplexLinear(width, width)
    with torch.no_grad():
        layer.a.copy_(torch.arange(1, pairs**2 + 1).view(pairs, pairs))
        layer.b.copy_(torch.arange(pairs**2 + 1, 2 * pairs**2 + 1).view(pairs, pairs))
        crope = layer.weight.int().tolist()
    return {"rope": np.arange(1, width**2 + 1).reshape(width, width).tolist(), "crope": crope}


def function_space() -> dict[str, Any]:
    """Data of Figs. 1 and 2: tied entries; GLYPH under each basis (a) and under four maps of the
    plane (b).

    The maps: a rotation with scaling, the reflection that moves the marked corner to the same
    place, a map with both, and the complex part of that.
    """
    w = 0.9 * np.exp(1j * np.pi / 3)
    corner = as_complex(GLYPH[MARKED])[0]
    c = (
        w * corner / np.conj(corner)
    )  # z -> c conj(z): the reflections are the maps of sigma_1 and sigma_3
    turn, mirror = dense(np.array([[w]])), c.imag * SIGMA[1] + c.real * SIGMA[3]
    mixed = 0.8 * turn + 0.35 * mirror
    maps = {"complex": turn, "mirrored": mirror, "mixed": mixed, "kept": complex_part(mixed)}
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


def draw_entries(figure: Figure, data: Data) -> None:
    """Fig. 1: the free numbers of a weight. Cells with the same letter and index are one number."""
    for axis, model in zip(figure.subplots(1, 2), ("rope", "crope"), strict=True):
        rows = data["entries"][model]
        width, free = len(rows), len({abs(entry) for row in rows for entry in row})
        axis.set_title(f"{MODEL_LABELS[model]}: {free} free numbers")
        for (y, x), entry in np.ndenumerate(np.array(rows)):
            letter = "w" if model == "rope" else "b" if abs(entry) > free // 2 else "a"
            index = f"{y + 1}{x + 1}" if model == "rope" else f"{y // 2 + 1}{x // 2 + 1}"
            mix = 0.42 if letter == "b" else 0.15
            shade = tuple(mix * np.array(to_rgb(COLOURS[model])) + (1 - mix))
            hatch = "////" if entry < 0 else None
            axis.add_patch(
                Rectangle(
                    (x, y), 1, 1, facecolor=shade, edgecolor="white", linewidth=1.5, hatch=hatch
                )
            )
            label = f"−{letter}{index}" if entry < 0 else letter + index
            axis.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=8)
        for edge in range(0, width + 1, 2):
            axis.plot(
                [0, width], [edge, edge], [edge, edge], [0, width], color=MUTED, linewidth=0.8
            )
        axis.set(xlim=(0, width), ylim=(width, 0), aspect="equal")
        axis.set_axis_off()


def draw_function_space(figure: Figure, data: Data) -> None:
    """Fig. 2: (a) a letter under the four bases; (b) what complex maps can do to it, and what they
    cannot.
    """
    axes = figure.subplots(2, 4, gridspec_kw={"height_ratios": [2.3, 1.35]})
    for axis, picture, name in zip(axes[0], data["bases"], BASE_NAMES, strict=True):
        kept = picture["fraction"] > 0.5
        axis.set_title(f"{picture['name']}: {name}", fontsize=8.5)
        _draw_glyph(axis, data, picture, bottom=-1.15)
        axis.set_xlabel("kept by CRoPE" if kept else "lost")
    names = ("a complex map", "a reflection", "a real map", "its complex part")
    for axis, picture, name in zip(axes[1], data["maps"], names, strict=True):
        axis.set_title(name, fontsize=8.5)
        _draw_glyph(axis, data, picture, bottom=-0.15)
        if picture["name"] in ("complex", "mirrored"):
            axis.plot(*picture["image"][data["marked"]], "o", color=TEXT, markersize=5)
        axis.set_xlabel(f"complex-linear fraction {picture['fraction']:.2f}")


def _draw_glyph(axis: Axes, data: Data, picture: Data, *, bottom: float) -> None:
    kept = picture["fraction"] > 0.999
    axis.add_patch(
        Polygon(data["glyph"], closed=True, fill=False, edgecolor=MUTED, linestyle=(0, (2, 1.5)))
    )
    image = Polygon(picture["image"], closed=True, edgecolor=TEXT, alpha=0.75)
    image.set(facecolor=COLOURS["crope"] if kept else REFLECTED, hatch=None if kept else "////")
    axis.add_patch(image)
    axis.set(xlim=(-1.15, 1.15), ylim=(bottom, 1.2), aspect="equal", xticks=[], yticks=[])
    axis.axhline(0, color=GRID, linewidth=0.8, zorder=0)
    axis.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    axis.spines[:].set_visible(False)


def draw_attention(figure: Figure, data: Data) -> None:
    """Fig. 3: attention of the pointers of one sequence, one panel per entry of `data["panels"]`
    (six); frames mark the targets.
    """
    tokens: Sequence[int] = data["tokens"]
    names = [("next", "nexnext")[token] if token < 2 else f"word {token - 1}" for token in tokens]
    rows = [m for m, token in enumerate(tokens) if token < 2 and m + token + 1 < len(tokens)]
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, (title, weights) in zip(axes.flat, data["panels"].items(), strict=True):
        axis.set_title(title)
        shades = LinearSegmentedColormap.from_list("shades", ["white", TEXT])
        image = axis.imshow(np.array(weights)[rows], cmap=shades, vmin=0, vmax=1, aspect="equal")
        for y, m in enumerate(rows):
            corner = (m + tokens[m] + 1 - 0.46, y - 0.46)
            axis.add_patch(
                Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=REFLECTED, linewidth=1.3)
            )
        axis.set_xticks(range(len(tokens)), names, rotation=90)
        axis.set_yticks(range(len(rows)), [f"{names[m]} ({m})" for m in rows])
    figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")


def draw_decay(figure: Figure, data: Data) -> None:
    """RoFormer's Fig. 2 (left) and the score of equal queries and keys, which the bound is about
    (right).
    """
    left, right = figure.subplots(1, 2)
    left.plot(data["distance"], data["bound"], color=TEXT, linewidth=1.3)
    right.plot(
        data["distance"], data["kernel"], color=TEXT, linewidth=1.3, label=f"D = {data['width']}"
    )
    right.plot(
        data["distance"],
        data["limit"],
        color=MUTED,
        linestyle=(0, (4, 1.6)),
        linewidth=1.3,
        label="D → ∞",
    )
    left.set(title=f"relative upper bound, D = {data['width']}", ylim=(0, None))
    right.set(
        title="score of equal queries and keys", ylabel="fraction of its peak", ylim=(0, 1.05)
    )
    right.legend(loc="upper right")
    for axis in (left, right):
        axis.set_xlabel("relative distance (tokens)")
        axis.grid(color=GRID, linewidth=0.7)


def draw_recall(figure: Figure, data: Data) -> None:
    """Accuracy at the most pairs by head width (mean, band from lowest to highest seed), and the
    head width for `level` by the number of pairs (median, lowest to highest).
    """
    left, right = figure.subplots(1, 2)
    most = max(data["thresholds"])
    for model, colour in RECALL_COLOURS.items():
        of = data["runs"][data["runs"]["model"] == model]
        band = of.groupby("width")[f"accuracy_{most}"].agg(["mean", "min", "max"])
        line = {"color": colour, "label": LABELS[model], "marker": "o", "markersize": 3}
        left.plot(band.index, band["mean"], **line)
        left.fill_between(band.index, band["min"], band["max"], color=colour, alpha=0.15)
        found = pd.DataFrame({pairs: table[model] for pairs, table in data["thresholds"].items()})
        found = found.where(np.isfinite(found))
        right.plot(found.columns, found.median(), **line)
        right.vlines(found.columns, found.min(), found.max(), color=colour)
    left.axhline(data["level"], color=MUTED, linewidth=0.8, linestyle="--")
    left.set(title=f"accuracy at {most} pairs", xlabel="head width", ylim=(0, 1.02))
    right.set(title=f"head width for {100 * data['level']:.0f} %", xlabel="pairs stored")
    for axis, ticks in (
        (left, sorted(data["runs"]["width"].unique())),
        (right, data["thresholds"]),
    ):
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(ticks), [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.grid(color=GRID, linewidth=0.7)
    right.legend(loc="upper left")
