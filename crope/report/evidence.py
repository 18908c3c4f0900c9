"""Contrasts as data, their differences by seed, intervals, and the words that are read off them.

A difference is first - second at equal seed, in nats per token. Pairing removes what two runs of a
seed share, data order and initial values. Intervals are Student's: they assume that differences
are normal and independent from seed to seed.

The rules. At most five contrasts are primary: named here with their study before its runs, answered
from exactly the study's seeds, each with a 99 % interval, so that together they hold with 95 %. All
others are exploratory, with 95 % intervals of which one in twenty will miss. A contrast is answered
from planned seeds alone, and only when all of a plan are there, so that nobody adds seeds after a
look; where studies share runs, the seeds of all of them are used, except of the primary ones.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import optimize, stats
from scipy.interpolate import pchip_interpolate

from crope import paper
from crope.report.frame import (
    TINY,
    Source,
    cell_runs,
    check_comparable,
    compact,
    dataset_label,
    load_curves,
    model_label,
)
from crope.runs.study import TABLES, Cell, StudyRow, expected_rows, expected_table_rows

LEVEL, PRIMARY_LEVEL = 0.95, 0.99
# Differences below it are called small. It lies a little below the smallest ± of Table 1 (0.0224),
# the paper's range of noise (Sec. 6.1), and is a tenth of the smallest gap that the paper prints
# between XPOS and RoPE (0.21).
MARGIN = 0.02
# Of consecutive windows: those of one book resemble each other. With 10 the error on PG-19 is about
# that of clusters by its 49 books; with 50 it was half as large.
TEXT_BLOCKS = 10
LENGTHS = 4  # the length at which `length_change` measures, over the training length
DIVERGED = "NonFiniteLoss"  # error of a run whose loss became infinite: a result of its rate


@dataclass(frozen=True)
class Comparison:
    """A row of a study, one dataset at one width and setting, with its runs.

    runs       one row per run: model, seed, final, train, lr, parameters, lengths, ...
    rows       the study's rows on this dataset: all widths and settings, planned
    siblings   the runs of all of them; `setting` is the position of the row
    """

    row: StudyRow
    runs: pd.DataFrame
    rows: tuple[StudyRow, ...]
    siblings: pd.DataFrame

    @property
    def steps(self) -> int:
        """Training steps of its runs; 0 without runs."""
        steps = self.runs["steps"].dropna()
        return int(steps.iloc[0]) if len(steps) else 0

    def by_seed(self, model: str, column: str = "final") -> pd.Series:
        """The finite values of one model, indexed by seed."""
        values = self.runs[self.runs["model"] == model].set_index("seed")[column]
        return values[np.isfinite(values)]


Value = Callable[[Comparison, "Contrast"], pd.Series]


def final_loss(comparison: Comparison, contrast: "Contrast", column: str = "final") -> pd.Series:
    """Final full validation loss; several seconds are averaged."""
    second = pd.concat([comparison.by_seed(model, column) for model in contrast.seconds], axis=1)
    return (comparison.by_seed(contrast.first, column) - second.mean(axis=1, skipna=False)).dropna()


def train_loss(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Final loss on the training split, measured as the validation loss is."""
    return final_loss(comparison, contrast, "train")


