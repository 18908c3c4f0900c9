"""Tables 1 and 2 next to the paper's numbers, the savings in parameters, and one renderer for every
table.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from crope import paper
from crope.data.corpora import SPLITS, corpus_files
from crope.data.ngrams import ORDERS
from crope.errors import InvalidRecord, one_line
from crope.model.counting import count_parameters, kv_cache_values, savings
from crope.report.evidence import (
    LEVEL,
    MARGIN,
    Comparison,
    comparison_label,
    interval,
    one_copy,
    overall,
    random_effects,
)
from crope.report.frame import (
    ARMS,
    MEASUREMENTS,
    Source,
    cell_runs,
    cell_status,
    check_comparable,
    dataset_label,
    error_line,
    mixture,
    model_label,
)
from crope.runs.study import TABLES, Cell, compose_runs

PROTOCOLS = ("sampled", "full")
FIRST_COLUMN = {"table1": "Dataset", "table2": "Configuration"}
NGRAM_LEADS = (
    f"{'/'.join(ORDERS)} losses with the tokens of these runs (interpolated Witten-Bell, whole splits)",
    "If the paper used GPT-2's tokens (not stated), its lowest losses beside our bigram losses with those tokens",
)
XPOS = "XPOS: the paper's name for sinusoidal absolute positions, not the later rotary method xPos."
TEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "γ": r"$\gamma$", "−": r"$-$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$",
})  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table as printed: every value a string, the column names its headings.

    text     positions of the columns of words, aligned to the left
    numbers  what the CSV holds instead of `frame`
    """

    name: str
    caption: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    text: Sequence[int] = (0,)
    numbers: pd.DataFrame | None = None


def render(table: Table, kind: str) -> str:
    """The table as GitHub's Markdown, CSV (no notes) or LaTeX (needs booktabs); page.html sets it
    as HTML.
    """
    if kind == "csv":
        return (table.frame if table.numbers is None else table.numbers).to_csv(
            index=False, lineterminator="\n", float_format="%.6f"
        )
    escape = {"md": _escape_markdown, "tex": lambda text: text.translate(TEX)}[kind]
    frame = table.frame.map(one_line).map(escape).rename(columns=escape)
    caption, *notes = [escape(one_line(text)) for text in (table.caption, *table.notes)]
    columns = range(frame.shape[1])
    if kind == "md":
        alignment = ["---" if i in table.text else "---:" for i in columns]
        rows = [[*frame.columns], alignment, *frame.to_numpy().tolist()]
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        parts = [f"**{caption}**", "", *lines, "", *(f"- {note}" for note in notes)]
        return "\n".join(parts).rstrip("\n") + "\n"
    wide = table.frame.map(len).max() > 45
    kinds = [
        (r"p{0.25\textwidth}" if wide.iloc[i] else "l") if i in table.text else "r" for i in columns
    ]
    text = frame.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="".join(kinds),
        position_float="centering",
        caption=re.sub(r"^Table \d+\. ", "", caption),  # LaTeX numbers its tables itself
        label=f"tab:{table.name}",
    )  # fmt: skip
    under = "".join(f"{note}\\par\n" for note in notes)
    return text.replace(
        r"\end{table}", "\\par\\smallskip\\footnotesize\\raggedright\n" + under + r"\end{table}"
    )


def _escape_markdown(text: str) -> str:
    """No markup, no HTML, no new column, no formula (GitHub's `$`), no link."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|~$])|(?<=\])(?=\()", lambda match: "\\" + (match[1] or ""), text)


def mean_std(values: pd.Series) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1), NaN of one value."""
    values = values.astype(float)
    return values.mean(), values.std()


def signed(value: float, decimals: int = 4) -> str:
    """A difference as printed, with a true minus sign; empty for NaN."""
    if pd.isna(value):
        return ""
    return f"{round(value, decimals) + 0.0:+.{decimals}f}".replace("-", "−")


def estimate(line: Mapping[Any, Any], decimals: int = 4) -> str:
    """Mean and interval of a line of evidence; without an interval, why there is none."""
    mean, low, high = (signed(line[f"{end}_nats"], decimals) for end in ("mean", "low", "high"))
    return (
        f"{mean} ({low} to {high})" if low else f"{mean} ({line['reason'] or 'one seed'})".strip()
    )


