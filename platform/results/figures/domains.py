"""Accuracy before and after adapting to each domain, and its cost: Figures 6 to 9 of ElasticDNN."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    mean_cell,
    number_cell,
)
from driftlab.platform.results.relations.domains import costs, forgetting, stretches
from driftlab.platform.results.relations.frontiers import pareto
from driftlab.platform.results.relations.timing import stopping
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Accuracy before (dotted) and after (solid) adapting to each domain. First panel: at most no_custom, the best and "
    "the worst system, and the best per scaling member. Cost panels name these systems and the Pareto front. Time and "
    "energy: one training phase without co-running tasks. Forgetting: points below the best earlier score on a "
    "recurring domain; lines of the systems with the least and the most forgetting. Means over seeds; ±: half of the "
    "95 % CI."
)
MAX_SYSTEMS = 5  # systems in a panel of lines
PAID: Mapping[str, tuple[str, str, float]] = {  # column: title, unit, factor
    "phase_s": ("time of a phase", "s", 1.0),
    "phase_j": ("energy of a phase", "J", 1.0),
    "latency_ms": ("latency", "ms", 1.0),
    "frame_j": ("energy of a frame", "mJ", 1000.0),
    "memory_bytes": ("memory", "kB", 0.001),
}


def show(view: View) -> FigureContent | None:
    """Draw streams with recurring domains or with frames to adapt on."""
    rows = view.tables.once(stretches)
    judged, recurring = rows[rows["before"].notna()], forgetting(view.tables)
    recurring = recurring[~recurring["workload"].isin(judged["workload"])]
    scalings = {name: one.name for name, one in view.members("scaling").items()}
    chosen = {str(workload): select_systems(own, scalings) for workload, own in judged.groupby("workload")}
    plain = [name for name, one in view.members("adaptation").items() if one.name == "frozen"]
    endless = recurring[~recurring["system"].isin(list(stopping(view.tables)))]
    forgetful = {str(workload): least_and_most_forgetful(own, plain) for workload, own in endless.groupby("workload")}
    styles = plots.some_of(view.styles, [name for names in (*chosen.values(), *forgetful.values()) for name in names])
    panels, grids, paid = list[Panel](), list[Grid](), costs(view.tables)
    for workload, names in chosen.items():
        own, spent = judged[judged["workload"] == workload], paid[paid["workload"] == workload]
        drawn = {name: style for name, style in styles.items() if name in names}
        panels.append(Panel(f"{workload}: domain by domain", partial(_draw_domains, rows=own, styles=drawn), 300))
        panels += [
            Panel(
                f"{workload}: accuracy against {PAID[column][0]}",
                partial(_draw_cost, points=points, column=column, named=names),
                320,
            )
            for column in ("phase_s", "phase_j")
            if len(points := _accuracy_by_cost(own, spent, column))
        ]
        grids.append(_grid(workload, own, spent, list(view.styles)))
    for workload, names in forgetful.items():
        own = recurring[recurring["workload"] == workload]
        drawn = {name: style for name, style in styles.items() if name in names}
        panels.append(Panel(f"{workload}: forgetting", partial(_draw_forgotten, rows=own, styles=drawn), 300))
        grids.append(_forgotten(workload, own, list(view.styles)))
    return FigureContent(NOTE, panels, grids, styles) if panels else None


def select_systems(rows: pd.DataFrame, scalings: Mapping[str, str]) -> list[str]:
    """Select up to `MAX_SYSTEMS`: no adaptation, the best, the worst, the best per scaling member."""
    order = rows.groupby("system")["after"].mean().sort_values(ascending=False)
    if len(order) <= MAX_SYSTEMS:
        return list(order.index)
    kinds = {scalings[name]: name for name in reversed(order.index)}  # of each kind the best, which comes last
    usual = [name for name in ("no_custom", "elasticdnn") if name in order]
    return list(dict.fromkeys([*usual, *kinds.values(), order.index[-1]]))[:MAX_SYSTEMS]


def least_and_most_forgetful(rows: pd.DataFrame, plain: Collection[str]) -> list[str]:
    """Select the systems without training and those with the least and the most forgetting."""
    last = rows[rows["round"] == rows["round"].max()]
    lost = last.groupby("system")["lost"].mean().sort_values()
    order = [str(name) for name in lost.index if name not in plain]
    few = order if len(order) <= MAX_SYSTEMS else [*order[: MAX_SYSTEMS // 2], *order[-(MAX_SYSTEMS // 2) :]]
    return [*(name for name in plain if name in lost.index), *few]


def _draw_domains(axis: Axes, rows: pd.DataFrame, styles: plots.StyleMap) -> None:
    for name, style in styles.items():
        own = rows[rows["system"] == name]
        line = own.groupby("stretch")[["before", "after"]].mean()
        axis.plot(line.index + 1, line["after"], "-", color=style.colour, linewidth=1.7, gid=style.gid)
        axis.plot(line.index + 1, line["before"], ":", color=style.colour, linewidth=1.1, gid=style.part)
    axis.set_xlabel("domain")
    axis.set_ylabel("accuracy")
    plots.tidy(axis)


def _accuracy_by_cost(rows: pd.DataFrame, paid: pd.DataFrame, column: str) -> pd.DataFrame:
    """Join accuracy after adapting and its cost, by system."""
    found = means(rows, ["system"], "after", least=0, most=1).set_index("system")
    return found.assign(cost=paid.groupby("system")[column].mean()).dropna(subset=["cost"]).reset_index()


def _draw_cost(axis: Axes, points: pd.DataFrame, column: str, named: list[str]) -> None:
    axis.vlines(points["cost"], points["low"], points["high"], color=plots.QUIET, linewidth=1.4, alpha=0.4)
    axis.plot(points["cost"], points["mean"], "o", color=plots.COLOURS[0], markersize=4.5)
    ordered = points.sort_values("cost")
    names = {*named, *pareto(points, "mean", "cost")["system"]}
    labelled = ordered[ordered["system"].isin(names)] if len(points) > MAX_SYSTEMS else ordered
    higher = labelled["mean"] >= labelled["mean"].shift().fillna(labelled["mean"].shift(-1))
    for row, above in zip(labelled.itertuples(), higher, strict=True):  # away from the neighbour
        plots.label_point(axis, row.system, row.cost, row.mean, above=above)
    plots.scale(axis)
    axis.margins(x=0.1, y=0.14)
    axis.set_xlabel(f"{PAID[column][0]}, {PAID[column][1]}")
    axis.set_ylabel("accuracy after adapting")
    plots.tidy(axis)


def _draw_forgotten(axis: Axes, rows: pd.DataFrame, styles: plots.StyleMap) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    points = means(rows, ["system", "round"], "lost")
    for name, style in styles.items():
        line = points[points["system"] == name]
        look = {"color": style.colour, "linestyle": style.dash, "markersize": 3.5, "gid": style.gid}
        axis.plot(line["round"] + 1, 100 * line["mean"], "o", **look)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("round")
    axis.set_ylabel("below the best earlier score, points")
    plots.tidy(axis)


def _forgotten(workload: str, rows: pd.DataFrame, order: list[str]) -> Grid:
    """Tabulate the points that each system falls below its best earlier score, per round."""
    wide = 100 * rows.pivot_table("lost", "system", "round")
    cells = {name: [GridCell(plots.signed(value)) for value in wide.loc[name]] for name in order if name in wide.index}
    return Grid(f"{workload}: forgetting, points", [f"round {number + 1}" for number in wide.columns], cells)


def _grid(workload: str, rows: pd.DataFrame, paid: pd.DataFrame, order: list[str]) -> Grid:
    scores = {name: means(rows, ["system"], name, least=0, most=1).set_index("system") for name in ("before", "after")}
    spent = paid.groupby("system")[list(PAID)].mean()
    table: dict[str, list[GridCell]] = {}
    for system in (name for name in order if name in scores["after"].index):
        accuracies = [mean_cell(part.loc[system], "{:.1f} %", ".1f", 100) for part in scores.values()]
        table[system] = [*accuracies, *(number_cell(spent.loc[system, name] * PAID[name][2]) for name in PAID)]
    titles = [f"{name}, {unit}" for name, unit, _ in PAID.values()]
    return Grid(workload, ["before", "after", *titles], table)


FIGURE = Figure("domains", "Accuracy and cost per domain", show)
