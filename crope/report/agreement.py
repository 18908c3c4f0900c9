"""Runs that were executed more than once: how far published executions of one run lie apart, and
the user's own runs from the published ones.
"""

import numpy as np
import pandas as pd

from crope import paper
from crope.report.frame import Runs, dataset_label, model_label
from crope.report.tables import MINUS, Table, interval_text, place

EXECUTION = ["cell_key", "model", "seed"]  # two runs with these in common differ in rounding alone


def repeats(published: pd.DataFrame) -> pd.DataFrame:
    """Measures how far executions of one run lie apart: one line per scale, corpus and row with
    `runs` and `largest` (of the range of their final losses, nats per token), at equal and at any
    precision.
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


def repeats_table(published: pd.DataFrame) -> Table:
    lines = repeats(published)
    printed = lines[["scale", "dataset", "row", "precision", "runs", "largest"]].assign(
        dataset=lines["dataset"].map(dataset_label),
        row=lines["row"].map(paper.row_label),
        largest=lines["largest"].map("{:.4f}".format),
    )
    caption = "Runs executed more than once: how far their final losses lie apart, nats per token"
    printed = printed.rename(columns={"largest": "largest difference"})
    return Table("repeats", caption, printed.rename(columns=str.capitalize))


def own_and_published(runs: Runs) -> pd.DataFrame:
    """Finds the user's complete runs that are published too, with `published` (the loss that lies
    nearest) and `distance`, in nats per token.
    """
    own = runs.own[runs.own["status"] == "complete"]
    public = runs.published[runs.published["status"] == "complete"]
    public = public[~public["finished_utc"].isin(own["finished_utc"])]  # no copies
    public = public[[*EXECUTION, "loss"]].rename(columns={"loss": "published"})
    pairs = own.merge(public, on=EXECUTION)
    pairs["distance"] = (pairs["loss"] - pairs["published"]).abs()
    return pairs.sort_values("distance").drop_duplicates(EXECUTION)


def verdict(runs: Runs, lines: pd.DataFrame) -> list[str]:
    """Tells a user who has trained Table 1 per corpus RoPE's loss beside the published and the
    paper's, and whether the runs agree; then what the published seeds say of CRoPE - RoPE.

    lines   CRoPE - RoPE of the published runs of Table 1, of `answers`
    """
    pairs = own_and_published(runs).query("row == 'base' and scale == @runs.scale")
    bounds = repeats(runs.published).query("row == 'base' and scale == @runs.scale")
    largest = bounds.groupby("dataset")["largest"].max()
    text = []
    for dataset, of_dataset in pairs.sort_values("seed").groupby("dataset"):
        rope = of_dataset[of_dataset["model"] == "rope"]
        run = (rope if len(rope) else of_dataset).iloc[0]
        of_paper = paper.printed_loss("table1", "base", str(dataset), run["model"])
        printed = f", paper {of_paper.mean_nats:.3f}" if of_paper else ""
        text.append(
            f"{dataset_label(str(dataset))}: {model_label(run['model'])} {run['loss']:.3f},"
            f" published {run['published']:.3f}{printed}"
        )
        apart, bound = of_dataset["distance"].max(), largest.get(dataset, np.inf)
        agree = "agree" if apart <= bound else "do NOT agree"
        known = f" (repeated runs: {bound:.3f})" if np.isfinite(bound) else ""
        count = len(of_dataset)
        text.append(f"  {count} runs {agree} with published ones: at most {apart:.3f} apart{known}")
    if text and len(lines):
        seeds = pairs["seed"].nunique()  # of one of them nothing follows
        text.append(f"CRoPE {MINUS} RoPE by the published seeds (nats, 95 %); your seeds: {seeds}")
        for line in lines.to_dict("records"):
            text.append(f"  {place(line)} {interval_text(line, 3)}, {line['n']} seeds")
    return text
