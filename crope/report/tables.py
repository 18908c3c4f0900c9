"""Tables 1 and 2 beside the paper's numbers: one structure that markdown.py, tex.py and html.py print.

A number of the paper's, of the committed records and of the runs themselves stand above each other in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crope import paper
from crope.report.frame import DATASET_LABELS, TINY, CellResult, group_rows
from crope.report.stats import Spread

PROTOCOLS = ("sampled", "full")

XPOS_NOTE = (
    "XPOS is the paper's name for sinusoidal absolute positions (Sec. 5.1), not the later rotary method called xPos."
)


@dataclass(frozen=True)
class Entry:
    """One printed value; `best` marks the lowest complete one of its line, `mark` points to a note.

    `result` is the cell that it was worked out from; None for the paper's.
    """

    text: str
    best: bool = False
    mark: str = ""
    result: CellResult | None = None

    @property
    def value(self) -> str:
        return f"{self.text} [{self.mark}]" if self.mark else self.text


@dataclass(frozen=True)
class Line:
    """`origin` says whose runs they are where a table holds several: published or yours."""

    protocol: str
    entries: tuple[Entry, ...]
    origin: str = ""

    @property
    def label(self) -> str:
        return f"{self.origin}, {self.protocol}" if self.origin else self.protocol


@dataclass(frozen=True)
class Group:
    """One row of the paper: its label, our settings of it where the label does not hold, and a line per protocol."""

    label: str
    here: str
    lines: tuple[Line, ...]

    @property
    def labels(self) -> list[str]:
        """One a line; both protocols are always there."""
        return [self.label, self.here, *[""] * (len(self.lines) - 2)]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    scale: str
    seeds: str
    columns: tuple[str, ...]
    groups: tuple[Group, ...]
    settings: str
    marks: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def caption(self) -> str:
        number = self.name.removeprefix("table")
        return f"Table {number}. {self.title}, nats per token. Scale: {self.scale}. {self.seeds}."


def build_table(
    results: Sequence[CellResult],
    name: str,
    *,
    scale: str,
    committed: Sequence[CellResult] = (),
    machine: str = "",
) -> Table:
    """The table of `results`; `committed`, the same cells of a machine's committed records, adds lines of its own."""
    rows = group_rows(results, name)
    models = list(dict.fromkeys(result.cell.model for row in rows for result in row))
    marks: dict[str, str] = {}  # text -> number, so that one reason stands once
    beside = {row_key(row): row for row in group_rows(committed, name)}
    groups = tuple(_build_group(row, beside.get(row_key(row), []), models, marks, name) for row in rows)
    notes = [*describe_protocols(results_of(rows), scale), XPOS_NOTE]
    if committed:
        count = describe_seeds(committed)
        notes.insert(
            0, f"published: records of {machine} that are committed with the code, {count}; yours: your own runs."
        )
    return Table(
        name=name,
        title=paper.TABLE_TITLES[name],
        scale=scale,
        seeds=describe_seeds(results_of(rows)),
        columns=tuple(paper.MODEL_LABELS.get(model, model) for model in models),
        groups=groups,
        settings=_shared_settings(rows) if name == "table1" else "",
        marks=tuple((number, text) for text, number in marks.items()),
        notes=tuple(notes),
    )


def row_key(row: Sequence[CellResult]) -> tuple[str, str]:
    return row[0].cell.dataset, row[0].cell.row


def results_of(rows: Iterable[Sequence[CellResult]]) -> list[CellResult]:
    return [result for row in rows for result in row]


def _shared_settings(rows: Sequence[Sequence[CellResult]]) -> str:
    """Table 1 has one configuration, said once beside the paper's; empty where they are the same or nothing was run."""
    here = {_settings_here(row) for row in rows} - {""}
    return f"Run with {', '.join(sorted(here))}; the paper: {paper.row_label('base')}." if here else ""


def _build_group(
    row: Sequence[CellResult], committed: Sequence[CellResult], models: Sequence[str], marks: dict[str, str], name: str
) -> Group:
    decimals, ordered, lines = paper.PRINTED_DECIMALS[name], _by_model(row, models), []
    if any(result is not None and result.printed for result in ordered):
        lines.append(Line("paper", tuple(_printed(result, decimals) for result in ordered)))
    beside = [result if result and result.n else None for result in _by_model(committed, models)]
    if any(beside):
        lines += [Line(protocol, _ours(beside, protocol, decimals, marks), "published") for protocol in PROTOCOLS]
    origin = "yours" if committed else ""
    lines += [Line(protocol, _ours(ordered, protocol, decimals, marks), origin) for protocol in PROTOCOLS]
    here = _settings_here(row) if name == "table2" else ""
    return Group(_group_label(row[0]), f"here {here}" if here else "", tuple(lines))