def best_rate(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Each model at its own best learning rate: a seed's rate is the one with the lowest mean over
    the *other* seeds, because choosing and comparing on the same losses is biased.
    """
    runs = comparison.siblings
    if runs["lr"].nunique() < len(comparison.rows):
        return pd.Series(dtype=float)
    chosen = []
    for model in contrast.models:
        losses_SR = runs[runs["model"] == model].pivot(index="seed", columns="lr", values="final")
        chosen.append(held_out(losses_SR.dropna()))
    first, second = chosen
    return (first - second).dropna()


def equal_size(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Final loss beside that of `second` interpolated to the parameters of `first`."""
    # NaN, which lies between no sizes, if all runs diverged.
    size = comparison.runs.loc[comparison.runs["model"] == contrast.first, "parameters"].max()
    others = comparison.siblings[comparison.siblings["model"].isin(contrast.seconds)]
    return (comparison.by_seed(contrast.first) - at_size(others, parameters=size)).dropna()


def size_cost(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Final loss of `second` interpolated to the parameters of `first`, less its own."""
    own = comparison.by_seed(contrast.seconds[0])
    at_first = comparison.by_seed(contrast.first) - equal_size(comparison, contrast)
    return (at_first - own).dropna()


def length_change(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Loss of `first` at LENGTHS times its training length less that at this length, of the tokens
    beyond it. Below 0, more context helps.

    Tokens before it have the same context at both lengths and contribute 0, so the difference of
    the means over all tokens is divided by the share of those beyond, 1 - 1 / LENGTHS.
    """
    runs = comparison.runs[comparison.runs["model"] == contrast.first].dropna(subset="lengths")
    changes = {}
    for seed, length, measured in zip(runs["seed"], runs["seq_len"], runs["lengths"], strict=True):
        loss_at = dict(measured)
        if {length, LENGTHS * length} <= loss_at.keys():
            changes[seed] = (loss_at[LENGTHS * length] - loss_at[length]) / (1 - 1 / LENGTHS)
    return pd.Series(changes, dtype=float)


def from_first_setting(comparison: Comparison, contrast: "Contrast") -> pd.Series:
    """Final loss of `first` at the study's first setting less that of `second` at this one."""
    siblings = comparison.siblings
    first = replace(comparison, runs=siblings[siblings["setting"] == 0]).by_seed(contrast.first)
    return (first - comparison.by_seed(contrast.seconds[0])).dropna()


# What is subtracted from what, where it is not one model from another.
LABELS: dict[Value, str] = {
    length_change: f"{{first}} at {LENGTHS} L − at L",
    equal_size: "{first} − {second} of its size",
    size_cost: "{second} of {first}'s size − {second}",
    from_first_setting: "{first} at the first setting − {second}",
}
# Values that need other runs of the study or what was measured on its runs later.
OWN_SEEDS = (best_rate, *LABELS)


@dataclass(frozen=True)
class Contrast:
    """One difference, first - second, asked of one study; `value` gives it by seed, in nats per
    token.

    family     under which it is printed (tables.FAMILIES, or with all others); P1 to P5 if primary
    question   `{steps}` in it becomes the number of training steps
    ablation   restricts it to one row of Table 2
    level      of its interval
    """

    family: str
    study: str
    question: str
    first: str
    second: str | tuple[str, ...] = ()
    value: Value = final_loss
    ablation: str = ""
    level: float = LEVEL

    @property
    def seconds(self) -> tuple[str, ...]:
        return (self.second,) if isinstance(self.second, str) else self.second

    @property
    def models(self) -> tuple[str, ...]:
        return (self.first, *self.seconds)

    @property
    def label(self) -> str:
        """What is subtracted from what."""
        first, *seconds = map(model_label, self.models)
        second = ", ".join(seconds)
        if len(seconds) > 1:
            second = f"mean of {second}"
        return LABELS.get(self.value, "{first} − {second}").format(first=first, second=second)


def ask(family: str, question: str, *names: str, value: Value = final_loss) -> list[Contrast]:
    """A contrast for each name <study>/<first>-<second>, as in `make explain CELL=...`."""
    asked = []
    for name in names:
        study, _, models = name.partition("/")
        first, *seconds = models.split("-")
        asked.append(Contrast(family, study, question, first, tuple(seconds), value))
    return asked


# Each with its stand-in: the same difference in another study (of one row of Table 2), printed
# until the planned runs are complete. It was chosen after its runs, so it is exploratory.
PRIMARY = [
    (replace(asked, level=PRIMARY_LEVEL), replace(asked, study=study, ablation=ablation))
    for family, question, name, study, ablation in [
        ("P1", "What does Eq. 30 cost?", "cost/crope-rope", "base", ""),
        ("P2", "Does it cost more than other halves?", "cost/crope-lowrank-halved", "controls", ""),
        ("P3", "Does it cost more in Q and K than in V?", "cost/complex_qk-complex_v",
         "controls", ""),
        ("P4", "Do other pairs than the rotation's cost more?", "cost/complex_misaligned-crope",
         "controls", ""),
        ("P5", "What does it cost in a row of the paper?", "paper_row/crope-rope", "table2",
         "b2_l512_g09_s1000"),
    ]
    for asked in ask(family, question, name)
]  # fmt: skip
# Their studies are answered from their own seeds in every line, so that a quantity has one value.
PRIMARY_STUDIES = {planned.study for planned, _ in PRIMARY}

CONTRASTS: list[Contrast] = [
    Contrast("cost", "base", "After {steps} steps", "crope", "rope"),
    *ask("cost", "After {steps} steps", "horizon/crope-rope", "cost/crope-rope"),
    *ask("cost", "At each width", "scaling/crope-rope"),
    *ask("cost", "After {steps} steps", "medium/crope-rope"),
    *ask("cost", "In what the paper leaves open", "pilot/crope-rope"),
    *ask("cost", "Without positions", "baselines/complex_nope-nope"),
    *ask("more", "After {steps} steps", "controls/complex_qk-rope", "controls/complex_v-rope"),
    *ask("more", "Pairs not those of the rotation", "controls/complex_misaligned-crope"),
    *ask("more", "Q and K beside V", "controls/complex_qk-complex_v"),
    *ask(
        "more",
        "After {steps} steps",
        "cost/complex_misaligned-crope",
        "cost/complex_qk-complex_v",
        "cost/crope-lowrank-halved",
        "cost/complex_qk-rope",
        "cost/complex_v-rope",
        "cost/conjugate-crope",
    ),
    *ask("saving", "After {steps} steps at CRoPE's saving", "cost/crope-thin_ffn"),
    *ask("half", "After {steps} steps at CRoPE's saving", "cost/crope-mqa", "cost/crope-lowrank"),
    *ask("half", "After {steps} steps", "cost/crope-halved"),
    *ask("more", "After {steps} steps", "medium_halves/lowrank-rope", "medium_halves/mqa-rope"),
    *ask("half", "After {steps} steps", "controls/crope-lowrank"),
    *ask("more", "After {steps} steps", "controls/crope-blockdiag"),
    *ask(
        "half",
        "After {steps} steps",
        "controls/crope-halved",
        "horizon/crope-lowrank",
        "horizon/crope-halved",
    ),
    *ask("more", "After {steps} steps", "horizon/lowrank-rope", "horizon/halved-rope"),
    *ask("half", "Wider at equal weights", "scaling/complex_wide-rope"),
    *ask("half", "At equal parameters", "scaling/crope-rope", value=equal_size),
    *ask("half", "A narrower RoPE", "scaling/crope-rope", value=size_cost),
    *ask("more", "What rotation is worth after {steps} steps", "baselines/rope-nope"),
    *ask("more", "Against no positions", "baselines/xpos-nope", "baselines/xpos_balanced-nope"),
    *ask("more", "Against RoPE", "baselines/xpos_balanced-rope"),
    *ask("more", "What rotation is worth after {steps} steps", "cost/rope-nope"),
    *ask("more", "After {steps} steps", "medium_nope/rope-nope"),
    *ask("more", "What rotation is worth after {steps} steps", "schemes/rope-nope"),
    *ask(
        "more",
        "After {steps} steps",
        "schemes/alibi-nope",
        "schemes/relative_bias-nope",
        "schemes/learned-nope",
        "schemes/xpos_balanced-nope",
        "schemes/xpos_balanced-rope",
    ),
    *ask("more", "In a row of the paper", "paper_row_xpos/xpos-rope"),
    *ask("rate", "At each learning rate", "fair_lr/crope-rope"),
    *ask("rate", "Each at its best rate, {steps} steps", "fair_lr/crope-rope", value=best_rate),
    *ask(
        "rate",
        "Each at its best rate, {steps} steps with warm-up",
        "tuned_lr/crope-rope",
        value=best_rate,
    ),
    *ask("more", "At each learning rate", "early_lead/crope-rope"),
    *ask(
        "more",
        "RoPE at a higher rate than CRoPE, {steps} steps",
        "early_lead/crope-rope",
        value=from_first_setting,
    ),
    *ask(
        "more",
        "A larger rate of Q, K, V, {steps} steps",
        "early_lead_qkv/rope-rope",
        value=from_first_setting,
    ),
    *ask(
        "length",
        "Beyond the training length",
        "length/xpos",
        "length/relative_bias",
        "length/alibi",
        "length/nope",
        "length/rope",
        "length/crope",
        value=length_change,
    ),
]

# Studies with differences between rows, whose runs must be comparable as those of one row.
ACROSS_ROWS = {contrast.study for contrast in CONTRASTS if contrast.value in OWN_SEEDS}


# What the paper says of its tables and of Fig. 4: the same contrasts, beside what it prints.
CLAIMS: list[Contrast] = [
    *ask("Table 1", "XPOS is markedly worse than RoPE", "table1/xpos-rope"),
    *ask("Table 1", "CRoPE matches RoPE", "table1/crope-rope"),
    *ask("Table 2", "CRoPE and RoPE differ non-substantially", "table2/crope-rope"),
    Contrast(
        "Table 2",
        "paper_row",
        "Both at the paper's own size",
        "crope",
        "rope",
        level=PRIMARY_LEVEL,
    ),
    *ask("Table 2", "Both at the paper's own size", "paper_row_xpos/xpos-rope"),
    *ask("Fig. 4", "Training loss: CRoPE above RoPE", "table1/crope-rope", value=train_loss),
    *ask("Fig. 4", "Training loss: XPOS above CRoPE", "table1/xpos-crope", value=train_loss),
]
# Every model beside RoPE: the studies of each panel, whose runs have an equal number of steps.
FOREST = (("base", "controls", "baselines"), ("cost", "horizon", "schemes"))
PHASES = 10  # equal parts of a run, over each of which sampled validation losses are averaged
# Studies whose phases are compared.
TRAINING_STUDIES = ("base", "horizon", "cost", "medium", "paper_row")


@dataclass(frozen=True)
class Training:
    """CRoPE - RoPE of sampled validation losses while both are trained, at one comparison.

    differences   a row per seed, a column per phase, named by the tokens seen in its middle
    rope_nats     RoPE's loss in each phase, mean over seeds
    planned       number of planned seeds; before all of them are there, nothing is inferred
    paper         what the paper prints: the final difference, at the tokens after which RoPE's loss
                  here has fallen to the printed one, and this loss; None without such a row or loss
    """

    study: str
    title: str
    differences: pd.DataFrame
    rope_nats: pd.Series
    planned: int
    paper: tuple[float, float, float] | None


@dataclass(frozen=True)
class Evidence:
    """The answers of all contrasts: data frames with one row per line of `answer`.

    primary       one line per primary contrast, of its stand-in where `planned` is False;
                  `text_error_nats` as `text_error`, NaN for a stand-in
    exploratory   every line of CONTRASTS
    claims        every line of CLAIMS, with `paper_nats`, the difference that the paper prints
    forest        every model minus RoPE; `title` is the panel, whose lines are over equal corpora
    training      CRoPE - RoPE while both are trained
    """

    primary: pd.DataFrame
    exploratory: pd.DataFrame
    claims: pd.DataFrame
    forest: pd.DataFrame
    training: list[Training]

    @property
    def paper_row(self) -> Training | None:
        """Of the paper's own row."""
        return next((part for part in self.training if part.study == "paper_row"), None)


def build_evidence(comparisons: Sequence[Comparison]) -> Evidence:
    """The answers of every contrast; `comparisons` are those of all studies."""
    chosen = []
    for planned, stand_in in PRIMARY:
        line = overall(answer(planned, comparisons))
        if line is None or line["reason"]:
            line = overall(answer(stand_in, comparisons)) or line
        if line is not None:
            answered = line["level"] == PRIMARY_LEVEL and not line["reason"]
            if line["row"] != "base":  # named by the paper's settings at every scale
                line |= {"where": f"{line['where']} ({line['scale']} scale)"}
            error = text_error(planned, comparisons) if answered else np.nan
            chosen.append(line | {"planned": answered, "text_error_nats": error})
    claims = []
    for line in _lines(CLAIMS, comparisons):
        if (line["study"], line["row"]) == ("table2", "base"):
            continue  # the same runs as in Table 1
        own_size = line["study"] in ("paper_row", "paper_row_xpos")
        if own_size and line["reason"]:
            continue
        table = "table2" if own_size else line["study"]
        first, second = (
            paper.printed_loss(table, line["row"], line["dataset"], line[model])
            for model in ("first", "second")
        )
        stated = np.nan  # Fig. 4 has no numbers
        if line["family"] != "Fig. 4" and first and second:
            stated = first.mean_nats - second.mean_nats
        claims.append(line | {"paper_nats": stated})
    return Evidence(
        primary=pd.DataFrame(chosen, columns=[*COLUMNS, "planned", "text_error_nats"]),
        exploratory=pd.DataFrame(_lines(CONTRASTS, comparisons), columns=COLUMNS),
        claims=pd.DataFrame(claims, columns=[*COLUMNS, "paper_nats"]),
        forest=_forest(comparisons),
        training=_training(comparisons),
    )


def _forest(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """See `Evidence.forest`."""
    cells = itertools.chain.from_iterable(comparison.row.cells for comparison in comparisons)
    models = dict.fromkeys(cell.model for cell in cells if cell.model != "rope")
    drawn = []
    for studies in FOREST:
        panel = []
        for model in models:
            contrasts = [Contrast("", study, "{steps} steps", model, "rope") for study in studies]
            lines = [overall(answer(contrast, comparisons)) for contrast in contrasts]
            panel += [line for line in lines if line and not line["reason"]][:1]
        pooled = any(not line["dataset"] for line in panel)
        for line in panel:
            if not line["dataset"]:
                drawn.append(line | {"title": f"{line['scale']} scale, {line['question']}"})
            elif not pooled:
                title = f"{dataset_label(line['dataset'])}, {line['question']}"
                drawn.append(line | {"title": title})
    return pd.DataFrame(drawn, columns=[*COLUMNS, "title"])


def _lines(
    contrasts: Sequence[Contrast], comparisons: Sequence[Comparison]
) -> list[dict[str, Any]]:
    """The lines of every contrast that has at least one seed."""
    lines = []
    for contrast in contrasts:
        answered = answer(contrast, comparisons)
        if any(line["n"] for line in answered):
            lines += answered
    return lines


def overall(lines: Sequence[dict[Any, Any]]) -> dict[Any, Any] | None:
    """The line over all corpora, or the only one; None if there is no single one with a seed."""
    pooled = [line for line in lines if not line["dataset"]] or list(lines)
    return pooled[0] if len(pooled) == 1 and pooled[0]["n"] else None


def _training(comparisons: Sequence[Comparison]) -> list[Training]:
    """At equal seed and step all models are validated on the same batches, so that differences of
    sampled losses are quiet. Of studies of one dataset and length the one with most seeds.
    """
    compared = []
    for comparison in comparisons:
        row = comparison.row
        if row.study not in TRAINING_STUDIES:
            continue
        runs = comparison.runs[np.isfinite(comparison.runs["final"])]
        runs = runs[runs["seed"].isin(row.seeds)]
        rope_runs = runs[runs["model"] == "rope"]
        rope = _by_phase(rope_runs)
        differences = (_by_phase(runs[runs["model"] == "crope"]) - rope).dropna()
        if len(differences):
            scale, dataset = row.cells[0].scale, dataset_label(row.dataset)
            title = f"{dataset}, {scale} scale, {comparison.steps:,} steps"
            rope_nats, point = rope.loc[differences.index].mean(), _paper_point(row, rope_runs)
            compared.append(
                Training(row.study, title, differences, rope_nats, len(row.seeds), point)
            )
    by_seeds = sorted(compared, key=lambda training: len(training.differences))
    most = {training.title: training for training in by_seeds}
    return [training for training in compared if most[training.title] is training]


def _by_phase(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean sampled validation loss: a row per seed, a column per phase, named by the tokens seen in
    its middle.
    """
    losses = {}
    for run in runs.to_dict("records"):
        curve = load_curves(run["path"]).dropna(subset="val/loss_nats")
        curve = curve[curve["step"] > 0]  # at step 0 nothing is trained
        phase = (curve["step"] - 1) * PHASES // int(curve["step"].max())
        means = curve.groupby(phase)["val/loss_nats"].mean()
        losses[run["seed"]] = means.set_axis((means.index + 0.5) / PHASES * run["train_tokens"])
    return pd.DataFrame(losses).T


def _paper_point(row: StudyRow, rope: pd.DataFrame) -> tuple[float, float, float] | None:
    """See `Training.paper`; RoPE's loss is the mean over seeds and over five validations."""
    cell = row.cells[0]
    crope, printed = (
        paper.printed_loss("table2", cell.row, row.dataset, model) for model in ("crope", "rope")
    )
    if cell.scale != "paper" or crope is None or printed is None:
        return None
    curves = pd.concat([load_curves(path) for path in rope["path"]])
    losses = curves.groupby("step")["val/loss_nats"].mean().dropna().rolling(5).mean()
    below = losses[losses <= printed.mean_nats]
    if below.empty:
        return None
    tokens = below.index[0] / losses.index[-1] * rope["train_tokens"].iloc[0]
    return float(tokens), crope.mean_nats - printed.mean_nats, printed.mean_nats


def comparison_label(comparison: Comparison) -> str:
    """Dataset, width if the study has several, and the values of its other axes."""
    dataset = dataset_label(comparison.row.dataset)
    several = len({row.width for row in comparison.rows}) > 1 and comparison.row.study not in TABLES
    width = [f"D = {comparison.row.width}"] if several else []
    return ", ".join([dataset, *width, *map(setting_label, comparison.row.settings)])


def setting_label(setting: str) -> str:
    """`train.max_steps=3200` as "3,200 steps", a row of Table 2 in the paper's words."""
    key, _, value = setting.partition("=")
    if key == "train.max_steps":
        return f"{int(value):,} steps"
    if key == "eval.full_tokens":
        return f"{int(value):,} validation tokens"
    if key == "ablation":
        return paper.row_label(value)
    return f"{key.rpartition('.')[2]} {value}"


def source_comparisons(source: Source) -> list[Comparison]:
    """Those of both tables and of all studies. Raises UserError as `check_comparable` does."""
    plan = (source.scale, source.datasets)
    return find_comparisons(source.all_runs, [*expected_table_rows(*plan), *expected_rows(*plan)])


def find_comparisons(frame: pd.DataFrame, rows: Sequence[StudyRow]) -> list[Comparison]:
    """The rows of studies, each with its runs. Raises UserError as `check_comparable` does."""
    comparison_of: dict[StudyRow, Comparison] = {}
    for row in rows:
        if row in comparison_of:
            continue
        beside = tuple(
            other for other in rows if (other.study, other.dataset) == (row.study, row.dataset)
        )
        every = list(itertools.chain.from_iterable(other.cells for other in beside))
        runs_of = {}
        for other in beside:
            compared = every if row.study in ACROSS_ROWS else other.cells
            chosen = one_copy(frame, compared)
            check_comparable(chosen, compared)
            by_cell = [_runs(chosen, cell) for cell in other.cells]
            runs_of[other] = pd.concat(by_cell, ignore_index=True)
        parts = [runs.assign(setting=at) for at, runs in enumerate(runs_of.values())]
        siblings = compact(pd.concat(parts, ignore_index=True))
        for other, runs in runs_of.items():
            comparison_of[other] = Comparison(other, runs, beside, siblings)
    return [comparison_of[row] for row in rows]


def one_copy(frame: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    """The runs of these cells. Of one that several folders hold, the copy beside most of the other
    cells' runs of its seed, because only runs of one machine and precision compare.
    """
    runs = frame[frame["cell_key"].isin({cell.key for cell in cells})]
    folders = runs["path"].map(os.path.dirname)
    current = runs["cell_key"].where(runs["status"] != "stale")
    held = current.groupby([folders, runs["seed"]]).transform("nunique")
    order = held.sort_values(ascending=False, kind="stable").index
    runs, folders = runs.loc[order], folders.loc[order]
    first = folders.groupby([runs["cell_key"], runs["seed"], runs["status"]]).transform("first")
    return runs[folders == first].sort_index()


def _runs(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """The complete runs of a cell, and those that diverged; the loss of these is infinite."""
    complete = cell_runs(frame, cell)
    failed = frame[(frame["cell_key"] == cell.key) & (frame["status"] == "failed")]
    diverged = failed[failed["error.type"] == DIVERGED]
    runs = pd.concat([complete, diverged], ignore_index=True).drop_duplicates("seed")
    columns = {
        "model": cell.model,
        "seed": runs["seed"].astype(int),
        "final": runs["val_full.final_nats"].astype(float).mask(runs["status"] == "failed", np.inf),
        "train": runs["train.final_nats"].astype(float),
        "lr": runs["config.train.lr"],
        "steps": runs["config.train.max_steps"],
        "seq_len": runs["config.train.seq_len"],
        "parameters": runs["parameters.total"],
        "lengths": runs["lengths"],
        "positions": runs["positions"],
        "d_model": runs["config.model.d_model"],
        "train_tokens": runs["train_tokens"],
        "path": runs["path"],
    }
    return pd.DataFrame(columns, index=runs.index)


def answer(contrast: Contrast, comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """One line for each comparison of the contrast's study, and one for all corpora of a setting.

    `comparisons` are those of all studies, because studies share runs and so seeds. A line without
    answer says why in `reason`. A line of one corpus also has the `runs` of its comparison and the
    `seeds` of its values.
    """
    lines: list[dict[str, Any]] = []
    parts_of: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for comparison in _comparisons_of(contrast, comparisons):
        if contrast.value is best_rate:  # over all settings of a corpus
            comparison = replace(comparison, row=replace(comparison.row, settings=()))
        row = comparison.row
        values, reason = planned_values(contrast, comparison, comparisons)
        setting = ", ".join(map(setting_label, row.settings))
        where = {
            "dataset": row.dataset,
            "row": row.cells[0].row,
            "scale": row.cells[0].scale,
            "steps": comparison.steps,
            "width": row.width,
            "setting": setting,
            "where": comparison_label(comparison),
            "runs": comparison.runs,
            "seeds": tuple(values.index),
        }
        lines.append(_line(contrast, [values], reason) | where)
        parts_of.setdefault((row.width, setting), []).append(lines[-1])
    for (_, setting), parts in parts_of.items():
        # The paper has no mean over its datasets.
        if len(parts) > 1 and contrast.study not in TABLES:
            names = [dataset_label(line["dataset"]) for line in parts]
            where = {
                "dataset": "",
                "where": ", ".join(filter(None, [" and ".join(names), setting])),
            }
            reason = next((line["reason"] for line in parts if line["reason"]), "")
            groups = [pd.Series(line["values"], dtype=float) for line in parts]
            lines.append(parts[0] | _line(contrast, groups, reason) | where)
    most = max((line["steps"] for line in lines), default=0)  # of a corpus without runs
    return [
        line | {"question": line["question"].format(steps=f"{line['steps'] or most:,}")}
        for line in lines
    ]


def _comparisons_of(contrast: Contrast, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Those that the contrast is asked of; tiny stands in for no other corpus."""
    chosen = [comparison for comparison in comparisons if _belongs(contrast, comparison)]
    return [comparison for comparison in chosen if comparison.row.dataset != TINY] or chosen


def _belongs(contrast: Contrast, comparison: Comparison) -> bool:
    if contrast.study != comparison.row.study:
        return False
    if contrast.ablation and contrast.ablation != comparison.row.cells[0].row:
        return False
    smallest = min(row.width for row in comparison.rows)
    if contrast.value in (equal_size, size_cost) and comparison.row.width == smallest:
        return False  # the smallest CRoPE is smaller than every RoPE
    is_first = comparison.row == comparison.rows[0]
    if contrast.value is (from_first_setting if is_first else best_rate):
        return False  # best_rate is asked once, of the first of its settings
    models = {cell.model for cell in comparison.row.cells}
    return models.issuperset(contrast.models)


def planned_values(
    contrast: Contrast, comparison: Comparison, comparisons: Sequence[Comparison]
) -> tuple[pd.Series, str]:
    """The differences of planned seeds, and why they are no answer yet (empty if they are one).

    The seeds are those of every plan that holds the contrast's cells and is complete, except of
    PRIMARY_STUDIES; in these, and of a value of OWN_SEEDS, those of its own study.
    """
    own = comparison.row.seeds
    if contrast.study in PRIMARY_STUDIES or contrast.value in OWN_SEEDS:
        plans = [own]
        siblings = comparison.siblings[comparison.siblings["seed"].isin(own)]
        comparison = replace(comparison, siblings=siblings)
    else:
        keys = {cell.key for cell in comparison.row.cells if cell.model in contrast.models}
        plans = [
            other.row.seeds
            for other in comparisons
            if keys <= {cell.key for cell in other.row.cells}
            and other.row.study not in PRIMARY_STUDIES
        ]
    values = contrast.value(comparison, contrast).sort_index()
    complete = [plan for plan in plans if set(plan) <= set(values.index)]
    if complete:
        return values[values.index.isin(set().union(*complete))], ""
    values = values[values.index.isin(own)]
    reason = f"{len(values)} of {len(own)} planned seeds"
    if contrast.value in OWN_SEEDS:  # of runs of other rows, too
        return values, reason
    runs = comparison.runs[comparison.runs["model"].isin(contrast.models)]
    diverged = runs.loc[np.isinf(runs["final"]) & runs["seed"].isin(own), "seed"].nunique()
    return values, f"{reason}, {diverged} diverged" if diverged else reason


COLUMNS = [
    "family", "study", "question", "first", "second", "difference", "dataset", "row", "scale", "steps", "width",
    "setting", "where", "n", "mean_nats", "std_over_seeds_nats", "low_nats", "high_nats", "level", "answer", "reason",
    "values",
]  # fmt: skip


def _line(contrast: Contrast, groups: Sequence[pd.Series], reason: str) -> dict[str, Any]:
    """Mean, interval and words; `groups` are the differences of each corpus."""
    mean, low, high = np.nan, np.nan, np.nan
    n = min(len(values) for values in groups)
    if n:
        mean, low, high = interval(groups, contrast.level)
    if reason:
        low, high = np.nan, np.nan
    std = groups[0].std() if len(groups) == 1 else np.nan
    return {
        "family": contrast.family,
        "study": contrast.study,
        "question": contrast.question,
        "first": contrast.first,
        "second": " ".join(contrast.seconds),
        "difference": contrast.label,
        "n": n,
        "mean_nats": mean,
        "std_over_seeds_nats": std,
        "low_nats": low,
        "high_nats": high,
        "level": contrast.level,
        "answer": "one seed" if n == 1 and not reason else classify(low, high),
        "reason": reason,
        "values": tuple(np.concatenate([values.to_numpy() for values in groups])),
    }


def interval(groups: Sequence[ArrayLike], level: float) -> tuple[float, float, float]:
    """Mean of the groups' means with its interval (mean, low, high); NaN ends where a group has one
    value.

    A group holds the differences of one corpus. They are taken as independent of another corpus',
    whose runs of the same seeds share initial values but no text: the variances of the means add
    up, and the degrees of freedom are Welch's (Satterthwaite). For one group this is Student's
    interval.
    """
    arrays = [np.asarray(values, dtype=float) for values in groups]
    mean = float(np.mean([values.mean() for values in arrays]))
    if min(values.size for values in arrays) < 2:
        return mean, np.nan, np.nan
    parts = np.array([values.var(ddof=1) / values.size for values in arrays])
    if not parts.any():
        return mean, mean, mean
    df = parts.sum() ** 2 / sum(
        part**2 / (values.size - 1) for part, values in zip(parts, arrays, strict=True)
    )
    error = np.sqrt(parts.sum()) / len(arrays)
    low, high = stats.t.interval(level, df, loc=mean, scale=error)
    return mean, float(low), float(high)


def text_error(contrast: Contrast, comparisons: Sequence[Comparison]) -> float:
    """Standard error, in nats, that the choice of the validation text gives to a difference of
    final losses over all corpora; NaN if a run lacks the losses of its windows.

    The intervals are over seeds, all on one text. Here the differences of the windows are averaged
    over the planned seeds and vary over TEXT_BLOCKS blocks of each corpus.
    """
    variances = []
    for comparison in _comparisons_of(contrast, comparisons):
        runs = comparison.runs[comparison.runs["seed"].isin(comparison.row.seeds)]
        losses = []
        for model in contrast.models:
            paths = runs.loc[runs["model"] == model, "path"]
            try:
                windows = [np.load(Path(path) / "val_windows.npy") for path in paths]
            except FileNotFoundError:
                return np.nan
            losses.append(np.mean(windows, axis=0))
        blocks = np.array_split(losses[0] - np.mean(losses[1:], axis=0), TEXT_BLOCKS)
        variances.append(np.var([block.mean() for block in blocks], ddof=1) / TEXT_BLOCKS)
    return float(np.sqrt(np.sum(variances)) / len(variances))


def classify(low: float, high: float) -> str:
    """The class of an interval: higher, lower, no difference above MARGIN, open or missing."""
    if np.isnan(low):
        return "missing"
    within = low > -MARGIN and high < MARGIN
    if low > 0 or high < 0:
        return ("higher" if low > 0 else "lower") + (f" by less than {MARGIN:g}" if within else "")
    return f"no difference above {MARGIN:g}" if within else "open"


def random_effects(means: ArrayLike, errors: ArrayLike) -> tuple[float, float, float, float]:
    """Mean over rows whose true differences vary around it: (mean, low, high, tau), tau the standard
    deviation between rows.

    REML for tau, and the interval of Hartung and Knapp (2001), Student's with k - 1 degrees of
    freedom. errors: standard errors of the means.
    """
    y, variance = np.asarray(means, dtype=float), np.asarray(errors, dtype=float) ** 2

    def weights(tau2: float) -> tuple[np.ndarray, float]:
        w = 1 / (variance + tau2)
        return w, float((w * y).sum() / w.sum())

    def negative_likelihood(tau: float) -> float:
        w, mean = weights(tau**2)
        return float(-np.log(w).sum() + np.log(w.sum()) + (w * (y - mean) ** 2).sum()) / 2

    largest = 10 * max(np.ptp(y), np.sqrt(variance.max()))
    tau = float(optimize.minimize_scalar(negative_likelihood, bounds=(0, largest), method="bounded",
                                         options={"xatol": 1e-7 * largest}).x)  # fmt: skip
    w, mean = weights(tau**2)
    error = np.sqrt((w * (y - mean) ** 2).sum() / ((len(y) - 1) * w.sum()))
    low, high = stats.t.interval(LEVEL, len(y) - 1, loc=mean, scale=error)
    return mean, float(low), float(high), tau


def held_out(losses_SR: pd.DataFrame) -> pd.Series:
    """By seed: its loss at the rate (column) with the lowest mean over the other seeds. Empty with
    one seed, or if that rate diverged.
    """
    seeds = list(losses_SR.index) if len(losses_SR) > 1 else []
    chosen = {s: losses_SR.loc[s, losses_SR.drop(s).mean().idxmin()] for s in seeds}
    values = pd.Series(chosen, dtype=float)
    return values if np.isfinite(values).all() else values.iloc[:0]


def at_size(runs: pd.DataFrame, *, parameters: float) -> pd.Series:
    """By seed: the loss of one model at a size between those of its runs, by a monotone cubic in
    the log of the size (a chord would lie above the loss, which is convex in it).
    """
    values: dict[Any, float] = {}
    for seed, of_seed in runs.dropna(subset="final").groupby("seed"):
        curve = of_seed.groupby("parameters")["final"].mean()
        if len(curve) > 2 and curve.index.min() <= parameters <= curve.index.max():
            values[seed] = float(pchip_interpolate(np.log(curve.index), curve, np.log(parameters)))
    return pd.Series(values, dtype=float)
