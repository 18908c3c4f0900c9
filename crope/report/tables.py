"""Tables as frames of text, from the frame of runs and the lines of evidence: Tables 1 and 2 with
the paper's numbers, planned and exploratory differences, the user's own runs.

Three protocols:

full      loss after the last step on the whole validation split or a fixed part of it, ± over seeds
lowest    the lowest of the run's full losses, where a later one is higher
sampled   the paper's: mean and ± of the sampled validation losses of the last 10 % of steps,
          averaged over seeds
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import numpy as np
import pandas as pd

from crope import paper
from crope.plan.study import STAND_IN
from crope.report.evidence import Contrast, crope_minus_rope, estimate, load_contrasts
from crope.report.frame import PAIR, Runs, dataset_label, model_label

MINUS = "\N{MINUS SIGN}"
# The columns of mean and ±; where the second is empty, ± is the standard deviation over seeds.
PROTOCOLS = {
    "full": ("loss", ""),
    "lowest": ("val_full.best_nats", ""),
    "sampled": ("val_sampled.mean_nats", "val_sampled.std_nats"),
}
NUMBERS = ["table", "dataset", "row", "protocol", "model", "n", "mean", "std", "status"]


@dataclass(frozen=True)
class Table:
    """A table of text; `numbers` are those of Tables 1 and 2, for the CSV file."""

    name: str
    caption: str
    frame: pd.DataFrame
    numbers: pd.DataFrame = field(default_factory=pd.DataFrame)

    def markdown(self) -> str:
        """Prints the caption and a pipe table."""
        header = list(self.frame.columns)
        rows = [header, ["---"] * len(header), *self.frame.to_numpy().tolist()]
        lines = [f"|{'|'.join(map(str, row))}|" for row in rows]
        return "\n".join([f"**{self.caption}**", "", *lines])

    def text(self) -> str:
        """Prints Table 1 or 2 for a terminal, each label on its own line: the full losses here and
        the paper's.
        """
        frame = self.frame[self.frame.iloc[:, 1].isin(["paper", "full", ""])]
        header, *rows = frame.iloc[:, 1:-1].to_string(index=False).splitlines()
        lines = [f"  {header}"]
        for label, row, difference in zip(frame.iloc[:, 0], rows, frame.iloc[:, -1], strict=True):
            lines += [label] if label else []
            lines.append(f"  {row}")
            lines += [f"    {frame.columns[-1]} {difference}"] if difference else []
        return "\n".join(lines)


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
        return f"{line['n']} of {line['planned']} seeds"
    mean = signed(line["mean"], decimals)
    if not line["complete"]:
        return f"{mean} ({line['n']} of {line['planned']} seeds)"
    if np.isnan(line["low"]):
        return mean
    return f"{mean} ({signed(line['low'], decimals)} to {signed(line['high'], decimals)})"


def plus_minus(mean: float, std: float, decimals: int) -> str:
    """Prints `4.9882 ± 0.0135`; no ± where there is none, `diverged` where a run diverged."""
    if np.isinf(mean):
        return "diverged"
    spread = "" if pd.isna(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread}"


def losses_by_model(runs: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Computes n, mean and std (nats per token) of each model of one row of a table."""
    mean, spread = PROTOCOLS[protocol]
    by_model = runs.groupby("model")
    losses = by_model[mean]
    std = by_model[spread].mean() if spread else losses.std()
    return pd.DataFrame({"n": losses.size(), "mean": losses.mean(), "std": std})


