"""Tables 1 and 2: below each of the paper's lines this project's, as values; text comes last.

Protocols:

paper     what the paper prints
full      loss after the last step on the whole validation split or a fixed part of it, ± over seeds
lowest    the lowest of the run's full losses, where a later one is higher
sampled   the paper's: mean and ± of the sampled validation losses of the last 10 % of steps,
          averaged over seeds
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat

import numpy as np
import pandas as pd

from crope import paper
from crope.report.evidence import crope_minus_rope, estimate
from crope.report.frame import TABLE_PAIR, dataset_label, model_label
from crope.report.tables import MINUS, Table, interval_text, signed
from crope.report.tables import place as place_text

# The columns of mean and ±; where the second is empty, ± is the standard deviation over seeds.
PROTOCOLS = {
    "full": ("loss", ""),
    "lowest": ("val_full.best_nats", ""),
    "sampled": ("val_sampled.mean_nats", "val_sampled.std_nats"),
}
LARGE = ", paper's size"  # of the protocols of published runs of that size beside smaller ones
NUMBERS = ["table", "dataset", "row", "protocol", "model", "n", "mean", "std", "status"]


@dataclass(frozen=True)
class LossLine:
    """One line of Table 1 or 2.

    by_model     n, mean, std (nats per token) and status, by model
    difference   CRoPE - RoPE, as printed
    """

    dataset: str
    row: str
    protocol: str
    by_model: pd.DataFrame
    difference: str


@dataclass(frozen=True)
class LossTable:
    """Table 1 or 2.

    sizes        by corpus and row: what is smaller than in the paper
    parameters   by model, with the embedding; empty where they differ by row
    """

    name: str
    caption: str
    models: list[str]
    lines: Sequence[LossLine]
    sizes: Mapping[tuple[str, str], str]
    parameters: Mapping[str, str]

    def select(self, *protocols: str, models: list[str] | None = None) -> "LossTable":
        """Keeps the lines of these protocols, and these models (none: all)."""
        lines = [line for line in self.lines if line.protocol in protocols]
        return replace(self, lines=lines, models=models or self.models)

    @property
    def numbers(self) -> pd.DataFrame:
        """Gives one line per loss, for the CSV file."""
        parts = []
        for line in self.lines:
            where = {"dataset": line.dataset, "row": line.row, "protocol": line.protocol}
            parts.append(line.by_model.reset_index().assign(table=self.name, **where))
        return pd.concat(parts)[NUMBERS].astype({"n": "Int64"})

    @property
    def frame(self) -> pd.DataFrame:
        """Prints the lines: a label, the protocol, one loss per model, CRoPE - RoPE."""
        printed = []
        for (dataset, row), lines in groupby(self.lines, lambda line: (line.dataset, line.row)):
            name = dataset_label(dataset) if self.name == "table1" else paper.row_label(row)
            labels = chain([name, self.sizes[dataset, row]], repeat(""))
            for label, line in zip(labels, lines, strict=False):
                losses = loss_cells(line.by_model, self.models, paper.PRINTED_DECIMALS[self.name])
                printed.append([label, line.protocol, *losses, line.difference])
        if self.parameters:
            counts = [self.parameters.get(model, "–") for model in self.models]
            printed.append(["Parameters", "", *counts, ""])
        first = "Dataset" if self.name == "table1" else "Configuration"
        header = [first, "", *map(model_label, self.models), f"CRoPE {MINUS} RoPE"]
        return pd.DataFrame(printed, columns=header)

    @property
    def marks(self) -> list[list[str]]:
        """Gives a word per cell of `frame` for the page: corpus (the first line of a row), best (the
        lowest loss of a line), past (a final loss where an earlier one was lower).
        """
        marks, before = [], None
        kinds = {(line.dataset, line.row, line.protocol) for line in self.lines}
        for line in self.lines:
            place = (line.dataset, line.row)
            first = "" if place == before else "corpus"
            before = place
            lowest = line.protocol.replace("full", "lowest")
            overfitted = lowest != line.protocol and (*place, lowest) in kinds
            known = line.by_model["mean"].reindex(self.models)
            words = ["best" if loss == known.min() < np.inf else "" for loss in known]
            if overfitted:
                words = ["past"] * len(known)
            marks.append([f"{first} {word}".strip() for word in ("", "", *words, "")])
        return marks

    def markdown(self) -> str:
        return Table(self.name, self.caption, self.frame).markdown()

    def text(self) -> str:
        """Prints the full losses and the paper's for a terminal, each label on a line of its own."""
        frame = self.select("paper", "full").frame
        header, *rows = frame.iloc[:, 1:-1].to_string(index=False).splitlines()
        lines = [f"  {header}"]
        for label, row, difference in zip(frame.iloc[:, 0], rows, frame.iloc[:, -1], strict=True):
            lines += [label] if label else []
            lines.append(f"  {row}")
            lines += [f"    {frame.columns[-1]} {difference}"] if difference else []
        return "\n".join(lines)


