"""Tables as frames of text: planned and exploratory differences, the user's own runs; how numbers
are printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from crope import paper
from crope.report.contrasts import Contrast, load_contrasts
from crope.report.frame import Runs, dataset_label

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Table:
    """A table of text; `marks` has a word per cell for the page, as `LossTable.marks`."""

    name: str
    caption: str
    frame: pd.DataFrame
    marks: Sequence[Sequence[str]] = ()

    def markdown(self) -> str:
        """Prints the caption and a pipe table."""
        header = list(self.frame.columns)
        rows = [header, ["---"] * len(header), *self.frame.to_numpy().tolist()]
        lines = [f"|{'|'.join(map(str, row))}|" for row in rows]
        caption = f"**{self.caption}**\n\n" if self.caption else ""
        return caption + "\n".join(lines)


def to_csv(numbers: pd.DataFrame) -> str:
    return numbers.to_csv(index=False, lineterminator="\n", float_format="%.6f")


def signed(value: float, decimals: int = 4) -> str:
    """Prints `+0.0085` or `−0.0012`; no sign for a rounded 0, `diverged` where a run diverged."""
    if not np.isfinite(value):
        return "diverged"
    text = f"{value:+.{decimals}f}"
    return text.replace("-", MINUS) if float(text) else text[1:]


def interval_text(line: Mapping[Any, Any], decimals: int = 4) -> str:
    """Prints `+0.0085 (+0.0026 to +0.0145)`, or how many of the planned seeds are there."""
    if pd.isna(line["mean"]):
        return f"{line['there']} of {line['planned']} seeds"
    mean = signed(line["mean"], decimals)
    if not line["complete"]:
        return f"{mean} ({line['there']} of {line['planned']} seeds)"
    if np.isnan(line["low"]):
        return mean
    return f"{mean} ({signed(line['low'], decimals)} to {signed(line['high'], decimals)})"


def difference_table(lines: pd.DataFrame, caption: str) -> Table:
    """Prints lines of `answers`: planned ones with their question, exploratory ones by study."""
    contrasts = load_contrasts()
    printed = []
    for line in lines.to_dict("records"):
        contrast = contrasts[line["name"]]
        asked = f"{line['name']}. {contrast.question}"
        first = asked if contrast.date else ", ".join(contrast.studies)
        difference = difference_label(contrast)
        printed.append([first, difference, place(line), nats_text(contrast, line), line["n"]])
    columns = ["Question or study", "Difference", "Where", "Nats per token (95 %)", "n"]
    return Table("differences", caption, pd.DataFrame(printed, columns=columns))


def planned_lines(lines: pd.DataFrame) -> pd.DataFrame:
    """Selects of `answers` what planned questions ask: over all corpora."""
    planned = [name for name, contrast in load_contrasts().items() if contrast.date]
    whole = lines[lines["name"].isin(planned)]
    several = whole.loc[whole["dataset"] == "", "name"]
    return whole[(whole["dataset"] == "") | ~whole["name"].isin(several)]


def difference_label(contrast: Contrast) -> str:
    """Says what is subtracted from what, and over which settings a mean is taken."""
    over = f", mean over {'; '.join(contrast.at) or 'settings'}" if contrast.averaged else ""
    return contrast.label + over


def line_text(contrast: Contrast, line: Mapping[Any, Any]) -> str:
    """Prints a line of `answers` as two: what is subtracted and where, the difference and n."""
    where = f"{difference_label(contrast)}; {place(line)}"
    return f"{where}\n  {nats_text(contrast, line)}, n = {line['n']}"


def nats_text(contrast: Contrast, line: Mapping[Any, Any]) -> str:
    """Prints the interval of a line of `answers`; a loss, which is no difference, without sign."""
    text = interval_text(line)
    return text if MINUS in contrast.label else text.replace("+", "")


def place(line: Mapping[Any, Any]) -> str:
    """Names the corpus, row and setting of a line or a run, without those that say nothing."""
    dataset = dataset_label(line["dataset"]) if line["dataset"] else "all corpora"
    row = "" if line["row"] in ("", "base") else paper.row_label(line["row"])
    return "; ".join(part for part in (dataset, row, line["setting"]) if part)


def own_table(runs: Runs) -> Table:
    """Tabulates the user's runs of the scale beside the published runs of the same cell."""
    public = runs.published.query("status == 'complete'").groupby("cell_key")["loss"]
    ranges = {}
    for key, losses in public:
        ranges[key] = f"{losses.min():.4f} to {losses.max():.4f} ({len(losses)} runs)"
    printed = []
    for run in runs.of_scale.sort_values(["dataset", "run_id"]).to_dict("records"):
        settings = ", ".join(run["settings"])
        loss = f"{run['loss']:.4f}" if run["status"] == "complete" else run["status"]
        beside = ranges.get(run["cell_key"], "")
        minutes = f"{run['time.total_s'] / 60:.1f}" if pd.notna(run["time.total_s"]) else ""
        printed.append([run["run_id"], settings, loss, minutes, run["code"], beside])
    columns = ["Run", "Differs from the default", "Final loss", "Minutes", "Code", "Published"]
    frame = pd.DataFrame(printed, columns=columns)
    frame = frame.drop(columns=[name for name in ("Code", "Published") if not frame[name].any()])
    return Table("own", "Each of your runs, beside published ones of its cell", frame)
