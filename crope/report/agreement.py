"""Runs that were executed more than once: how far published repeats lie apart, and the user's own
runs from the published ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from crope.report.frame import DATASET_LABELS, dataset_label, row_label
from crope.report.tables import Table

LOSS = "val_full.final_nats"
SAME, ANY = "the same precision", "any precision"
FACTS = {  # in which two executions of a run may differ -> column
    "commit": "provenance.commit",
    "device": "provenance.device",
    "threads": "threads",
    "precision": "precision",
}
HEADINGS = {
    "row": "Row",
    "kind": "Executed",
    "sets": "Sets (commits)",
    "differ": "Differ",
    "runs": "Runs",
    "largest_nats": "Largest",
    "median_nats": "Median",
    "std_over_seeds_nats": "Std over seeds",
}
ORDER = (
    "The order of operations, and so rounding, may change between commits under one run id: compare"
    " devices at equal commits."
)


def _complete(frames: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """The complete runs of one scale, with the name of their folder."""
    runs = pd.concat(frames, names=["folder"]).reset_index("folder")
    return runs[(runs["status"] == "complete") & (runs["scale"] == scale)]


def repeats(frames: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """Published runs of one configuration and seed that were executed more than once: one row per
    table row, dataset and `kind`.

    frames: by the name of their folder. `differ` names those of FACTS in which executions of a run
    differ; in rows of ANY precision is one of them. largest, median: of the range of a run's final
    losses; std: over seeds, mean over models and executions.
    """
    if not frames:
        return pd.DataFrame()
    runs = _complete(frames, scale).drop_duplicates(["run_id", "finished_utc"])  # no copies
    order = {name: i for i, name in enumerate(DATASET_LABELS)}
    runs = runs.sort_values("dataset", key=lambda names: names.map(order), kind="stable")
    lines = []
    for kind, keys in ((SAME, ["run_id"]), (ANY, ["cell_key", "model", "seed"])):
        for (dataset, row), of_row in runs.groupby(["dataset", "row"], sort=False):
            again = of_row[of_row.duplicated(keys, keep=False)]
            if again.empty or (kind == ANY and again["precision"].nunique() == 1):
                continue
            lines.append({"dataset": dataset, "row": row, "kind": kind} | _line(again, keys))
    return pd.DataFrame(lines)


def _line(again: pd.DataFrame, keys: list[str]) -> dict[str, Any]:
    """How far the executions of runs lie apart; executions of one run have the same `keys`."""
    executions = again.groupby(keys)
    ranges = executions[LOSS].agg(np.ptp)
    varies = executions[list(FACTS.values())].nunique(dropna=False).max() > 1
    sets = []
    for folder, commits in again.groupby("folder")["provenance.commit"]:
        sets.append(f"{folder} ({', '.join(sorted(commits.str[:7].unique()))})")
    return {
        "runs": len(ranges),
        "sets": ", ".join(sets),
        "differ": ", ".join(name for name, column in FACTS.items() if varies[column]),
        "largest_nats": ranges.max(),
        "median_nats": ranges.median(),
        "std_over_seeds_nats": again.groupby(["folder", "cell_key", "model"])[LOSS].std().mean(),
    }


def repeats_table(lines: pd.DataFrame, scale: str) -> Table:
    losses = ["largest_nats", "median_nats", "std_over_seeds_nats"]
    places = zip(lines["dataset"], lines["row"], strict=True)
    printed = lines.assign(row=[row_label(dataset, row) for dataset, row in places])
    printed[losses] = lines[losses].map("{:.4f}".format).replace("nan", "")
    frame = printed[list(HEADINGS)].astype(str).rename(columns=HEADINGS)
    notes = [
        "Published runs of one configuration and seed that were executed more than once: how far their final full"
        f" validation losses, nats per token, lie apart, next to the spread over seeds. {ORDER}"
    ]
    caption = f"Runs executed more than once. Scale: {scale}."
    return Table("repeats", caption, frame, notes, text=(0, 1, 2, 3), numbers=lines)


def expectation(runs: pd.DataFrame, lines: pd.DataFrame) -> str:
    """What the first of `runs` (of RoPE on PTB) ended at, and how far repeats of the base rows
    (`repeats`) ended away; empty without either.
    """
    if runs.empty or lines.empty:
        return ""
    first = runs.iloc[0]
    parts = []
    for dataset, of_dataset in lines[lines["row"] == "base"].groupby("dataset", sort=False):
        distances = "/".join(of_dataset["largest_nats"].map("{:.3f}".format))  # of SAME, of ANY
        parts.append(f"{dataset_label(str(dataset))} {distances}")
    return (
        f"**What you should see.** RoPE on {DATASET_LABELS['ptb']}, seed {first['seed']}, {first['scale']} scale,"
        f" {first['precision']}: {first[LOSS]:.3f}. Repeats (same/any precision) differ by at most:"
        f" {', '.join(parts)} nats (rounding)."
    )


def agreement(own: pd.DataFrame, published: Mapping[str, pd.DataFrame], scale: str) -> str:
    """The user's runs against published runs of the same id and scale, by which FACTS differ."""
    if not published:
        return ""
    mine = _complete({"own": own}, scale)
    pairs = mine.merge(_complete(published, scale), on="run_id", suffixes=("", " published"))
    pairs = pairs[pairs["finished_utc"] != pairs["finished_utc published"]]  # no copies
    if pairs.empty:
        return ""
    pairs["differ"] = [
        ", ".join(name for name, key in FACTS.items() if pair[key] != pair[f"{key} published"])
        for pair in pairs.to_dict("records")
    ]
    pairs["distance"] = (pairs[LOSS] - pairs[f"{LOSS} published"]).abs()
    pairs = pairs.sort_values("distance", ascending=False)
    parts = []
    for names, group in pairs.groupby("differ", sort=False):
        farthest, n = group.iloc[0], group["run_id"].nunique()
        what = f"another {names!s}" if names else f"the same {', '.join(FACTS)}"
        runs = f"{n} {'run' if n == 1 else 'runs'} with {what}"
        row = row_label(farthest["dataset"], farthest["row"])
        parts.append(f"{farthest['distance']:.4f} nats ({row}; {runs})")
    text = (
        f"{pairs['run_id'].nunique()} of your runs are published too."
        f" Largest difference of their final losses: {'; '.join(parts)}."
    )
    return f"{text} {ORDER}" if pairs["differ"].str.contains("commit").any() else text
