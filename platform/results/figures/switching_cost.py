"""Bytes and energy of model switching: Figure 8, Tables 4 and 5 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View, mean_cell
from driftlab.platform.results.relations.sharing import allocations, switches
from driftlab.platform.results.relations.time_series import moved_bytes, switching_energy
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Cumulative bytes loaded and dropped per device since the session start, including networks of starting "
    "applications; then cumulative energy over the number of switches. Table: bytes per switch to a larger and to a "
    "smaller network, and energy per 1000 switches, ± half of the 95 % CI. Switches are those that the schedulers "
    "made. Means over devices and seeds."
)
SIDES = {"paged_in_bytes": "loaded", "paged_out_bytes": "dropped"}
Curves = dict[str, "pd.Series"]  # by system; over time, or over the number of switches


def show(view: View) -> FigureContent | None:
    """Draw systems that differ in scheduler or scaling, if any of them switches."""
    systems = view.one_of_each()
    changed = _of(view, switches(view.tables), systems)
    if changed.empty:
        return None
    rows = _of(view, view.tables.once(allocations), systems)
    styles = {name: view.styles[name] for name in systems if name in rows["system"].unique()}
    panels = [
        panel
        for setting, here in rows.groupby("setting")
        for panel in _panels(str(setting), here, changed[changed["setting"] == setting], styles)
    ]
    return FigureContent(NOTE, panels, [_grid(changed, rows, styles)], styles)


def _of(view: View, rows: pd.DataFrame, systems: list[str]) -> pd.DataFrame:
    return rows[rows["system"].isin(systems)].merge(view.runs[["cell", "setting", "devices"]], on="cell")


def _panels(setting: str, rows: pd.DataFrame, changed: pd.DataFrame, styles: plots.StyleMap) -> list[Panel]:
    """Draw both directions on one scale, and energy if it is known."""
    moved = {word: moved_bytes(rows, side) for side, word in SIDES.items()}
    most = max(float(curve.max()) for curves in moved.values() for curve in curves.values())
    panels = [
        Panel(f"{setting}: {word}", partial(_draw, curves=curves, styles=styles, most=most, unit="B", x="time, s"))
        for word, curves in moved.items()
    ]
    drawn = {str(name): switching_energy(own) for name, own in changed.groupby("system")}
    most = max((float(curve.max()) for curve in drawn.values()), default=0.0)
    if most > 0 and max(map(len, drawn.values())) > 1:  # one switch is no curve
        more = partial(_draw, curves=drawn, styles=styles, most=most, unit="J", x="switches")
        panels.append(Panel(f"{setting}: energy of switching", more))
    return panels


def _draw(axis: Axes, curves: Curves, styles: plots.StyleMap, most: float, unit: str, x: str) -> None:
    factor, name = plots.scaled(most, unit)
    for system, curve in curves.items():
        thin = curve.iloc[:: max(1, len(curve) // plots.POINTS)]
        style = styles[system]
        axis.plot(thin.index, thin / factor, color=style.colour, linestyle=style.dash, linewidth=1.7)
    axis.set_ylim(0, 1.04 * most / factor)
    axis.set_xlabel(x)
    axis.set_ylabel(name)
    axis.margins(x=0.01)
    plots.tidy(axis)


def _grid(changed: pd.DataFrame, rows: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    """Tabulate the switches per device and session, and the bytes per switch."""
    factor, name = plots.scaled(float(changed[list(SIDES)].to_numpy().max()), "B")
    devices = rows[["system", "cell", "device"]].drop_duplicates().groupby("system").size()
    switches = (changed.groupby("system").size() / devices).fillna(0.0)
    direction = (changed["variant"] > changed["before"]).map({True: "up", False: "down"}).rename("way")
    moved = (changed.groupby(["system", direction])[list(SIDES)].mean() / factor).stack().to_dict()
    drawn = means(changed.assign(drawn_j=1000 * changed["paging_j"]), ["system"], "drawn_j", least=0.0).set_index(
        "system"
    )
    kinds = [(way, side) for way in ("up", "down") for side in SIDES]
    rows_of = {
        system: [
            GridCell(plots.short(switches[system])),
            *(GridCell(f"{moved[key]:.1f}" if (key := (system, *kind)) in moved else "–") for kind in kinds),
            mean_cell(drawn.loc[system] if system in drawn.index else None, "{:.3g}", ".2g"),
        ]
        for system in styles
    }
    columns = ["switches", *(f"{way}: {SIDES[side]}, {name}" for way, side in kinds), "J per 1 000"]
    return Grid("switching", columns, rows_of)


FIGURE = Figure("switching_cost", "Model switching", show)