def loss_table(
    name: str,
    cells: pd.DataFrame,
    runs: pd.DataFrame,
    paper_size: pd.DataFrame,
    missing: Mapping[str, str],
) -> LossTable:
    """Makes Table 1 or 2.

    cells        of both tables, at the scale that is reported
    runs         of `by_study`
    paper_size   published ones at scale=paper; empty if `runs` are at that scale
    missing      of `missing_words`
    """
    runs, paper_size = (of_tables[of_tables["study"] == name] for of_tables in (runs, paper_size))
    cells = cells[cells["study"] == name]
    models = list(cells["model"].unique())
    lines, sizes = [], {}
    for names, of_row in cells.groupby(["dataset", "row"], sort=False):
        dataset, row = map(str, names)
        lines += paper_lines(name, dataset, row, models)
        here, large = (_of_row(source, dataset, row) for source in (runs, paper_size))
        sizes[dataset, row] = _size(here)
        empty = [missing.get(key, "missing") for key in of_row["cell_key"]]
        lines += measured_lines(name, (dataset, row), models, here, empty)
        if len(large):
            empty = ["missing"] * len(models)
            lines += measured_lines(name, (dataset, row), models, large, empty, LARGE)
    caption = f"{paper.TABLE_TITLES[name]}, nats per token"
    parameters = _parameters(runs) if name == "table1" else {}
    return LossTable(name, caption, models, lines, sizes, parameters)


def paper_lines(name: str, dataset: str, row: str, models: list[str]) -> list[LossLine]:
    """Makes the paper's line of a row; none where it has none."""
    found = {}
    for model in models:
        if loss := paper.printed_loss(name, row, dataset, model):
            found[model] = {"mean": loss.mean_nats, "std": loss.std_nats, "status": "complete"}
    if not found:
        return []
    known = pd.DataFrame.from_dict(found, orient="index", columns=["n", "mean", "std", "status"])
    known = known.rename_axis("model").reindex(models).fillna({"status": ""})
    means = known["mean"]
    difference = means.get("crope", np.nan) - means.get("rope", np.nan)
    decimals = paper.PRINTED_DECIMALS[name]
    return [LossLine(dataset, row, "paper", known, signed(difference, decimals))]


def measured_lines(
    name: str,
    place: tuple[str, str],
    models: list[str],
    runs: pd.DataFrame,
    empty: Sequence[str],
    size: str = "",
) -> list[LossLine]:
    """Makes a line per protocol of one row's runs.

    place   corpus and row
    empty   by model: why it has no run, if it has none
    size    LARGE or nothing
    """
    lines = []
    for protocol, (loss, spread) in PROTOCOLS.items():
        overfitted = (runs[loss] < runs["loss"]).any()
        wanted = {"full": True, "lowest": overfitted, "sampled": len(runs) > 0}
        if not wanted[protocol]:
            continue
        known = losses_by_model(runs, protocol).reindex(models)
        known["status"] = np.where(known["n"] > 0, "complete", empty)
        compared = runs.assign(loss=runs[loss])
        decimals = paper.PRINTED_DECIMALS[name]
        difference = "" if spread else pair_difference(compared, decimals)
        lines.append(LossLine(*place, protocol + size, known, difference))
    return lines