def primary_table(lines: pd.DataFrame) -> Table:
    """The table of the primary contrasts; a stand-in represents one whose runs are incomplete."""
    lowest = lines["level"].min() if len(lines) else LEVEL
    head = f"Nats ({100 * lowest:.0f} %)"
    counts = lines["where"].value_counts()
    common = counts.index[0] if counts.max() > 1 else ""
    rows = [
        [
            f"{line['family']}. {line['question']}",
            line["answer"],
            line["difference"] + ("" if line["where"] == common else f"; {line['where']}"),
            estimate(line) + (f" at {100 * line['level']:.0f} %" if line["level"] > lowest else ""),
            str(line["n"]),
        ]
        for line in lines.to_dict("records")
    ]
    notes = [
        "Loss at equal seed; corpora count equally; n seeds per corpus; Student's intervals over seeds; 0.02: just"
        " below the paper's smallest ±."
    ]
    answered = lines[lines["reason"] == ""]
    if stand_ins := int((~answered["planned"]).sum()):
        notes.append(
            f"{stand_ins} of {len(lines)} lines are exploratory: chosen after their results, intervals"
            " uncorrected; the planned ones are incomplete."
        )
    if stand_ins < len(answered):
        notes.append("The 99 % intervals were fixed beforehand and hold jointly with 95 %.")
    averaged = []
    undecided = []
    for line in answered[answered["planned"]].to_dict("records"):
        by_corpus_and_seed = np.reshape(line["values"], (-1, line["n"]))
        if len(by_corpus_and_seed) > 1:
            _, low, high = interval([by_corpus_and_seed.mean(axis=0)], line["level"])
            averaged.append(f"{line['family']} {signed(low)} to {signed(high)}")
            if low < 0 < high and line["low_nats"] * line["high_nats"] > 0:
                undecided.append(line["family"])
    if averaged:
        text = f"Corpora count as independent; averaged within seeds instead: {', '.join(averaged)}"
        if undecided:
            text += f"; then {' and '.join(undecided)} could be 0"
        notes.append(f"{text}.")
    errors = lines["text_error_nats"].dropna()
    if len(errors):
        notes.append(f"Standard error from the choice of the text: at most {errors.max():.4f}.")
    frame = pd.DataFrame(rows, columns=["Question", "Answer", "Difference", head, "n"])
    caption = f"Primary questions. {common}, unless stated." if common else "Primary questions."
    return Table(
        "primary", caption, frame, notes, text=(0, 1, 2), numbers=lines.drop(columns="values")
    )


def claims_table(lines: pd.DataFrame) -> Table:
    """What the paper says and prints, beside the differences of the runs."""
    rows = []
    for (source, text), of_claim in lines.groupby(["family", "question"], sort=False):
        parts = of_claim.to_dict("records")
        names = [line["where"] for line in parts]
        if len({*names}) < len(names):  # the same runs in several differences
            names = [line["difference"] for line in parts]
        short = without_common_start(names)
        printed, here = [], []
        for name, line in zip(short, parts, strict=True):
            if paper_difference := signed(line["paper_nats"], 3):
                printed.append(f"{name} {paper_difference}")
            level = "" if line["level"] == LEVEL else f" at {100 * line['level']:.0f} %"
            difference = f"{estimate(line, 3)}{level}"
            here.append(f"{name} {difference}" if len(parts) > 1 else difference)
        rows.append([f"{text} ({source})", "; ".join(printed), "; ".join(here)])
    columns = ["The paper says", "It prints", "Here (95 %)"]
    caption = "What the paper says, and the same differences in these runs (nats)."
    over_rows = across_rows(lines)
    notes = [over_rows] if over_rows else []
    frame = pd.DataFrame(rows, columns=columns)
    return Table(
        "claims", caption, frame, notes, text=(0, 1, 2), numbers=lines.drop(columns="values")
    )


def without_common_start(names: Sequence[str]) -> list[str]:
    """Names of parts between commas, without the first parts that all have."""
    parts = [name.split(", ") for name in names]
    shared = 0
    if len(parts) > 1:
        equal = [len(set(same)) == 1 for same in zip(*parts, strict=False)]
        shared = [*equal, False].index(False)
    return [", ".join(part[shared:]) for part in parts]


def across_rows(lines: pd.DataFrame) -> str:
    """CRoPE - RoPE over all rows of Tables 1 and 2, whose true differences may vary."""
    rows = lines.query("first == 'crope' and family != 'Fig. 4' and study in @TABLES")
    rows = rows.dropna(subset="low_nats").drop_duplicates(["dataset", "row"])
    if len(rows) < 3:
        return ""
    errors = rows["std_over_seeds_nats"] / np.sqrt(rows["n"])
    mean, low, high, _ = random_effects(rows["mean_nats"], errors)
    line = {"mean_nats": mean, "low_nats": low, "high_nats": high}
    where = f"the {len(rows)} rows of both tables (random effects)"
    return f"CRoPE − RoPE over {where}: {estimate(line)}."


