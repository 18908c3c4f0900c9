"""Which runs may stand beside each other: of one table row, those of one precision, kind of device and text.

The commit may differ: NUMERICS_VERSION says whether a commit changed a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from crope.errors import UserError
from crope.record import Record

if TYPE_CHECKING:
    from crope.report.frame import CellResult


def check_unmixed(row: Sequence[CellResult]) -> None:
    """The models of a row are compared, their seeds averaged. Raises UserError, naming the runs, where neither may be.

    Corpora without a pinned text (tiny, wikitext2_raw) can differ between machines; the token files' hashes show it.
    """
    runs = [run for result in row for run in result.runs]
    cell = row[0].cell
    where = f"{cell.table}/{cell.row}/{cell.dataset}"
    kinds: tuple[tuple[str, Callable[[Record], str]], ...] = (
        ("precision or device", lambda run: f"{run.summary['precision']} on {run.summary['device_kind']}"),
        ("data", data_of),
    )
    for what, kind_of in kinds:
        names: dict[str, list[str]] = {}
        for run in runs:
            names.setdefault(kind_of(run), []).append(run.path.name)
        if len(names) > 1:
            found = "; ".join(f"{kind}: {', '.join(sorted(set(named)))}" for kind, named in sorted(names.items()))
            problem = f"runs of different {what} share no mean and no difference"
            raise UserError(f"{where}: {problem} ({found}); move one kind to a folder of its own, name it with --runs")
    for result in row:
        if len({run.summary["seed"] for run in result.runs}) < result.n:
            named = ", ".join(str(run.path) for run in result.runs)
            cure = "give --runs folders that hold each run once"
            raise UserError(f"{where}/{result.cell.model}: two runs have the same seed: {named}; {cure}")


def data_of(run: Record) -> str:
    """The text that a run saw, by the hashes of its token files."""
    splits = run.provenance["data"]["splits"]
    return ", ".join(f"{name} tokens {split['sha256'][:12]}" for name, split in sorted(splits.items()))