def _by_model(row: Sequence[CellResult], models: Sequence[str]) -> list[CellResult | None]:
    found = {result.cell.model: result for result in row}
    return [found.get(model) for model in models]


def _group_label(result: CellResult) -> str:
    cell = result.cell
    dataset = DATASET_LABELS.get(cell.dataset, cell.dataset)
    if cell.table == "table1":
        return dataset
    on = "" if cell.dataset == "pg19" else f" on {cell.dataset if cell.dataset == TINY else dataset}"
    return paper.row_label(cell.row) + on


def _settings_here(row: Sequence[CellResult]) -> str:
    """What was run under the paper's label. A smaller scale shrinks the numbers that the label names."""
    run = next((run for result in row for run in result.runs), None)
    if run is None or row[0].cell.scale == "paper":
        return ""
    train, d_model = run.config["train"], run.config["model"]["d_model"]
    return paper.configuration_label(
        train["batch_size"], train["seq_len"], d_model, train["lr_gamma"], train["lr_step_size"]
    )


def _ours(row: Sequence[CellResult | None], protocol: str, decimals: int, marks: dict[str, str]) -> tuple[Entry, ...]:
    spreads = [result.losses(protocol) if result else None for result in row]
    rounded = [round(spread.mean_nats, decimals) for spread in spreads if spread]
    # Marked at the printed precision: two values that look alike are both best. One value alone beats nothing.
    best = min(rounded) if len(rounded) > 1 else None
    counts = {result.n for result in row if result and result.n}
    entries = []
    for result, spread in zip(row, spreads, strict=True):
        if result is None:
            entries.append(Entry(""))
        elif spread is None:
            entries.append(Entry(result.status, mark=_mark(result.reason, marks), result=result))
        else:
            text = format_spread(spread, decimals) + (f" (n={spread.n})" if len(counts) > 1 else "")
            mark = ", ".join(_mark(note, marks) for note in result.notes)
            entries.append(Entry(text, round(spread.mean_nats, decimals) == best, mark, result))
    return tuple(entries)


def _printed(result: CellResult | None, decimals: int) -> Entry:
    printed = result.printed if result else None
    return Entry(f"{printed.mean_nats:.{decimals}f} ± {printed.std_nats:.{decimals}f}" if printed else "")


def _mark(text: str, marks: dict[str, str]) -> str:
    return marks.setdefault(text, str(len(marks) + 1))


def format_spread(spread: Spread, decimals: int) -> str:
    mean = f"{spread.mean_nats:.{decimals}f}"
    return mean if spread.std_nats is None else f"{mean} ± {spread.std_nats:.{decimals}f}"


def describe_seeds(results: Sequence[CellResult]) -> str:
    """`n = 1 seed per cell`, or the range where cells differ."""
    counts = sorted({result.n for result in results if result.n})
    if not counts:
        return "No complete cell"
    if len(counts) > 1:
        return f"n = {counts[0]} to {counts[-1]} seeds per cell"
    return f"n = {counts[0]} seed{'s' if counts[0] > 1 else ''} per cell"


def describe_protocols(results: Sequence[CellResult], scale: str) -> tuple[str, ...]:
    """What each line is, what each ± is a spread of, and what does not compare."""
    summaries = [run.summary["val_full"] for result in results for run in result.runs]
    if any(not summary["whole_split"] for summary in summaries):
        split = (
            f"a fixed, evenly spaced subset of the validation split ({_range(s['tokens'] for s in summaries)} tokens)"
        )
    else:
        split = "the whole validation split"
    notes = [
        "sampled (the paper's protocol): mean and standard deviation of a run's sampled validation losses over the last"
        " 10 % of steps, each averaged over seeds; ± is a spread over sampled batches, not over seeds.",
        f"full (this repository's protocol): loss after the last step on {split}, mean over seeds; ± is the sample"
        " standard deviation over seeds (none for one seed).",
        "paper: as printed; the paper does not say what its ± is a spread of.",
        "Bold: the lowest complete value of its line, whether or not the difference exceeds the spread.",
    ]
    if scale != "paper":
        notes.append(
            f"Scale {scale}: vocabulary, sequence length, batch and steps are smaller than the paper's, so the levels"
            " do not compare with the paper's; only the order and the differences of the models are of interest."
        )
    return tuple(notes)


def _range(values: Iterable[int]) -> str:
    ordered = sorted(set(values))
    return f"{ordered[0]:,}" if len(ordered) == 1 else f"{ordered[0]:,} to {ordered[-1]:,}"
