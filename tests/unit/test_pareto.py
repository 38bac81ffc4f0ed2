"""Score against cost: the systems on the Pareto front, and the marks on the panels."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure as Canvas
from tables_factory import Made

from driftlab.platform.results.figures import pareto, plots
from driftlab.platform.results.figures.base import View, view_of
from driftlab.platform.results.figures.plots import untangle

USUAL = {"workload": "w", "fleet": "one", "devices": 2, "status": "done", "frames": 9, "student": "tiny"}


def run_row(
    system: str, score: float, up: float, energy_j: float, bound: str | None = None, seed: int = 0
) -> dict[str, Any]:
    row = {**USUAL, "cell": f"{system}/{seed}", "system": system, "score_live": score, "seed": seed, "bound": bound}
    return {**row, "uplink_kbps": up, "downlink_kbps": 2 * up, "energy_j": energy_j}


ROWS = [
    run_row("a", 0.5, 1.0, 10.0),
    run_row("b", 0.7, 2.0, 4.0),
    run_row("c", 0.6, 3.0, 12.0),
    run_row("no_custom", 0.3, 0.0, 0.1, "no_adaptation"),
    run_row("oracle", 0.9, 90.0, 90.0, "oracle"),
]


def view(rows: list[dict[str, Any]]) -> View:
    tables = Made({"systems": ["a", "b", "c"]}, runs=rows)
    return view_of(tables.run, tables)


def drawn(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw every panel on a separate axis, by title."""
    shown = pareto.FIGURE.show(view(rows))
    found = {}
    for panel in shown.panels:
        found[panel.title] = Canvas().subplots()
        panel.draw(found[panel.title])
    return found


