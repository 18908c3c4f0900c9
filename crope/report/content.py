"""The content of a report: what follows from the user's runs and from the published ones."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from crope.plan.study import TABLES, expected_cells, table_cells
from crope.report import agreement, losses
from crope.report.contrasts import load_contrasts
from crope.report.evidence import answers
from crope.report.frame import PUBLISHED_SCALE, Runs, by_study, cell_frame
from crope.report.losses import LossTable
from crope.report.pooled import pooled_lines, rate_lines
from crope.report.tables import Table


@dataclass(frozen=True)
class Results:
    """What follows from the runs of one origin.

    cells    of all studies
    joined   runs that count for a study, of `by_study`
    lines    the differences, of `answers`
    """

    cells: pd.DataFrame
    joined: pd.DataFrame
    lines: pd.DataFrame

    @property
    def answered(self) -> pd.DataFrame:
        """Selects the differences that have a seed at least."""
        return self.lines[self.lines["n"] > 0]

    @cached_property
    def stated(self) -> pd.DataFrame:
        """Gives what a sentence can rest on: differences, pooled estimates, rates."""
        return pd.concat([self.lines, pooled_lines(self.joined), rate_lines(self.joined)])

    def differences_of(self, studies: Collection[str]) -> pd.DataFrame:
        """Selects the differences of these studies, in the order of conf/contrasts.yaml; those of
        Tables 1 and 2 come last, as on the page.
        """
        contrasts = load_contrasts()
        names = [name for name in contrasts if not set(studies).isdisjoint(contrasts[name].studies)]
        found = self.answered[self.answered["name"].isin(names)]
        of_table = found["name"].map(lambda name: contrasts[name].studies[0] in TABLES)
        return found.loc[of_table.sort_values(kind="stable").index]

    def studies_with_a_complete_seed(self) -> set[str]:
        """Returns Tables 1 and 2 and the studies that have a whole seed, unless all their runs are
        in the tables: others share single runs with these.
        """
        sizes = self.joined.groupby(["study", "seed"], as_index=False).size()
        whole = sizes[sizes["size"] == sizes["study"].map(Counter(self.cells["study"]))]
        runs = self.joined.groupby("study")["run_id"].agg(set)
        table_runs = set().union(*(runs.get(name, set()) for name in TABLES))
        names = [name for name in whole["study"] if not runs[name] <= table_runs]
        return {*TABLES, *names}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report.

    shown    the runs in Tables 1 and 2: the user's if one of them is in the tables, else published ones
    whose    says which
    losses   Tables 1 and 2
    studies  the tables of the user's other studies, which come first
    differences   of the user's studies, these and Tables 1 and 2
    verdict  how the user's runs agree with the published ones, and `card` in one line
    """

    runs: Runs
    own: Results
    published: Results
    shown: pd.DataFrame
    whose: str
    losses: Sequence[LossTable]
    studies: Sequence[Table]
    differences: pd.DataFrame
    verdict: Sequence[str]
    card: str


def results(runs: pd.DataFrame, scale: str) -> Results:
    """Joins the runs with the cells of all studies. Raises UserError if runs of one row are not
    comparable.
    """
    cells = [*table_cells(scale), *expected_cells(scale)]
    joined = by_study(runs, cells)
    return Results(cell_frame(cells), joined, answers(joined))


def collect(runs: Runs, studies: Collection[str] | None = None) -> Report:
    """Makes everything of the report but its pictures; `studies` as in `build_report`. Raises
    UserError if runs of one row are not comparable.
    """
    cells = table_cells(runs.scale)
    own = results(runs.own, runs.scale)
    planned = cell_frame(cells)
    source, whose = runs.published, "published runs"
    if runs.own["cell_key"].isin(planned["cell_key"]).any():
        source, whose = runs.own, "your runs"
    shown = by_study(source, cells)
    large = shown[:0]
    if runs.scale != "paper":
        large = by_study(runs.published, table_cells("paper"))
    missing = losses.missing_words(source)
    named = own.studies_with_a_complete_seed() | set(studies or ())
    with_runs = [name for name in own.joined["study"].unique() if name in named - set(TABLES)]
    return Report(
        runs=runs,
        own=own,
        published=results(runs.published, PUBLISHED_SCALE),
        shown=shown,
        whose=whose,
        losses=[losses.loss_table(name, planned, shown, large, missing) for name in TABLES],
        studies=[losses.study_table(name, own.joined) for name in with_runs],
        differences=own.differences_of(named),
        verdict=[*agreement.verdict(runs), *agreement.other_code(runs)],
        card=agreement.card(runs),
    )
