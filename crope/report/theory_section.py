"""The theory section of the report: figures, captions and tables from results/theory, nothing where it is empty.

Every number in a caption or table is read from the files; only what the papers print is quoted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crope import paper
from crope.errors import DataError
from crope.report.style import LIGHT, Theme
from crope.report.theory_figures import (
    Data,
    Draw,
    draw_complex_share,
    draw_decay,
    draw_kernel,
    draw_pointer_task,
    render_theory,
)
from crope.report.theory_maps import draw_attention, draw_entries, draw_function_space
from crope.report.theory_tables import (
    NO_TABLE,
    Table,
    by_hand_table,
    errata_table,
    missed_table,
    pointer_table,
    share_table,
)


@dataclass(frozen=True)
class TheoryItem:
    """One part of the section: a figure, a table, or both. `table` is printed cells: headings, rows."""

    name: str
    title: str
    caption: str
    table: Table
    draw: Callable[..., bytes] | None

    def render(self, file_format: str, theme: Theme = LIGHT) -> bytes:
        """The figure's svg or png; empty where the item is a table alone."""
        return self.draw(file_format=file_format, theme=theme) if self.draw else b""


def build_theory_section(folder: Path) -> list[TheoryItem]:
    """Items in reading order from the JSON files of `folder` (results/theory): those whose files are there.

    Raises DataError for a file that cannot be read.
    """
    found = {name: _load(folder / f"{name}.json") for name in _BUILDERS}
    items = [item for name, build in _BUILDERS.items() if (data := found[name]) for item in build(data)]
    points, task = found["constructions"], found["pointer_task"]
    if points and task:
        items.insert([item.name for item in items].index("pointer_task"), _attention(points, task))
    return items


def _function_space(data: Data) -> list[TheoryItem]:
    free = {model: len({abs(n) for row in rows for n in row}) for model, rows in data["entries"].items()}
    mixed = next(picture for picture in data["maps"] if picture["name"] == "mixed")
    entries = (
        f"A weight between {len(data['entries']['rope'])} channels: {free['rope']} free numbers for RoPE, "
        f"{free['crope']} for CRoPE (Eq. 30). Hatched: the negative of another cell."
    )
    maps = (
        "Above: a letter under the four bases of real 2x2 matrices; CRoPE keeps σ0 and σ2. Below: a complex map and a "
        "reflection that move the marked corner to the same place; a real map with "
        f"{100 * mixed['share']:.0f} % of its energy in σ0 and σ2, and what a complex map can hold of it."
    )
    fig1, fig2 = _figure(draw_entries, data, (6.6, 3.3)), _figure(draw_function_space, data, (7.6, 4.0))
    return [
        TheoryItem("fig1", "Fig. 1: the function space of CRoPE", entries, NO_TABLE, fig1),
        TheoryItem("fig2", "Fig. 2: what complex maps of the plane can do", maps, NO_TABLE, fig2),
    ]


def _complex_share(data: Data) -> list[TheoryItem]:
    runs = data["runs"]
    scales = ", ".join(sorted({run["scale"] for run in runs}))
    caption = (
        "Share of the energy of Q, K and V that is complex-linear (Sec. 3.2), LayerNorm gains folded in. Which "
        "residual channels form a pair is arbitrary, so the best complex structure J is taken, and random maps are "
        f"granted the same choice: Gaussian ones ({data['gaussian']['draws']} draws), and the trained ones with the "
        "channels inside each head turned at random, which keeps what they read and their singular values. A trained "
        "share says something where it leaves the range of its own turns; the table's excess is over their mean. XPOS "
        "is a control: without rotation its channels have no pairs. CRoPE is complex by construction and stands in the "
        "table alone. " + (f"Scale: {scales}." if runs else "No trained run with weights was found.")
    )
    shown = any(run["model"] != "crope" for run in runs)
    draw = _figure(draw_complex_share, data, (9.6, 3.4)) if shown else None
    return [TheoryItem("complex_share", "How complex-linear trained maps are", caption, share_table(data), draw)]


