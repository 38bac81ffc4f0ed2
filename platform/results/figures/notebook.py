"""Draw a figure of the report in a notebook, as matplotlib axes and tables."""

from __future__ import annotations

from collections.abc import Sequence

from driftlab.errors import unknown_name
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, View
from driftlab.platform.results.figures.searches import SEARCH_FIGURES
from driftlab.platform.results.figures.table import FIGURES
from driftlab.platform.results.relations.searches import SearchResults


def show(view: View, name: str) -> None:
    """Draw one figure of a run, or print that the run has no data for it."""
    _show(view, name, FIGURES)


def show_search(found: SearchResults, name: str) -> None:
    """Draw one figure of a search, or print that the search has no data for it."""
    _show(found, name, SEARCH_FIGURES)


def _show(data: View | SearchResults, name: str, figures: Sequence[Figure]) -> None:
    import matplotlib.pyplot as plt
    import pandas as pd
    from IPython.display import Markdown, display

    by_name = {figure.name: figure for figure in figures}
    if name not in by_name:
        raise unknown_name("figure", name, by_name)
    figure = by_name[name]
    shown = figure.show(data)
    if shown is None:
        display(Markdown(f"This run has no data for the figure '{figure.title}'."))
        return
    for panel in shown.panels:
        canvas, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
        panel.draw(axis)
        axis.set_title(panel.title, loc="left")
        plots.legend(canvas, panel.legend or shown.legend)
        plt.show()
    for grid in shown.grids:
        rows = {name: [f"{entry.text} {entry.note}" for entry in entries] for name, entries in grid.rows.items()}
        display(pd.DataFrame.from_dict(rows, orient="index", columns=grid.columns).rename_axis(grid.title))
    display(Markdown(shown.note))
