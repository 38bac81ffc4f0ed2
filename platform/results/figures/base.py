"""Types of a figure and of its inputs. One module per figure defines `FIGURE`; `table.py` lists them.

A figure reads the tables of a run and returns None if the run does not vary its subject. It draws on matplotlib axes,
so that the report and a notebook show the same plot.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.figures.svg import WIDTH
from driftlab.platform.results.relations.base import members
from driftlab.platform.results.relations.sharing import USUAL_ALPHA, swept
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.read import Run, Tables
from driftlab.platform.results.tables.systems import Slot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HEIGHT = 236  # pixels of a panel in a report
LATE_IN_BATCHES = (
    "If a method predicts in batches, the first frames of a batch wait for the last; the wait counts as latency, so "
    "they can be late on an idle device."
)


@dataclass(frozen=True)
class View:
    """Inputs of figures: the tables of a run, its complete cells by setting, and styles of systems."""

    tables: Tables
    runs: pd.DataFrame
    styles: Mapping[str, Style]

    def named(self, table: str) -> pd.DataFrame:
        """Return a table with the system, the setting and the seed of every row."""
        return self.tables.frame(table).merge(self.runs[["cell", "system", "setting", "seed"]], on="cell")

    def styles_of(self, rows: pd.DataFrame) -> dict[str, Style]:
        """Return the styles of the systems in a table."""
        named = set(rows["system"].unique())
        return {name: style for name, style in self.styles.items() if name in named}

    def members(self, family: str, *names: str) -> dict[str, Slot]:
        """Return the member of each system in one family, restricted to `names` if given."""
        found = members(self.tables, family, *names)
        return {system: found[system] for system in self.styles if system in found}

    def one_of_each(self) -> list[str]:
        """Select one system per scheduler and scaling; of an alpha sweep the one closest to `USUAL_ALPHA`."""
        lines = {name: line for line in swept(self.tables) for name in line}
        scalings = self.members("scaling")
        found: dict[Any, str] = {}
        for name, member in self.members("scheduling").items():
            line = lines.get(name, {name: 0.0})
            usual = min(line, key=lambda other: abs(line[other] - USUAL_ALPHA)) if len(line) > 1 else name
            found.setdefault((member.name, scalings[name]), usual)
        return list(found.values())

    def settings(self) -> list[str]:
        """Return the names of the settings, sorted."""
        return sorted(set(self.runs["setting"]))


@dataclass(frozen=True)
class Panel:
    """One plot with its own axes."""

    title: str
    draw: Callable[[Axes], None]
    height: int = HEIGHT
    legend: Mapping[str, Style] = field(default_factory=dict)  # of this panel, if panels differ
    width: int = WIDTH


@dataclass(frozen=True)
class GridCell:
    """One cell of a grid."""

    text: str
    note: str = ""
    strong: bool = False


NO_CELL = GridCell("–")  # not measured


@dataclass(frozen=True)
class Grid:
    """A table below a figure: title, column names, and rows by name."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[GridCell]]


@dataclass(frozen=True)
class FigureContent:
    """The content of a figure for one run; `legend` names the lines of all panels."""

    note: str
    panels: Sequence[Panel] = ()
    grids: Sequence[Grid] = ()
    legend: Mapping[str, Style] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A figure of the report: name, title and the function that builds its content."""

    name: str
    title: str
    show: Callable[[Any], FigureContent | None]  # takes a View; figures of a search take its results


def view_of(run: Run, tables: Tables | None = None) -> View:
    """Return the inputs of figures for a run; systems keep the colours of its report."""
    tables = tables or Tables(run)
    runs = plots.with_settings(tables.frame("runs"), run.info)
    styles = plots.assign_styles(runs, [_name(system) for system in run.spec.get("systems", ())])
    return View(tables, runs[runs["status"] == "done"], styles)


def _name(system: Any) -> str:
    """Return the name of a system of the spec, which is a string or a mapping with `name`."""
    return str(system.get("name", "")) if isinstance(system, Mapping) else str(system)


def lowest(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Select the rows with the lowest value of each column, one column after the other."""
    for column in columns:
        rows = rows[rows[column] == rows[column].min()]
    return rows


def common(names: Sequence[str]) -> str:
    """Return the common prefix of several names, without trailing numbers."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_ ]+[\d.]*$", "", "".join(letters[0] for letters in same)) or names[0]


def means_by_setting(rows: pd.DataFrame, value: str) -> dict[Any, pd.Series]:
    """Average a column over seeds, by system and setting and by system over `all` settings."""
    found = [means(rows, ["system", by], value).set_index(["system", by]) for by in ("setting", "all")]
    return {key: mean for table in found for key, mean in table.iterrows()}


def mean_cell(found: pd.Series | None, text: str, half: str, factor: float = 1.0, *, strong: bool = False) -> GridCell:
    """Format a mean and half of its interval; a dash if there is no mean."""
    if found is None:
        return NO_CELL
    return GridCell(text.format(factor * found["mean"]), half_of(found, half, factor), strong)


def number_cell(value: float | None) -> GridCell:
    """Format a number with three digits; a dash if there is none."""
    return NO_CELL if value is None or value != value else GridCell(plots.short(value))


def half_of(found: pd.Series, form: str, factor: float = 1.0) -> str:
    """Format half of an interval; empty for one value, which has no interval."""
    half = factor * (found["mean"] - found["low"])
    return "" if half != half else f"± {half:{form}}"


def inconclusive(found: pd.Series, nothing: float = 0.0) -> str:
    """Return "inconclusive" if the interval of a mean contains `nothing`, else an empty string."""
    return "inconclusive" if not (found["low"] > nothing or found["high"] < nothing) else ""
