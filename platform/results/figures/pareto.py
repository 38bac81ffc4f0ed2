"""Score over traffic, energy and late frames, with the Pareto front of the methods, and the parts of the energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    NO_CELL,
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    number_cell,
)
from driftlab.platform.results.relations.frontiers import pareto
from driftlab.platform.results.relations.lateness import late_shares
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "The upper left is better: a high score for little. Stepped line: Pareto front, the methods that no other one "
    "exceeds in score for the same cost or less. Grey lines: bounds, drawn without cost. Means over seeds; bars: 95 % "
    "CI of the score. Traffic: uplink plus downlink. Late: frames that were skipped, or whose prediction was not ready "
    "in time. The axis is logarithmic where costs differ much."
)
RADIO = (
    " The radio draws power while it transfers, to wake up, and for some seconds after each transfer until it sleeps. "
    "So its energy follows how often a system sends, more than how many bytes: a radio that never sleeps draws the same "
    "for small updates as for large ones, and one that sends nothing draws nothing."
)
COSTS: Mapping[str, str] = {
    "traffic": "traffic, kbit/s per device",
    "energy": "energy, J per device",
    "late": "late frames, %",
}
PARTS = ("inference", "training", "labelling", "tracking", "coding", "patching", "paging", "radio")
GREYS = frozenset(plots.GREYS.values())
LABELLED = 6  # methods of a front that have room for their names
HALF = 0.5  # of an axis
NAME_WIDTH, NAME_HEIGHT = 0.35, 0.06  # of an axis
WIDE = 20.0  # costs that differ by more factors than this need a logarithmic axis


def show(view: View) -> FigureContent | None:
    """Draw each cost per setting, if at least two methods differ in it."""
    runs = view.runs.assign(
        traffic=view.runs["uplink_kbps"] + view.runs["downlink_kbps"],
        energy=view.runs["energy_j"] / view.runs["devices"],
        late=100 * view.runs["cell"].map(late_shares(view.tables)).astype(float),
    )
    panels = []
    for setting in view.settings():
        here = runs[runs["setting"] == setting]
        scores = means(here, ["system"], LIVE_SCORE, least=0.0, most=1.0, others=list(COSTS)).set_index("system")
        for cost, label in COSTS.items():
            points = scores.assign(cost=scores[cost].astype(float)).dropna(subset=["cost"])
            points = points.assign(method=[view.styles[name].colour not in GREYS for name in points.index])
            if points["method"].sum() > 1 and points["cost"].nunique() > 1:
                panels.append(Panel(f"{setting}: {cost}", partial(_draw, points=points, label=label, view=view)))
    styles = {name: style for name, style in view.styles.items() if name in set(runs["system"])}
    parts, note = _parts(view), NOTE + (RADIO if (view.runs["radio_j"] > 0).any() else "")
    return FigureContent(note, panels, [parts] if parts.rows else [], styles) if panels else None


def _parts(view: View) -> Grid:
    """List the parts of the energy of a device that are not 0 for every system, and the share of the radio."""
    parts = view.runs[[f"{part}_j" for part in PARTS]].astype(float).div(view.runs["devices"], axis="index")
    drawn = parts.groupby(view.runs["system"]).mean()
    drawn = drawn.loc[:, (drawn > 0).any()]
    total, names = drawn.sum(axis="columns"), [column.removesuffix("_j") for column in drawn]
    rows = {
        system: [
            number_cell(total[system]),
            *(_share(value, total[system]) for value in drawn.loc[system]),
        ]
        for system in view.styles
        if total.get(system)
    }
    return Grid("energy per device, J", ["total", *names], rows)


def _share(value: float, total: float) -> GridCell:
    return GridCell(plots.short(value), f"{100 * value / total:.0f} %") if value else NO_CELL


def front(points: pd.DataFrame) -> pd.DataFrame:
    """Return the methods that no other method dominates, the cheapest first."""
    return pareto(points[points["method"]], "mean", "cost").drop_duplicates(["mean", "cost"])


def _draw(axis: Axes, points: pd.DataFrame, label: str, view: View) -> None:
    best = front(points)
    axis.plot(best["cost"], best["mean"], color=plots.QUIET, linewidth=1.0, drawstyle="steps-post", zorder=1)
    judged = [
        name for name in view.styles if name in points.index and (points.loc[name, "method"] or _idle(view, name))
    ]
    for name in points.index.difference(judged, sort=False):
        style = view.styles[name]
        axis.axhline(points.loc[name, "mean"], color=style.colour, linestyle=style.dash, linewidth=1.2, zorder=0)
    for name in judged:
        plots.trend(axis, points.loc[[name]], "cost", view.styles[name])
    axis.margins(x=0.06, y=0.1)
    _scale(axis, points.loc[judged, "cost"])
    if len(best) <= LABELLED:
        _name(axis, best)
    axis.set_xlabel(label)
    axis.set_ylabel(plots.live_measure(view.runs))
    plots.tidy(axis)


def _name(axis: Axes, best: pd.DataFrame) -> None:
    """Label the methods on the front where there is room: upper left, or lower right.

    On the right, of two points that are close to each other, the cheaper one has its name below.
    """
    above = (math.inf, math.inf)
    for name, cost, mean in best[["cost", "mean"]].iloc[::-1].itertuples():
        x, y = axis.transAxes.inverted().transform(axis.transData.transform((cost, mean)))
        close = above[0] - x < NAME_WIDTH and above[1] - y < NAME_HEIGHT
        place, side = ((-5, -11 if close else 4), "right") if x > HALF else ((5, -11), "left")
        above = (x, y) if x > HALF else above
        axis.annotate(name, (cost, mean), place, textcoords="offset points", ha=side, fontsize=8, color=plots.INK)


def _idle(view: View, name: str) -> bool:
    """Return whether a system is the no-adaptation bound, whose cost is the baseline of all others."""
    return bool((view.runs[view.runs["system"] == name]["bound"] == "no_adaptation").any())


def _scale(axis: Axes, costs: pd.Series) -> None:
    """Make the axis logarithmic if costs differ much; a cost of 0 is drawn left of the smallest one."""
    some = costs[costs > 0]
    if some.empty or some.max() < WIDE * some.min():
        axis.set_xlim(left=-0.06 * float(costs.max()))
        return
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_xscale("symlog", linthresh=float(some.min()), linscale=0.4, subs=[])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


FIGURE = Figure("pareto", "Cost", show)