def loss_table(
    name: str,
    cells: pd.DataFrame,
    runs: pd.DataFrame,
    paper_size: pd.DataFrame,
    missing: Mapping[str, str],
) -> Table:
    """Makes Table 1 or 2: below each of the paper's lines this project's.

    cells        of both tables, at the scale that is reported
    runs         of `by_study`; where all of a table are of STAND_IN, its lines are the only ones
    paper_size   published ones of the paper's own size; empty where `runs` are of it
    missing      of `missing_words`
    """
    decimals = paper.PRINTED_DECIMALS[name]
    runs, paper_size = (of_tables[of_tables["study"] == name] for of_tables in (runs, paper_size))
    stands_in = set(runs["dataset"]) == {STAND_IN}
    cells = cells[(cells["study"] == name) & ((cells["dataset"] == STAND_IN) == stands_in)]
    printed, numbers = [], []
    for names, of_row in cells.groupby(["dataset", "row"], sort=False):
        dataset, row = map(str, names)
        models = list(of_row["model"])
        lines = {"paper": _paper_line(name, row, dataset, models)}
        for size, source, words in (("", runs, missing), (", paper's size", paper_size, {})):
            its_runs = _of_row(source, dataset, row)
            empty = [words.get(key, "missing") for key in of_row["cell_key"]]
            for protocol, (loss, spread) in PROTOCOLS.items():
                if protocol == "lowest" and not (its_runs[loss] < its_runs["loss"]).any():
                    continue
                known = losses_by_model(its_runs, protocol).reindex(models)
                known["status"] = np.where(known["n"] > 0, "complete", empty)
                compared = its_runs.assign(loss=its_runs[loss])
                difference = "" if spread else pair_difference(compared, decimals)
                if len(its_runs) or protocol + size == "full":
                    lines[protocol + size] = (known.reset_index(), difference)
        label = dataset_label(dataset) if name == "table1" else paper.row_label(row)
        labels = chain([label, _size(_of_row(runs, dataset, row))], repeat(""))
        for kind, (known, difference) in lines.items():
            if known["status"].any():  # the paper has no line of STAND_IN
                numbers.append(known.assign(table=name, dataset=dataset, row=row, protocol=kind))
                printed.append([next(labels), kind, *_loss_cells(known, decimals), difference])
    if name == "table1":
        printed.append(["Parameters", "", *_parameters(runs, models), ""])
    header = ["Dataset" if name == "table1" else "Configuration", ""]
    header += [model_label(model) for model in models]
    frame = pd.DataFrame(printed, columns=[*header, f"CRoPE {MINUS} RoPE"])
    caption = f"{paper.TABLE_TITLES[name]}{f' (here on {STAND_IN})' * stands_in}, nats per token"
    return Table(name, caption, frame, pd.concat(numbers)[NUMBERS].astype({"n": "Int64"}))


def _of_row(runs: pd.DataFrame, dataset: str, row: str) -> pd.DataFrame:
    return runs[(runs["dataset"] == dataset) & (runs["row"] == row)]


def _paper_line(
    name: str, row: str, dataset: str, models: Sequence[str]
) -> tuple[pd.DataFrame, str]:
    """Gives the paper's numbers of a row, in the columns of `losses_by_model`, and CRoPE - RoPE."""
    lines = []
    for model in models:
        line = {"model": model, "n": np.nan, "mean": np.nan, "std": np.nan, "status": ""}
        if loss := paper.printed_loss(name, row, dataset, model):
            line |= {"mean": loss.mean_nats, "std": loss.std_nats, "status": "complete"}
        lines.append(line)
    known = pd.DataFrame(lines)
    means = known.set_index("model")["mean"]
    difference = means.get("crope", np.nan) - means.get("rope", np.nan)
    decimals = paper.PRINTED_DECIMALS[name]
    return known, "" if np.isnan(difference) else signed(difference, decimals)


def _loss_cells(known: pd.DataFrame, decimals: int) -> list[str]:
    """Prints one cell per model; n is that of RoPE and CRoPE unless stated."""
    usual = known.loc[known["model"].isin(PAIR), "n"].max()
    cells = []
    for line in known.to_dict("records"):
        text = line["status"]
        if text == "complete":
            text = plus_minus(line["mean"], line["std"], decimals)
            if pd.notna(line["n"]) and line["n"] != usual:
                text += f" (n\u00a0=\u00a0{line['n']:.0f})"
        cells.append(text)
    return cells


def study_table(study: str, joined: pd.DataFrame) -> Table:
    """Tabulates the final losses of a study: a line per corpus, row and setting."""
    runs = joined[joined["study"] == study]
    printed = []
    for _, of_place in runs.groupby(["dataset", "row", "setting"], sort=False):
        known = losses_by_model(of_place, "full").reset_index().assign(status="complete")
        cells = dict(zip(known["model"].map(model_label), _loss_cells(known, 4), strict=True))
        seeds = f"n\u00a0=\u00a0{known['n'].max():.0f}"
        printed.append({"": place(of_place.iloc[0].to_dict()), **cells, "seeds": seeds})
    frame = pd.DataFrame(printed).fillna("")
    frame["seeds"] = frame.pop("seeds")  # behind models that the first line lacks
    return Table(study, f"{study}: loss after the last step, nats per token", frame)


