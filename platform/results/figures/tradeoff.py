"""Accuracy over frame rate along alpha, and energy per frame: Figures 10 and 11 of NestDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    common,
    half_of,
    inconclusive,
)
from driftlab.platform.results.relations.base import CELL
from driftlab.platform.results.relations.sharing import KNEE, gains_over_status_quo, on_traces, swept
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Accuracy and frame rate relative to the status quo, the dot where the rules cross; the upper right is better. A "
    "line joins systems that differ in alpha, which is printed at each point. Dashed: exact optimum of the same "
    "objective. Energy: joules per frame under the status quo divided by joules per frame of the system. Table: values "
    "where a line crosses the status quo, and at its knee. Means over traces; below a value: half of the 95 % CI, and "
    "the number of traces with a value if some have none."
)
FEWEST = 3  # points that make a line
CLOSE = 0.07  # of an axis; points that are nearer than this share a label
OBJECTIVES: Mapping[str, str] = {"total": "MinTotalCost", "max": "MinMaxCost"}
OPTIMUM = plots.Style(plots.GREYS["oracle"], plots.DASHES["oracle"])
TIMES, POINTS = "×", "points"
READ_OFF: Mapping[str, tuple[str, str, str]] = {  # unit, place on the line, column
    "rate at equal accuracy": (TIMES, "gain", "speedup"),
    "accuracy at equal rate": (POINTS, "speedup", "gain"),
    "knee: rate": (TIMES, KNEE, "speedup"),
    "knee: accuracy": (POINTS, KNEE, "gain"),
    "knee: energy": (TIMES, KNEE, "energy_ratio"),
}


@dataclass(frozen=True)
class AlphaLine:
    """Systems that differ only in alpha, in ascending order."""

    alphas: Mapping[str, float]
    objective: str
    exact: bool


def show(view: View) -> FigureContent | None:
    """Draw a panel per setting and objective, and one of energy per setting, if alpha varies."""
    lines = _lines(view)
    joined = [name for line in lines.values() for name in line.alphas]
    others = [name for name, one in view.members("scheduling").items() if one.name != "status_quo"]
    points = gains_over_status_quo(view.tables, dict.fromkeys([*joined, *others]) if lines else ())
    if points.empty:
        return None
    points = points.merge(view.runs[[*CELL, "system", "setting"]], on=[*CELL, "system"])
    found = means(
        points.assign(points=100 * points["gain"]), ["setting", "system"], "points", others=["speedup", "energy_ratio"]
    )
    alone = [name for name in others if name not in joined and name in found["system"].unique()]
    styles = {name: view.styles[next(iter(line.alphas))] for name, line in lines.items() if not line.exact}
    styles |= {name: view.styles[name] for name in alone}
    styles |= {name: OPTIMUM for name, line in lines.items() if line.exact}
    panels = [
        Panel(
            f"{setting}: {OBJECTIVES.get(objective, objective)}",
            partial(_draw, found=here, lines=own, styles=styles),
        )
        for setting, here in found.groupby("setting")
        for objective, own in _by_objective(lines).items()
    ]
    panels += [
        Panel(f"{setting}: energy of a frame", partial(_draw_energy, found=here, lines=lines, styles=styles))
        for setting, here in found.dropna(subset=["energy_ratio"]).groupby("setting")
    ]
    grids = [_grid(str(setting), here, lines) for setting, here in points.groupby("setting")]
    return FigureContent(NOTE, panels, grids, styles)


def _lines(view: View) -> dict[str, AlphaLine]:
    """Name each sweep by the common prefix of its systems; bounds come last."""
    members = view.members("scheduling")
    found = {}
    for line in swept(view.tables):
        first = members[next(iter(line))]
        if len(line) >= FEWEST:
            found[common(list(line))] = AlphaLine(line, first["objective"], first.name == "exact")
    order = list(members)
    return dict(sorted(found.items(), key=lambda item: (item[1].exact, order.index(next(iter(item[1].alphas))))))


def _by_objective(lines: Mapping[str, AlphaLine]) -> dict[str, dict[str, AlphaLine]]:
    return {
        objective: {name: line for name, line in lines.items() if line.objective == objective}
        for objective in dict.fromkeys(line.objective for line in lines.values())
    }


def _draw(axis: Axes, found: pd.DataFrame, lines: Mapping[str, AlphaLine], styles: plots.StyleMap) -> None:
    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    axis.axvline(1, color=plots.QUIET, linewidth=0.8, zorder=0)
    axis.plot([1], [0], "o", color=plots.GREYS["no_adaptation"], markersize=6)
    rows = found.set_index("system")
    swept_up = {name for line in lines.values() for name in line.alphas}
    for name, line in lines.items():
        own, style = rows.reindex([system for system in line.alphas if system in rows.index]), styles[name]
        if line.exact:  # thin and on top, so that a line that reaches it is seen below
            axis.plot(own["speedup"], own["mean"], color=style.colour, linestyle=style.dash, linewidth=1.1, zorder=3)
        else:
            plots.trend(axis, own, "speedup", style, ordered=True)
    for name in rows.index.intersection(list(styles)).difference(list(swept_up)):
        plots.trend(axis, rows.loc[[name]], "speedup", styles[name])
    axis.margins(x=0.14, y=0.16)
    for k, line in enumerate(line for line in lines.values() if not line.exact):
        _label(axis, rows, line, above=k % 2 == 0)
    axis.set_xlabel("sustained frame rate, status quo = 1")
    axis.set_ylabel("gain in accuracy, points")
    plots.tidy(axis)


def _label(axis: Axes, rows: pd.DataFrame, line: AlphaLine, *, above: bool) -> None:
    """Label points with alpha; coinciding points get the first and last value."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    groups: list[list[tuple[float, float, float]]] = []
    for name, alpha in line.alphas.items():
        if name not in rows.index:
            continue
        x, y = float(rows.loc[name, "speedup"]), float(rows.loc[name, "mean"])
        near = groups and abs(x - groups[-1][0][1]) < CLOSE * (right - left)
        if near and abs(y - groups[-1][0][2]) < CLOSE * (top - bottom):
            groups[-1].append((alpha, x, y))
        else:
            groups.append([(alpha, x, y)])
    for group in groups:
        ends = dict.fromkeys(f"{point[0]:g}" for point in (group[0], group[-1]))
        plots.label_point(axis, "–".join(ends), *group[0][1:], above=above, right=True)


