"""Compare two systems pair by pair, for `driftlab.open_run(...).compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import CELL, column_of, pairs
from driftlab.platform.results.relations.tuned import how_chosen, unequal_budgets
from driftlab.platform.results.stats import ComparisonResult, Estimate, verdict
from driftlab.platform.results.tables import read
from driftlab.platform.results.tables.columns import LIVE_SCORE, note
from driftlab.platform.results.tables.read import Run, Tables
from driftlab.platform.results.tables.schema import TABLES

if TYPE_CHECKING:
    import pandas as pd

OVERALL = "overall"
LESS_IS_BETTER = frozenset({"B", "kbit/s", "J", "s", "ms", "MAC", "values", "packets"})  # units of costs


@dataclass(frozen=True)
class Pairing:
    """Means of two systems in one place or overall, and their mean difference over common seeds."""

    place: str
    ours: float | None
    theirs: float | None
    difference: Estimate | None
    verdict: ComparisonResult


@dataclass(frozen=True)
class Comparison:
    """Two systems side by side; prints as a small table."""

    ours: str
    theirs: str
    column: str
    unit: str
    by: str
    less_is_better: bool
    rows: Sequence[Pairing]  # the last one is over all places
    notes: Sequence[str] = ()  # on the settings of the two

    @property
    def verdict(self) -> ComparisonResult:
        """Return the verdict over all places."""
        return self.rows[-1].verdict

    @property
    def frame(self) -> pd.DataFrame:
        """Return the rows as a pandas frame; the last one is over all places."""
        import pandas as pd

        names = [self.by, "ours", "theirs", "difference", "low", "high", "n", "verdict"]
        rows = [
            (row.place, row.ours, row.theirs, *(row.difference or (None, None, None, 0)), row.verdict)
            for row in self.rows
        ]
        numbers = dict.fromkeys(names[1:6], float)
        return pd.DataFrame(rows, columns=names).astype(numbers)

    @property
    def title(self) -> str:
        """Return the caption: systems, column, unit and the better direction."""
        unit, side = f" in {self.unit}" if self.unit else "", "less" if self.less_is_better else "more"
        return f"{self.ours} against {self.theirs}: {self.column}{unit}, {side} is better, 95 % intervals"

    @property
    def _named(self) -> pd.DataFrame:
        return self.frame.rename(columns={"ours": self.ours, "theirs": self.theirs})

    def __repr__(self) -> str:
        table = self._named.to_string(index=False, float_format=_digits, na_rep="–")
        return "\n".join((self.title, table, *self.notes))

    def _repr_html_(self) -> str:
        import html

        table = self._named.to_html(index=False, float_format=_digits, na_rep="–", border=0)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{html.escape(self.title)}</p>{table}{notes}"


def compare(
    tables: Tables,
    ours: str,
    theirs: str,
    column: str = LIVE_SCORE,
    *,
    by: str = "workload",
    less_is_better: bool | None = None,
) -> Comparison:
    """Compare two systems place by place and overall, over the seeds that both ran.

    A column is one of `runs`, or `TABLE.COLUMN` of a table with rows per device and application; then each application
    is compared with itself, by its mean. Values are averaged over pairs of a seed and then over seeds; the verdict is
    `better` or `worse` where the interval excludes 0. Lower costs (bytes, seconds, joules, operations) are better
    unless `less_is_better` is given.
    """
    table, name = column_of(column)
    if by not in ("workload", "fleet", "app"):
        raise unknown_name("place to compare by", by, ("workload", "fleet", "app"))
    if by == "app" and "app" not in TABLES[table].names:
        raise RequestError(f"Table '{table}' has no applications to compare by. Name a column such as shares.accuracy.")
    runs = tables.frame("runs")
    if ours == theirs:
        raise RequestError(f"'{ours}' is compared with itself. Name two systems.")
    for system in (ours, theirs):
        if system not in set(runs["system"]):
            raise unknown_name("system in this run", system, runs["system"].unique())
    both = pairs(tables, ours, theirs, column)
    unit = note(TABLES[table].field(name), "unit")
    less = unit in LESS_IS_BETTER if less_is_better is None else less_is_better
    parts = [(str(place), part) for place, part in both.groupby(by)]
    rows = [_pairing(place, part, less) for place, part in [*parts, (OVERALL, both)]]
    notes = [*how_chosen(tables, (ours, theirs)), *unequal_budgets(tables, (ours, theirs))]
    return Comparison(ours, theirs, column, unit, by, less, rows, notes)


def by_system(runs: pd.DataFrame, of: str) -> pd.DataFrame:
    """Average a column by cell, with a column for each system."""
    return runs.astype({of: float}).groupby([*CELL, "system"])[of].mean().unstack("system")


def costs_of(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the bytes and the joules of all systems, by cell."""
    costs = runs.assign(bytes=runs["uplink_bytes"] + runs["downlink_bytes"], joules=runs["energy_j"])
    return {name: by_system(costs, name) for name in ("bytes", "joules")}


def cost_ratios(costs: Mapping[str, pd.DataFrame], ours: str, theirs: str) -> dict[str, float]:
    """Return the costs of one system as multiples of another's, over the cells that both completed."""
    sums = {name: table[[ours, theirs]].dropna().sum() for name, table in costs.items()}
    return {name: float(both[ours] / both[theirs]) for name, both in sums.items() if both[theirs] > 0}


def _pairing(place: str, both: pd.DataFrame, less_is_better: bool) -> Pairing:
    by_seed = both.groupby("seed")[["ours", "theirs"]].mean()
    difference = stats.paired_difference(both)
    ours, theirs = (None if by_seed.empty else float(by_seed[side].mean()) for side in ("ours", "theirs"))
    return Pairing(place, ours, theirs, difference, verdict(difference, less_is_better=less_is_better))


def _digits(value: float) -> str:
    return f"{value:.4g}".replace("-", "\u2212")


@dataclass(frozen=True, repr=False)
class AnalysedRun(Run):
    """A run folder with comparisons of its systems."""

    def compare(
        self,
        ours: str,
        theirs: str,
        column: str = LIVE_SCORE,
        *,
        by: str = "workload",
        less_is_better: bool | None = None,
    ) -> Comparison:
        """Compare two systems over the seeds that both ran: better, worse or inconclusive (see `compare`)."""
        return compare(Tables(self), ours, theirs, column, by=by, less_is_better=less_is_better)

    def classes(self) -> pd.DataFrame:
        """List the counts and scores of every class under every system; detection has none."""
        return self.frame("class_scores")


def open_run(path: str | Path) -> AnalysedRun:
    """Open a run folder; DataError with the file and the fix if it is damaged or no run folder."""
    run = read.open_run(path)
    return AnalysedRun(run.path, run.spec, run.info)