def dots(axis: Any) -> dict[str, tuple[float, float]]:
    return {
        line.get_color(): (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.get_lines()
        if line.get_marker() == "o"
    }


@pytest.mark.parametrize(
    ("costs", "scores", "front"),
    [
        ((1, 2, 3), (0.5, 0.7, 0.6), "ab"),
        ((1, 2, 3), (0.5, 0.6, 0.7), "abc"),
        ((3, 2, 1), (0.5, 0.6, 0.7), "c"),
        ((1, 1, 2), (0.5, 0.6, 0.6), "b"),
        ((2, 1, 1), (0.6, 0.5, 0.5), "ba"),
    ],
)
def test_no_method_beats_one_on_the_front_in_both(costs, scores, front):
    points = pd.DataFrame({"cost": costs, "mean": scores, "method": True}, index=list("abc"))
    assert "".join(pareto.front(points).index) == front


def test_a_bound_is_never_on_the_front():
    points = pd.DataFrame({"cost": [1.0, 0.5], "mean": [0.5, 0.9], "method": [True, False]}, index=["a", "oracle"])
    assert list(pareto.front(points).index) == ["a"]


def test_traffic_is_the_sum_of_both_directions_and_energy_is_per_device():
    look, axes = view(ROWS).styles, drawn(ROWS)
    assert set(axes) == {"w: traffic", "w: energy"}
    assert dots(axes["w: traffic"])[look["b"].colour] == (6.0, 0.7)
    assert dots(axes["w: energy"])[look["b"].colour] == (2.0, 0.7)
    assert dots(axes["w: traffic"])[look["no_custom"].colour] == (0.0, 0.3)


def test_a_bound_is_a_rule_at_its_score():
    look = view(ROWS).styles["oracle"]
    for axis in drawn(ROWS).values():
        assert look.colour not in dots(axis)
        (rule,) = [line for line in axis.get_lines() if line.get_color() == look.colour]
        assert list(rule.get_ydata()) == [0.9, 0.9]


def test_the_line_joins_the_front():
    (line,) = [line for line in drawn(ROWS)["w: traffic"].get_lines() if line.get_color() == plots.QUIET]
    assert list(line.get_xdata()) == [3.0, 6.0]
    assert list(line.get_ydata()) == [0.5, 0.7]
    assert line.get_drawstyle() == "steps-post"


@pytest.mark.slow
def test_methods_on_the_front_are_named_within_the_available_space():
    names = {text.get_text() for text in drawn(ROWS)["w: traffic"].texts}
    assert names == {"a", "b"}
    many = [run_row(f"s{k}", 0.1 + k / 20, 1.0 + k, 5.0 + k) for k in range(pareto.LABELLED + 1)]
    assert not drawn(many)["w: traffic"].texts


@pytest.mark.slow
def test_costs_that_differ_much_are_counted_by_factors():
    far = [*ROWS, run_row("d", 0.8, 100.0, 10.0)]
    assert drawn(ROWS)["w: traffic"].get_xscale() == "linear"
    assert drawn(far)["w: traffic"].get_xscale() == "symlog"


@pytest.mark.parametrize("rows", [ROWS[:1] + ROWS[3:], [row | {"score_live": None} for row in ROWS]])
def test_one_method_or_no_score_is_no_plot(rows):
    assert pareto.FIGURE.show(view(rows)) is None


def test_names_of_close_points_overlap_neither_names_nor_points():
    rows = [run_row("a", 0.5, 10.0, 5.0), run_row("method-b", 0.9, 90.0, 6.0), run_row("method-c", 0.91, 95.0, 7.0)]
    axis = drawn(rows)["w: traffic"]
    untangle(axis)
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 3
    assert not [1 for one, other in itertools.combinations(boxes, 2) if one.overlaps(other)]
    points = axis.transData.transform([line.get_xydata()[0] for line in axis.lines[1:]])
    assert sum(box.count_contains(points) for box in boxes) == 0


def test_a_point_at_the_highest_cost_is_drawn_whole():
    axis = drawn([run_row("a", 0.5, 60.0, 5.0), run_row("b", 0.9, 61.0, 6.0)])["w: traffic"]
    left, right = axis.get_xlim()
    assert left < 0
    assert right > 1.05 * 3 * 61.0


@pytest.mark.filterwarnings("error")
def test_methods_without_traffic_have_an_axis():
    local = [run_row(name, score, 0.0, 5.0) for name, score in (("a", 0.5), ("b", 0.7))]
    left, right = drawn([*local, run_row("oracle", 0.9, 90.0, 90.0, "oracle")])["w: traffic"].get_xlim()
    assert left < 0 < right


def test_a_name_lies_on_the_side_of_its_point_with_more_space():
    far = [run_row("cheap-method", 0.5, 1.0, 5.0), run_row("dear-method", 0.9, 90.0, 6.0)]
    axis = drawn(far)["w: traffic"]
    assert axis.get_xscale() == "symlog"
    assert {text.get_text(): text.get_ha() for text in axis.texts} == {"cheap-method": "left", "dear-method": "right"}


def test_no_name_lies_on_the_ticks_of_the_score():
    rows = [run_row("cheap-method", 0.5, 10.0, 5.0), run_row("dear-method", 0.9, 90.0, 6.0)]
    axis = drawn(rows)["w: traffic"]
    for text in axis.texts:
        text.set_ha("right")  # as if the point were at the right
        text.xyann = (-5, 4)
    untangle(axis)
    assert min(text.get_window_extent().x0 for text in axis.texts) >= axis.bbox.x0


def test_names_are_placed_where_the_layout_puts_the_axes():
    figure = Canvas(layout="constrained")
    axis = figure.subplots()
    axis.set_ylabel("score\nof live frames")
    untangle(axis)
    placed = axis.bbox.bounds
    figure.draw_without_rendering()
    assert placed == pytest.approx(axis.bbox.bounds, abs=1)


def test_late_frames_are_a_cost_with_a_panel():
    rows = [row | {"grace_s": 0.1} for row in ROWS]
    frames = [
        {"cell": row["cell"], "processed": k != 0, "latency_ms": 50.0 + 100 * (k == 1 and row["system"] == "b")}
        for row in rows
        for k in range(4)
    ]
    tables = Made({"systems": ["a", "b", "c"]}, runs=rows, frames=frames)
    panels = {panel.title: panel for panel in pareto.FIGURE.show(view_of(tables.run, tables)).panels}
    axis = Canvas().subplots()
    panels["w: late frames"].draw(axis)
    assert sorted(place for place, _ in dots(axis).values()) == [25.0, 25.0, 25.0, 50.0]


def test_parts_of_the_energy_add_up_and_the_radio_is_explained():
    parts = {"inference_j": 1.0, "radio_j": 3.0}
    idle = run_row("idle", 0.1, 0.0, 1.0) | {"inference_j": 0.002, "radio_j": 18.0}
    rows = [*(row | parts for row in ROWS), idle]
    shown = pareto.FIGURE.show(view(rows))
    (grid,) = shown.grids
    assert grid.columns == ["total, J", "inference, %", "radio, %"]
    assert [cell.text for cell in grid.rows["a"]] == ["2", "25", "75"]
    assert [cell.text for cell in grid.rows["idle"]] == ["9", "<1", "100"]
    assert "radio stays awake" in shown.note
    assert "radio" not in pareto.FIGURE.show(view(ROWS)).note