def _draw_energy(axis: Axes, found: pd.DataFrame, lines: Mapping[str, AlphaLine], styles: plots.StyleMap) -> None:
    axis.axhline(1, color=plots.QUIET, linewidth=0.8, zorder=0)
    rows = found.set_index("system")["energy_ratio"]
    shown = {name: line for name, line in lines.items() if not line.exact}
    for name, line in shown.items():
        own = {alpha: rows[system] for system, alpha in line.alphas.items() if system in rows.index and alpha > 0}
        axis.plot(
            list(own),
            list(own.values()),
            "o",
            color=styles[name].colour,
            linestyle="-",
            linewidth=1.5,
            markersize=4.5,
        )
    swept_up = {name for line in lines.values() for name in line.alphas}
    for name in rows.index.intersection(list(styles)).difference(list(swept_up)):
        axis.axhline(rows[name], color=styles[name].colour, linewidth=1.2)
    plots.scale(axis, sorted({alpha for line in shown.values() for alpha in line.alphas.values() if alpha > 0}))
    axis.margins(y=0.1)
    axis.set_xlabel("alpha")
    axis.set_ylabel("energy of the status quo ÷ energy")
    plots.tidy(axis)


def _grid(setting: str, points: pd.DataFrame, lines: Mapping[str, AlphaLine]) -> Grid:
    """Tabulate the values that the paper reports: crossings with the status quo, and the knee."""
    rows: dict[str, Sequence[GridCell]] = {}
    for name, line in lines.items():
        own = points[points["system"].isin(list(line.alphas))]
        own = own.assign(alpha=own["system"].map(dict(line.alphas)))
        rows[name] = [_entry(on_traces(own, at, column), unit) for unit, at, column in READ_OFF.values()]
    return Grid(setting, list(READ_OFF), rows)


def _entry(traces: pd.DataFrame, unit: str) -> GridCell:
    scaled = traces.assign(value=traces["value"] * (100 if unit == POINTS else 1), all="all")
    found = means(scaled, ["all"], "value")
    if found.empty:
        return NO_CELL
    mean = found.loc[0]
    missing = "" if traces["value"].notna().all() else f"{mean['n']:.0f} of {len(traces)} traces"
    text = f"{mean['mean']:.2f} ×" if unit == TIMES else plots.signed(mean["mean"])
    verdict = inconclusive(mean, 1.0 if unit == TIMES else 0.0)
    return GridCell(text, ", ".join(filter(None, (half_of(mean, ".2g"), verdict, missing))))


FIGURE = Figure("tradeoff", "Accuracy over frame rate", show)
