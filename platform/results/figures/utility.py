"""Utility of training under time pressure, by inference load and patience."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    LATE_IN_BATCHES,
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    number_cell,
)
from driftlab.platform.results.relations.timing import budgets, load_levels, rank_agreement, utilities
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Utility per batch, computed from the batches of the fleet without skipped frames, with the measured times of "
    "inference and training. x: inference time / time between batches (0: no time pressure, 1: no time for training). "
    "Discrete: batches that arrive during training are skipped, except the newest. Relative adaptation speed: skipped "
    "batches are predicted without cost. Patience: a prediction has half of its utility after a wait of this many "
    "inference times. Agreement: Spearman correlation of the systems' order with their order without skipped batches. "
    "Lines: no adaptation, and every system that is best somewhere. Amortised: members that stop training after some "
    "steps, over the time of these steps. Last columns: scores of slower fleets, whose skipped frames keep the "
    "previous prediction. Means over workloads and seeds. "
    f"{LATE_IN_BATCHES}"
)
SOON = 0.1  # below this share of the time of plain inference, overheads are drawn evenly
AXES: Mapping[str, str] = {
    "discrete": "time of plain inference over time between batches",
    "relative": "relative speed of the stream",
    "continuous": "patience, times of plain inference",
}


def show(view: View) -> FigureContent | None:
    """Draw runs with training on the stream and one fleet without skipped frames."""
    found = view.tables.once(utilities)
    if found.empty or not (found["adapted"] > 0).any() or view.tables.frame("adaptations").empty:
        return None
    styles = {name: style for name, style in view.styles.items() if name in set(found["system"])}
    drawn = _select_systems(view, found)
    panels = [Panel(f"{kind} utility", partial(_draw, rows=found, kind=kind, styles=drawn), 300) for kind in AXES]
    agreement = {kind: rank_agreement(view.tables, kind) for kind in AXES}
    panels += [Panel("agreement of rankings", partial(_draw_agreement, found=agreement))]
    grids = [_grid(view, found, styles)]
    if len(stopped := budgets(view.tables)):
        panels.append(Panel("amortised utility", partial(_draw_budgets, rows=stopped), 300))
        grids.append(_stopped(stopped))
    grids += [_cost_grid(view, styles, pace.fleet) for pace in load_levels(view.tables)]
    return FigureContent(NOTE, panels, grids, drawn)


def _select_systems(view: View, found: pd.DataFrame) -> plots.StyleMap:
    """Select the systems that are best somewhere, and those without training."""
    mean = found.groupby(["kind", "pressure", "system"])["utility"].mean()
    best = {place[-1] for place in mean.groupby(["kind", "pressure"]).idxmax()}
    plain = {name for name, one in view.members("adaptation").items() if one.name == "frozen"}
    return plots.some_of(view.styles, best | (plain & set(found["system"])))


def _draw(axis: Axes, rows: pd.DataFrame, kind: str, styles: plots.StyleMap) -> None:
    own = rows[rows["kind"].isin([kind] if kind == "continuous" else ["offline", kind])]
    lines = own.groupby(["system", "pressure"])["utility"].mean()
    for name, style in styles.items():
        line = lines[name]
        axis.plot(line.index, line, "o", color=style.colour, linestyle=style.dash, linewidth=1.4, markersize=3)
    if kind == "continuous":
        plots.scale(axis, sorted(set(own["pressure"])))
    axis.set_xlabel(AXES[kind])
    axis.set_ylabel("utility")
    plots.tidy(axis)


def _draw_agreement(axis: Axes, found: Mapping[str, pd.DataFrame]) -> None:
    styles = plots.series(found)
    for kind, rows in found.items():
        points = means(rows, ["pressure"], "agreement", least=-1, most=1).sort_values(
            "pressure", ascending=kind != "continuous"
        )
        places = range(1, len(points) + 1)
        axis.plot(places, points["mean"], "o", color=styles[kind].colour, linestyle="-", linewidth=1.5, markersize=4)
        if len(points):
            plots.label_point(axis, kind, places[-1], float(points["mean"].iloc[-1]), above=True)
    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    axis.set_xticks(range(1, 6))
    axis.set_xlabel("time pressure, lowest first")
    axis.set_ylabel("Spearman's correlation")
    axis.margins(x=0.1, y=0.15)
    plots.tidy(axis)


def _draw_budgets(axis: Axes, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    lines = rows.groupby(["member", "steps"])[["overhead", "utility"]].mean()
    for place, (member, style) in enumerate(plots.series(dict.fromkeys(rows["member"])).items()):
        line = lines.loc[member]
        axis.plot(line["overhead"], line["utility"], "o", color=style.colour, linestyle=style.dash, markersize=4)
        plots.label_point(axis, member, line["overhead"].iloc[-1], line["utility"].iloc[-1], above=place % 2 == 0)
    axis.set_xscale("symlog", linthresh=SOON)
    axis.xaxis.set_major_locator(FixedLocator([0, SOON, 10 * SOON, 100 * SOON]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.minorticks_off()
    axis.set_xlabel("training time over time of plain inference")
    axis.set_ylabel("utility")
    axis.margins(x=0.1, y=0.15)
    plots.tidy(axis)


def _stopped(rows: pd.DataFrame) -> Grid:
    """Tabulate the utility of members by the steps after which they stop training."""
    wide = rows.pivot_table("utility", "member", "steps", sort=True)
    titles = [f"{steps:g} steps" if math.isfinite(steps) else "unlimited" for steps in wide.columns]
    best = wide.max(axis=1)
    cells = {str(name): [_entry(value, best[name]) for value in row] for name, row in wide.T.items()}
    return Grid("amortised", titles, cells)


def _grid(view: View, found: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    """Tabulate the utilities and the scores of slower fleets."""
    mean = found.groupby(["system", "kind", "pressure"])["utility"].mean()
    best = mean.groupby(["kind", "pressure"]).max()
    columns = [("offline", 0.0), ("discrete", 0.5), ("discrete", 1.0), ("relative", 1.0), ("continuous", 2.5)]
    fleets = load_levels(view.tables)[1:]
    scores = view.runs.groupby(["fleet", "system"])["score_frame"].mean()
    seen = view.tables.frame("frames").merge(view.runs[["cell", "system", "fleet"]], on="cell")
    served = seen.groupby(["fleet", "system"])["processed"].mean()
    rows = {
        name: [_entry(mean[name, kind, pressure], best[kind, pressure]) for kind, pressure in columns]
        + [_scored(scores[pace.fleet, name], served[pace.fleet, name]) for pace in fleets]
        for name in styles
    }
    titles = [kind if not pressure else f"{kind} {pressure:g}" for kind, pressure in columns]
    return Grid("utility", [*titles, *(f"fleet {pace.fleet}" for pace in fleets)], rows)


def _cost_grid(view: View, styles: plots.StyleMap, fleet: str) -> Grid:
    """Tabulate accuracy and cost on one fleet; shares are of samples accepted for training."""
    runs = view.runs[view.runs["fleet"] == fleet]
    frames, batches, devices = (
        view.tables.frame(name).merge(runs[["cell", "system"]], on="cell").groupby("system")
        for name in ("frames", "adaptations", "devices")
    )
    parts = {
        "accuracy": runs.groupby("system")["score_frame"].mean(),
        "missed, %": 100 * (1 - frames["processed"].mean()),
        "latency, ms": frames["latency_ms"].median(),
        "energy, J": runs.groupby("system")["energy_j"].mean(),
        "memory, kB": devices["peak_memory_bytes"].mean() / 1000,
        "samples accepted, %": 100 * batches["accepted"].mean(),
    }
    rows = {name: [number_cell(part.get(name)) for part in parts.values()] for name in styles}
    return Grid(f"accuracy and costs on fleet {fleet}", list(parts), rows)


def _entry(value: float, best: float) -> GridCell:
    return GridCell(f"{value:.3f}", strong=value == best)


def _scored(score: float, served: float) -> GridCell:
    return GridCell(f"{score:.3f}", f"{100 * served:.0f} % processed")


FIGURE = Figure("utility", "Utility under time pressure", show)
