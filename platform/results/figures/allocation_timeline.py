"""Allocation timeline of one device: a lane per application, with its share and network."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View, lowest
from driftlab.platform.results.relations.sharing import allocations, allocations_once
from driftlab.platform.results.relations.time_series import join_windows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "One device, lowest seed, first {most:g} s at most. Bar height: compute share, {highest:.0f} % at most. Darker: "
    "larger network. Dotted: waiting. Blank: not running."
)
MAX_SHOWN_S = 120.0
SYSTEMS = 3
LANE, FRAME = 34, 62  # pixels per application, and around them
FILL = 0.8  # of a lane, by the largest share
FAINTEST = 0.28
SHADES = 8  # at most, in the key


def show(view: View) -> FigureContent | None:
    """Draw a panel per setting and a few systems, if applications share a device or switch networks."""
    rows = view.tables.once(allocations)
    rows = rows.merge(view.runs[["cell", "setting"]], on="cell")
    several = rows.groupby(["cell", "device"]).agg(apps=("app", "nunique"), times=("time_s", "nunique"))
    several = several[several["times"] > 1]
    changing = rows.groupby(["cell", "device", "app"])["variant"].nunique()
    if not (several["apps"] > 1).any() and not (changing > 1).any():
        return None
    sizes = view.tables.frame("variants").groupby(["cell", "device", "app"], sort=False).size()
    drawn = {
        f"{setting}: {system}": join_windows(lowest(own, "seed", "device")[lambda part: part["time_s"] < MAX_SHOWN_S])
        for setting, here in rows.groupby("setting")
        for system in view.one_of_each()[:SYSTEMS]
        if len(own := here[here["system"] == system])
    }
    highest = max(float(each["inference_share"].max()) for each in drawn.values()) or 1.0
    panels = [
        _panel(title, each.assign(height=each["inference_share"] / highest), sizes) for title, each in drawn.items()
    ]
    return FigureContent(NOTE.format(most=MAX_SHOWN_S, highest=100 * highest), panels, _grids(view))


def _panel(title: str, stays: pd.DataFrame, sizes: pd.Series) -> Panel:
    here = set(stays["app"])
    apps = [app for app in dict.fromkeys([*sizes.index.get_level_values("app"), *sorted(here)]) if app in here]
    return Panel(title, partial(_draw, stays=stays, apps=apps, sizes=sizes), FRAME + LANE * len(apps))


def _draw(axis: Axes, stays: pd.DataFrame, apps: list[str], sizes: pd.Series) -> None:
    most = 1
    for lane, app in enumerate(apps):
        own = stays[stays["app"] == app]
        foot = len(apps) - 1 - lane
        first = own.iloc[0]
        networks = int(sizes.get((first["cell"], first["device"], app), 1))
        most = max(most, networks)
        for stay in own.itertuples():
            if stay.inference_share == 0:
                axis.hlines(foot, stay.time_s, stay.end_s, color=plots.QUIET, linestyle=":", linewidth=1.6)
                continue
            strength = 1.0 if stay.variant != stay.variant else _strength(int(stay.variant), networks)
            axis.bar(
                stay.time_s,
                FILL * stay.height,
                stay.end_s - stay.time_s,
                bottom=foot,
                align="edge",
                color=plots.COLOURS[0],
                alpha=strength,
                linewidth=0,
            )
    plots.tidy(axis)
    axis.grid(visible=False)
    axis.set_xlim(float(stays["time_s"].min()), float(stays["end_s"].max()))
    axis.hlines(range(len(apps)), *axis.get_xlim(), color=plots.RULE, linewidth=0.7, zorder=0)
    axis.set_yticks([foot + FILL / 4 for foot in range(len(apps))], apps[::-1])
    axis.set_ylim(-0.02, len(apps))
    axis.set_xlabel("time, s")
    if most > 1:
        _key(axis, most)


def _strength(variant: int, networks: int) -> float:
    """Return the opacity of a network; 1 for the largest."""
    return FAINTEST + (1 - FAINTEST) * variant / (networks - 1) if networks > 1 else 1.0


def _key(axis: Axes, networks: int) -> None:
    """Draw the colour key from the smallest to the largest network, above the lanes."""
    above: dict[str, Any] = {"transform": axis.transAxes, "clip_on": False}
    text_style: dict[str, Any] = {
        **above,
        "y": 1.05,
        "ha": "right",
        "va": "center",
        "fontsize": 8.5,
        "color": plots.QUIET,
    }
    axis.text(x=1.0, s="largest", **text_style)
    shades = min(networks, SHADES)
    for k in range(shades):
        shade: dict[str, Any] = {"color": plots.COLOURS[0], "alpha": _strength(k, shades), "markeredgewidth": 0}
        axis.plot([0.87 - 0.035 * (shades - 1 - k)], [1.05], "s", markersize=8, **shade, **above)
    axis.text(x=0.85 - 0.035 * (shades - 1), s="smallest network", **text_style)


def _grids(view: View) -> list[Grid]:
    """Tabulate the number of concurrent applications and the time of each, if applications come and go."""
    rows = allocations_once(view.tables)
    at_a_time = rows.groupby(["cell", "device", "time_s"]).size()
    if at_a_time.nunique() < 2:
        return []
    counts, parts = (each.value_counts(normalize=True).sort_index() for each in (at_a_time, rows["app"]))
    return [_shares("applications at a time", counts), _shares("application", parts)]


def _shares(title: str, shares: pd.Series) -> Grid:
    row = [GridCell(f"{100 * share:.1f} %") for share in shares]
    return Grid(title, [str(name) for name in shares.index], {"share of the time": row})


FIGURE = Figure("allocation_timeline", "Allocation timeline", show)