def exploratory_table(lines: pd.DataFrame) -> Table:
    """Every other contrast."""
    frame = pd.DataFrame({
        "Question": lines["question"], "Difference": lines["difference"], "Where": lines["where"],
        "Estimate (95 %)": [estimate(line) for line in lines.to_dict("records")],
        "n": lines["n"].astype(str), "Answer": lines["answer"],
    })  # fmt: skip
    answered = int(lines["low_nats"].notna().sum())
    notes = [f"Exploratory: of {answered} such intervals, one in twenty will miss."]
    caption = "All other differences."
    return Table(
        "evidence", caption, frame, notes, text=(0, 1, 2, 5), numbers=lines.drop(columns="values")
    )


# What the runs of a primary contrast add to its stand-in's, for the sentence on what is open.
LONGER = {
    "P1": "after 3,200 steps with new seeds",
    "P5": "in a row of Table 2 at the paper's own size",
}
# What the first word of a primary answer means, for the first sentences.
READINGS = {
    "P1": {
        "higher": "Complex-linear Q, K and V raise the loss",
        "lower": "Complex-linear Q, K and V lower the loss",
        "no": f"Complex-linear Q, K and V end within {MARGIN:g} nats of RoPE",
        "open": "What complex-linear Q, K and V cost stays open",
    },
    "P2": {
        "higher": "Low rank and halved heads, averaged, do better than CRoPE",
        "lower": "Low rank and halved heads, averaged, do worse than CRoPE",
        "no": f"Low rank and halved heads, averaged, end within {MARGIN:g} nats of CRoPE",
        "open": "Whether low rank and halved heads do better than CRoPE stays open",
    },
    "P3": {
        "higher": "Eq. 30 costs more in Q and K than in V",
        "lower": "Eq. 30 costs more in V than in Q and K",
        "no": f"Q and K and V differ by less than {MARGIN:g} nats in what Eq. 30 costs",
        "open": "Whether Eq. 30 costs more in Q and K than in V stays open",
    },
    "P4": {
        "higher": "The other pairs that were tried do worse than the rotation's",
        "lower": "The other pairs that were tried do better than the rotation's",
        "no": f"The other pairs that were tried end within {MARGIN:g} nats of the rotation's",
        "open": "Whether other pairs than the rotation's do worse stays open",
    },
    "P5": {
        "higher": "Eq. 30 raises the loss",
        "lower": "Eq. 30 lowers the loss",
        "no": f"Eq. 30 ends within {MARGIN:g} nats of RoPE",
        "open": "What Eq. 30 costs stays open",
    },
}


def headline(primary: pd.DataFrame) -> str:
    """What was found and what is open, read off the primary lines. What stands in the place of the
    paper's row is no result of that row.
    """
    sentences: list[str] = []
    place = ""
    for line in primary.to_dict("records"):
        own_row = line["family"] == "P5"
        reading = READINGS[line["family"]].get(line["answer"].split(" ")[0])
        if not reading or (own_row and not line["planned"]):
            continue
        if line["family"] in ("P1", "P5"):  # the others stand with their numbers in the table
            level = f"{100 * line['level']:.0f} %"
            reading = (
                f"**{reading}: {line['difference']} {estimate(line)} nats per token, {level}**"
            )
        if own_row:
            reading = f"In a row of Table 2 at the {line['scale']} scale: {reading}"
        else:
            corpora = line["where"].partition(",")[0]
            before = place
            place = f"At the {line['scale']} scale, after {line['steps']:,} steps on {corpora}: "
            if place != before:
                reading = place + reading
        sentences.append(f"{reading}.")
    if not sentences:
        return ""
    waiting = set(primary.loc[~primary["planned"], "family"])
    longer = [words for family, words in LONGER.items() if family in waiting]
    if longer:
        sentences.append(f"**Open**, planned and not complete: the cost {' and '.join(longer)}.")
    return " ".join(sentences)


def medium_sentence(lines: pd.DataFrame) -> str:
    """The cost at the paper's steps, batch and length, where more seeds could be trained."""
    line = _line_of(lines, "medium", "crope", "rope")
    if not line:
        return ""
    return (
        f"The paper's row with a smaller vocabulary (scale medium, exploratory, n = {line['n']}):"
        f" **{line['difference']} {estimate(line)}, {100 * LEVEL:.0f} %**."
    )


