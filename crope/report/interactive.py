"""The curves of every run as data for the page's charts, and plotly's own script to draw them."""

from __future__ import annotations

import json
from typing import Any

from crope.report.comparisons import model_label, rows_by_model
from crope.report.curves import FULL, SAMPLED, TRAIN
from crope.report.fig4 import CROPPED
from crope.report.findings import Findings
from crope.report.forest import forest_label
from crope.report.style import DARK, LIGHT, dash

MEASURES = {
    SAMPLED: "validation, sampled batches (the paper's protocol)",
    FULL: "validation, full (fixed pass over the split)",
    TRAIN: "training",
}


def chart_data(findings: Findings) -> dict[str, Any]:
    """A panel a table row; a curve is [number of its list of steps, losses in nats per token to four decimals]."""
    rows = rows_by_model(findings.results)
    models = dict.fromkeys(model for row in rows.values() for model in row)
    panels = []
    for key, row in rows.items():
        grids: list[list[int]] = []
        runs = [
            {
                "id": run.summary["run_id"],
                "model": model,
                "seed": run.summary["seed"],
                "curves": {name: _curve(findings.points[run.path][name], grids) for name in MEASURES},
            }
            for model, result in row.items()
            for run in result.runs
        ]
        if runs:
            panels.append({"title": " ".join(forest_label(*key).split()), "steps": grids, "runs": runs})
    return {
        "panels": panels,
        "measures": MEASURES,
        "cropped": CROPPED,
        "models": {
            model: {
                "label": model_label(model),
                "dash": dash(model),
                **{theme.name: theme.model_colour(model) for theme in (LIGHT, DARK)},
            }
            for model in models
        },
    }


def _curve(points: Any, grids: list[list[int]]) -> list[Any]:
    """Runs of a row are measured at the same steps, which are stored once."""
    steps = list(points)
    if steps not in grids:
        grids.append(steps)
    return [grids.index(steps), [round(loss, 4) for loss in points.values()]]


def embed_json(value: Any) -> str:
    """JSON for the inside of a <script>: no end tag, comment or entity can arise from any text in it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plotly_script() -> str:
    """plotly.js as the installed package ships it. What could end the page's <script> early is written otherwise."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")
