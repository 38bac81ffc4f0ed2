"""Plot accuracy over time, one panel per setting."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Score over the last 10 s of the predictions that were ready in time ({}), averaged over devices. Thin lines: "
    "seeds. Thick lines: mean over seeds. Vertical rules: scene changes; short ones at the foot: scene changes in "
    "some streams only."
)
MOST = 1.02  # a score of 1 and half of its line
BLIND = "No stream of this run has truth, so there is no accuracy to draw."


def show(view: View) -> FigureContent | None:
    """Draw all settings on one scale, so that panels are comparable."""
    frames = view.tables.frame("frames")
    if frames.empty:
        return None
    low, high = frames[LIVE_SCORE].min(), frames[LIVE_SCORE].max()
    if math.isnan(low):
        return FigureContent(BLIND)
    limits = (math.floor(low * 10) / 10, min(MOST, math.floor(high * 10 + 1) / 10))
    panels = [
        Panel(setting, partial(_draw, view=view, setting=setting, frames=frames, limits=limits))
        for setting in view.settings()
        if frames[frames["cell"].isin(view.runs[view.runs["setting"] == setting]["cell"])][LIVE_SCORE].notna().any()
    ]
    return FigureContent(NOTE.format(plots.live_measure(view.runs)), panels, legend=view.styles)


def _draw(axis: Axes, view: View, setting: str, frames: pd.DataFrame, limits: tuple[float, float]) -> None:
    runs = view.runs[view.runs["setting"] == setting]
    plots.accuracy(axis, runs, frames[frames["cell"].isin(set(runs["cell"]))], view.styles)
    axis.set_ylim(*limits)


FIGURE = Figure("accuracy", "Accuracy over time", show)
