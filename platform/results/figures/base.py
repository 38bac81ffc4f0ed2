"""What a figure is, and what it draws from. One file per figure; each has a `FIGURE`, and `table.py` lists them.

A figure looks at what a run holds, and shows nothing where the run does not vary what the figure is about. It draws on
plain matplotlib axes, so that the report and a notebook have the same picture.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.relations.base import members
from driftlab.platform.results.relations.sharing import USUAL_ALPHA, swept
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.read import Run, Tables
from driftlab.platform.results.tables.systems import Slot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HEIGHT = 236  # pixels of a panel in a report


@dataclass(frozen=True)
class View:
    """What figures draw from: the tables of a run, its complete cells by setting, and the look of every system."""

    tables: Tables
    runs: pd.DataFrame
    looks: Mapping[str, Style]

    def named(self, table: str) -> pd.DataFrame:
        """Read a table with the system, the setting and the seed of every row."""
        return self.tables.frame(table).merge(self.runs[["cell", "system", "setting", "seed"]], on="cell")

    def members(self, family: str, *names: str) -> dict[str, Slot]:
        """Read the members that the systems of this run have in a slot; of these names alone, if any are given."""
        found = members(self.tables, family, *names)
        return {system: found[system] for system in self.looks if system in found}

    def one_of_each(self) -> list[str]:
        """Take a system for each pair of scheduler and networks; of those that differ in alpha alone the most usual."""
        lines = {name: line for line in swept(self.tables) for name in line}
        scalings = self.members("scaling")
        found: dict[Any, str] = {}
        for name, member in self.members("scheduling").items():
            line = lines.get(name, {name: 0.0})
            usual = min(line, key=lambda other: abs(line[other] - USUAL_ALPHA)) if len(line) > 1 else name
            found.setdefault((member.name, scalings[name]), usual)
        return list(found.values())

    def settings(self) -> list[str]:
        """Name the settings in the order of the tables."""
        return sorted(set(self.runs["setting"]))


@dataclass(frozen=True)
class Panel:
    """One axis."""

    title: str
    draw: Callable[[Axes], None]
    height: int = HEIGHT
    legend: Mapping[str, Style] = field(default_factory=dict)  # of this panel, where panels differ


@dataclass(frozen=True)
class GridCell:
    """One cell of a grid."""

    text: str
    note: str = ""
    strong: bool = False


NO_CELL = GridCell("–")  # nothing was measured


@dataclass(frozen=True)
class Grid:
    """Numbers that a reader wants to compare one by one: a title, names of columns, and rows by name."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[GridCell]]


@dataclass(frozen=True)
class Shown:
    """What a figure makes of a run; the legend names the lines of all its panels."""

    note: str
    panels: Sequence[Panel] = ()
    grids: Sequence[Grid] = ()
    legend: Mapping[str, Style] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A way to look at a run."""

    name: str
    title: str
    show: Callable[[Any], Shown | None]  # of a View; of what a search has found, where it is a search's


def view_of(run: Run, tables: Tables | None = None) -> View:
    """Look at a run; systems keep the colours of its report."""
    tables = tables or Tables(run)
    runs = plots.with_settings(tables.frame("runs"))
    looks = plots.styles(runs, [_name(system) for system in run.spec.get("systems", ())])
    return View(tables, runs[runs["status"] == "done"], looks)


def _name(system: Any) -> str:
    """Name a system of the spec, which is a name or a mapping that holds one."""
    return str(system.get("name", "")) if isinstance(system, Mapping) else str(system)


def common(names: Sequence[str]) -> str:
    """Name a group by what its names begin with."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_ ]+[\d.]*$", "", "".join(letters[0] for letters in same)) or names[0]


def means_by_setting(rows: pd.DataFrame, value: str) -> dict[Any, pd.Series]:
    """Average a column over seeds by system, in each `setting` and in `all`: a row of `means` for each pair of both."""
    found = [means(rows, ["system", by], value).set_index(["system", by]) for by in ("setting", "all")]
    return {key: mean for table in found for key, mean in table.iterrows()}


def mean_cell(found: pd.Series | None, text: str, half: str, factor: float = 1.0, *, strong: bool = False) -> GridCell:
    """Write a mean with half of its interval in the formats given; a dash where there is none."""
    if found is None:
        return NO_CELL
    return GridCell(text.format(factor * found["mean"]), half_of(found, half, factor), strong)


def number_cell(value: float | None) -> GridCell:
    """Write a number with three digits; a dash where there is none."""
    return NO_CELL if value is None or value != value else GridCell(plots.short(value))


def half_of(found: pd.Series, form: str, factor: float = 1.0) -> str:
    """Write half of an interval in a format; nothing where one value has none."""
    half = factor * (found["mean"] - found["low"])
    return "" if half != half else f"± {half:{form}}"


def untold(found: pd.Series, nothing: float = 0.0) -> str:
    """Say of a mean with its interval that it cannot be told from nothing; empty if it can."""
    return "cannot tell" if not (found["low"] > nothing or found["high"] < nothing) else ""
