"""Utility of training under time pressure, by inference load and patience."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    LATE_IN_BATCHES,
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    number_cell,
)
from driftlab.platform.results.relations import timing
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.read import Tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Utility per batch, computed from the batches of the fleet without skipped frames, with the measured times of "
    "inference and training. x: inference time / time between batches (0: no time pressure, 1: no time for training). "
    "Discrete: batches that arrive during training are skipped, except the newest. Relative adaptation speed: skipped "
    "batches are predicted without cost. Patience: a prediction has half of its utility after a wait of this many "
    "inference times. Agreement: Spearman correlation of the systems' order with their order without skipped batches. "
    "Lines: no adaptation, and every system that is best somewhere. Amortised: members that stop training after some "
    "steps, over the time of these steps. Last columns: scores of slower fleets, whose skipped frames keep the "
    "previous prediction. Means over workloads and seeds. "
    f"{LATE_IN_BATCHES}"
)
SOON = 0.1  # below this share of the time of plain inference, overheads are drawn evenly
AXES: Mapping[str, str] = {
    "discrete": "time of plain inference over time between batches",
    "relative": "relative speed of the stream",
    "continuous": "patience, times of plain inference",
}


def show(view: View) -> FigureContent | None:
    """Draw runs with training on the stream and one fleet without skipped frames."""
    tables = view.tables
    found = tables.once(timing.utilities)
    if found.empty or not (found["adapted"] > 0).any() or tables.frame("adaptations").empty:
        return None
    styles = view.styles_of(found)
    mean = timing.mean_utilities(tables)
    drawn = _select_systems(view, mean)
    panels = [Panel(f"{kind} utility", partial(_draw, mean=mean, kind=kind, styles=drawn), 300) for kind in AXES]
    agreement = {kind: timing.rank_agreement(tables, kind) for kind in AXES}
    panels += [Panel("agreement of rankings", partial(_draw_agreement, found=agreement))]
    grids = [_grid(tables, mean, styles)]
    if len(stopped := timing.budgets(tables)):
        panels.append(Panel("amortised utility", partial(_draw_budgets, lines=stopped), 300))
        grids.append(_stopped(stopped["utility"].unstack().sort_index()))
    grids += [
        _cost_grid(timing.costs_of_fleet(tables, pace.fleet), styles, pace.fleet) for pace in timing.load_levels(tables)
    ]
    return FigureContent(NOTE, panels, grids, drawn)


def _select_systems(view: View, mean: pd.Series) -> plots.StyleMap:
    """Select the systems that are best somewhere, and those without training."""
    best = {place[-1] for place in mean.groupby(["kind", "pressure"]).idxmax()}
    plain = {name for name, one in view.members("adaptation").items() if one.name == "frozen"}
    return plots.some_of(view.styles, best | (plain & set(mean.index.get_level_values("system"))))


def _draw(axis: Axes, mean: pd.Series, kind: str, styles: plots.StyleMap) -> None:
    own = mean.loc[[kind] if kind == "continuous" else ["offline", kind]]
    for name, style in styles.items():
        line = own.xs(name, level="system").droplevel("kind").sort_index()
        look = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.4, "markersize": 3, "gid": style.gid}
        axis.plot(line.index, line, "o", **look)
    if kind == "continuous":
        plots.scale(axis, sorted(set(own.index.get_level_values("pressure"))))
    axis.set_xlabel(AXES[kind])
    axis.set_ylabel("utility")
    plots.tidy(axis)


def _draw_agreement(axis: Axes, found: Mapping[str, pd.DataFrame]) -> None:
    styles = plots.series(found)
    for kind, rows in found.items():
        points = means(rows, ["pressure"], "agreement", least=-1, most=1).sort_values(
            "pressure", ascending=kind != "continuous"
        )
        places = range(1, len(points) + 1)
        axis.plot(places, points["mean"], "o", color=styles[kind].colour, linestyle="-", linewidth=1.5, markersize=4)
        if len(points):
            plots.label_point(axis, kind, places[-1], float(points["mean"].iloc[-1]), above=True)
    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    axis.set_xticks(range(1, 6))
    axis.set_xlabel("time pressure, lowest first")
    axis.set_ylabel("Spearman's correlation")
    axis.margins(x=0.1, y=0.15)
    plots.tidy(axis)


def _draw_budgets(axis: Axes, lines: pd.DataFrame) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    for place, (member, style) in enumerate(plots.series(lines.index.unique("member")).items()):
        line = lines.loc[member]
        axis.plot(line["overhead"], line["utility"], "o", color=style.colour, linestyle=style.dash, markersize=4)
        plots.label_point(axis, member, line["overhead"].iloc[-1], line["utility"].iloc[-1], above=place % 2 == 0)
    axis.set_xscale("symlog", linthresh=SOON)
    axis.xaxis.set_major_locator(FixedLocator([0, SOON, 10 * SOON, 100 * SOON]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.minorticks_off()
    axis.set_xlabel("training time over time of plain inference")
    axis.set_ylabel("utility")
    axis.margins(x=0.1, y=0.15)
    plots.tidy(axis)


def _stopped(wide: pd.DataFrame) -> Grid:
    """Tabulate the utility of members by the steps after which they stop training."""
    titles = [f"{steps:g} steps" if math.isfinite(steps) else "unlimited" for steps in wide.columns]
    best = wide.max(axis=1)
    cells = {str(name): [_entry(value, best[name]) for value in row] for name, row in wide.T.items()}
    return Grid("amortised", titles, cells)


def _grid(tables: Tables, mean: pd.Series, styles: plots.StyleMap) -> Grid:
    """Tabulate the utilities and the scores of slower fleets."""
    best = mean.groupby(["kind", "pressure"]).max()
    columns = [("offline", 0.0), ("discrete", 0.5), ("discrete", 1.0), ("relative", 1.0), ("continuous", 2.5)]
    fleets, served = [pace.fleet for pace in timing.load_levels(tables)[1:]], timing.served_scores(tables)
    rows = {
        name: [_entry(mean[kind, pressure, name], best[kind, pressure]) for kind, pressure in columns]
        + [_scored(*served.loc[(fleet, name)]) for fleet in fleets]
        for name in styles
    }
    titles = [kind if not pressure else f"{kind} {pressure:g}" for kind, pressure in columns]
    return Grid("utility", [*titles, *(f"fleet {fleet}" for fleet in fleets)], rows)


def _cost_grid(costs: pd.DataFrame, styles: plots.StyleMap, fleet: str) -> Grid:
    """Tabulate accuracy and costs; a system without a cell on the fleet has dashes."""
    costs = costs.reindex(list(styles))
    rows = {name: [number_cell(value) for value in costs.loc[name]] for name in styles}
    return Grid(f"accuracy and costs on fleet {fleet}", list(costs), rows)


def _entry(value: float, best: float) -> GridCell:
    return GridCell(f"{value:.3f}", strong=value == best)


def _scored(score: float, served: float) -> GridCell:
    return GridCell(f"{score:.3f}", f"{100 * served:.0f} % processed")


FIGURE = Figure("utility", "Utility under time pressure", show)