def pair_difference(runs: pd.DataFrame, decimals: int) -> str:
    """Prints CRoPE - RoPE of one line's runs, its interval and n; empty without both models."""
    by_seed = crope_minus_rope(runs)["nats"]
    if by_seed.empty:
        return ""
    line = estimate(by_seed, planned=len(runs["planned"].iloc[0]))
    text = interval_text(line, decimals)
    return f"{text}, n\u00a0=\u00a0{line['n']}" if line["complete"] else text


def _size(runs: pd.DataFrame) -> str:
    """Prints the sizes of runs that are smaller than the paper's row; empty for its own."""
    if runs.empty or runs["scale"].iloc[0] == "paper":
        return ""
    train = runs.iloc[0]
    batch, length = train["config.train.batch_size"], train["config.train.seq_len"]
    return f"here B={batch}, L={length}, {train['config.train.max_steps']:,} steps"


def _parameters(runs: pd.DataFrame, models: list[str]) -> list[str]:
    """Prints each model's number of parameters, with the embedding."""
    sizes = runs.groupby("model")["parameters.total"].max().reindex(models)
    return ["–" if pd.isna(size) else f"{size:,.0f}" for size in sizes]


def missing_words(source: pd.DataFrame) -> dict[str, str]:
    """Says by cell_key why a cell's runs do not count: failed, stale or no common seed."""
    words = source["status"].replace("complete", "no seed that RoPE and CRoPE share")
    return dict(zip(source["cell_key"], words, strict=True))


def difference_table(lines: pd.DataFrame, caption: str) -> Table:
    """Prints lines of `answers`: planned ones with their question, exploratory ones by study."""
    contrasts = load_contrasts()
    printed = []
    for line in lines.to_dict("records"):
        contrast = contrasts[line["name"]]
        asked = f"{line['name']}. {contrast.question}"
        first = asked if contrast.date else ", ".join(contrast.studies)
        difference = contrast.label + (", mean over settings" if contrast.averaged else "")
        printed.append([first, difference, place(line), nats_text(contrast, line), line["n"]])
    columns = ["Question or study", "Difference", "Where", "Nats per token (95 %)", "n"]
    return Table("differences", caption, pd.DataFrame(printed, columns=columns))


def planned_lines(lines: pd.DataFrame) -> pd.DataFrame:
    """Selects of `answers` what planned questions ask: over all corpora."""
    planned = [name for name, contrast in load_contrasts().items() if contrast.date]
    whole = lines[lines["name"].isin(planned)]
    several = whole.loc[whole["dataset"] == "", "name"]
    return whole[(whole["dataset"] == "") | ~whole["name"].isin(several)]


def line_text(contrast: Contrast, line: Mapping[Any, Any]) -> str:
    """Prints a line of `answers` as two: what is subtracted and where, the difference and n."""
    return f"{contrast.label}; {place(line)}\n  {nats_text(contrast, line)}, n = {line['n']}"


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
    public = runs.published[runs.published["status"] == "complete"].groupby("cell_key")["loss"]
    ranges = public.agg(["min", "max", "size"])
    printed = []
    for run in runs.of_scale.sort_values(["dataset", "run_id"]).to_dict("records"):
        settings = ", ".join(run["settings"])
        loss = f"{run['loss']:.4f}" if run["status"] == "complete" else run["status"]
        beside = ""
        if run["cell_key"] in ranges.index:
            low, high, count = ranges.loc[run["cell_key"]]
            beside = f"{low:.4f} to {high:.4f} ({count:.0f} runs)"
        printed.append([run["run_id"], settings, loss, beside])
    columns = ["Run", "Differs from the default", "Final loss", "Published"]
    frame = pd.DataFrame(printed, columns=columns)
    return Table("own", "Each of your runs, beside published ones of its cell", frame)