def yardsticks(lines: pd.DataFrame, comparisons: Sequence[Comparison]) -> str:
    """The cost of Eq. 30 in per cent of NoPE - RoPE, and of the training tokens that undo it.

    The intervals are those of the cost; the divisors are taken as exact.
    """
    parts: dict[int, str] = {}  # by steps
    for studies in (("base", "baselines"), ("cost", "cost"), ("horizon", "schemes")):
        cost = _line_of(lines, studies[0], "crope", "rope")
        worth = _line_of(lines, studies[1], "rope", "nope")
        if cost and worth and cost["steps"] not in parts:
            low, mean, high = (
                -100 * cost[f"{end}_nats"] / worth["mean_nats"] for end in ("low", "mean", "high")
            )
            text = f"{mean:.0f} % ({low:.0f} to {high:.0f}) of {-worth['mean_nats']:.3f} after"
            text = f"{text} {cost['steps']:,} steps{_where(cost)}".replace("-", "−")
            more = _more_tokens(cost, comparisons) if studies[0] == "base" else ""
            parts[cost["steps"]] = text + more
    text = ", and ".join(parts.values())
    lead = "- **Yardsticks.** Of what rotation is worth (NoPE − RoPE, taken as exact), Eq. 30 costs"
    return f"{lead} {text}." if text else ""


def _more_tokens(cost: Mapping[Any, Any], comparisons: Sequence[Comparison]) -> str:
    """The training tokens that undo a cost, by the slope of RoPE's loss on Penn Treebank."""
    ends = {
        comparison.steps: comparison.by_seed("rope").reindex(comparison.row.seeds).mean()
        for comparison in comparisons
        if comparison.row.study in ("base", "horizon") and comparison.row.dataset == "ptb"
    }
    if len(ends) < 2 or not all(map(math.isfinite, ends.values())):
        return ""
    (few, loss), (many, later_loss) = sorted(ends.items())
    per_fold = (loss - later_loss) / math.log(many / few)  # nats per e-fold of tokens
    low, mean, high = (
        100 * math.expm1(cost[f"{end}_nats"] / per_fold) for end in ("low", "mean", "high")
    )
    return (
        f", which {mean:.1f} % ({low:.1f} to {high:.1f}) more tokens undo (RoPE on Penn Treebank)"
    )


def _line_of(lines: pd.DataFrame, study: str, first: str, second: str) -> dict[Any, Any] | None:
    """The line over all corpora, or on the only one, of a contrast; None if it is not answered."""
    contrast = lines.query("study == @study and first == @first and second == @second")
    line = overall(contrast.to_dict("records"))
    return line if line and not line["reason"] else None


FAMILIES = {  # of the first screen; all others are in the table of all differences
    "half": "Beside other halves",
    "rate": "Learning rates",
}
REPLICATIONS = {"cost", "tuned_lr"}  # studies that repeat what smaller ones asked, with new seeds


def _where(line: Mapping[Any, Any]) -> str:
    """The only corpus of a line; empty if it is over several."""
    return f" on {dataset_label(line['dataset'])}" if line["dataset"] else ""


def other_lines(lines: pd.DataFrame) -> list[str]:
    """One line per family: its differences over all corpora, or on the only one; of those that
    REPLICATIONS studies answer too, only theirs.
    """
    sentences = []
    for family, title in FAMILIES.items():
        contrasts = lines[lines["family"] == family].groupby(
            ["study", "question", "difference"], sort=False
        )
        # A contrast at several settings has no line over all of them.
        candidates = [overall(contrast.to_dict("records")) for _, contrast in contrasts]
        answered = [line for line in candidates if line and not line["reason"]]
        planned = {line["difference"] for line in answered if line["study"] in REPLICATIONS}
        by_question: dict[str, list[str]] = {}
        for line in answered:
            if line["study"] in REPLICATIONS or line["difference"] not in planned:
                text = f"{line['difference']}{_where(line)} {estimate(line)}"
                by_question.setdefault(line["question"], []).append(text)
        parts = [f"{question}: {', '.join(texts)}" for question, texts in by_question.items()]
        sentences += [f"- **{title}.** {'. '.join(parts)}."] if parts else []
    return sentences


