"""Runs that were executed more than once: how far published executions of one run lie apart, and
the user's own runs from the published ones.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from crope import paper
from crope.report.frame import Runs, dataset_label, model_label
from crope.report.tables import MINUS, Table, interval_text

EXECUTION = ["cell_key", "model", "seed"]  # two runs with these in common differ in rounding alone


def repeats(published: pd.DataFrame) -> pd.DataFrame:
    """How far executions of one run lie apart: one line per scale, corpus and row with `runs` and
    `largest` (of the range of their final losses, nats per token), at equal and at any precision.
    """
    complete = published[published["status"] == "complete"]
    lines = []
    for kind, keys in (("same", [*EXECUTION, "precision"]), ("any", EXECUTION)):
        ranges = complete.groupby(["scale", "dataset", "row", *keys])["loss"].agg(["size", np.ptp])
        again = ranges[ranges["size"] > 1]["ptp"]
        of_row = again.groupby(["scale", "dataset", "row"]).agg(["size", "max"]).reset_index()
        lines.append(of_row.assign(precision=kind))
    columns = {"size": "runs", "max": "largest"}
    return pd.concat(lines, ignore_index=True).rename(columns=columns)


def repeats_table(lines: pd.DataFrame) -> Table:
    printed = lines.assign(
        dataset=lines["dataset"].map(dataset_label),
        row=lines["row"].map(paper.row_label),
        largest=lines["largest"].map("{:.4f}".format),
    )
    columns = {
        "scale": "Scale",
        "dataset": "Dataset",
        "row": "Row",
        "precision": "Precision",
        "runs": "Runs",
        "largest": "Largest difference",
    }
    caption = "Runs executed more than once: how far their final losses lie apart, nats per token"
    return Table("repeats", caption, printed[list(columns)].rename(columns=columns), numbers=lines)


def own_and_published(runs: Runs) -> pd.DataFrame:
    """The user's complete runs that are published too, with `published` (the loss that lies
    nearest) and `distance`, in nats per token.
    """
    own = runs.own[runs.own["status"] == "complete"]
    public = runs.published[runs.published["status"] == "complete"]
    public = public[~public["finished_utc"].isin(own["finished_utc"])]  # no copies
    pairs = own.merge(public[[*EXECUTION, "loss"]], on=EXECUTION, suffixes=("", "_published"))
    pairs["distance"] = (pairs["loss"] - pairs["loss_published"]).abs()
    nearest = pairs.sort_values("distance").drop_duplicates(EXECUTION)
    return nearest.rename(columns={"loss_published": "published"})


def verdict(runs: Runs, lines: pd.DataFrame) -> Sequence[str]:
    """What a user who has trained Table 1 wants to know: per corpus RoPE's loss beside the
    published and the paper's, and whether the runs agree; then what his seeds say of CRoPE - RoPE.

    lines   CRoPE - RoPE of the published runs of Table 1, of `answers`
    """
    pairs = own_and_published(runs)
    pairs = pairs[(pairs["scale"] == runs.scale) & (pairs["row"] == "base")]
    bounds = repeats(runs.published)
    bounds = bounds[(bounds["scale"] == runs.scale) & (bounds["row"] == "base")]
    largest = bounds.groupby("dataset")["largest"].max()
    text = []
    for dataset, of_dataset in pairs.groupby("dataset", sort=False):
        shown = of_dataset.sort_values(["model", "seed"])
        rope = shown[shown["model"] == "rope"]
        run = (rope if len(rope) else shown).iloc[0]
        stated = paper.printed_loss("table1", "base", str(dataset), run["model"])
        printed = f", paper {stated.mean_nats:.3f}" if stated else ""
        text.append(
            f"{dataset_label(str(dataset))}: {model_label(run['model'])} {run['loss']:.3f},"
            f" published {run['published']:.3f}{printed}"
        )
        apart = of_dataset["distance"].max()
        bound = largest.get(dataset, np.nan)
        agree = "agree" if apart <= bound else "do NOT agree"
        text.append(
            f"  {len(shown)} runs {agree} with the published ones:"
            f" at most {apart:.3f} apart (repeats: {bound:.3f})"
        )
    seeds = runs.own.loc[runs.own["row"] == "base", "seed"].nunique()
    if text and len(lines):
        few = "One seed says" if seeds == 1 else f"{seeds} seeds say"
        text.append(f"{few} little of CRoPE {MINUS} RoPE. The published seeds (nats, 95 %):")
        for line in lines.to_dict("records"):
            difference = interval_text(line, 3)
            text.append(f"  {dataset_label(line['dataset'])} {difference}, {line['n']} seeds")
    return text
