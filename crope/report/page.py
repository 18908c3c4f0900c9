"""The HTML page: answers to the claims, both tables and Fig. 4 first, everything else folded. Works offline."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import plotly.io

from crope.report.claims import model_label, row_label
from crope.report.figures import COLOURS
from crope.report.tables import Table

TEMPLATE = Path(__file__).with_name("page.html")
DASHES = {"xpos": "dot", "rope": "solid", "crope": "dash"}
CAPTIONS = {
    "fig4": "Validation (top) and training loss (bottom), mean over seeds; band: lowest to highest seed; markers: full"
    " validation loss.",
    "forest": "Bars: 95 % t interval of the mean; dots: seeds; crosses: the paper; shaded: equivalence margin.",
    "gaps": "Sampled validation losses at equal seed and step, averaged over tenths of the run: mean over seeds, 95 %"
    " interval, single seeds.",
    "study": "Bars of differences: 95 % t interval over seeds; bars of losses: ± standard deviation over seeds.",
}
POINTS = 100  # of a curve; more are thinned


@dataclass(frozen=True)
class Section:
    """A folded part of the page: figures by the names of their SVG files, tables, HTML."""

    title: str
    figures: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    html: str = ""


def render_page(**context: Any) -> str:
    """page.html filled in; text is escaped."""
    loader = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return loader.from_string(TEMPLATE.read_text(encoding="utf-8")).render(captions=CAPTIONS, **context)


def interactive_curves(curves: pd.DataFrame) -> str:
    """The sampled validation loss of every run as a plotly figure with its script; a menu selects the table row."""
    traces: list[dict[str, Any]] = []
    for place, of in curves.dropna(subset="val/loss_nats").groupby(["dataset", "row"], sort=False):
        row, named = row_label(*map(str, place)), set()
        for (model, seed), run in of.groupby(["model", "seed"], sort=False):
            thin, label = run.iloc[:: max(1, len(run) // POINTS)], model_label(str(model))
            traces.append({
                "type": "scatter", "x": thin["step"].tolist(), "y": thin["val/loss_nats"].round(4).tolist(),
                "name": label, "legendgroup": model, "showlegend": model not in named, "meta": row,
                "line": {"color": COLOURS.get(str(model)), "dash": DASHES.get(str(model), "dashdot"), "width": 1.5},
                "hovertemplate": f"{label}, seed {seed}: %{{y:.4f}} at step %{{x}}<extra></extra>",
                "visible": row == (traces[0]["meta"] if traces else row),
            })  # fmt: skip
            named.add(model)
    buttons = [
        {"label": row, "method": "update", "args": [{"visible": [trace["meta"] == row for trace in traces]}]}
        for row in dict.fromkeys(trace["meta"] for trace in traces)
    ]
    layout = {
        "template": plotly.io.templates["plotly_white"].to_plotly_json(), "height": 420,
        "margin": {"l": 55, "r": 10, "t": 60, "b": 90}, "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "sampled validation loss (nats per token)"}},
        "updatemenus": [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.15, "yanchor": "bottom"}],
    }  # fmt: skip
    figure = {"data": traces, "layout": layout}  # a dict, because plotly's Figure takes long to check its values
    return str(plotly.io.to_html(figure, {"responsive": True}, full_html=False, div_id="curves", validate=False))
