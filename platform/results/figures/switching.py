"""Bytes and energy of random model switching: Figure 8, Tables 4 and 5 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View
from driftlab.platform.results.relations.networks import (
    APP,
    INDEPENDENT,
    NESTED,
    joule_per_byte,
    of_kind,
    switches_by_kind,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Computed, not run: each application switches from every network to every other one with equal probability, in "
    "the same order for nested and independent networks. Energy per loaded byte: as charged to the run's devices. "
    "Lines: means over applications and seeds. Tables: bytes per switch to a larger and to a smaller network, means "
    "over all pairs of an application's networks."
)
KINDS = (NESTED, INDEPENDENT)
SIDES = ["loaded", "dropped"]
SWITCHES, MARKED = 1000, (250, 500, 750, 1000)
THIN = 5  # switches between two points of a line


def show(view: View) -> FigureContent | None:
    """Draw applications with equally many nested and independent networks, if devices loaded any."""
    changes, byte_j = switches_by_kind(view.tables), joule_per_byte(view.tables)
    if changes.empty or not byte_j:
        return None
    systems = {kind: of_kind(view.tables, kind)["system"].iloc[0] for kind in KINDS}
    styles = {kind: style for name, style in view.styles.items() for kind in KINDS if systems[kind] == name}
    changes = _by_place(changes)
    panel = Panel("energy of random switches", partial(_draw, curves=_energy_curves(changes, byte_j), styles=styles))
    return FigureContent(NOTE, [panel], _grids(changes), styles)


def _by_place(changes: pd.DataFrame) -> pd.DataFrame:
    """Add `place`: the application, with its workload if several workloads use the name."""
    alone = changes.groupby("app")["workload"].transform("nunique") == 1
    return changes.assign(place=changes["app"].where(alone, changes["workload"] + " · " + changes["app"]))


def walk(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a random walk over networks; every other network is next with equal probability."""
    steps = rng.integers(1, count, SWITCHES)
    return np.cumsum([rng.integers(count), *steps]) % count


def _energy_curves(changes: pd.DataFrame, byte_j: float) -> dict[str, np.ndarray]:
    """Accumulate the energy of switches along one walk, nested and independent; average over applications."""
    sums: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    for (draw, workload, app), own in changes.groupby(APP):
        stations = walk(int(own["before"].max()) + 1, rng_for(int(draw), "switching", workload, app))
        for kind, rows in own.groupby("kind"):
            loaded = rows.set_index(["before", "after"])["loaded"].unstack().to_numpy()
            sums[str(kind)].append(np.cumsum([0.0, *loaded[stations[:-1], stations[1:]]]))
    return {way: byte_j * np.mean(each, axis=0) for way, each in sums.items()}


def _draw(axis: Axes, curves: dict[str, np.ndarray], styles: plots.StyleMap) -> None:
    """Draw a line for nested and for independent networks, with values where the paper has bars."""
    most = max(float(curve[-1]) for curve in curves.values())
    factor, unit = plots.scaled(most, "J")
    for kind, curve in curves.items():
        heights, style = curve / factor, styles[kind]
        look = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.7, "gid": style.gid}
        axis.plot(range(0, SWITCHES + 1, THIN), heights[::THIN], **look)
        axis.scatter(MARKED, heights[list(MARKED)], color=style.colour, s=20)
        for count in MARKED:
            plots.label_point(axis, plots.short(heights[count]), count, heights[count], above=curve[-1] == most)
    axis.set_ylim(0, 1.15 * most / factor)
    axis.set_xticks([0, *MARKED])
    axis.set_xlabel("switches")
    axis.set_ylabel(unit)
    plots.tidy(axis)


def _grids(changes: pd.DataFrame) -> list[Grid]:
    """Average the bytes per switch, by direction."""
    factor, unit = plots.scaled(float(changes[SIDES].to_numpy().max()), "B")
    up = changes["after"] > changes["before"]
    kinds = [(kind, side) for kind in KINDS for side in SIDES]
    grids = []
    for word, rows in (("larger", changes[up]), ("smaller", changes[~up])):
        means = (rows.groupby(["place", "kind"], sort=False)[SIDES].mean() / factor).unstack("kind")
        each = {
            str(place): [GridCell(f"{mean[side, way]:.1f}") for way, side in kinds] for place, mean in means.iterrows()
        }
        grids.append(Grid(f"switch to a {word} network, {unit}", [f"{way}: {side}" for way, side in kinds], each))
    return grids


FIGURE = Figure("switching", "Random model switching", show)
