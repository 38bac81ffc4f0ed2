"""Plots of a run on matplotlib axes, shared by the report and notebooks.

Every function takes the pandas frames of one panel: the rows of `runs` and other tables of one setting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.results import stats
from driftlab.platform.results.relations.time_series import average_scores, scene_changes
from driftlab.platform.results.stats import Estimate
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, RULE = "#1b1f24", "#6a717b", "#dde1e6"
COLOURS = ("#2660c4", "#c4491b", "#15795a", "#7a46bd", "#96700a", "#b52d5c", "#127a8a", "#7c5734")
GREYS = {
    "no_adaptation": "#80868f",
    "zero_delay_link": "#757b84",
    "best_static": "#6b7179",
    "oracle": "#565b63",
    "true_load": "#60666f",
    "true_gains": "#5b6069",
}
DASHES: Mapping[str, Any] = {
    "no_adaptation": (0, (1, 1.6)),
    "zero_delay_link": (0, (3, 1.2)),
    "best_static": (0, (6, 2, 1, 2)),
    "oracle": (0, (5, 2)),
    "true_load": (0, (2, 1.5, 6, 1.5)),
    "true_gains": (0, (4, 1.5, 1, 1.5)),
}
MARKERS = ("o", "s", "^", "D", "v")  # of points, each for as many systems as there are colours
BELOW, ABOVE = 1.9, 2.0
POINTS = 240  # per line; more are not visible on a page
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
TICKS = 6  # steps of a score axis: more labels would overlap on a narrow page
MARKS = 60  # scene changes drawn; more would hide the lines


@dataclass(frozen=True)
class Style:
    """Line style of one system in all plots."""

    colour: str
    dash: Any = "-"
    marker: str = MARKERS[0]
    name: str = ""

    @property
    def gid(self) -> str | None:
        """Return the identifier of marks whose values a page shows under the pointer; None without a name."""
        return f"series:{self.name}" if self.name else None

    @property
    def part(self) -> str | None:
        """Return the identifier of marks that a page only switches on and off with their system."""
        return f"part:{self.name}" if self.name else None


StyleMap = Mapping[str, Style]


def series(names: Iterable[str]) -> dict[str, Style]:
    """Assign colours to names in their order; after the last colour, other dashes and markers."""
    kinds = ((colour, gap) for gap in itertools.count() for colour in COLOURS)
    return {
        name: Style(colour, (0, (3, gap)) if gap else "-", MARKERS[gap % len(MARKERS)], name)
        for name, (colour, gap) in zip(dict.fromkeys(names), kinds, strict=False)
    }


def assign_styles(runs: pd.DataFrame, order: Iterable[str] = ()) -> dict[str, Style]:
    """Assign a style to each system: methods get colours in `order`, bounds grey dashes; bounds come last."""
    bounds = dict(runs.dropna(subset=["bound"])[["system", "bound"]].drop_duplicates().itertuples(index=False))
    present = sorted(set(runs["system"]))
    listed = [name for name in dict.fromkeys(order) if name in present]
    methods = [name for name in [*listed, *(name for name in present if name not in listed)] if name not in bounds]
    styles = series(methods)
    for bound in GREYS:
        styles |= {name: Style(GREYS[bound], DASHES[bound], name=name) for name in present if bounds.get(name) == bound}
    return styles


def some_of(styles: StyleMap, names: Iterable[str]) -> dict[str, Style]:
    """Return the styles of some systems; if two share a colour, methods get the first colours."""
    selected = set(names)
    found = {name: style for name, style in styles.items() if name in selected}
    if len({style.colour for style in found.values()}) == len(found):
        return found
    return found | series(name for name, style in found.items() if style.colour in COLOURS)


def with_settings(runs: pd.DataFrame, info: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Add the column `setting`: the workload, with the fleet if there are several.

    The column `agreement` names the teacher whose labels replace the ground truth of the workload, by run.json.
    """
    several = runs["fleet"].nunique() > 1
    setting = runs["workload"] + " · " + runs["fleet"] if several else runs["workload"]
    return runs.assign(
        setting=setting, agreement=runs["workload"].map((info or {}).get("agreement") or {}).astype(object)
    )


