"""Which pictures a report has: of the user's runs, and of what the published runs say."""

import pandas as pd
from matplotlib.figure import Figure

from crope.plan.study import TABLES
from crope.report import compare, figures
from crope.report.content import Report, Results
from crope.report.contrasts import load_contrasts, subjects
from crope.report.frame import load_curves
from crope.report.pooled import load_pools, pooled_lines, rate_lines, units

MOST_CURVES = 20


def draw(report: Report) -> dict[str, Figure]:
    """Draws the figures, by name; those without runs are left out."""
    drawn = {}
    own, joined = report.runs.own, report.own.joined
    complete = report.runs.of_scale.query("status == 'complete'")
    if report.studies:
        of_studies = joined["study"].isin([table.name for table in report.studies])
        complete = own[own["run_id"].isin(joined.loc[of_studies, "run_id"])]
    curves: dict[str, pd.DataFrame] = {}
    for table in report.studies:
        curves |= compare.study_curves(joined, table.name)
    if curves:
        drawn["differences"] = compare.draw_differences(curves)
    if len(complete):
        newest = complete.sort_values("finished_utc").tail(MOST_CURVES)
        drawn["own"] = figures.own_curves(load_curves(newest), newest)
    of_table = report.shown[report.shown["study"] == TABLES[0]]
    if len(of_table):
        drawn["fig4"] = figures.fig4(load_curves(of_table), of_table)
    drawn |= draw_published(report.published)
    return drawn


def draw_published(published: Results) -> dict[str, Figure]:
    """Draws what the published runs say, by name; README and docs/results.md show these, too."""
    drawn, joined, lines = {}, published.joined, published.lines
    estimates = pooled_lines(joined)
    best = lines[lines["name"] == subjects()["best"]]
    if len(estimates) and len(best):
        estimates = estimates.set_index("name").loc[["pooled/long", "pooled/short", "pooled"]]
        widths = lines.assign(label=lines["name"].map(subjects()["widths"]))
        widths = widths.query("dataset == ''").dropna(subset="label")
        of_pool = units(joined, load_pools()["pooled"])
        drawn["forest"] = figures.forest(of_pool, estimates, best, widths)
    rates = rate_lines(joined)
    if len(rates):
        drawn["rates"] = figures.rates(rates)
        drawn["curves"] = compare.rate_curves(joined)
    overall = lines.query("dataset == ''").dropna(subset="mean")
    models = overall.assign(model=overall["name"].map(contrasts_against_rope()))
    models = models.dropna(subset="model")
    if len(models):
        title = "After 3,200 steps at the paper's learning rate, 95 % over seeds"
        drawn["models"] = figures.models(models, title)
    return drawn


def contrasts_against_rope() -> dict[str, str]:
    """Returns contrasts that subtract RoPE in the study of `shown.models`: contrast -> model."""
    models, study = {}, subjects()["models"]
    for name, contrast in load_contrasts().items():
        model = contrast.first[0]
        asked = contrast.studies == (study,) and contrast.of == "loss"
        # nope is ten times as far away
        if asked and contrast.seconds == (("rope", ""),) and model != "nope":
            models[name] = model
    return models