def losses_table(comparisons: Sequence[Comparison]) -> Table:
    """The losses of every study: mean and standard deviation over seeds."""
    printed, numbers = [], []
    for comparison in comparisons:
        row = comparison.row
        if row.study in TABLES:
            continue
        planned = comparison.runs[comparison.runs["seed"].isin(row.seeds)]
        models_of_seed = planned.groupby("seed")["model"].transform("nunique")
        common = planned[models_of_seed == planned["model"].nunique()]
        for model, runs in common.groupby("model", sort=False):
            n = len(runs)
            mean, std = mean_std(runs["final"])
            text = loss_text(mean, std, "table1")
            if diverged := np.isinf(runs["final"]).sum():
                text = f"{diverged} of {n} diverged"
            where = comparison_label(comparison)
            printed.append([row.study, where, model_label(str(model)), str(n), text])
            numbers.append([
                row.study, row.dataset, row.width, ", ".join(row.settings), model, n, mean, std,
                runs["parameters"].iloc[0],
            ])  # fmt: skip
    note = (
        "Full validation after the last step, nats per token, mean ± standard deviation over the"
        " planned seeds that all models have."
    )
    columns = [
        "study", "dataset", "width", "setting", "model", "n", "mean_nats", "std_nats", "parameters",
    ]  # fmt: skip
    return Table(
        "study_losses",
        "Losses of the studies.",
        pd.DataFrame(printed, columns=["Study", "Where", "Model", "n", "Loss"]),
        [note],
        text=(0, 1, 2),
        numbers=pd.DataFrame(numbers, columns=columns),
    )


def conversions(runs: pd.DataFrame) -> pd.DataFrame:
    """The complete runs that were converted, one row per run and arm; losses in nats per token."""
    lines = []
    complete = runs[runs["status"] == "complete"]
    for run in complete.dropna(subset="conversion").to_dict("records"):
        names = ("run_id", "dataset", "seed", "cell_key")
        known = {name: run[name] for name in names} | {"d_model": run["config.model.d_model"]}
        lines += [known | arm for arm in run["conversion"]]
    return pd.DataFrame(lines)


def conversions_table(lines: pd.DataFrame) -> Table:
    rows = []
    for (dataset, width, steps, rate, _), of_dataset in lines.groupby(
        ["dataset", "d_model", "steps", "lr", "cell_key"]
    ):
        means = of_dataset.groupby("arm")[["loss_nats", "tuned_loss_nats"]].mean()
        row = {
            "Dataset": dataset_label(str(dataset)),
            "D": str(width),
            "n": str(of_dataset["seed"].nunique()),
            "Steps": str(steps),
            "Rate": f"{rate:.2g}",
            "Trained": f"{of_dataset['trained_nats'].mean():.4f}",
        }
        for arm, name in ARMS.items():
            row[name] = " → ".join(f"{loss:.4f}" for loss in means.loc[arm])
        fraction, by_chance = of_dataset[["kept_share", "kept_share_by_chance"]].mean()
        row["Complex-linear fraction"] = f"{fraction:.3f} (by chance {by_chance:.3f})"
        rows.append(row)
    notes = [
        "Trained RoPE models with Q, K and V projected onto Eq. 30: validation loss in nats per token, right after the"
        " conversion → after tuning at the run's last learning rate, means over seeds. By chance: the fraction of the"
        " same projections after a random rotation of channels."
    ]
    caption = "RoPE models converted to CRoPE."
    numbers = lines.drop(columns="cell_key")
    return Table("conversion", caption, pd.DataFrame(rows), notes, numbers=numbers)


@dataclass(frozen=True)
class CellLosses:
    """One cell: `losses` maps each protocol to (mean, ± or NaN) in nats per token; empty without
    runs.

    sampled  per run the mean and the standard deviation of its last sampled losses, each averaged
             over seeds
    full     mean and sample standard deviation over seeds of the final loss on the fixed pass
    """

    cell: Cell
    runs: pd.DataFrame
    status: str
    notes: list[str]
    losses: dict[str, tuple[float, float]]

    @property
    def printed(self) -> tuple[float, float] | None:
        """The paper's mean and ±; None for a cell that the paper does not have."""
        loss = paper.printed_loss(
            self.cell.table, self.cell.row, self.cell.dataset, self.cell.model
        )
        return (loss.mean_nats, loss.std_nats) if loss else None


def row_losses(source: Source, cells: Sequence[Cell]) -> list[CellLosses]:
    """The cells of one table row, on the seeds that all its models have: columns of different seeds
    would differ by the seeds too. A model without runs restricts no other.
    """
    runs_of = [cell_runs(source.frame, cell) for cell in cells]
    seeds = [set(runs["seed"]) for runs in runs_of if len(runs)]
    common = set.intersection(*seeds) if seeds else set()
    return [
        cell_losses(source, cell, runs[runs["seed"].isin(common)])
        for cell, runs in zip(cells, runs_of, strict=True)
    ]