def reference_label(runs: pd.DataFrame) -> str:
    """Return the source of the labels that score predictions: truth, or the teacher of all these runs."""
    teachers = {None} if "agreement" not in runs else set(runs["agreement"].fillna(""))
    return f"teacher {teacher}" if len(teachers) == 1 and (teacher := teachers.pop()) else "truth"


def measure(runs: pd.DataFrame) -> str:
    """Return the name of the score: mIoU, accuracy or F1 by task, or agreement with a teacher."""
    from driftlab.platform.networks.zoo import ZOO

    if "agreement" in runs and runs["agreement"].notna().any():
        label = reference_label(runs)
        return "score" if label == "truth" else f"agreement with the {label}"
    found = {ZOO[name].task.measure for name in set(runs["student"].dropna()) if name in ZOO}
    return found.pop() if len(found) == 1 else "score"


def live_measure(runs: pd.DataFrame) -> str:
    """Return the name of the live score."""
    return f"live {measure(runs)}"


def accuracy(axis: Axes, runs: pd.DataFrame, frames: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """Draw the live score over time: a line per system, a thin line per seed, a rule at each scene change."""
    mark_changes(axis, frames)
    lines = average_scores(runs, frames, POINTS)
    for system, style in styles.items():
        own = lines[lines["system"] == system]
        if own.empty:
            continue
        height = BELOW if style.colour in GREYS.values() else ABOVE  # bounds are drawn below methods
        usual: dict[str, Any] = {"color": style.colour, "zorder": height}
        if own["seed"].nunique() > 1:
            for _, line in own.groupby("seed"):
                axis.plot(line["time_s"], line[LIVE_SCORE], linewidth=0.6, alpha=0.35, gid=style.part, **usual)
        mean = own.groupby("bin")[["time_s", LIVE_SCORE]].mean()
        usual |= {"linestyle": style.dash, "linewidth": 1.7, "label": system, "gid": style.gid}
        axis.plot(mean["time_s"], mean[LIVE_SCORE], **usual)
    axis.set_xlabel("time, s")
    axis.set_ylabel(live_measure(runs))
    axis.margins(x=0.01)
    tidy(axis)
    axis.grid(axis="x", visible=False)  # a vertical rule is a change of scene


def mark_changes(axis: Axes, frames: pd.DataFrame) -> None:
    """Mark scene changes: a rule if most streams change, a tick at the foot of the axis otherwise."""
    for time_s, share in scene_changes(frames).nlargest(MARKS, "share").sort_values("time_s").itertuples(index=False):
        top = 1.0 if share > 0.5 else 0.06
        axis.axvline(time_s, ymax=top, color=QUIET, linewidth=0.8, alpha=0.8, zorder=0)


def scores(axis: Axes, runs: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """Draw each system's live score: mean (dot), 95 % interval (bar) and seeds (ticks)."""
    for row, (system, style) in enumerate(styles.items()):
        values = runs[runs["system"] == system][LIVE_SCORE].dropna()
        found = stats.mean(values)
        if found is None:
            continue
        found = found.within(0.0, 1.0)
        look: dict[str, Any] = {"color": style.colour, "gid": style.part}
        axis.plot(values, [row] * len(values), "|", markersize=9, markeredgewidth=0.8, alpha=0.55, **look)
        if found.low is not None and found.high is not None:
            axis.plot([found.low, found.high], [row, row], linewidth=2.2, alpha=0.45, **look)
        axis.plot([found.mean], [row], "o", markersize=5.5, **look)
        axis.annotate(
            f"{found.mean:.3f}",
            (found.mean, row),
            (0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    name_rows(axis, styles)
    axis.set_xlabel(live_measure(runs))
    axis.margins(x=0.12)
    axis.locator_params(axis="x", nbins=TICKS)
    tidy(axis)
    axis.grid(axis="y", visible=False)


def traffic(axis: Axes, runs: pd.DataFrame, styles: Mapping[str, Style]) -> None:
    """Draw traffic per device, downlink to the left and uplink to the right, as means over seeds."""
    sides = {"downlink_kbps": -1, "uplink_kbps": 1}
    means = runs.groupby("system")[list(sides)].mean()
    reach = max(float(np.nanmax(means.to_numpy(), initial=0.0)), 1e-9)
    for row, (system, style) in enumerate(styles.items()):
        if system not in means.index:
            continue
        for column, side in sides.items():
            value = float(means.loc[system, column])
            if np.isnan(value):
                continue
            axis.barh(row, side * value, height=0.56, color=style.colour, alpha=1.0 if side > 0 else 0.55)
            axis.annotate(
                short(value),
                (side * value, row),
                (side * 4, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                fontsize=9,
                color=INK,
            )
    name_rows(axis, styles)
    axis.axvline(0, color=QUIET, linewidth=0.8)
    axis.set_xlim(-1.45 * reach, 1.45 * reach)
    axis.set_xticks([])
    axis.set_xlabel("← down · kbit/s per device · up →")
    tidy(axis)
    axis.grid(visible=False)


def trend(axis: Axes, points: pd.DataFrame, x: str, style: Style, *, ordered: bool = False) -> None:
    """Draw `mean` over a column with 95 % intervals, joined in row order (`ordered`) or in order of `x`."""
    points = points if ordered else points.sort_values(x)
    bounded = points.dropna(subset=["low", "high"])
    bars: dict[str, Any] = {"color": style.colour, "linewidth": 2.2, "alpha": 0.35, "gid": style.part}
    axis.vlines(bounded[x], bounded["low"], bounded["high"], **bars)
    line = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.5, "gid": style.gid}
    axis.plot(points[x], points["mean"], style.marker, markersize=4.5, **line)


def cumulative(axis: Axes, values: pd.Series, style: Style) -> None:
    """Draw the cumulative distribution of the values."""
    points = np.sort(values.dropna().to_numpy(dtype=float))
    if points.size == 0:
        return
    shares = np.arange(1, points.size + 1) / points.size
    if points.size > POINTS:  # more points are not visible
        shares = np.linspace(0, 1, POINTS)
        points = np.quantile(points, shares)
    points, shares = np.append(points[0], points), np.append(0.0, shares)
    line = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.7, "gid": style.gid}
    axis.plot(points, shares, drawstyle="steps-post", **line)
    axis.set_ylim(0, 1)


def label_point(axis: Axes, text: str, x: float, y: float, *, above: bool, right: bool = False) -> None:
    """Label a point above or below it; to the right if its interval bar would cross the text."""
    place = (4 if right else 0, 6 if above else -13)
    ha = "left" if right else "center"
    axis.annotate(text, (x, y), place, textcoords="offset points", ha=ha, fontsize=8, color=INK)


def untangle(axis: Axes) -> None:
    """Move labels that overlap a label, a point, the ticks or the edge to another side of their point."""
    from matplotlib.text import Annotation

    canvas: Any = axis.figure
    layout = canvas.get_layout_engine()
    if layout is None:
        canvas.draw_without_rendering()
    else:
        layout.execute(canvas)  # which is all that moves a label; the rest of a drawing takes as long
    lines = [line for line in axis.lines if line.get_marker() not in ("None", "", None, "|")]
    points = np.concatenate([np.empty((0, 2)), *(line.get_transform().transform(line.get_xydata()) for line in lines)])
    labels: list[Any] = [text for text in axis.texts if isinstance(text, Annotation)]
    texts = [text for text in labels if text.get_va() == "baseline"]
    taken: list[Any] = []
    for text in texts:
        (x, y), side, size = text.xyann, text.get_ha(), text.get_fontsize()
        sides = {"left": "right", "right": "left", "center": "center"}
        flips = [(x, y, side), (x, 1 - size - y, side), (-x, y, sides[side]), (-x, 1 - size - y, sides[side])]
        found = []
        for place, (dx, dy, align) in enumerate([*flips, (7, -3, "left"), (-7, -3, "right")]):
            text.xyann = (dx, dy)
            text.set_ha(align)
            box = text.get_window_extent()
            hits = sum(box.overlaps(other) for other in taken) + int(box.count_contains(points))
            outside = box.x0 < axis.bbox.x0 or box.x1 > canvas.bbox.x1  # on the ticks of y, or cut off
            outside |= box.y0 < axis.bbox.y0 or box.y1 > canvas.bbox.y1
            found.append((hits + outside, place, (dx, dy), align, box))
        _, _, text.xyann, align, box = min(found, key=lambda one: one[:2])
        text.set_ha(align)
        taken.append(box)


def legend(figure: Figure, styles: StyleMap) -> None:
    """Draw the legend below a standalone figure."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=style.colour, linestyle=style.dash, marker=style.marker.strip(MARKERS[0]), label=name)
        for name, style in styles.items()
    ]
    if handles:
        figure.legend(handles=handles, frameon=False, ncols=4, loc="outside lower left")


def scale(axis: Axes, ticks: Sequence[float] = ()) -> None:
    """Make the x axis logarithmic, with plain numbers as tick labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(ticks)) if ticks else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.minorticks_off()


def name_rows(axis: Axes, styles: Mapping[str, Style]) -> None:
    """Label the rows with the systems' names, the first on top."""
    axis.set_yticks(range(len(styles)), list(styles))
    axis.set_ylim(len(styles) - 0.45, -0.7)
    axis.tick_params(axis="y", length=0)


def tidy(axis: Axes) -> None:
    """Apply the house style: light grid, no spines but the bottom one."""
    axis.set_axisbelow(True)
    axis.grid(color=RULE, linewidth=0.7)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(RULE)
    axis.tick_params(colors=QUIET, length=0, labelsize=9.5)
    axis.tick_params(axis="y", labelcolor=INK)
    axis.xaxis.label.set(color=QUIET, fontsize=9.5)
    axis.yaxis.label.set(color=QUIET, fontsize=9.5)


def decimals(found: Estimate, most: int = 3, scale: float = 1.0) -> int:
    """Return how many decimals of a mean its interval supports: two digits of half of the interval."""
    half = 0.0 if found.low is None else scale * (found.mean - found.low)
    return min(most, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else most


def margin(found: Estimate, scale: float = 1.0, most: int = 3, least: float = 0.0) -> str:
    """Format half of an interval, or its ends if it exceeds `least` or 1; empty for one value."""
    if found.low is None or found.high is None:
        return ""
    digits, inside = decimals(found, most, scale), found.within(least, 1.0)
    if inside == found:
        return f" ± {scale * (found.mean - found.low):.{digits}f}"
    low, high = (signed(scale * end, digits).removeprefix("+") for end in inside[1:3] if end is not None)
    return f" ({low} to {high})"


def difference(found: Estimate) -> str:
    """Format a mean difference of scores with its interval, which limits the decimals."""
    return signed(found.mean, decimals(found)) + margin(found, least=-1.0)


def signed(value: float, digits: int = 1) -> str:
    """Format a difference with its sign, with a typographic minus."""
    return f"{value:+.{digits}f}".replace("-", "\u2212")


def factor(value: float) -> str:
    """Format a ratio of costs, such as `0.37×` or `12×`."""
    return f"{value:.2g}×" if value < 10 else f"{short(value)}×"


def scaled(most: float, unit: str) -> tuple[float, str]:
    """Return factor and name of the SI multiple of `unit` that suits values up to `most`."""
    found = next(((size, prefix) for size, prefix in PREFIXES if most >= size), (1.0, ""))
    return found[0], found[1] + unit


def short(value: float) -> str:
    """Format a number with three digits; from 100 on as an integer with thin spaces."""
    return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 100 or value == 0 else f"{value:.3g}"
