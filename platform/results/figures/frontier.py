"""Score over downlink traffic: Figure 4 of the AMS paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View, common
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "Live score over downlink traffic; the upper left is better. A line joins systems that differ in one parameter, "
    "whose value is printed at each point. Grey lines: bounds, drawn without traffic. Means over seeds; bars: 95 % CI "
    "of the score."
)
FEWEST = 3  # points that make a line


def show(view: View) -> FigureContent | None:
    """Draw score over downlink per setting, if one parameter of a method has several values."""
    lines = sweeps(view)
    if max(map(len, lines.values()), default=0) < FEWEST:
        return None
    styles = {line: view.styles[next(iter(systems))] for line, systems in lines.items()}
    panels = [
        Panel(setting, partial(_draw, view=view, setting=setting, lines=lines, styles=styles))
        for setting in view.settings()
    ]
    bounds = {name: view.styles[name] for name in _bounds(view)}
    return FigureContent(NOTE, panels, legend={**styles, **bounds})


def sweeps(view: View) -> dict[str, dict[str, str]]:
    """Group systems that differ in one numeric streaming parameter (booleans aside), by common prefix.

    A group maps systems to the labels of their points. Systems that differ in two parameters are not joined.
    """
    groups: defaultdict[tuple[Any, ...], dict[str, Mapping[str, float]]] = defaultdict(dict)
    adaptations = view.members("adaptation")
    for name, member in view.members("streaming").items():
        if name in _bounds(view):
            continue
        values = dict(member.params)
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        categories = tuple((key, value) for key, value in values.items() if key not in numbers)
        groups[member.name, categories, adaptations[name]][name] = {
            key: value for key, value in numbers.items() if not isinstance(value, bool)
        }
    found = {}
    for group in groups.values():
        varied = sorted({key for key in next(iter(group.values())) if len({each[key] for each in group.values()}) > 1})
        if len(varied) == 1:
            found[common(list(group))] = {name: f"{each[varied[0]]:g}" for name, each in group.items()}
        else:
            found |= {name: {name: ""} for name in group}
    return dict(sorted(found.items(), key=lambda line: len(line[1]) == 1))  # lines first


def _bounds(view: View) -> list[str]:
    return list(view.runs.dropna(subset=["bound"])["system"].unique())


def _draw(axis: Axes, view: View, setting: str, lines: dict[str, dict[str, str]], styles: plots.StyleMap) -> None:
    runs = view.runs[view.runs["setting"] == setting]
    scores = means(runs, ["system"], LIVE_SCORE).merge(
        runs.groupby("system")["downlink_kbps"].mean().reset_index(), on="system"
    )
    for name in _bounds(view):
        for score in scores[scores["system"] == name]["mean"]:
            axis.axhline(
                score, color=view.styles[name].colour, linestyle=view.styles[name].dash, linewidth=1.2, zorder=0
            )
    for k, (line, labels) in enumerate(lines.items()):
        points = scores[scores["system"].isin(list(labels)) & (scores["downlink_kbps"] > 0)]
        plots.trend(axis, points, "downlink_kbps", styles[line])
        for system, kbps, mean in points[["system", "downlink_kbps", "mean"]].itertuples(index=False):
            plots.label_point(axis, labels[system], kbps, mean, above=k % 2 == 0)
    plots.scale(axis)
    axis.set_xlabel("downlink, kbit/s per device")
    axis.set_ylabel(plots.live_measure(view.runs))
    axis.margins(x=0.08, y=0.1)
    plots.tidy(axis)


FIGURE = Figure("frontier", "Live score over traffic", show)
