"""Accuracy, memory and operations per network: Figures 6 and 7, Table 3 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import NO_CELL, Figure, FigureContent, Grid, GridCell, Panel, View
from driftlab.platform.results.relations.networks import memory_of_all, networks, over_draws, unscaled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Test accuracy over memory, per application. First table: mean over applications per network, smallest first; in "
    "bold the best of a column; below each value the operations in % of the {reference} network's. Nested networks "
    "are stored once, independent ones separately."
)
MAX_APPS = 6  # applications that a reader can still compare
MAX_NETWORKS = 20  # per application; a line of hundreds of paths is unreadable
HEIGHT = 200


def show(view: View) -> FigureContent | None:
    """Draw the applications with several networks, one line per scaling member."""
    if view.tables.frame("variants").empty:
        return None
    found = _families(view)
    sized = found.dropna(subset=["accuracy"])
    sized = sized[sized.groupby(["family", "place"])["variant"].transform("size").between(2, MAX_NETWORKS)]
    if sized.empty:
        return None
    families = sized.sort_values("order", kind="stable").drop_duplicates("family")
    styles = {
        family: view.styles[system] for family, system in zip(families["family"], families["system"], strict=True)
    }
    unit = plots.scaled(float(sized["memory_bytes"].max()), "B")
    panels = [
        Panel(place, partial(_draw, points=sized[sized["place"] == place], styles=styles, unit=unit), HEIGHT)
        for place in list(dict.fromkeys(sized["place"]))[:MAX_APPS]
    ]
    grown = unscaled(view.tables)
    grids = [_by_rank(sized, grown, styles), *_memory_grids(view, sized, unit)]
    return FigureContent(NOTE.format(reference="largest" if grown.empty else "whole"), panels, grids, styles)


def _families(view: View) -> pd.DataFrame:
    """List the networks of each scaling member (`family`) and application (`place`)."""
    members = {name: one for name, one in view.members("scaling").items() if one["only"] is None}
    first = {one: name for name, one in reversed(members.items())}
    kinds = dict(view.runs[["system", "scaling"]].drop_duplicates().itertuples(index=False))
    kind_names = {name: kinds[name].partition("(")[0] for name in first.values()}
    names = {name: name if list(kind_names.values()).count(word) > 1 else word for name, word in kind_names.items()}
    rows = over_draws(networks(view.tables))
    rows = rows[rows["system"].isin(list(names))]
    order = rows["system"].map({name: k for k, name in enumerate(view.styles)})
    rows = rows.assign(family=rows["system"].map(names), order=order).sort_values(["order", "workload", "variant"])
    each = rows.groupby(["family", "app", "variant"])[["memory_bytes", "accuracy"]].nunique()
    alike = bool((each <= 1).all(axis=None))
    rows = rows.assign(place=rows["app"] if alike else rows["workload"] + " · " + rows["app"])
    return rows.drop_duplicates(["family", "place", "variant"])


def _draw(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap, unit: tuple[float, str]) -> None:
    for name, style in styles.items():
        own = points[points["family"] == name].sort_values("memory_bytes")
        size = own["memory_bytes"] / unit[0]
        axis.plot(size, own["accuracy"], "o", color=style.colour, linestyle=style.dash, linewidth=1.5, markersize=4.5)
    plots.scale(axis)
    axis.set_xlabel(f"memory, {unit[1]}")
    axis.set_ylabel("accuracy")
    axis.margins(y=0.1)
    plots.tidy(axis)


def _by_rank(sized: pd.DataFrame, grown: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    """Average accuracy and operations over applications, by size rank of the network."""
    app = ["workload", "app"]
    largest = (sized if grown.empty else grown).groupby(app)["macs"].max().rename("most")
    shares = sized.join(largest, on=app)
    found = shares.assign(work=shares["macs"] / shares["most"]).groupby(["family", "variant"])[["accuracy", "work"]]
    wide = found.mean().unstack()
    best = wide["accuracy"].max()
    rows = {
        name: [
            _entry(wide["accuracy"].loc[name, rank], wide["work"].loc[name, rank], best[rank]) for rank in best.index
        ]
        for name in styles
    }
    return Grid("accuracy, %", [f"network {rank + 1}" for rank in best.index], rows)


def _entry(accuracy: float, work: float, best: float) -> GridCell:
    if accuracy != accuracy:
        return NO_CELL
    return GridCell(f"{100 * accuracy:.1f}", "" if work != work else f"{100 * work:.0f} % of MACs", accuracy == best)


def _memory_grids(view: View, sized: pd.DataFrame, unit: tuple[float, str]) -> list[Grid]:
    """Compare the memory of all sizes, if a run has both nested and independent networks."""
    nested = {name: member.nested for name, member in view.members("scaling").items()}
    kept = {
        name: memory_of_all(part, nested=nested[part["system"].iloc[0]]).droplevel("draw")
        for name, part in sized.groupby("family", sort=False)
    }
    apart = [name for name, part in sized.groupby("family", sort=False) if not nested[part["system"].iloc[0]]]
    if not apart or len(apart) == len(kept):
        return []
    import pandas as pd

    places = sized.drop_duplicates(["workload", "app"]).set_index(["workload", "app"])["place"]
    wide = pd.DataFrame(kept).rename_axis(["workload", "app"]).join(places).set_index("place").loc[places]
    wide.loc["all"] = wide.sum(min_count=len(wide))
    rows = {
        str(place): [_size(row[name], None if name in apart else row[apart[0]], unit[0]) for name in kept]
        for place, row in wide.iterrows()
    }
    return [Grid(f"memory of all sizes, {unit[1]}", list(kept), rows)]


def _size(memory_bytes: float, against: float | None, unit: float) -> GridCell:
    if memory_bytes != memory_bytes:
        return NO_CELL
    note = "" if against is None or against != against else f"{plots.signed(100 * (memory_bytes / against - 1), 0)} %"
    return GridCell(f"{memory_bytes / unit:.1f}", note)


FIGURE = Figure("capacity", "Accuracy and memory per network", show)
