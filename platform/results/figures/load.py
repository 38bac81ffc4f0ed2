"""Load of a device over time (true, sensed, forecast) and the network that ran."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.errors import RequestError
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    LATE_IN_BATCHES,
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    lowest,
)
from driftlab.platform.results.figures.plots import Style
from driftlab.platform.results.relations.base import STREAM
from driftlab.platform.results.relations.loads import HORIZON, misses, skills, stated_errors
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from driftlab.platform.world.load import Load

MAX_SHOWN_S = 120.0
SYSTEMS = 4
HEIGHT = 260
TRUE, SENSED, EXPECTED, NETWORK, MISSED = (plots.COLOURS[k] for k in (0, 4, 3, 2, 1))
LEGEND = {
    "CPU load": Style(TRUE),
    "sensed": Style(SENSED, (0, (1, 1.2))),
    "forecast by the member": Style(EXPECTED, (0, (4, 1.5))),
    "network time": Style(NETWORK),
    "missed frames": Style(MISSED),
}
NOTE = (
    "One application on one device, lowest seed, first {most:g} s at most; a few systems, of different scaling "
    "members where possible. CPU load of other programs: true, sensed (at the next reading), forecast. Ticks: "
    "missed frames, which were skipped or predicted after their deadline (latency goal, or the next frame if sooner). "
    f"{LATE_IN_BATCHES} "
    "Network time: latency on the idle device, relative to the slowest network. Forecast error: mean absolute error "
    "on the sensed load of all devices. Skill: reduction of this error relative to persistence; negative is worse "
    "than persistence."
)


def show(view: View) -> FigureContent | None:
    """Draw a panel per setting and a few systems, if devices sense a load."""
    rows = view.named("loads")
    if rows.empty:
        return None
    missed = misses(view.tables)
    networks = view.tables.frame("variants")
    panels = []
    for setting, here in rows.groupby("setting"):
        for system in _shown(view, set(here["system"])):
            own = lowest(here[here["system"] == system], "seed", "device", "app")
            own = own[own["time_s"] < MAX_SHOWN_S].sort_values("time_s")
            place = tuple(own[STREAM].iloc[0])
            late = missed[missed[STREAM].eq(list(place)).all(axis="columns") & missed["missed"]]
            times_ms = networks[networks[STREAM].eq(list(place)).all(axis="columns")].set_index("variant")["latency_ms"]
            draw = partial(_draw, rows=own, missed=late, times_ms=times_ms)
            panels.append(Panel(f"{setting}: {system}", draw, HEIGHT))
    return FigureContent(NOTE.format(most=MAX_SHOWN_S), panels, [*_missed_grid(view, missed), *_grids(view)], LEGEND)


def _shown(view: View, names: set[str]) -> list[str]:
    """Select a few systems, preferring the first of each scaling member."""
    present = {name: member for name, member in view.members("scaling").items() if name in names}
    first = {member.name: name for name, member in reversed(present.items())}.values()
    some = sorted(present, key=lambda name: name not in first)[:SYSTEMS]
    return [name for name in present if name in some]


def _draw(axis: Axes, rows: pd.DataFrame, missed: pd.DataFrame, times_ms: pd.Series) -> None:
    styles = dict(zip(("cpu", "sensed_cpu", "forecast_cpu"), LEGEND.values(), strict=False))
    for column, style in styles.items():
        if rows[column].notna().any():
            values = rows[column].astype(float)
            line = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.2}
            axis.plot(rows["time_s"], values, drawstyle="steps-post", **line)
    if len(times_ms) > 1:
        heights = rows["variant"].map(times_ms) / times_ms.max()
        axis.plot(rows["time_s"], heights, drawstyle="steps-post", color=NETWORK, linewidth=2.0, alpha=0.55)
    last_s = float(rows["time_s"].max())
    late = missed[missed["time_s"] <= last_s]
    axis.plot(late["time_s"], [1.07] * len(late), "|", color=MISSED, markersize=7, markeredgewidth=0.9)
    axis.set_ylim(-0.03, 1.13)
    axis.set_xlim(0, max(last_s, 1e-9))
    axis.set_xlabel("time, s")
    plots.tidy(axis)


def _missed_grid(view: View, missed: pd.DataFrame) -> list[Grid]:
    """Tabulate the share of missed frames by system and setting."""
    if missed.empty:
        return []
    named = missed.merge(view.runs[["cell", "system", "setting"]], on="cell")
    shares = named.groupby(["system", "setting"])["missed"].mean()
    settings = [setting for setting in view.settings() if setting in shares.index.get_level_values("setting")]
    rows = {
        system: [
            GridCell(f"{100 * shares[system, setting]:.1f}") for setting in settings if (system, setting) in shares
        ]
        for system in view.styles
        if system in shares.index.get_level_values("system")
    }
    return [Grid("missed frames, %", settings, rows)]


def _grids(view: View) -> list[Grid]:
    """Tabulate error and skill of forecasts, and the error of forecasts that members report."""
    grids = []
    columns = [f"{step} ahead" for step in range(1, HORIZON + 1)]
    for fleet, own in view.tables.once(skills).groupby("fleet", sort=False):
        errors = own.groupby(["kind", "step"], sort=False)["error"].mean().unstack("step")
        skill = means(own, ["kind", "step"], "skill").set_index(["kind", "step"])
        rows = {
            str(kind): [
                GridCell(f"{error:.3f}", "" if kind == "persistence" else _skill(skill.loc[kind, step]))
                for step, error in each.items()
            ]
            for kind, each in errors.iterrows()
        }
        grids.append(Grid(f"error of forecasts, {fleet}", columns, rows))
    stated = stated_errors(view.tables)
    if len(stated):
        fleets = list(dict.fromkeys(stated.index.get_level_values("fleet")))
        rows = {
            system: [GridCell(f"{stated[system, fleet]:.3f}" if (system, fleet) in stated else "–") for fleet in fleets]
            for system in view.styles
            if system in stated.index.get_level_values("system")
        }
        grids.append(Grid("error of the members' forecasts", fleets, rows))
    return grids


def _skill(found: pd.Series) -> str:
    low, high = (plots.signed(100 * found[end]) for end in ("low", "high"))
    return f"skill {plots.signed(100 * found['mean'])} %" + ("" if found.isna()["low"] else f" ({low} to {high})")


def save_load_plot(load: Load, seconds: float, file: Path) -> None:
    """Write a PNG of a load without a run: use of CPU and memory, speed and battery."""
    from matplotlib.figure import Figure as Canvas

    times_s = [step.time_s for step in load.steps if step.time_s < seconds]
    steps = load.steps[: len(times_s)]
    lines = {
        "CPU load": [step.cpu for step in steps],
        "memory in use": [step.memory for step in steps],
        "speed of the device": [step.speed for step in steps],
        "battery": [step.battery for step in steps if step.battery is not None],
    }
    canvas = Canvas(figsize=(9, 3.2), dpi=120, layout="constrained")
    axis = canvas.subplots()
    drawn = {name: values for name, values in lines.items() if len(values) == len(times_s)}
    for name, style in plots.series(drawn).items():
        axis.plot([*times_s, seconds], [*drawn[name], drawn[name][-1]], drawstyle="steps-post", color=style.colour)
    axis.set_ylim(-0.03, 1.05)
    axis.set_xlim(0, seconds)
    axis.set_xlabel("time, s")
    plots.tidy(axis)
    plots.legend(canvas, plots.series(drawn))
    try:
        canvas.savefig(file, format="png")
    except OSError as error:
        raise RequestError(f"'{file}' cannot be written: {error.strerror}.") from error


FIGURE = Figure("load", "Load, forecast and selected network", show)
