"""Figures: each is shown if the run varies its subject, and draws the values of the tables."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from experiments_factory import each_experiment, loaded
from matplotlib.figure import Figure as Canvas
from tables_factory import Made

from driftlab.datasets.streets.presets import PRESETS
from driftlab.datasets.streets.travel import draw_travel
from driftlab.errors import RequestError
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Experiment
from driftlab.platform.results import figures
from driftlab.platform.results.figures import (
    clients,
    frontier,
    gains,
    notebook,
    per_workload,
    plots,
    rates,
    strategies,
    training_horizon,
)
from driftlab.platform.results.figures.base import FigureContent, Panel, View, view_of
from driftlab.platform.results.figures.table import DETAILS, FIGURES, HELPERS, STORY, SUBJECTS
from driftlab.platform.results.relations.traffic import sweeps

EVERY_RUN = {"accuracy", "duels", "gains", "traffic"}
SHOWN = {
    "ams-table1": {"per_workload", "rates"},
    "ams-table2": {"per_workload", "rates"},
    "ams-table3": {"per_workload", "rates", "strategies"},
    "ams-fig4": {"per_workload", "rates", "frontier"},
    "ams-bytes": {"per_workload", "rates"},
    "ams-fig5": {"per_workload", "rates"},
    "ams-clients": {"rates", "clients"},
    "ams-horizon": {"per_workload", "rates", "training_horizon"},
    "ams-rates": {"per_workload", "rates"},
    "quick": set(),
}
ONE_METHOD = {"quick": {"duels"}}  # which has no other to be compared with
WITHOUT_BOUND = {"ams-bytes", "ams-clients", "ams-rates"}  # nothing to gain over


def asked(name: str) -> Experiment:
    """Read a built-in experiment with two seeds."""
    return loaded(name).model_copy(update={"seeds": (0, 1)})


def fewer(experiment: Experiment) -> Experiment:
    """Keep about five systems, spread over its list, two workloads and two fleets."""
    step = -(-len(experiment.systems) // 5)
    return experiment.model_copy(
        update={
            "systems": experiment.systems[::step],
            "workloads": experiment.workloads[:2],
            "fleets": experiment.fleets[:2],
        }
    )


def made(name: str, change: Callable[[Experiment], Experiment] = lambda whole: whole) -> Made:
    """Make tables for every cell of a built-in experiment: one second of frames, and two uploads a device."""
    experiment = change(asked(name))
    rows: dict[str, list[dict[str, Any]]] = {key: [] for key in ("runs", "frames", "transfers", "updates", "devices")}
    for cell in cells_of(experiment):
        here = {"cell": cell.id}
        run = {"system": cell.system.name, "workload": cell.workload, "fleet": cell.fleet, "seed": cell.seed}
        run |= {"devices": len(cell.devices), "bound": cell.system.bound, "status": "done", "student": "tiny"}
        run["duration_s"] = cell.duration_s
        rows["runs"].append({**here, **run, "score_live": 0.5, "downlink_kbps": 2.0, "uplink_kbps": 3.0})
        for edge in cell.devices:
            place = {**here, "device": edge.name, "app": "a"}
            of_device = {"device": edge.name, "score_live": 0.5, "stream_seed": edge.apps[0].stream.seed}
            rows["devices"].append({**here, **of_device})
            for frame in range(2):
                seen = {"frame": frame, "time_s": frame / 2, "scene": 0, "score_frame": 0.5}
                rows["frames"].append({**place, **seen, "score_live": 0.5})
            for number in (1, 2):
                sent = {"direction": "up", "kind": "samples", "sequence": number, "queued_s": 10.0 * number}
                rows["transfers"].append(
                    {**place, **sent, "arrive_s": 10.0 * number + 1, "samples": 5, "rate_fps": 0.5 / number}
                )
                phase = {"label_start_s": 10.0 * number + 3, "train_end_s": 10.0 * number + 5}
                rows["updates"].append({**place, **phase, "samples": 5, "uploads": 1})
    return Made(experiment.model_dump(mode="json"), **rows)


def view(tables: Made) -> View:
    return view_of(tables.run, tables)


def drawn(panel: Panel) -> Any:
    axis = Canvas().subplots()
    panel.draw(axis)
    return axis


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Return the lines of an axis by colour, without rules."""
    return {
        line.get_color(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines()
        if line.get_color() != plots.QUIET
    }


def show(figure: Any, tables: Made) -> FigureContent:
    shown = figure.FIGURE.show(view(tables))
    assert shown is not None
    return shown


def texts(grid: Any) -> dict[str, list[str]]:
    return {name: [entry.text for entry in entries] for name, entries in grid.rows.items()}


# --- which figures a run has


def test_every_file_is_in_the_table():
    files = {module.name for module in pkgutil.iter_modules(figures.__path__)} - set(HELPERS)
    assert {figure.name for figure in FIGURES} == files == {*STORY, *SUBJECTS, *DETAILS}


@pytest.mark.slow
@each_experiment
def test_a_run_shows_the_figures_of_its_experiment(name):
    look = view(made(name) if name in SHOWN else made(name, fewer))
    shown = {figure.name: shown for figure in FIGURES if (shown := figure.show(look)) is not None}
    if name in SHOWN:
        assert (
            set(shown)
            == EVERY_RUN - ({"gains"} if name in WITHOUT_BOUND else set()) - ONE_METHOD.get(name, set()) | SHOWN[name]
        )
    for figure in shown.values():
        if panels := figure.panels:
            assert drawn(panels[sum(map(ord, name)) % len(panels)]).get_xlabel()  # another one for each experiment
        for grid in figure.grids:
            assert {len(entries) for entries in grid.rows.values()} == {len(grid.columns)}


@pytest.mark.slow
def test_a_run_without_cells_shows_no_figure():
    assert [figure.name for figure in FIGURES if figure.show(view(Made({}))) is not None] == []


# --- means


def test_a_curve_of_many_values_is_that_of_its_quantiles():
    axis = Canvas().subplots()
    plots.cumulative(axis, pd.Series(range(10_001), dtype=float), plots.Style(plots.INK))
    x, y = lines(axis)[plots.INK]
    assert len(x) <= plots.POINTS + 1
    assert x[-1] == 10_000
    assert all(abs(value / 10_000 - share) < 1e-6 for value, share in zip(x, y, strict=True))


# --- the drawings


@pytest.mark.slow
def test_the_frontier_joins_systems_that_differ_in_one_number():
    tables = made("ams-fig4")
    found = {next(iter(group)): group for group in sweeps(tables, view(tables).styles)}
    assert found["ams"] == {"ams": 10, "ams-14s": 14, "ams-20s": 20}
    assert [0.25, 0.4, 0.5, 0.6, 0.75] in [list(group.values()) for group in found.values()]
    assert {name for name, group in found.items() if len(group) == 1} == {"ams-int4", "just_in_time-dense"}
    kbps = {"ams": 4.0, "ams-14s": 2.0, "ams-20s": 1.0}
    tables.change(
        "runs",
        downlink_kbps=lambda row: kbps.get(row["system"], 9.0) * (0.5 + row["seed"]),
        score_live=lambda row: kbps.get(row["system"], 3.0) / 10 + row["seed"] / 100,
    )
    shown = show(frontier, tables)
    x, y = lines(drawn(shown.panels[0]))[shown.legend["ams"].colour]
    assert x == [1.0, 2.0, 4.0]
    assert y == pytest.approx([0.105, 0.205, 0.405])
    assert {"no_custom", "oracle"} <= set(shown.legend)


def test_two_numbers_that_vary_are_no_line():
    tables = made("ams-horizon")
    assert {len(group) for group in sweeps(tables, view(tables).styles)} == {1}


def test_strategies_are_compared_with_everything_street_by_street():
    tables = made("ams-table3")
    lost = {"guided-5": 0.01, "random-5": 0.03}
    level = {"dance": 0.5, "walking_paris": 0.6, "drift": 0.7}
    tables.change(
        "runs", score_live=lambda row: level[row["workload"]] - lost.get(row["system"], 0) * (1 + row["seed"])
    )
    shown = show(strategies, tables)
    (grid,) = shown.grids
    assert list(grid.columns) == ["20 %", "5 %", "all"]
    assert texts(grid)["gradient_guided"] == ["+0.0", "\u22121.5", ""]
    assert texts(grid)["random"][1] == "\u22124.5"
    x, y = lines(drawn(shown.panels[0]))[shown.legend["random"].colour]
    assert (x, y) == (pytest.approx([5]), pytest.approx([-4.5]))


def test_the_horizon_is_drawn_at_the_shortest_interval_and_over_intervals():
    tables = made("ams-horizon")
    grid = [(past, every) for past in (12, 40, 120) for every in (8, 25)]
    scores = {f"horizon-{past}-every-{every}": (past - every) / 1000 for past, every in grid}
    tables.change("runs", score_live=lambda row: scores.get(row["system"], 0.9))
    shown = show(training_horizon, tables)
    first, second = (drawn(panel) for panel in shown.panels)
    assert lines(first)[plots.INK] == ([12, 40, 120], pytest.approx([0.004, 0.032, 0.112]))
    assert lines(second)[shown.legend["horizon 40 s"].colour] == ([8, 25], pytest.approx([0.032, 0.015]))


def test_each_student_has_a_separate_horizon():
    tables = made("ams-horizon")
    tables.change("runs", student=lambda row: "half" if row["workload"] == "half-width" else "tiny")
    tables.change("runs", score_live=lambda row: 0.3 if row["student"] == "half" else 0.5)
    panels = show(training_horizon, tables).panels
    assert [panel.title for panel in panels[::2]] == ["by horizon, student half", "by horizon, student tiny"]
    assert [lines(drawn(panel))[plots.INK][1] for panel in panels[::2]] == [pytest.approx([x] * 3) for x in (0.3, 0.5)]


@pytest.mark.slow
def test_devices_that_share_lose_and_wait():
    tables = made("ams-clients")
    count = dict(tables.frame("runs")[["cell", "devices"]].itertuples(index=False))
    count |= {cell: 0 for cell in count if "/alone/" in cell}
    tables.change("devices", score_live=lambda row: 0.5 - count[row["cell"]] / 1000)
    tables.change("updates", label_start_s=lambda row: row["label_start_s"] + count[row["cell"]])
    shown = show(clients, tables)
    loss, wait = (lines(drawn(panel))[shown.legend["ams"].colour] for panel in shown.panels)
    fleets = sorted(set(count.values()) - {0})
    assert loss == (fleets, pytest.approx([number / 10 for number in fleets]))
    assert wait == (fleets, pytest.approx([2 + number for number in fleets]))


def test_frames_are_compared_with_the_same_frame():
    tables = made("ams-fig5")
    better = {"no_custom": (0.0, 0.2), "ams": (0.1, 0.5), "one_time": (-0.1, 0.3), "just_in_time": (0.0, 0.2)}
    tables.change(
        "frames", score_frame=lambda row: 0.5 + better.get(row["cell"].partition("/")[0], (0, 0))[row["frame"]]
    )
    shown = show(gains, tables)
    assert "no_custom" not in shown.legend
    table = texts(shown.grids[0])
    assert (table["ams"][-1], table["one_time"][-1], table["just_in_time"][-1]) == ("100 %", "50 %", "0 %")
    x, y = lines(drawn(shown.panels[0]))[shown.legend["ams"].colour]
    assert (x[0], x[-1], y[0], y[-1]) == (pytest.approx(0.1), pytest.approx(0.3), 0, 1)
    assert max(share for gain, share in zip(x, y, strict=True) if gain <= 0.2) == pytest.approx(0.5)


@pytest.mark.slow
def test_rates_hold_from_upload_to_upload_and_stops_are_shaded():
    tables = made("ams-rates")
    tables.change("transfers", queued_s=lambda row: 40.0 * row["sequence"] * (1 + ("fast" in row["cell"])))
    shown = show(rates, tables)
    assert [panel.title for panel in shown.panels][-1] == "mean rate of a stream"
    axis = drawn(next(panel for panel in shown.panels if panel.title == "driving_la"))
    steps = [patch.get_data() for patch in axis.patches if hasattr(patch, "get_data")]
    assert [step.values.tolist() for step in steps] == [[0.5, 0.25]] * 3
    assert [step.edges.tolist() for step in steps] == [[0, 40, 80], [0, 40, 80], [0, 80, 160]]
    spread = lines(drawn(shown.panels[-1]))
    assert {look.colour: set(spread[look.colour][0]) for look in shown.legend.values()} == {
        shown.legend["ams"].colour: {0.125},
        shown.legend["ams-scaled"].colour: {0.125},
        shown.legend["ams-fast"].colour: {0.0625},
    }
    cell = next(cell for cell in cells_of(asked("ams-rates")) if cell.workload == "driving_la")
    seed = cell.devices[0].apps[0].stream.seed
    travel = draw_travel(PRESETS["driving_la"], seed)
    shaded = [patch for patch in axis.patches if hasattr(patch, "get_width")]
    assert shaded
    for patch in shaded:
        begin, end = patch.get_x(), patch.get_x() + patch.get_width()
        assert travel.distance_m(begin) == pytest.approx(travel.distance_m(end), abs=1e-6)
    still = drawn(next(panel for panel in shown.panels if panel.title == "interview"))
    assert not [patch for patch in still.patches if hasattr(patch, "get_width")]


def test_a_rate_that_cannot_change_is_not_drawn():
    assert rates.FIGURE.show(view(made("quick"))) is None


def test_the_best_method_of_a_street_is_strong_and_bounds_never_are():
    tables = made("ams-table2")
    level = {"ams": 0.7, "no_custom": 0.725, "just_in_time": 0.6}
    tables.change(
        "runs",
        score_live=lambda row: level.get(row["system"], 0.3) + (row["system"] == "just_in_time" and row["seed"]) / 4,
    )
    (grid,) = show(per_workload, tables).grids
    assert grid.columns[-1] == "mean"
    strong = {name for name, entries in grid.rows.items() if all(entry.strong for entry in entries)}
    assert strong == {"just_in_time"}
    assert not any(entry.strong for name in ("ams", "no_custom") for entry in grid.rows[name])
    assert grid.rows["no_custom"][0].text == grid.rows["just_in_time"][0].text == "72.5"


@pytest.mark.parametrize(("old", "new"), [("learners", "compute_shares"), ("streets", "per_workload")])
def test_an_old_name_of_a_figure_is_refused_with_the_new_one(old, new):
    with pytest.raises(RequestError, match=f"Unknown figure '{old}'. It is now '{new}'"):
        notebook.show(view(Made({})), old)
