"""The marks on the panels of a figure and the cells of its tables."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure as Canvas

from driftlab.platform.results.claims.base import every_claim
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import FigureContent, Grid, Panel, view_of


def show(figure: Any, tables: Any) -> FigureContent:
    shown = figure.FIGURE.show(view_of(tables.run, tables))
    assert shown is not None
    return shown


def hidden(figure: Any, tables: Any) -> bool:
    return figure.FIGURE.show(view_of(tables.run, tables)) is None


def drawn(panel: Panel) -> Any:
    axis = Canvas().subplots()
    panel.draw(axis)
    return axis


def panel_of(shown: FigureContent, title: str) -> Any:
    (panel,) = (panel for panel in shown.panels if panel.title == title)
    return drawn(panel)


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Return the lines of an axis by colour, without rules."""
    return {
        line.get_color(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines()
        if line.get_color() not in (plots.QUIET, plots.RULE)
    }


def texts(grid: Grid) -> dict[str, list[str]]:
    return {name: [entry.text for entry in entries] for name, entries in grid.rows.items()}


def notes(grid: Grid) -> dict[str, list[str]]:
    return {name: [entry.note for entry in entries] for name, entries in grid.rows.items()}


def claimed(name: str, tables: Any) -> float:
    found = every_claim()[name].measure(tables)
    assert isinstance(found, Measured), found
    return found.value