def cell_losses(source: Source, cell: Cell, runs: pd.DataFrame) -> CellLosses:
    losses = {}
    if len(runs):
        losses["sampled"] = (
            runs["val_sampled.mean_nats"].mean(),
            runs["val_sampled.std_nats"].astype(float).mean(skipna=False),
        )
        losses["full"] = mean_std(runs["val_full.final_nats"])
    status, notes = cell_status(source.frame, source.invalid, cell, source.unavailable)
    if status == "complete" and not losses:
        status = "no common seed"
        notes.append("the models of this row have no seed in common; train the missing ones")
    return CellLosses(cell, runs, status, [*notes, *mixture(runs)], losses)


def table_rows(cells: Sequence[Cell], table: str) -> list[list[Cell]]:
    """The cells of one table row by row, in the paper's order; rows of other datasets follow."""
    of_table = [cell for cell in cells if cell.table == table]
    of_table.sort(key=lambda cell: cell.dataset not in paper.DATASET_LABELS)
    groups = itertools.groupby(of_table, key=lambda cell: (cell.dataset, cell.row))
    return [list(row) for _, row in groups]


def without_sampled(table: Table) -> Table:
    """Table 1 or 2 with the paper's numbers and the full losses alone, for the README; its Table 2
    has the settings of Table 1.
    """
    kept = table.frame[table.frame[""] != "sampled"].replace({"": {"full": "ours"}})
    notes = [
        note.replace("full (ours)", "ours")
        for note in table.notes
        if not note.startswith(("sampled", "Run with", "XPOS"))  # the picture's legend has it
    ]
    return replace(table, frame=kept, notes=notes)


def without_repeated_notes(tables: Sequence[Table]) -> list[Table]:
    """Tables 1 and 2 for one page: notes that both have stand below the second, n-gram losses, of
    which Table 2 has a part, below the first.
    """
    first, second = tables
    common = [note for note in first.notes if note in second.notes and not note.startswith("[")]
    partial = [note for note in second.notes if note.startswith(NGRAM_LEADS)]
    return [
        replace(first, notes=[note for note in first.notes if note not in common]),
        replace(second, notes=[note for note in second.notes if note not in partial]),
    ]


def loss_table(
    source: Source, cells: Sequence[Cell], name: str, *, paper_cells: Sequence[Cell] = ()
) -> Table:
    """Table 1 or 2 (`name`): for each row the paper's numbers, then the runs' by both protocols.

    `paper_cells` are those of the paper scale, in a table of another one: rows of which runs exist
    stand below those of `cells`.

    Raises UserError if runs of one row are not comparable.
    """
    rows = _rows(source, cells, name)
    at_paper_scale = replace(source, scale="paper", frame=one_copy(source.all_runs, paper_cells))
    paper_rows = {
        (row[0].cell.dataset, row[0].cell.row): row
        for row in _rows(at_paper_scale, paper_cells, name)
        if any(cell.losses for cell in row)
    }
    losses = list(itertools.chain.from_iterable(rows))
    every = [*losses, *itertools.chain.from_iterable(paper_rows.values())]
    reasons = list(dict.fromkeys(itertools.chain.from_iterable(cell.notes for cell in every)))

    def loss_lines(label: str, row: Sequence[CellLosses]) -> list[list[str]]:
        full, sampled = (
            [_entry(cell, protocol, reasons) for cell in row] for protocol in ("full", "sampled")
        )
        return [[label, "full", *full], ["", "sampled", *sampled]]

    lines = []
    for row in rows:  # a study is a grid, so that every row has the same models in the same order
        label, settings = _row_label(row[0].cell), _settings(row)
        printed = [loss_text(*cell.printed, name) if cell.printed else "" for cell in row]
        here = f"here {settings}" if settings and name == "table2" else ""
        if any(printed):
            lines.append([label, "paper", *printed])
            label = here
        elif here:
            label = f"{here} on {row[0].cell.dataset}"
        lines += loss_lines(label, row)
        if paper_row := paper_rows.get((row[0].cell.dataset, row[0].cell.row)):
            count = max(len(cell.runs) for cell in paper_row)
            label = f"here with the paper's settings, whole split, n = {count}"
            lines += loss_lines(label, paper_row)
    models = dict.fromkeys(cell.cell.model for cell in losses)
    columns = [paper.MODEL_LABELS.get(model, model) for model in models]
    notes = [f"[{number}] {reason}" for number, reason in enumerate(reasons, 1)]
    settings = ", ".join(sorted({_settings(row) for row in rows} - {""}))
    if settings and name == "table1":
        notes.insert(0, f"Run with {settings}; the paper: {paper.row_label('base')}.")
    n = _range([len(cell.runs) for cell in losses if cell.losses])
    seeds = f"n = {n} {'seed' if n == '1' else 'seeds'} per cell" if n else "No complete cell"
    title = f"Table {name[-1]}. {paper.TABLE_TITLES[name]}"
    return Table(
        name=name,
        caption=f"{title}, nats per token. Scale: {source.scale}. {seeds}{', unless stated' if paper_rows else ''}.",
        frame=pd.DataFrame(lines, columns=[FIRST_COLUMN[name], "", *columns]),
        notes=[*notes, *_ngram_notes(source, losses, name), *_notes(losses, source.scale)],
        text=(0, 1),
        numbers=pd.DataFrame(itertools.starmap(_csv_row, itertools.product(every, PROTOCOLS))),
    )


