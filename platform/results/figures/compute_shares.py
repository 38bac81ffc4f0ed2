"""Compute shares of inference and training on one device, accuracy over a window, decision times."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View, lowest
from driftlab.platform.results.relations.time_series import score_within_windows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "First panels: compute shares of inference and training on one device with the most applications, lowest seed. "
    "Last panel: mean score over time in the window; all windows, devices and seeds."
)
SYSTEMS = 4  # the first ones and the last one
LANE, FRAME = 34, 62  # pixels per application, and around them
FILL = 0.9  # of a lane, by the whole device
SEAM = 0.4  # width of the edges of bars, so that no gap shows between two of one colour
INFERENCE, TRAINING = plots.COLOURS[0], plots.COLOURS[1]
JOBS = {"inference": plots.Style(INFERENCE), "labelling, trials and training": plots.Style(TRAINING)}


def show(view: View) -> FigureContent | None:
    """Draw the shares, if several applications train on one device."""
    rows = view.named("shares")
    learns = rows[rows["training_share"].fillna(0) > 0]
    if not (learns.groupby(["cell", "device"])["app"].nunique() > 1).any():
        return None
    names = list(view.styles_of(learns))
    most = learns.groupby("setting")["app"].nunique().idxmax()
    drawn = names if len(names) <= SYSTEMS else [*names[: SYSTEMS - 1], names[-1]]
    panels = [_panel(name, rows[(rows["setting"] == most) & (rows["system"] == name)]) for name in drawn]
    points = score_within_windows(view.named("frames"), float(view.tables.run.spec.get("window_s", 10.0)))
    if len(points):
        draw = partial(_draw_window, points=points, styles=view.styles)
        panels.append(Panel("accuracy over a window", draw, legend=view.styles))
    return FigureContent(NOTE, panels, [_decisions(rows, names)])


def _panel(name: str, rows: pd.DataFrame) -> Panel:
    own = lowest(rows, "seed", "cell", "device")
    apps = sorted(set(own["app"]))
    return Panel(name, partial(_draw_lanes, rows=own, apps=apps), FRAME + LANE * len(apps), JOBS)


def _draw_lanes(axis: Axes, rows: pd.DataFrame, apps: list[str]) -> None:
    for lane, app in enumerate(reversed(apps)):
        own = rows[rows["app"] == app]
        inference, training = FILL * own["inference_share"], FILL * own["training_share"].fillna(0.0)
        for foot, height, colour in ((0.0 * inference, inference, INFERENCE), (inference, training, TRAINING)):
            some = height > 0
            style: dict[str, Any] = {"align": "edge", "color": colour, "edgecolor": colour, "linewidth": SEAM}
            axis.bar(own["time_s"][some], height[some], own["window_s"][some], lane + foot[some], **style)
    plots.tidy(axis)
    axis.grid(visible=False)
    axis.set_yticks([lane + FILL / 4 for lane in range(len(apps))], apps[::-1])
    axis.set_ylim(-0.02, len(apps))
    axis.set_xlabel("time, s")


def _draw_window(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap) -> None:
    for name, style in styles.items():
        own = points[points["system"] == name]
        axis.plot(
            own["into_s"], own["score_frame"], color=style.colour, linestyle=style.dash, linewidth=1.7, label=name
        )
    axis.set_xlabel("time since the window began, s")
    axis.set_ylabel("score of frames")
    plots.tidy(axis)


def _decisions(rows: pd.DataFrame, names: list[str]) -> Grid:
    """Tabulate the decision time of each scheduler on the host; rows of one decision hold the same time."""
    took = rows[rows["host_schedule_seconds"] > 0].groupby(["system", "cell", "device", "time_s"])
    each_ms = 1e3 * took["host_schedule_seconds"].max()
    found = {name: each_ms[name] for name in names if name in each_ms.index.get_level_values(0)}
    table = {name: [GridCell(f"{own.mean():.2f}"), GridCell(f"{own.max():.2f}")] for name, own in found.items()}
    return Grid("decisions, ms on this host", ["mean", "longest"], table)


FIGURE = Figure("compute_shares", "Compute shares for inference and training", show)
