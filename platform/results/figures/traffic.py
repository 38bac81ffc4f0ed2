"""Scores with intervals and link traffic, per setting."""

from __future__ import annotations

from functools import partial

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.tables.columns import LIVE_SCORE

NOTE = (
    "Live score: mean over seeds (dot), 95 % CI (bar), each seed (tick). Traffic: bytes on the link, with headers and "
    "retransmissions, divided by the session length; 1 kbit is 1000 bit."
)
ROW, FRAME = 28, 46  # pixels per system, and around them


def show(view: View) -> FigureContent | None:
    """Draw one row per system in both panels."""
    panels = []
    for setting in view.settings():
        runs = view.runs[view.runs["setting"] == setting]
        styles = view.styles_of(runs)
        height = FRAME + ROW * len(styles)
        if runs[LIVE_SCORE].notna().any():
            panels.append(Panel(f"{setting}: live score", partial(plots.scores, runs=runs, styles=styles), height))
        if (runs[["downlink_kbps", "uplink_kbps"]] > 0).any(axis=None):
            panels.append(Panel(f"{setting}: traffic", partial(plots.traffic, runs=runs, styles=styles), height))
    return FigureContent(NOTE, panels) if panels else None


FIGURE = Figure("traffic", "Scores and traffic", show)
