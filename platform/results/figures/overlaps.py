"""Channels common to domains, and memory by stage: Figures 13 (b) and 7 of ElasticDNN."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, Panel, View, mean_cell, number_cell
from driftlab.platform.results.relations.domains import overlaps, stages
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Share of kept channels that two domains have in common, for the systems whose domains differ most and least. "
    "Similar: one shift at two severities. Last: the last group of channels alone. Memory: the running network, the "
    "samples, and additions of the stage. Means over seeds; ±: half of the 95 % CI."
)
STAGES = ("load", "generate", "retrain", "complete", "update")
SYSTEMS = 2  # to compare
SIDE = 300  # pixels of a map
DARKEST = 0.7  # opacity of a cell with all channels in common
MOST_WRITTEN = 15  # domains of a map with numbers


def show(view: View) -> FigureContent | None:
    """Draw runs of several systems that select channels for domains; tabulate the stages of phases."""
    rows, memory = view.tables.once(overlaps), view.tables.once(stages)
    if rows["system"].nunique() < SYSTEMS:
        return None
    panels, grids = list[Panel](), list[Grid]()
    for workload, own in rows.groupby("workload"):
        order = own[~own["similar"]].groupby("system")["overlap"].mean().sort_values()
        for system in dict.fromkeys(order.index[[0, -1]]) if len(order) else ():
            title = f"{workload}: channels that domains of {system} have in common"
            panels.append(Panel(title, partial(_draw_map, rows=own[own["system"] == system]), SIDE))
        grids.append(_overlap_grid(str(workload), own, list(view.styles)))
    grids += [_memory_grid(str(workload), own, list(view.styles)) for workload, own in memory.groupby("workload")]
    return FigureContent(NOTE, panels, grids)


def overlap_matrix(rows: pd.DataFrame) -> np.ndarray:
    """Return the mean overlap of each two domains; 1 on the diagonal, NaN for a pair without phases."""
    mean = rows.groupby(["first", "second"])["overlap"].mean()
    size = int(max(rows["first"].max(), rows["second"].max())) + 1
    found = np.full((size, size), np.nan)
    np.fill_diagonal(found, 1.0)
    for (first, second), value in mean.items():
        found[int(first), int(second)] = found[int(second), int(first)] = value
    return found


def _draw_map(axis: Axes, rows: pd.DataFrame) -> None:
    found = overlap_matrix(rows)
    for (row, column), value in np.ndenumerate(found):
        if value == value:
            axis.bar(column, 1, 1, row - 0.5, color=plots.COLOURS[0], alpha=DARKEST * value, linewidth=0)
            if len(found) <= MOST_WRITTEN:
                axis.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=plots.INK)
    axis.set_xlim(-0.5, len(found) - 0.5)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlabel("domain")
    axis.set_ylabel("domain")
    plots.tidy(axis)


def _overlap_grid(workload: str, rows: pd.DataFrame, order: list[str]) -> Grid:
    columns = [(similar, name) for similar in (True, False) for name in ("overlap", "last")]
    cells = {}
    for system in (name for name in order if name in rows["system"].unique()):
        own = rows[rows["system"] == system]
        parts = [means(own[own["similar"] == similar], ["system"], name, least=0, most=1) for similar, name in columns]
        cells[system] = [mean_cell(None if part.empty else part.iloc[0], "{:.1f} %", ".1f", 100) for part in parts]
    titles = [f"{'similar' if similar else 'dissimilar'}{', last' * (name == 'last')}" for similar, name in columns]
    return Grid(f"{workload}: channels in common", titles, cells)


def _memory_grid(workload: str, rows: pd.DataFrame, order: list[str]) -> Grid:
    """Tabulate the memory of each stage, in kB."""
    wide = rows.pivot_table("total_bytes", "system", "stage").reindex(columns=list(STAGES))
    cells = {name: [number_cell(value / 1000) for value in wide.loc[name]] for name in order if name in wide.index}
    return Grid(f"{workload}: memory by stage, kB", list(STAGES), cells)


FIGURE = Figure("overlaps", "Channels and memory of a phase", show)