def losses_by_model(runs: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Computes n, mean and std (nats per token) of each model of one row of a table."""
    mean, spread = PROTOCOLS[protocol]
    by_model = runs.groupby("model")
    losses = by_model[mean]
    std = by_model[spread].mean() if spread else losses.std()
    return pd.DataFrame({"n": losses.size(), "mean": losses.mean(), "std": std})


def loss_cells(known: pd.DataFrame, models: Iterable[str], decimals: int) -> list[str]:
    """Prints one cell per model; n is that of RoPE and CRoPE unless stated.

    known   n, mean, std and status, by model
    """
    usual = usual_seeds(known)
    cells = []
    for line in known.reindex(list(models)).to_dict("records"):
        text = line["status"]
        if text == "complete":
            text = plus_minus(line["mean"], line["std"], decimals)
            if pd.notna(line["n"]) and line["n"] != usual:
                text += f" (n\u00a0=\u00a0{line['n']:.0f})"
        cells.append(text)
    return cells


def usual_seeds(known: pd.DataFrame) -> float:
    """Returns n of RoPE and CRoPE, or of all models of a line without these."""
    pair = known.loc[known.index.isin(TABLE_PAIR), "n"]
    return (known["n"] if pair.empty else pair).max()


def plus_minus(mean: float, std: float, decimals: int) -> str:
    """Prints `4.9882 ± 0.0135`; no ± where there is none, `diverged` where a run diverged."""
    if np.isinf(mean):
        return "diverged"
    spread = "" if pd.isna(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread}"


def pair_difference(runs: pd.DataFrame, decimals: int) -> str:
    """Prints CRoPE - RoPE of one line's runs, its interval and n; empty without both models."""
    by_seed = crope_minus_rope(runs).set_index("seed")["nats"]
    if by_seed.empty:
        return ""
    line = estimate(by_seed, runs["planned"].iloc[0])
    text = interval_text(line, decimals)
    return f"{text}, n\u00a0=\u00a0{line['n']}" if line["complete"] else text


def study_table(study: str, joined: pd.DataFrame) -> Table:
    """Tabulates the final losses of a study: a line per corpus, row and setting."""
    runs = joined[joined["study"] == study]
    printed = []
    for _, of_place in runs.groupby(["dataset", "row", "setting"], sort=False):
        known = losses_by_model(of_place, "full").assign(status="complete")
        texts = loss_cells(known, known.index, 4)
        cells = dict(zip(known.index.map(model_label), texts, strict=True))
        seeds = f"n\u00a0=\u00a0{usual_seeds(known):.0f}"
        printed.append({"": place_text(of_place.iloc[0].to_dict()), **cells, "seeds": seeds})
    frame = pd.DataFrame(printed).fillna("")
    frame["seeds"] = frame.pop("seeds")  # behind models that the first line lacks
    return Table(study, f"{study}: loss after the last step, nats per token", frame)


def _of_row(runs: pd.DataFrame, dataset: str, row: str) -> pd.DataFrame:
    return runs.query("dataset == @dataset and row == @row")


def _size(runs: pd.DataFrame) -> str:
    """Prints the sizes of runs that are smaller than the paper's row; empty for its own."""
    if runs.empty or runs["scale"].iloc[0] == "paper":
        return ""
    train = runs.iloc[0]
    batch, length = train["config.train.batch_size"], train["config.train.seq_len"]
    return f"here B={batch}, L={length}, {train['config.train.max_steps']:,} steps"


def _parameters(runs: pd.DataFrame) -> dict[str, str]:
    sizes = runs.groupby("model")["parameters.total"].max()
    return {str(model): f"{size:,.0f}" for model, size in sizes.dropna().items()}


def missing_words(source: pd.DataFrame) -> dict[str, str]:
    """Says by cell_key why a cell's runs do not count: failed, stale or no common seed."""
    words = source["status"].replace("complete", "no seed that RoPE and CRoPE share")
    return dict(zip(source["cell_key"], words, strict=True))
