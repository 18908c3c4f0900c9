"""docs/models.md: what each model is, its weights and its published difference to RoPE."""

from contextlib import suppress
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from crope.plan.compose import group_files
from crope.report import figures
from crope.report.contrasts import make_contrast
from crope.report.evidence import answer
from crope.report.frame import model_label
from crope.report.tables import Table, interval_text

# Of them the first that has the model.
STUDIES = ("cost", "schemes", "baselines", "controls", "linear")


def models_table(published: pd.DataFrame, joined: pd.DataFrame) -> Table:
    """Tabulates every file of conf/model, whose first line says what it is; the lowest difference
    first, those without one last.

    published, joined   runs, and those that count for a study (`by_study`)
    """
    usual = published[published["config.model.d_model"] == 128]
    weights = usual.groupby("model")["parameters.total"].min()  # V 4,096 and a tied head
    lines = []
    for model, file in group_files("model").items():
        comment = file.read_text(encoding="utf-8").splitlines()[0]
        line = {"mean": float("inf"), "n": ""} | _beside_rope(model, joined)
        line["Model"] = f"{model_label(model)} (`{model}`)"
        line["What it is"] = comment.removeprefix("# ")
        line["Weights"] = f"{weights[model]:,.0f}" if model in weights else "–"
        lines.append(line)
    columns = ["Model", "What it is", "Weights", "Model − RoPE", "n", "Study"]
    frame = pd.DataFrame(lines).sort_values("mean", kind="stable")[columns].fillna("–")
    return Table("models", "Models, and their difference to RoPE in nats per token", frame)


def _beside_rope(model: str, joined: pd.DataFrame) -> dict[str, Any]:
    if model == "rope":
        return {"mean": 0.0}
    for study in STUDIES:
        with suppress(ValueError):  # a study without the model
            (line, *_) = answer(joined, make_contrast(study, f"{model} - rope"))
            return {"Model − RoPE": interval_text(line), "Study": study} | line
    return {}


def draw_schemes(lines: pd.DataFrame) -> Figure:
    """Draws position schemes beside none, from the lines of `answers`."""
    models = lines["name"].str.extract(r"^schemes/(\w+) - nope$", expand=False)
    named = lines.assign(model=models).dropna(subset="model")
    figure = figures.models(named, "Position schemes, 3,200 steps, Penn Treebank, 95 % over seeds")
    figure.axes[0].set_xlabel("model − NoPE (nats per token)")
    return figure