def _constructions(data: Data) -> list[TheoryItem]:
    caption = (
        "Left: the sums of Eqs. 21, 23 and 28 over their peak are no delta function at any D; for D → ∞ they keep "
        f"{data['kernel']['limit'][1]:.3f} at distance 1. Middle, right: the softmax weight that misses the target "
        f"(next and nexnext, mean over a window of {data['window']} tokens) does go to zero, with D and with the gain "
        "of the queries; attention divides scores by √D, Eq. 2 does not."
    )
    draw = _figure(draw_kernel, data, (9.6, 3.0))
    return [TheoryItem("kernel", "Eqs. 21, 23, 28: how near to a delta function", caption, missed_table(data), draw)]


def _attention(points: Data, task: Data) -> TheoryItem:
    tokens = points["tokens"]
    panels = {
        "ideal": [[float(t < 2 and n == m + t + 1) for n in range(len(tokens))] for m, t in enumerate(tokens)],
        "rotary, by hand": points["attention"]["rotary"],
        "absolute, by hand": points["attention"]["absolute"],
    }
    panels |= {
        f"{label}, learned": task["attention"][model]
        for model, label in paper.MODEL_LABELS.items()
        if model in task["attention"]
    }
    caption = (
        "Rows: the pointers of a text with their positions; columns: its tokens. By hand: Eqs. 27 to 29 with the "
        "conjugate phase (CRoPE's weights), and absolute sinusoids in one layer, which Sec. 4.3 holds impossible and "
        f"which a finite window allows. Learned: seed 0, trained on texts of {task['task']['seq_len']} tokens."
    )
    draw = _figure(draw_attention, {"tokens": tokens, "panels": panels}, (9.0, 4.3))
    title = "Fig. 3: attending to what “next” and “nexnext” point at"
    return TheoryItem("fig3", title, caption, by_hand_table(points), draw)


def _pointer_task(data: Data) -> list[TheoryItem]:
    task = data["task"]
    caption = (
        f"One attention layer of each model (one head, no mask, no FFN, D = {task['width']}), trained on texts of "
        f"{task['seq_len']} random tokens to name the token that a pointer points to. Accuracy: pointers to words "
        f"only (a guess scores 1/{task['words']}); weight: attention on the token pointed to, all pointers. Mean over "
        "seeds and range from the lowest to the highest. The outcome is reported, not required: a high accuracy with a "
        "weight near one half means that a layer reads the answer off a mixture."
    )
    draw = _figure(draw_pointer_task, data, (7.2, 3.2))
    return [TheoryItem("pointer_task", "Sec. 4.3 as a training task", caption, pointer_table(data), draw)]


def _decay(data: Data) -> list[TheoryItem]:
    bound = data["bound"]
    caption = (
        f"Left: the mean of |S_j| in RoFormer's Eq. 37 (its Fig. 2), D = {data['width']}: {bound[0]:.1f} at distance "
        f"0, {bound[5]:.1f} at 5, {bound[-1]:.1f} at {len(bound) - 1}. The bound on scores decays, as a trend and not "
        "at every step. Right: the score of equal queries and keys, which falls with the logarithm of the distance."
    )
    draw = _figure(draw_decay, data, (7.6, 2.9))
    return [TheoryItem("decay", "Long-term decay (RoFormer, Eqs. 35 to 37)", caption, NO_TABLE, draw)]


def _errata(data: Data) -> list[TheoryItem]:
    caption = "What the papers print that does not hold, what holds instead, and the test that shows both."
    return [TheoryItem("errata", "Errata", caption, errata_table(data), None)]


_BUILDERS: dict[str, Callable[[Data], Sequence[TheoryItem]]] = {
    "function_space": _function_space,
    "complex_share": _complex_share,
    "constructions": _constructions,
    "pointer_task": _pointer_task,
    "decay": _decay,
    "errata": _errata,
}


def _figure(draw: Draw, data: Data, size: tuple[float, float]) -> Callable[..., bytes]:
    return partial(render_theory, draw, data, size=size)


def _load(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); remove it, `make theory` makes it anew") from error
