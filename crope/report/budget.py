"""Where a model's parameters are, and what CRoPE saves of them: counted on the runs' own models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from crope.model.counting import Parameters
from crope.report.comparisons import REFERENCE, model_label
from crope.report.details import stored_parameters
from crope.report.figures import Panel, Plot, draw_absence
from crope.report.frame import CellResult, distinct_cells
from crope.report.style import HATCHES, LIGHT

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PARTS = {
    "qkv": "Q/K/V", "output_projection": "attention output", "ffn": "feed-forward", "norms": "layer norms",
    "embeddings": "embeddings",
}  # fmt: skip
BLOCK_PARTS = ("qkv", "output_projection", "ffn", "norms")
NOTE = (
    "Stored parameters of the runs' own models. Dashed: what a model saves against RoPE; the paper's 12.5 % of a block"
    " leaves out biases and norms, which are counted here."
)


@dataclass(frozen=True)
class Budget:
    """The models of one width and vocabulary."""

    width: int
    n_layers: int
    vocabulary: int
    models: dict[str, Parameters]

    @property
    def label(self) -> str:
        return f"D = {self.width}"


def build_budgets(results: Sequence[CellResult]) -> list[Budget]:
    """One a width and vocabulary, in the order of the cells."""
    found: dict[tuple[int, int, int], dict[str, Parameters]] = {}
    for result in distinct_cells(results):
        if result.runs:
            run = result.runs[0]
            model = run.config["model"]
            key = (model["d_model"], model["n_layers"], run.config["tokenizer"]["vocab_size"])
            found.setdefault(key, {}).setdefault(result.cell.model, stored_parameters(run.summary))
    return [Budget(*key, models) for key, models in found.items()]


def build_budget_figure(results: Sequence[CellResult]) -> Plot:
    """Two panels a budget: the layers alone, then the whole model."""
    panels = []
    for budget in build_budgets(results):
        layers = f"{budget.label}: {budget.n_layers} layers"
        whole = f"{budget.label}: with {budget.vocabulary:,} embeddings"
        for title, parts in ((layers, BLOCK_PARTS), (whole, tuple(PARTS))):
            panels.append(Panel(title, _in_words(title, budget, parts), partial(_draw_budget, budget, parts)))
    empty = Panel("Parameters", "No complete run.", lambda axes, first: draw_absence(axes, ["no complete run"]))
    most = max((len(budget.models) for budget in build_budgets(results)), default=1)
    return Plot(
        name="parameters",
        title="Parameters by part",
        note=NOTE,
        panels=tuple(panels) or (empty,),
        size=(4.9, 1.1 + 0.38 * most),
        legend=_legend if panels else list,
        per_row=2,
    )


def _in_words(title: str, budget: Budget, parts: Sequence[str]) -> str:
    cells = [
        f"{model_label(model)} {', '.join(f'{PARTS[part]} {counts[part]:,}' for part in parts)}"
        for model, counts in ((model, asdict(found)) for model, found in budget.models.items())
    ]
    return f"{title}. {'; '.join(cells)}."


def _draw_budget(budget: Budget, parts: Sequence[str], axes: Sequence[Axes], first: bool) -> None:
    axis = axes[0]
    sums = {model: sum(asdict(found)[part] for part in parts) for model, found in budget.models.items()}
    longest, reference = max(sums.values()), sums.get(REFERENCE)
    for y, found in enumerate(budget.models.values()):
        left = 0
        for part in parts:
            count = asdict(found)[part]
            axis.barh(y, count / 1e3, left=left / 1e3, height=0.62, color=LIGHT.parts[part], hatch=HATCHES.get(part),
                      edgecolor=LIGHT.background, linewidth=0.5)  # fmt: skip
            left += count
        text = f"{left:,}"
        if reference and left < reference:
            axis.barh(y, (reference - left) / 1e3, left=left / 1e3, height=0.62, fill=False, edgecolor=LIGHT.muted,
                      linestyle="--", linewidth=0.9)  # fmt: skip
            text += f" (−{100 * (reference - left) / reference:.1f} %)"
        axis.text((max(left, reference or 0) + 0.015 * longest) / 1e3, y, text, va="center", fontsize=7.5)
    axis.set(yticks=range(len(sums)), ylim=(len(sums) - 0.5, -0.5), xlim=(0, 1.34 * longest / 1e3))
    axis.set_yticklabels([model_label(model) for model in sums])
    axis.tick_params(axis="y", length=0)
    axis.grid(False)
    axis.set_xlabel("parameters (thousands)")


def _legend() -> list[Artist]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=LIGHT.parts[part], hatch=HATCHES.get(part), edgecolor=LIGHT.background, label=label)
        for part, label in PARTS.items()
    ]