def _rows(source: Source, cells: Sequence[Cell], name: str) -> list[list[CellLosses]]:
    rows = []
    for row_cells in table_rows(cells, name):
        check_comparable(source.frame, row_cells)
        rows.append(row_losses(source, row_cells))
    return rows


def _entry(cell: CellLosses, protocol: str, reasons: list[str]) -> str:
    """The loss, or the status of an empty cell, and the numbers of the notes that say why."""
    text = cell.status
    if cell.losses:
        text = loss_text(*cell.losses[protocol], cell.cell.table)
    numbers = ", ".join(str(reasons.index(note) + 1) for note in cell.notes)
    return f"{text} [{numbers}]" if numbers else text


def loss_text(mean: float, std: float, name: str) -> str:
    """`mean ± std` with the decimals of the paper's table `name`; the mean alone if there is no
    std.
    """
    decimals = paper.PRINTED_DECIMALS[name]
    return (
        f"{mean:.{decimals}f}" if math.isnan(std) else f"{mean:.{decimals}f} ± {std:.{decimals}f}"
    )


def _csv_row(losses: CellLosses, protocol: str) -> dict[str, Any]:
    names = ("table", "row", "dataset", "model", "scale")
    line = {name: getattr(losses.cell, name) for name in names} | {"protocol": protocol}
    line["mean_nats"], line["std_nats"] = losses.losses.get(protocol) or (None, None)
    line["n"] = len(losses.runs)
    line["paper_mean_nats"], line["paper_std_nats"] = losses.printed or (None, None)
    line["status"] = losses.status
    return line


def _row_label(cell: Cell) -> str:
    if cell.table == "table1":
        return dataset_label(cell.dataset)
    return paper.row_label(cell.row) + ("" if cell.dataset == "pg19" else f" on {cell.dataset}")


def settings_of(runs: pd.DataFrame) -> str:
    """What the first run was trained with, in the wording of Table 2."""
    keys = (
        "train.batch_size",
        "train.seq_len",
        "model.d_model",
        "train.lr_gamma",
        "train.lr_step_size",
    )
    return paper.configuration_label(*(runs[f"config.{key}"].iloc[0] for key in keys))


def _settings(row: Sequence[CellLosses]) -> str:
    """Settings of a row's runs; empty without runs and at the paper scale."""
    run = [losses.runs for losses in row if losses.losses and losses.cell.scale != "paper"]
    return (
        f"{settings_of(run[0])}, {run[0]['config.train.max_steps'].iloc[0]:,} steps" if run else ""
    )


def _range(values: Sequence[float]) -> str:
    """The smallest and the largest value; one of them if they are equal, none of no values."""
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(f"{value:,.0f}" for value in ends)


def _notes(cells: Sequence[CellLosses], scale: str) -> list[str]:
    runs, split = pd.concat([cell.runs for cell in cells]), "the whole validation split"
    if not runs["val_full.whole_split"].astype(bool).all():
        tokens = _range(list(runs["val_full.tokens"]))
        split = f"{tokens} evenly spaced tokens of the validation split"
    notes = [
        "sampled (the paper's protocol): mean ± standard deviation of a run's sampled validation losses over the last"
        " 10 % of steps, averaged over seeds.",
        f"full (ours): loss after the last step on {split}, mean ± standard deviation over the seeds that all models of"
        " a row have.",
        "paper: as printed; it does not say what its ± is.",
    ]
    if scale != "paper":
        notes.append(
            f"Scale {scale}: vocabulary, sequences, batches or steps are smaller, so its levels do"
            " not compare with the paper's."
        )
    return [*notes, XPOS]


