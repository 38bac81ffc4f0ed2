"""Score over traffic, energy and late frames, with the Pareto front of methods; parts of the energy."""

from __future__ import annotations

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
    "The upper left is better: a high score for little{}. Stepped line: Pareto front, the methods that no other one "
    "exceeds in score for the same cost or less. Grey lines: bounds, drawn without cost. Means over seeds; bars: 95 % "
    "CI of the score. Traffic: uplink plus downlink. Late: frames that were skipped, or whose prediction was not ready "
    "in time. The axis is logarithmic where costs differ much."
)
RADIO = (
    "; a radio stays awake for seconds after each transfer, so that its energy follows how often a system sends, more "
    "than how many bytes"
)
HEIGHT, WIDTH = 200, 290  # pixels of a panel
COSTS: Mapping[str, str] = {
    "traffic": "traffic, kbit/s per device",
    "energy": "energy, J per device",
    "late frames": "late frames, %",
}
LEAST = 0.005  # of an energy; a smaller part is no per cent of it
PARTS = ("inference", "training", "labelling", "tracking", "coding", "patching", "paging", "radio")
GREYS = frozenset(plots.GREYS.values())
LABELLED = 6  # methods of a front that have room for their names
HALF, MARGIN = 0.5, 0.06  # of an axis
STEPS = 4  # of the axis of costs: labels such as 0.0175 take much room
FEW_DECADES = 100.0  # a logarithmic axis that spans less has labels between the powers of ten
WIDE = 20.0  # costs that differ by more factors than this need a logarithmic axis


def show(view: View) -> FigureContent | None:
    """Draw each cost per setting, if at least two methods differ in it."""
    runs = view.runs.assign(
        traffic=view.runs["uplink_kbps"] + view.runs["downlink_kbps"],
        energy=view.runs["energy_j"] / view.runs["devices"],
    )
    runs["late frames"] = 100 * runs["cell"].map(late_shares(view.tables)).astype(float)
    panels = []
    for setting in view.settings():
        here = runs[runs["setting"] == setting]
        scores = means(here, ["system"], LIVE_SCORE, least=0.0, most=1.0, others=list(COSTS)).set_index("system")
        for cost, label in COSTS.items():
            points = scores.assign(cost=scores[cost].astype(float)).dropna(subset=["cost"])
            points = points.assign(method=[view.styles[name].colour not in GREYS for name in points.index])
            if points["method"].sum() > 1 and points["cost"].nunique() > 1:
                panels.append(
                    Panel(
                        f"{setting}: {cost}", partial(_draw, points=points, label=label, view=view), HEIGHT, width=WIDTH
                    )
                )
    styles = view.styles_of(runs)
    parts, note = _parts(view), NOTE.format(RADIO if (view.runs["radio_j"] > 0).any() else "")
    return FigureContent(note, panels, [parts] if parts.rows else [], styles) if panels else None


def _parts(view: View) -> Grid:
    """List the parts of the energy of a device that are not 0 for every system."""
    parts = view.runs[[f"{part}_j" for part in PARTS]].astype(float).div(view.runs["devices"], axis="index")
    drawn = parts.groupby(view.runs["system"]).mean()
    drawn = drawn.loc[:, (drawn > 0).any()]
    total, names = drawn.sum(axis="columns"), [column.removesuffix("_j") for column in drawn]
    rows = {
        system: [
            number_cell(total[system]),
            *(_share(value / total[system]) for value in drawn.loc[system]),
        ]
        for system in view.styles
        if total.get(system)
    }
    return Grid("energy of a device", ["total, J", *(f"{name}, %" for name in names)], rows)


def _share(part: float) -> GridCell:
    return GridCell(f"{100 * part:.0f}" if part >= LEAST else "<1") if part > 0 else NO_CELL


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
    axis.margins(x=MARGIN, y=0.1)
    _scale(axis, points.loc[judged, "cost"])
    if len(best) <= LABELLED:
        _name(axis, best)
    axis.set_xlabel(label)
    axis.set_ylabel(plots.live_measure(view.runs))
    plots.tidy(axis)


def _name(axis: Axes, best: pd.DataFrame) -> None:
    """Label the methods on the front, left of points in the right half and right of others."""
    axis.get_xlim()  # the limits follow a new scale when they are read
    for name, cost, mean in best[["cost", "mean"]].itertuples():
        right = axis.transAxes.inverted().transform(axis.transData.transform((cost, mean)))[0] > HALF
        place, side = ((-5, 4), "right") if right else ((5, -11), "left")
        axis.annotate(name, (cost, mean), place, textcoords="offset points", ha=side, fontsize=8, color=plots.INK)


def _idle(view: View, name: str) -> bool:
    """Return whether a system is the no-adaptation bound, whose cost is the baseline of all others."""
    return bool((view.runs[view.runs["system"] == name]["bound"] == "no_adaptation").any())


def _scale(axis: Axes, costs: pd.Series) -> None:
    """Make the axis logarithmic if costs differ much; a cost of 0 is drawn left of the smallest one."""
    some = costs[costs > 0]
    if some.empty or some.max() < WIDE * some.min():
        most = float(costs.max()) or 1.0
        axis.set_xlim(-MARGIN * most, (1 + MARGIN) * most)
        axis.locator_params(axis="x", nbins=STEPS)
        return
    from matplotlib.ticker import FuncFormatter, NullLocator, SymmetricalLogLocator

    least = float(some.min())
    axis.set_xscale("symlog", linthresh=least, linscale=0.4, subs=[])
    if some.max() < FEW_DECADES * least:
        axis.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


FIGURE = Figure("pareto", "Cost", show)
