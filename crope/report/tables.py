"""Tables as frames of text, from the frame of runs and the lines of evidence: Tables 1 and 2 with
the paper's numbers, planned and exploratory differences, the user's own runs.

Two protocols, everywhere of the same name:

full      loss after the last step on the whole validation split or a fixed part of it; ± is the
          standard deviation over seeds
sampled   the paper's: mean and standard deviation of the sampled validation losses of the last 10 %
          of steps, averaged over seeds
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from crope import paper
from crope.report.evidence import Contrast, answer
from crope.report.frame import PAIR, Runs, dataset_label, error_line, model_label
from crope.runs.study import StudyRow

MINUS = "\N{MINUS SIGN}"
PROTOCOLS = {
    "full": ("val_full.final_nats", "std over seeds"),
    "sampled": ("val_sampled.mean_nats", "val_sampled.std_nats"),
}
LINE = ["scale", "dataset", "row", "protocol", "model", "n", "mean", "std"]


@dataclass(frozen=True)
class Table:
    """A table of text; `numbers` are the same lines as numbers, for the CSV file."""

    name: str
    caption: str
    frame: pd.DataFrame
    notes: Sequence[str] = ()
    numbers: pd.DataFrame = field(default_factory=pd.DataFrame)

    def markdown(self) -> str:
        """A caption, a pipe table and a list of notes."""
        header = list(self.frame.columns)
        rows = [header, ["---"] * len(header), *self.frame.to_numpy().tolist()]
        lines = [f"|{'|'.join(map(str, row))}|" for row in rows]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"**{self.caption}**", "", *lines, *([""] if notes else []), *notes])

    def csv(self) -> str:
        numbers = self.numbers if len(self.numbers) else self.frame
        return numbers.to_csv(index=False, lineterminator="\n", float_format="%.6f")


def signed(value: float, decimals: int = 4) -> str:
    """`+0.0085` or `−0.0012`; no sign for a rounded 0, `diverged` where a run diverged."""
    if not np.isfinite(value):
        return "diverged"
    text = f"{value:+.{decimals}f}"
    return text.replace("-", MINUS) if float(text) else text[1:]


def interval_text(line: Mapping[Any, Any], decimals: int = 4) -> str:
    """`+0.0085 (+0.0026 to +0.0145)`, or how many of the planned seeds are there."""
    if line["n"] == 0:
        return f"0 of {line['planned']} seeds"
    mean = signed(line["mean"], decimals)
    if not line["complete"]:
        return f"{mean} ({line['n']} of {line['planned']} seeds)"
    if np.isnan(line["low"]):
        return mean
    return f"{mean} ({signed(line['low'], decimals)} to {signed(line['high'], decimals)})"


def plus_minus(mean: float, std: float, decimals: int) -> str:
    """`4.9882 ± 0.0135`; without ± where there is none."""
    spread = "" if pd.isna(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread}"


def losses(runs: pd.DataFrame) -> pd.DataFrame:
    """The columns LINE, in nats per token: one line per corpus, row, protocol and model.

    runs   those of one table of `by_study`
    """
    keys = ["scale", "dataset", "row", "model"]
    groups = runs.groupby(keys, sort=False)
    parts = []
    for protocol, (mean, std) in PROTOCOLS.items():
        part = groups.agg(n=("seed", "size"), mean=(mean, "mean"))
        part["std"] = groups[mean].std() if protocol == "full" else groups[std].mean()
        parts.append(part.assign(protocol=protocol).reset_index())
    return pd.concat(parts, ignore_index=True)[LINE]


def loss_table(
    name: str,
    rows: Iterable[StudyRow],
    runs: pd.DataFrame,
    paper_size: pd.DataFrame,
    reasons: Mapping[tuple[str, str, str], str],
) -> Table:
    """Table 1 or 2: below each of the paper's lines this project's.

    rows         of the study `name`, at the scale that is reported
    runs         of `by_study`
    paper_size   those that were made at the paper's own size; empty where `runs` are
    reasons      (dataset, row, model) -> why the cell has no run
    """
    decimals = paper.PRINTED_DECIMALS[name]
    lines = losses(runs)
    large = losses(paper_size)
    printed, numbers = [], []
    for row in rows:
        dataset, ablation = row.dataset, row.cells[0].row
        label = dataset_label(dataset) if name == "table1" else paper.row_label(ablation)
        stated = {
            cell.model: paper.printed_loss(name, ablation, dataset, cell.model)
            for cell in row.cells
        }
        if any(stated.values()):
            difference = ""
            crope, rope = stated.get("crope"), stated.get("rope")
            if crope and rope:
                difference = signed(crope.mean_nats - rope.mean_nats, decimals)
            printed.append([label, "paper", *_paper_cells(stated, decimals), difference])
            label = ""
        kinds = [(protocol, lines, runs, protocol) for protocol in PROTOCOLS]
        kinds.append(("full, paper's size", large, paper_size, "full"))
        for kind, source, its_runs, protocol in kinds:
            here = (source["dataset"] == dataset) & (source["row"] == ablation)
            of_row = source[here & (source["protocol"] == protocol)].set_index("model")
            if of_row.empty and kind != "full":
                continue
            numbers.append(of_row.reset_index().assign(table=name, protocol=kind))
            cells = _own_cells(of_row, [cell.model for cell in row.cells], decimals)
            for at, cell in enumerate(row.cells):
                if cells[at] == "missing":
                    cells[at] = reasons.get((dataset, ablation, cell.model), "missing")
            difference = ""
            if protocol == "full":
                own = its_runs[(its_runs["dataset"] == dataset) & (its_runs["row"] == ablation)]
                difference = _pair_difference(own, decimals)
                label = label or _size(own)
            printed.append([label, kind, *cells, difference])
            label = ""
    if name == "table1":
        printed.append(["Parameters", "", *_parameters(runs, row), ""])
    header = ["Dataset" if name == "table1" else "Configuration", ""]
    header += [model_label(cell.model) for cell in row.cells]
    frame = pd.DataFrame(printed, columns=[*header, f"CRoPE {MINUS} RoPE"])
    every = pd.concat(numbers, ignore_index=True)[["table", *LINE]]
    return Table(name, f"{paper.TABLE_TITLES[name]}, nats per token", frame, numbers=every)


def _paper_cells(stated: Mapping[str, paper.PrintedLoss | None], decimals: int) -> list[str]:
    cells = []
    for loss in stated.values():
        cells.append(plus_minus(loss.mean_nats, loss.std_nats, decimals) if loss else "")
    return cells


def _own_cells(of_row: pd.DataFrame, models: Sequence[str], decimals: int) -> list[str]:
    """One cell per model; n is that of RoPE and CRoPE unless stated."""
    cells = []
    usual = max((of_row["n"].get(model, 0) for model in PAIR), default=0)
    for model in models:
        if model not in of_row.index:
            cells.append("missing")
            continue
        line = of_row.loc[model].to_dict()
        text = plus_minus(line["mean"], line["std"], decimals)
        cells.append(
            text if line["n"] == usual or not usual else f"{text} (n\u00a0=\u00a0{line['n']})"
        )
    return cells


def _pair_difference(runs: pd.DataFrame, decimals: int) -> str:
    """CRoPE - RoPE of the runs of one line, with its interval and n; empty without both models."""
    pair = runs[runs["model"].isin(PAIR)]
    if pair.empty:
        return ""
    contrast = Contrast("", tuple(pair["study"].unique()), "", ("crope", ""), (("rope", ""),))
    lines = answer(pair, contrast)
    if lines.empty:
        return ""
    line = lines.iloc[0].to_dict() | {"complete": True}
    return f"{interval_text(line, decimals)}, n\u00a0=\u00a0{line['n']}"


def _size(runs: pd.DataFrame) -> str:
    """The settings of runs of another size than the paper's row; empty for the paper's own."""
    if runs.empty or runs["scale"].iloc[0] == "paper":
        return ""
    train = runs.iloc[0]
    batch, length = train["config.train.batch_size"], train["config.train.seq_len"]
    return f"here B={batch}, L={length}, {train['config.train.max_steps']:,} steps"


def _parameters(runs: pd.DataFrame, row: StudyRow) -> list[str]:
    """The number of parameters of each model of a row, with the embedding."""
    sizes = runs.dropna(subset="parameters.total").groupby("model")["parameters.total"].max()
    cells = []
    for cell in row.cells:
        cells.append(f"{sizes[cell.model]:,.0f}" if cell.model in sizes else "")
    return cells


def missing_reasons(runs: Runs, rows: Iterable[StudyRow]) -> dict[tuple[str, str, str], str]:
    """Why cells have no complete run: failed, stale, invalid or missing data, in a few words."""
    reasons = {}
    for row in rows:
        for cell in row.cells:
            key = (cell.dataset, cell.row, cell.model)
            of_cell = runs.shown[runs.shown["cell_key"] == cell.key]
            prefix = f"{cell.model}-{cell.dataset}-{cell.row}-s"
            damaged = [error for error in runs.invalid if error.path.name.startswith(prefix)]
            if damaged:
                reasons[key] = f"invalid: {damaged[0].reason}"
            elif cell.dataset in runs.unavailable:
                reasons[key] = "missing: no data"
            elif (of_cell["status"] == "failed").any():
                failed = of_cell[of_cell["status"] == "failed"].iloc[0]
                reasons[key] = f"failed: {error_line(failed)}"
            elif (of_cell["status"] == "stale").any():
                reasons[key] = "stale: its model's code has changed"
    return reasons


def difference_table(
    name: str, caption: str, lines: pd.DataFrame, contrasts: Mapping[str, Contrast]
) -> Table:
    """The lines of `answers`, planned ones with their question, exploratory ones by study."""
    printed = []
    for line in lines.to_dict("records"):
        contrast = contrasts[line["name"]]
        where = [dataset_label(line["dataset"]) if line["dataset"] else "all corpora"]
        if line["row"] not in ("", "base"):
            where.append(paper.row_label(line["row"]))
        where.append(line["setting"])
        first = (
            f"{line['name']}. {contrast.question}" if contrast.date else ", ".join(contrast.studies)
        )
        difference = contrast.label + (", mean over settings" if contrast.averaged else "")
        place = "; ".join(part for part in where if part)
        printed.append([first, difference, place, interval_text(line), str(line["n"])])
    head = "Question" if name == "planned" else "Study"
    columns = [head, "Difference", "Where", "Nats per token (95 %)", "n"]
    frame = pd.DataFrame(printed, columns=columns)
    return Table(name, caption, frame, numbers=lines.drop(columns="by_seed"))


def own_table(runs: Runs, table_cells: Iterable[str]) -> Table:
    """The user's own runs of the tables beside the published ones of the same cell."""
    own = runs.own[(runs.own["status"] == "complete") & runs.own["cell_key"].isin(table_cells)]
    public = runs.published[runs.published["status"] == "complete"]
    printed = []
    for _, of_cell in own.groupby(["dataset", "row", "model", "cell_key"], sort=False):
        run = of_cell.iloc[0]
        others = public.loc[public["cell_key"] == run["cell_key"], "loss"]
        span = f"{others.min():.3f} to {others.max():.3f}" if len(others) else "none"
        place = dataset_label(run["dataset"])
        if run["row"] != "base":
            place += f", {paper.row_label(run['row'])}"
        mine = ", ".join(f"{loss:.3f}" for loss in of_cell.sort_values("seed")["loss"])
        printed.append([place, model_label(run["model"]), mine, span, str(len(others))])
    columns = ["Dataset", "Model", "Yours, by seed", "Published", "Published runs"]
    return Table(
        "yours", "Your runs beside the published ones", pd.DataFrame(printed, columns=columns)
    )


def other_runs_table(runs: Runs, table_cells: Iterable[str], special: Mapping[str, str]) -> Table:
    """The user's own runs outside the tables. special: run_id -> what differs from the default."""
    other = runs.own[~runs.own["cell_key"].isin(table_cells)]
    printed = []
    for run in other.sort_values("run_id").to_dict("records"):
        loss = f"{run['loss']:.4f}" if run["status"] == "complete" else run["status"]
        printed.append([run["run_id"], run["scale"], special.get(run["run_id"], ""), loss])
    columns = ["Run", "Scale", "Differs from the default", "Final loss"]
    return Table("other_runs", "Your other runs", pd.DataFrame(printed, columns=columns))
