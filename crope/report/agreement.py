"""Repeated runs: how far published executions of one run lie apart, and the user's own from the
published ones.
"""

import numpy as np
import pandas as pd

from crope import paper
from crope.data.grammar import VALIDATION_NATS
from crope.report.frame import Runs, dataset_label
from crope.report.tables import Table

ROW = ["scale", "dataset", "row"]
EXECUTION = ["cell_key", "model", "seed"]  # two runs with these in common differ in rounding alone


def repeats(published: pd.DataFrame, *same: str) -> pd.DataFrame:
    """Measures how far executions of one run, and of one value of `same`, lie apart: one line per
    scale, corpus and row with `runs` and `largest` (range of their final losses, nats per token).
    """
    complete = published[published["status"] == "complete"]
    of_run = complete.groupby([*ROW, *EXECUTION, *same])["loss"]
    ranges = of_run.agg(["size", "min", "max"]).query("size > 1")
    again = (ranges["max"] - ranges["min"]).groupby(ROW)
    return again.agg(runs="size", largest="max").reset_index()


def repeats_table(published: pd.DataFrame, *same: str) -> Table:
    """Tabulates `repeats`."""
    lines = repeats(published, *same)
    printed = {
        "Scale": lines["scale"],
        "Dataset": lines["dataset"].map(dataset_label),
        "Row": lines["row"].map(paper.row_label),
        "Runs": lines["runs"],
        "Largest difference": lines["largest"].map("{:.4f}".format),
    }
    caption = "Runs repeated, different in rounding alone: final losses, nats per token"
    return Table("repeats", caption, pd.DataFrame(printed))


def own_and_published(runs: Runs) -> pd.DataFrame:
    """Finds the user's complete and diverged runs that are published too, with `published` (the
    nearest loss) and `distance`, in nats per token.
    """
    own = runs.own[runs.own["loss"].notna() & (runs.own["status"] != "stale")]
    public = runs.published.query(
        "status == 'complete' and finished_utc not in @own.finished_utc"  # no copies
    )
    public = public[[*EXECUTION, "loss"]].rename(columns={"loss": "published"})
    pairs = own.merge(public, on=EXECUTION)
    pairs["distance"] = (pairs["loss"] - pairs["published"]).abs()
    return pairs.sort_values("distance").drop_duplicates(EXECUTION)


def of_tables(runs: Runs) -> pd.DataFrame:
    """Selects of `own_and_published` the runs of rows of Tables 1 and 2, also with other settings,
    with `bound` (how far published repeats on the corpus lie apart; infinite without any) and
    `agrees`.
    """
    pairs = own_and_published(runs).query("scale == @runs.scale and row in @paper.ROW_LABELS")
    again = repeats(runs.published).query("scale == @runs.scale")
    bounds = again.groupby("dataset")["largest"].max()
    bound = pairs["dataset"].map(bounds).astype(float).fillna(np.inf)
    return pairs.assign(bound=bound, agrees=pairs["distance"] <= bound)


def card(runs: Runs) -> str:
    """Says in a line how many of the user's runs agree, and how they were made; empty without."""
    pairs = of_tables(runs)
    if pairs.empty:
        return ""
    devices = ", ".join(sorted(set(pairs["provenance.device"].dropna())))
    commits = ", ".join(sorted({str(commit)[:8] for commit in pairs["provenance.commit"].dropna()}))
    hours = pairs["time.total_s"].astype(float).sum() / 3600
    return f"{agreement(pairs)}. Machine: {devices}; commit: {commits}; {hours:.1f} hours of runs."


def agreement(pairs: pd.DataFrame) -> str:
    """Says how many of these runs agree with the nearest published ones, where repeats tell how far
    apart these may lie.
    """
    known = pairs[np.isfinite(pairs["bound"])]
    apart = f"at most {(pairs if known.empty else known)['distance'].max():.3f} apart"
    if known.empty:
        return f"{len(pairs)} runs and the nearest published ones are {apart}"
    return f"{known['agrees'].sum()} of {len(known)} runs agree with the nearest published ones, {apart}"


def other_code(runs: Runs) -> list[str]:
    """Says how many of the user's runs were trained by code that has changed since."""
    count = (runs.own["code"] != "").sum()  # a study may fix another scale
    text = f"{count} of {len(runs.own)} runs were trained by other code (tools.py list names it)"
    return [text] if count else []


def verdict(runs: Runs) -> list[str]:
    """Says per corpus how the user's runs of `of_tables` agree with the published ones, and what
    RoPE's loss in the first row, with no other settings, is beside other numbers.
    """
    text = []
    for dataset, of_dataset in of_tables(runs).groupby("dataset"):
        bound = of_dataset["bound"].iloc[0]
        known = f" (repeated runs: {bound:.3f})" if np.isfinite(bound) else ""
        text.append(f"{dataset_label(str(dataset))}: {agreement(of_dataset)}{known}")
        rope = of_dataset.query("model == 'rope' and row == 'base' and settings.str.len() == 0")
        for run in rope.sort_values("seed").head(1).to_dict("records"):
            beside = f"RoPE {run['loss']:.3f}, published {run['published']:.3f}"
            if of_paper := paper.printed_loss("table1", "base", run["dataset"], "rope"):
                beside += f", the paper's at its size {of_paper.mean_nats:.3f}"
            if dataset == "tiny":
                lowest = VALIDATION_NATS / run["provenance.data.splits.validation.tokens"]
                beside += f", the lowest possible {lowest:.3f}"
            text.append(f"  {beside}")
    return text
