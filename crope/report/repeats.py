"""Runs that were executed more than once: how far published repeats lie apart, and the user's own
runs from the published ones.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from crope.report.frame import DATASET_LABELS, row_label
from crope.report.tables import DECIMALS, Table

SAME, ANY = "the same precision", "any precision"
FACTS = {  # in which two executions of a run may differ -> column
    "commit": "provenance.commit",
    "device": "provenance.device",
    "threads": "threads",
    "precision": "precision",
}
ORDER = (
    "The order of operations, and so rounding, may change between commits under one run id: compare"
    " devices at equal commits."
)


def repeats(frames: Mapping[str, pd.DataFrame], scale: str) -> pd.DataFrame:
    """Published runs of one configuration and seed that were executed more than once: one row per
    table row, dataset and `kind`.

    frames: by the name of their folder. `differ` names those of FACTS in which executions of a run
    differ; in rows of ANY precision is one of them. largest, median: of the range of a run's final
    losses; std: over seeds, mean over models and executions.
    """
    parts = [frame[(frame["status"] == "complete") & (frame["scale"] == scale)].assign(folder=name)
             for name, frame in frames.items()]  # fmt: skip
    if not parts:
        return pd.DataFrame()
    runs = pd.concat(parts, ignore_index=True).drop_duplicates(
        ["run_id", "finished_utc"]
    )  # no copies
    order = {name: i for i, name in enumerate(DATASET_LABELS)}
    runs = runs.sort_values("dataset", key=lambda names: names.map(order), kind="stable")
    lines = []
    for kind, keys in ((SAME, ["run_id"]), (ANY, ["cell_key", "model", "seed"])):
        for (dataset, row), of in runs.groupby(["dataset", "row"], sort=False):
            again = of[of.duplicated(keys, keep=False)]
            if again.empty or (kind == ANY and again["precision"].nunique() == 1):
                continue
            ranges = again.groupby(keys)["val_full.final_nats"].agg(np.ptp)
            spread = (
                again.groupby(["folder", "cell_key", "model"])["val_full.final_nats"].std().dropna()
            )
            varies = again.groupby(keys)[list(FACTS.values())].nunique(dropna=False).max() > 1
            sets = [
                f"{folder} ({', '.join(sorted(commits.str[:7].unique()))})"
                for folder, commits in again.groupby("folder")["provenance.commit"]
            ]
            lines.append({
                "dataset": dataset, "row": row, "kind": kind, "runs": len(ranges), "sets": ", ".join(sets),
                "differ": ", ".join(name for name, column in FACTS.items() if varies[column]),
                "largest_nats": ranges.max(), "median_nats": ranges.median(), "std_over_seeds_nats": spread.mean(),
            })  # fmt: skip
    return pd.DataFrame(lines)


def repeats_table(lines: pd.DataFrame, scale: str) -> Table:
    frame = pd.DataFrame({
        "Row": [row_label(*place) for place in zip(lines["dataset"], lines["row"], strict=True)],
        "Executed": lines["kind"], "Sets (commits)": lines["sets"], "Differ": lines["differ"],
        "Runs": lines["runs"].astype(str),
        "Largest": lines["largest_nats"].map("{:.4f}".format), "Median": lines["median_nats"].map("{:.4f}".format),
        "Std over seeds": lines["std_over_seeds_nats"].map("{:.4f}".format, na_action="ignore").fillna(""),
    })  # fmt: skip
    notes = [
        "Published runs of one configuration and seed that were executed more than once: how far their final full"
        f" validation losses, nats per token, lie apart, next to the spread over seeds. {ORDER}"
    ]
    caption = f"Runs executed more than once. Scale: {scale}."
    return Table("repeats", caption, frame, notes, text=(0, 1, 2, 3), numbers=lines.round(DECIMALS))


def agreement(own: pd.DataFrame, published: Mapping[str, pd.DataFrame], scale: str) -> str:
    """The user's runs against published runs of the same id and scale, by which FACTS differ."""
    columns = ["run_id", "dataset", "row", "finished_utc", "val_full.final_nats", *FACTS.values()]
    mine, *others = (
        frame[(frame["status"] == "complete") & (frame["scale"] == scale)].reindex(columns=columns)
        for frame in (own, *published.values())
    )
    if mine.empty or all(frame.empty for frame in others):
        return ""
    pairs = mine.merge(pd.concat(others), on="run_id", suffixes=("", " published"))
    pairs = pairs[pairs["finished_utc"] != pairs["finished_utc published"]]  # no copies
    if pairs.empty:
        return ""
    distance = (pairs["val_full.final_nats"] - pairs["val_full.final_nats published"]).abs()
    differ = [
        ", ".join(name for name, key in FACTS.items() if pair[key] != pair[f"{key} published"])
        for pair in pairs.to_dict("records")
    ]
    pairs = pairs.assign(distance=distance, differ=differ).sort_values("distance", ascending=False)
    parts = []
    for names in pairs["differ"].unique():
        group = pairs[pairs["differ"] == names]
        farthest, n = group.iloc[0], group["run_id"].nunique()
        row = row_label(farthest["dataset"], farthest["row"])
        what = f"another {names}" if names else f"the same {', '.join(FACTS)}"
        runs = f"{n} {'run' if n == 1 else 'runs'} with {what}"
        parts.append(f"{farthest['distance']:.4f} nats ({row}; {runs})")
    text = (
        f"{pairs['run_id'].nunique()} of your runs are published too."
        f" Largest difference of their final losses: {'; '.join(parts)}."
    )
    return f"{text} {ORDER}" if any("commit" in names for names in differ) else text