def _ngram_notes(source: Source, cells: Sequence[CellLosses], name: str) -> list[str]:
    """Losses of n-gram models with the tokens of the runs; the lowest loss that the paper prints on
    each corpus, beside the bigram loss with GPT-2's tokens.
    """
    losses_of = {}  # by the tokens
    with_gpt2 = {}
    for ngrams in source.ngrams:
        losses_of[tuple(ngrams["sha256"][split] for split in SPLITS)] = ngrams["loss_nats"]
        if ngrams["tokenizer"]["name"] == "gpt2":
            with_gpt2[ngrams["corpus"]] = ngrams["loss_nats"]["bigram"]
    columns = [f"provenance.data.splits.{split}.sha256" for split in SPLITS]
    here: dict[str, str] = {}
    lowest: dict[str, float] = {}  # printed in the paper
    for cell in cells:
        dataset = cell.cell.dataset
        losses = losses_of.get(tuple(cell.runs[columns].iloc[0])) if cell.losses else None
        if losses:
            here[dataset] = "/".join(loss_text(losses[order], math.nan, name) for order in ORDERS)
        if cell.printed:
            lowest[dataset] = min(cell.printed[0], lowest.get(dataset, math.inf))
    beside: dict[str, str] = {}
    for dataset, loss in lowest.items():
        bigram = with_gpt2.get(dataset)
        if bigram is None:
            continue
        relation = "above" if loss > bigram else "below"
        beside[dataset] = (
            f"{loss_text(loss, math.nan, name)} {relation} {loss_text(bigram, math.nan, name)}"
        )
    if "pg19" in beside:
        beside["pg19"] += f" (on our {len(corpus_files('pg19')['train'])} training books)"
    notes = []
    for lead, texts in zip(NGRAM_LEADS, (here, beside), strict=True):
        parts = [f"{dataset_label(key)} {text}" for key, text in texts.items()]
        notes += [f"{lead}: {', '.join(parts)}."] if parts else []
    return notes


def savings_line(lines: pd.DataFrame) -> str:
    """What CRoPE saves at the paper's sizes, what multi-query attention of its size saves, and the
    loss beside a thinner feed-forward layer; `lines` are the exploratory ones.
    """
    models = ({"model": name} for name in ("rope", "crope", "mqa"))
    rope, crope, mqa = (run.config for run in compose_runs(models, ["scale=paper"]))
    full, lean = (
        count_parameters(
            config.model, vocab_size=config.tokenizer.vocab_size, max_len=config.train.seq_len
        )
        for config in (rope, crope)
    )
    saved = savings(full, lean, n_layers=rope.model.n_layers, d_model=rope.model.d_model)
    here = ", ".join(f"{name} {saved[name]:.1f} %" for name in paper.SAVED_PERCENT)
    stated = ", ".join(f"{percent:g}" for percent in paper.SAVED_PERCENT.values())
    cached = [
        100 - 100 * kv_cache_values(config.model) / kv_cache_values(rope.model)
        for config in (crope, mqa)
    ]
    beside = ""
    if thin_ffn := _line_of(lines, "cost", "crope", "thin_ffn"):
        text = (
            f"CRoPE's loss minus that of a feed-forward layer thinned instead: {estimate(thin_ffn)}"
        )
        beside = f" {text}, {thin_ffn['steps']:,} steps, {100 * thin_ffn['level']:.0f} %."
    return (
        f"**For whom it matters:** those who must save weights. Eq. 30 saves {here} (paper: {stated}), the paper's"
        f" whole model with embeddings {saved['model']:.1f} %, and {cached[0]:.0f} % of the KV cache, of which"
        f" multi-query attention of the same size saves {cached[1]:.0f} %.{beside}"
    )


def runs_table(frame: pd.DataFrame, invalid: Sequence[InvalidRecord]) -> pd.DataFrame:
    """runs.csv: one row per run, errors as one line; then the names and reasons of
    invalid records.
    """
    runs = frame.drop(columns="path").drop(columns=frame.filter(like="error.").columns)
    lists = [name for name in runs if runs[name].map(lambda value: isinstance(value, list)).any()]
    errors = [
        error_line(run) if run["status"] == "failed" else None for run in frame.to_dict("records")
    ]
    runs = runs.drop(columns=lists).assign(error=pd.Series(errors, dtype=object))
    rows = [
        {"run_id": record.path.name, "status": "invalid", "error": record.reason}
        for record in invalid
        if record.path.name not in MEASUREMENTS
    ]
    if rows:
        runs = pd.concat([runs.astype(object), pd.DataFrame(rows)], ignore_index=True)
    return runs.convert_dtypes()  # integers stay integers where a failed run has none
