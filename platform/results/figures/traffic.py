"""Scores with their intervals, and beside them what the links carry, on every setting."""

from __future__ import annotations

from functools import partial

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, Panel, Shown, View

NOTE = (
    "Score: a dot for the mean over seeds, a bar for its 95 % interval, a tick per seed. Traffic: bytes on the link "
    "with headers and retransmissions over the length of the session; 1 kbit is 1 000 bit."
)
ROW, FRAME = 28, 46  # pixels per system, and around them


def show(view: View) -> Shown | None:
    """Give every system a row in both."""
    panels = []
    for setting in view.settings():
        runs = view.runs[view.runs["setting"] == setting]
        looks = {name: look for name, look in view.looks.items() if name in set(runs["system"])}
        height = FRAME + ROW * len(looks)
        if runs["score"].notna().any():
            panels.append(Panel(f"{setting}: score", partial(plots.scores, runs=runs, looks=looks), height))
        if (runs[["downlink_kbps", "uplink_kbps"]] > 0).any(axis=None):
            panels.append(Panel(f"{setting}: traffic", partial(plots.traffic, runs=runs, looks=looks), height))
    return Shown(NOTE, panels) if panels else None


FIGURE = Figure("traffic", "Scores and traffic", show)
