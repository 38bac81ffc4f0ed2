"""Sampling rate and training phases over time: Figures 3, 9 and 11 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.relations.rates import resets, uploads
from driftlab.platform.results.relations.scenery import sceneries, stops

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Sampling rate over time, first device, lowest seed. Ticks below: end of a training phase on the server. Shaded: "
    "the camera is stationary. Last panels, cumulative: share of streams up to a mean sampling rate, and of changes up "
    "to a delay, from the buffer that showed the change to the reset of a lengthened interval."
)


def show(view: View) -> FigureContent | None:
    """Draw the rate of every system that adapts it, and the distribution of mean rates over streams."""
    members = view.members("streaming", "ams")
    adaptive = [name for name, member in members.items() if member["control"] != "fixed"]
    sent = view.tables.once(uploads)
    sent = sent[sent["system"].isin(adaptive)].merge(view.runs[["cell", "setting"]], on="cell")
    if sent.empty:
        return None
    styles = {name: view.styles[name] for name in adaptive if name in sent["system"].unique()}
    panels = [
        Panel(setting, partial(_draw, sent=_one_stream(here), styles=styles, stops_s=_stops(view, here)))
        for setting, here in sent.groupby("setting")
    ]
    spread = Panel("mean rate of a stream", partial(_draw_spread, sent=sent, styles=styles))
    delays = resets(view.tables)
    resetting = (
        [Panel("delay of the reset", partial(_draw_delays, delays=delays, styles=styles))] if len(delays) else []
    )
    return FigureContent(NOTE, [*panels, spread, *resetting], legend=styles)


def _one_stream(sent: pd.DataFrame) -> pd.DataFrame:
    own = sent[sent["seed"] == sent["seed"].min()]
    first = own[["device", "app"]].min()
    return own[(own[["device", "app"]] == first).all(axis=1)]


def _draw(axis: Axes, sent: pd.DataFrame, styles: plots.StyleMap, stops_s: list[tuple[float, float]]) -> None:
    for begin_s, end_s in stops_s:
        axis.axvspan(begin_s, end_s, color=plots.RULE, alpha=0.6, linewidth=0, zorder=0)
    for row, (name, style) in enumerate(styles.items()):
        own = sent[sent["system"] == name].sort_values("queued_s")
        edges = [0.0, *own["queued_s"]]
        axis.stairs(own["rate_fps"], edges, baseline=None, color=style.colour, linewidth=1.5, gid=style.gid)
        trained = own["train_end_s"].dropna()
        foot = [-0.05 - 0.06 * row] * len(trained)
        ticks: dict[str, Any] = {"color": style.colour, "markersize": 6, "clip_on": False, "gid": style.part}
        axis.plot(trained, foot, "|", transform=axis.get_xaxis_transform(), **ticks)
    axis.tick_params(axis="x", pad=4 + 11 * len(styles))
    axis.set_ylim(bottom=0)
    axis.margins(x=0.01)
    axis.set_xlabel("time, s")
    axis.set_ylabel("frames/s sampled")
    plots.tidy(axis)


def _draw_spread(axis: Axes, sent: pd.DataFrame, styles: plots.StyleMap) -> None:
    streams = sent.groupby(["system", "cell", "device", "app"])[["samples", "gap_s"]].sum()
    rates = streams["samples"] / streams["gap_s"]
    for name, style in styles.items():
        plots.cumulative(axis, rates[name], style)
    axis.set_xlim(left=0)
    axis.set_xlabel("frames/s sampled, mean over the session")
    axis.set_ylabel("share of streams")
    plots.tidy(axis)


def _draw_delays(axis: Axes, delays: pd.DataFrame, styles: plots.StyleMap) -> None:
    for name, own in delays.groupby("system")["delay_s"]:
        if name in styles:
            plots.cumulative(axis, own, styles[name])
    axis.set_xlim(left=0)
    axis.set_xlabel("seconds until the interval is reset")
    axis.set_ylabel("share of changes")
    plots.tidy(axis)


def _stops(view: View, sent: pd.DataFrame) -> list[tuple[float, float]]:
    """Return when the camera of a street is stationary, if it moves at other times."""
    stream = _one_stream(sent)
    found = sceneries(view.tables, stream["cell"])
    trajectory = found[found["device"] == stream["device"].iloc[0]]["trajectory"].iloc[0]
    if trajectory is None or stops(trajectory).all():
        return []
    end_s = float(stream["queued_s"].max())
    spans = zip(trajectory["time_s"], trajectory["time_s"].shift(-1, fill_value=end_s), stops(trajectory), strict=True)
    return [(begin, min(end, end_s)) for begin, end, stands in spans if stands and begin < end_s]


FIGURE = Figure("rates", "Sampling rate and training phases", show)
