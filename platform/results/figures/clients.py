"""Score loss and waiting time on a shared server: Figures 6 and 10 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.relations.fleets import LOSS, losses, without_waiting
from driftlab.platform.results.relations.rates import uploads
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LOST = (
    "Live score lost: relative to the same device when it never waits. The rule marks one point, the largest loss at "
    "which the paper counts a device as served. "
)
WAITED = "Waiting: from the arrival of an upload until the server begins to label it. "
MEANS = "Means over streets and seeds with their 95 % intervals."
POINTS = "points of live score"


def show(view: View) -> FigureContent | None:
    """Draw loss and waiting over the number of devices, if fleets differ in it."""
    if view.runs["devices"].nunique() < 2:
        return None
    lost = losses(view.tables, LIVE_SCORE)
    shared = view.runs[~view.runs["fleet"].isin(without_waiting(view.tables))]
    sent = view.tables.once(uploads).merge(shared[["cell", "devices"]], on="cell")
    waited = sent.assign(waited_s=sent["label_start_s"] - sent["arrive_s"])
    styles = view.styles_of(waited)
    panels, notes = [], []
    if len(lost):
        loss = means(lost.assign(points=100 * lost["loss"]), ["system", "devices"], "points")
        panels.append(Panel("live score lost", partial(_draw, points=loss, styles=styles, label=POINTS)))
        notes.append(LOST)
    if len(waited):
        wait = means(waited, ["system", "devices"], "waited_s", least=0.0)
        panels.append(Panel("waiting for the server", partial(_draw, points=wait, styles=styles, label="seconds")))
        notes.append(WAITED)
    return FigureContent("".join([*notes, MEANS]), panels, legend=styles) if panels else None


def _draw(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap, label: str) -> None:
    if label == POINTS:
        axis.axhline(100 * LOSS, color=plots.QUIET, linewidth=0.8, zorder=0)
    for name, style in styles.items():
        plots.trend(axis, points[points["system"] == name], "devices", style)
    axis.set_xticks(sorted(set(points["devices"])))
    axis.set_xlabel("devices that share the server")
    axis.set_ylabel(label)
    plots.tidy(axis)


FIGURE = Figure("clients", "Sharing a server", show)
