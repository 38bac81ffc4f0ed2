"""Figures of NestDNN: drawn from tables whose numbers are known, and agreeing with the claims that read the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sharing_factory as factory
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas
from tables_factory import Made

from driftlab.platform.results.analysis.measured import Measured
from driftlab.platform.results.claims import nestdnn, nestdnn_sharing
from driftlab.platform.results.figures import capacity, paging, plots, pruning, switching, timeline, tradeoff
from driftlab.platform.results.figures.base import Grid, Panel, Shown, common, view_of
from driftlab.platform.results.figures.table import FIGURES

OURS = (pruning, capacity, tradeoff, timeline, paging, switching)
SEEN = ("tradeoff", "paging", "switching", "capacity", "timeline")


def show(figure: Any, tables: Any) -> Shown:
    shown = figure.FIGURE.show(view_of(tables.run, tables))
    assert shown is not None
    return shown


def hidden(figure: Any, tables: Any) -> bool:
    return figure.FIGURE.show(view_of(tables.run, tables)) is None


def drawn(panel: Panel) -> Any:
    axis = Canvas().subplots()
    panel.draw(axis)
    return axis


def panel_of(shown: Shown, title: str) -> Any:
    (panel,) = (panel for panel in shown.panels if panel.title == title)
    return drawn(panel)


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    """What stands on an axis by colour, without rules."""
    return {
        line.get_color(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines()
        if line.get_color() not in (plots.QUIET, plots.RULE)
    }


def texts(grid: Grid) -> dict[str, list[str]]:
    return {name: [entry.text for entry in entries] for name, entries in grid.rows.items()}


def notes(grid: Grid) -> dict[str, list[str]]:
    return {name: [entry.note for entry in entries] for name, entries in grid.rows.items()}


def claimed(module: Any, name: str, tables: Any) -> float:
    (claim,) = (claim for claim in module.CLAIMS if claim.id == name)
    found = claim.measure(tables)
    assert isinstance(found, Measured), found
    return found.value


# --- which figures a run has


def test_a_run_that_shares_a_device_has_these_figures():
    tables = factory.made()
    view = view_of(tables.run, tables)
    shown = [figure.name for figure in FIGURES if figure.show(view) is not None]
    assert tuple(name for name in shown if name in SEEN) == SEEN
    assert "accuracy" not in shown  # no frame was computed


def test_a_run_without_shares_or_networks_has_none():
    empty = Made({"systems": factory.SYSTEMS}, runs=factory.rows_of(factory.SYSTEMS[0], 0)["runs"])
    assert all(hidden(figure, empty) for figure in OURS)
    assert all(hidden(figure, Made()) for figure in OURS)


def test_every_panel_of_every_figure_names_its_axes():
    tables = factory.made()
    for figure in OURS[1:]:
        shown = show(figure, tables)
        assert all(drawn(panel).get_xlabel() for panel in shown.panels)
        for grid in shown.grids:
            assert {len(entries) for entries in grid.rows.values()} == {len(grid.columns)}


def test_of_systems_that_differ_in_alpha_the_usual_one_stands_for_all():
    tables = factory.made()
    assert view_of(tables.run, tables).one_of_each() == ["status_quo", "total-0.1", "exact-0.1"]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["total-0.1", "total-1.0"], "total"),
        (["t-0.01", "t-0.03"], "t"),
        (["ams", "ams-20s"], "ams"),
        (["a", "b"], "a"),
    ],
)
def test_a_group_goes_by_what_its_names_have_in_common(names, name):
    assert common(names) == name


# --- networks


def test_accuracy_is_drawn_over_memory_and_one_way_of_scaling_is_one_line():
    shown = show(capacity, factory.made())
    assert list(shown.legend) == ["independent", "nested"]
    assert [panel.title for panel in shown.panels] == ["a", "b"]
    found = lines(drawn(shown.panels[0]))
    assert found[shown.legend["nested"].colour] == ([10, 20, 40], [0.6, 0.7, 0.8])
    assert found[shown.legend["independent"].colour] == ([10, 20, 40], [0.65, 0.75, 0.85])


def test_ranks_are_averaged_over_applications_and_work_is_a_share_of_the_largest():
    tables = factory.made()
    tables.change("variants", accuracy=lambda row: row["accuracy"] - 0.1 * (row["app"] == "b"))
    grid = show(capacity, tables).grids[0]
    assert texts(grid) == {"independent": ["60.0", "70.0", "80.0"], "nested": ["55.0", "65.0", "75.0"]}
    assert [entry.note for entry in grid.rows["nested"]] == ["11 % of MACs", "33 % of MACs", "100 % of MACs"]
    assert all(entry.strong for entry in grid.rows["independent"])
    assert not any(entry.strong for entry in grid.rows["nested"])


def test_all_sizes_need_the_largest_or_the_sum_and_the_claim_says_the_same():
    tables = factory.made()
    grid = show(capacity, tables).grids[1]
    assert texts(grid)["all"] == ["140.0", "80.0"]
    assert notes(grid)["all"] == ["", "\u221243 %"]
    assert claimed(nestdnn, "N-5", tables) == pytest.approx(1 - 80 / 140)


def test_without_independent_networks_nothing_is_saved():
    assert len(show(capacity, factory.made(only=("total-0.1",))).grids) == 1


def test_networks_that_differ_between_workloads_are_told_apart():
    tables = factory.made()
    tables.change("runs", workload=lambda row: "two" if row["seed"] == 0 else "other")
    assert [panel.title for panel in show(capacity, tables).panels] == ["a", "b"]
    tables.change("variants", accuracy=lambda row: row["accuracy"] - 0.1 * row["cell"].endswith("1"))
    assert len(show(capacity, tables).panels) == 4
    assert texts(show(capacity, tables).grids[1])["all"] == ["280.0", "160.0"]


def test_one_network_each_is_no_choice():
    tables = factory.made()
    tables.drop("variants", lambda row: row["variant"] > 0)
    assert hidden(capacity, tables)
    unmeasured = factory.made()
    unmeasured.change("variants", accuracy=lambda row: None)
    assert hidden(capacity, unmeasured)


# --- pruning


def pruned() -> Any:
    """Prune two layers to a half and a tenth by two rankings."""
    untrained = {"name": "nested", "prune_epochs": 0, "grow_epochs": 0, "keep": [1.0, 0.5, 0.1]}
    systems = [
        {"name": f"{ranking}-{layer}", "scaling": {**untrained, "only": layer, "ranking": ranking}}
        for ranking in ("trr", "l1")
        for layer in (0, 1)
    ]
    tables = {"runs": [], "variants": []}
    for system in systems:
        for table, rows in factory.rows_of({**system, "scheduling": "status_quo"}, 0).items():
            if table in tables:
                tables[table] += rows
    found = Made({"systems": systems}, **tables)
    left = {"trr-0": 0.1, "l1-0": 0.0, "trr-1": 0.0, "l1-1": 0.2}
    found.change(
        "variants",
        accuracy=lambda row: 0.8 if row["variant"] == 2 else left[row["cell"].partition("/")[0]] + row["variant"] / 2,
    )
    return found


def test_each_layer_is_drawn_over_what_is_gone():
    shown = show(pruning, pruned())
    assert [panel.title for panel in shown.panels] == ["layer 1", "layer 2"]
    first = lines(drawn(shown.panels[0]))
    x, y = first[shown.legend["trr"].colour]
    assert dict(zip(map(round, x), y, strict=True)) == pytest.approx({90: 0.1, 50: 0.6, 0: 0.8})
    assert hidden(capacity, pruned())  # these are no networks to choose from


def test_rankings_are_compared_where_something_is_gone_as_the_claim_does():
    tables = pruned()
    (grid,) = show(pruning, tables).grids
    assert grid.columns == ["layer 1", "layer 2", "all"]
    assert texts(grid) == {"trr": ["0.350", "0.250", "0.300"], "l1": ["0.250", "0.450", "0.350"]}
    assert [entry.strong for entry in grid.rows["trr"]] == [True, False, False]
    assert claimed(nestdnn, "N-1", tables) == pytest.approx(0.300 - 0.350)


def test_one_ranking_has_nothing_to_be_compared_with():
    tables = pruned()
    tables.drop("runs", lambda row: row["system"].startswith("l1"))
    assert hidden(pruning, tables)


# --- accuracy against frame rate


def test_a_line_follows_alpha_beside_its_optimum_and_the_status_quo():
    shown = show(tradeoff, factory.made(seeds=(0,)))
    assert list(shown.legend) == ["total", "exact"]
    axis = panel_of(shown, "two: MinTotalCost")
    found = lines(axis)
    x, y = found[shown.legend["total"].colour]
    assert x == pytest.approx([0.5, (3 * 0.5 + 6) / 9, 2.0])
    assert y == pytest.approx([5.0, 100 * (3 * 0.05 - 6 * 0.05) / 9, -15.0])
    assert found[plots.GREYS["do_nothing"]] == ([1], [0])
    assert found[plots.GREYS["oracle"]] == (pytest.approx(x), pytest.approx(y))
    assert [text.get_text() for text in axis.texts] == ["0.01", "0.1", "1"]


def test_a_line_goes_from_alpha_to_alpha_also_where_that_is_back():
    tables = factory.made(seeds=(0,))
    slow = {"total-0.1/": 4.0}
    tables.change("shares", latency_ms=lambda row: row["latency_ms"] * slow.get(row["cell"][:10], 1.0))
    shown = show(tradeoff, tables)
    x, _ = lines(panel_of(shown, "two: MinTotalCost"))[shown.legend["total"].colour]
    assert x[1] < x[0] < x[2]
    assert list(shown.grids[0].rows) == ["total", "exact"]


def test_points_that_lie_on_one_another_share_a_label():
    tables = factory.made()
    tables.change("shares", **{name: _like_largest(name) for name in ("accuracy", "latency_ms")})
    axis = panel_of(show(tradeoff, tables), "two: MinTotalCost")
    assert [text.get_text() for text in axis.texts] == ["0.01\u20130.1", "1"]


def _like_largest(column: str) -> Any:
    """Let alpha 0.1 run what alpha 0.01 runs."""
    usual = {
        (row["cell"], row["app"], row["time_s"]): row[column]
        for row in factory.made().frame("shares").to_dict("records")
    }

    def found(row: dict[str, Any]) -> Any:
        return usual[row["cell"].replace("-0.1/", "-0.01/"), row["app"], row["time_s"]]

    return found


def test_the_table_and_the_claims_read_off_the_same():
    tables = factory.made()
    (grid,) = show(tradeoff, tables).grids
    at_accuracy, at_rate, *knee = texts(grid)["total"]
    assert at_accuracy == f"{claimed(nestdnn_sharing, 'N-11', tables):.2f} ×"
    assert at_rate == plots.signed(100 * claimed(nestdnn_sharing, "N-12", tables))
    assert knee == [
        f"{claimed(nestdnn_sharing, 'N-13', tables):.2f} ×",
        plots.signed(100 * claimed(nestdnn_sharing, "N-13b", tables)),
        f"{claimed(nestdnn_sharing, 'N-15', tables):.2f} ×",
    ]


def test_a_level_that_some_traces_do_not_reach_is_counted():
    tables = factory.made()
    tables.change("shares", accuracy=lambda row: row["accuracy"] - (0.2 if _ours_in(row, seed=1) else 0))
    (grid,) = show(tradeoff, tables).grids
    assert notes(grid)["total"][0] == "1 of 2 traces"
    tables.change("shares", accuracy=lambda row: row["accuracy"] - (0.2 if _ours_in(row, seed=0) else 0))
    assert texts(show(tradeoff, tables).grids[0])["total"][0] == "–"


def _ours_in(row: dict[str, Any], seed: int) -> bool:
    return row["cell"].endswith(f"seed-{seed}") and not row["cell"].startswith("status_quo")


def test_energy_is_that_of_the_status_quo_over_ours():
    shown = show(tradeoff, factory.made())
    axis = panel_of(shown, "two: energy of a frame")
    x, y = lines(axis)[shown.legend["total"].colour]
    assert x == [0.01, 0.1, 1.0]
    assert (y[0], y[2]) == (pytest.approx(0.5), pytest.approx(2.0))
    unknown = factory.made()
    unknown.change("shares", energy_j=lambda row: float("nan"))
    assert [panel.title for panel in show(tradeoff, unknown).panels] == ["two: MinTotalCost"]


def test_without_the_status_quo_or_with_two_alphas_there_is_no_frontier():
    assert hidden(tradeoff, factory.made(only=("total-0.01", "total-0.1", "total-1.0")))
    assert hidden(tradeoff, factory.made(only=("status_quo", "total-0.01", "total-0.1")))


# --- who runs when


def bars(axis: Any) -> list[tuple[float, float, float, float, float]]:
    """Begin, end, foot, height and strength of every bar."""
    return [
        (bar.get_x(), bar.get_x() + bar.get_width(), bar.get_y(), bar.get_height(), bar.get_alpha())
        for bar in axis.patches
    ]


def test_windows_on_the_same_network_and_share_are_one_bar_in_a_lane():
    shown = show(timeline, factory.made())
    assert [panel.title for panel in shown.panels] == ["two: status_quo", "two: total-0.1", "two: exact-0.1"]
    axis = drawn(shown.panels[1])
    whole, half = timeline.FILL, timeline.FILL / 2
    middle = timeline.FAINTEST + (1 - timeline.FAINTEST) / 2
    expected = [(0, 2, 1, whole, 1.0), (2, 5, 1, half, middle), (5, 6, 1, whole, 1.0), (2, 5, 0, half, middle)]
    assert bars(axis) == [pytest.approx(bar) for bar in expected]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b", "a"]
    assert {to_hex(bar.get_facecolor()) for bar in axis.patches} == {plots.COLOURS[0]}


def test_another_share_is_another_bar_and_another_application_too():
    tables = factory.made()
    first = drawn(show(timeline, tables).panels[0])  # one network all the time
    assert [(begin, end) for begin, end, foot, *_ in bars(first) if foot == 1] == [(0, 2), (2, 5), (5, 6)]
    tables.change("shares", share=lambda row: 0.5)
    tables.drop("shares", lambda row: (row["app"] == "a") == (row["time_s"] >= 2))  # one comes as the other goes
    relay = drawn(show(timeline, tables).panels[0])
    assert [(begin, end, foot) for begin, end, foot, *_ in bars(relay)] == [(0, 2, 1), (2, 5, 0)]


def test_the_colours_are_named_where_networks_differ():
    assert {"smallest network", "largest"} == {
        text.get_text() for text in drawn(show(timeline, factory.made()).panels[1]).texts
    }


def test_an_application_that_waits_has_a_dotted_line():
    tables = factory.made()
    tables.change("shares", share=lambda row: 0.0 if row["app"] == "b" else row["share"])
    axis = drawn(show(timeline, tables).panels[1])
    assert {foot for _, _, foot, _, _ in bars(axis)} == {1}
    waits = [part for part in axis.collections if to_hex(part.get_color()[0]) == plots.QUIET]
    assert [segment.tolist() for part in waits for segment in part.get_segments()] == [[[2, 0], [5, 0]]]


def test_the_time_is_shared_out_over_all_traces():
    tables = factory.made()
    first, second = show(timeline, tables).grids
    assert (first.columns, second.columns) == (["1", "2"], ["a", "b"])
    assert texts(first)["share of the time"] == [f"{100 * 5 / 12:.1f} %", f"{100 * 7 / 12:.1f} %"]
    assert texts(second)["share of the time"] == [f"{100 * 12 / 19:.1f} %", f"{100 * 7 / 19:.1f} %"]
    tables.drop("shares", lambda row: row["app"] == "b")
    assert show(timeline, tables).grids == []


def test_one_application_on_one_network_has_no_timeline():
    tables = factory.made(only=("status_quo",))
    assert not hidden(timeline, tables)
    tables.drop("shares", lambda row: row["app"] == "b")
    assert hidden(timeline, tables)
    switching = factory.made(only=("total-0.1",))
    switching.drop("shares", lambda row: row["app"] == "b")
    assert not hidden(timeline, switching)


def test_one_window_is_no_time():
    tables = factory.made()
    tables.drop("shares", lambda row: row["time_s"] != 3)
    assert hidden(timeline, tables)


# --- loading and dropping


def test_what_is_loaded_and_dropped_adds_up():
    shown = show(paging, factory.made())
    loaded, dropped = (drawn(panel) for panel in shown.panels[:2])
    assert [panel.title for panel in shown.panels[:2]] == ["two: loaded", "two: dropped"]
    colour = shown.legend["total-0.1"].colour
    assert lines(loaded)[colour] == ([0, 1, 2, 3, 4, 5], pytest.approx([40, 40, 60, 60, 60, 70]))  # 20 in one of two
    assert lines(dropped)[colour][1] == pytest.approx([0, 0, 20, 20, 20, 20])
    assert lines(loaded)[shown.legend["status_quo"].colour][1] == [20, 20, 40, 40, 40, 40]
    assert loaded.get_ylim() == dropped.get_ylim()


def test_energy_is_counted_as_far_as_all_traces_switch():
    once = show(paging, factory.made(seeds=(0,)))
    curve = lines(panel_of(once, "two: energy of switching"))[once.legend["total-0.1"].colour]
    assert curve == ([1, 2], pytest.approx([20, 40]))
    assert len(show(paging, factory.made()).panels) == 2  # the second trace has one switch


def test_one_switch_is_no_curve():
    tables = factory.made(seeds=(0,))
    tables.drop("shares", lambda row: row["time_s"] < 3)
    shown = show(paging, tables)
    assert texts(shown.grids[0])["total-0.1"][0] == "1"
    assert [panel.title for panel in shown.panels] == ["two: loaded", "two: dropped"]


def test_a_switch_moves_the_difference_and_a_thousand_are_what_the_claim_says():
    tables = factory.made()
    (grid,) = show(paging, tables).grids
    assert texts(grid)["total-0.1"] == ["1.5", "20.0", "0.0", "0.0", "20.0", "20"]
    assert texts(grid)["status_quo"] == ["0", "–", "–", "–", "–", "–"]
    assert claimed(nestdnn_sharing, "N-6", tables) == 0


def test_who_never_switches_has_nothing_to_show():
    assert hidden(paging, factory.made(only=("status_quo", "total-1.0")))


# --- switching at random


def random_switches(tables: Any) -> dict[str, Any]:
    """What has been drawn by each way of scaling, over the number of switches."""
    shown = show(switching, tables)
    found = lines(panel_of(shown, "energy of random switches"))
    x, _ = found[shown.legend["nested"].colour]
    assert x == list(range(0, 1001, switching.THIN))
    return {way: np.array(found[look.colour][1]) for way, look in shown.legend.items()}


def test_a_walk_never_stays_and_goes_everywhere_equally_often():
    for count in (2, 3, 5):
        stations = np.concatenate([switching.walk(count, np.random.default_rng(seed)) for seed in range(40)])
        stations = stations.reshape(40, -1)
        assert stations.shape[1] == 1001
        often = np.zeros((count, count))
        np.add.at(often, (stations[:, :-1], stations[:, 1:]), 1)
        expected = 40_000 * (1 - np.eye(count)) / (count * (count - 1))
        assert np.abs(often - expected).max() < 5 * np.sqrt(expected.max())  # and nothing at all on the diagonal
        assert np.diag(often).sum() == 0
        assert set(stations[:, 0]) == set(range(count))


def test_random_switches_draw_what_the_claim_says():
    tables = factory.made()
    drawn_j = random_switches(tables)
    assert all(curve[0] == 0 for curve in drawn_j.values())
    assert drawn_j["nested"][-1] == pytest.approx(1000 * 20e-3, rel=0.05)  # 10, 20 and 30 kB at 1 uJ for a byte
    assert drawn_j["independent"][-1] == pytest.approx(1000 * 140e-3 / 3, rel=0.05)  # 30, 50 and 60 kB
    saved = drawn_j["independent"][-1] - drawn_j["nested"][-1]
    assert saved == pytest.approx(claimed(nestdnn, "N-8", tables), rel=0.05)


def test_nested_and_independent_networks_switch_in_the_same_order():
    """Of the switches between two points so many are between each two networks: whole numbers that add up."""
    drawn_j = random_switches(factory.made())
    moved = 1000 * np.diff(np.array([drawn_j["nested"], drawn_j["independent"]]))
    count = np.full(moved.shape[1], switching.THIN)
    both = 2 * np.vstack([count, moved])  # two applications, of which a line is the mean
    often = np.linalg.solve([[1, 1, 1], [10, 20, 30], [30, 60, 50]], both)
    np.testing.assert_allclose(often, often.round(), atol=1e-6)
    assert often.round().min() == 0
    assert often.round().max() > switching.THIN  # the applications do not switch by turns


def test_random_switches_are_the_same_again_and_others_for_each_application():
    first, again = random_switches(factory.made()), random_switches(factory.made())
    alone = factory.made()
    alone.drop("variants", lambda row: row["app"] == "b")
    for way, curve in first.items():
        assert list(curve) == list(again[way])
        assert list(curve) != list(random_switches(alone)[way])


def test_a_switch_moves_what_lies_between_two_networks_or_both():
    tables = factory.made()
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] * (2 if row["app"] == "b" else 1))
    up, down = show(switching, tables).grids
    assert [grid.title for grid in (up, down)] == [f"switch to a {word} network, kB" for word in ("larger", "smaller")]
    assert up.columns == ["nested: loaded", "nested: dropped", "independent: loaded", "independent: dropped"]
    assert texts(up) == {"a": ["20.0", "0.0", "33.3", "13.3"], "b": ["40.0", "0.0", "66.7", "26.7"]}
    assert texts(down) == {"a": ["0.0", "20.0", "13.3", "33.3"], "b": ["0.0", "40.0", "26.7", "66.7"]}


def test_the_heights_that_the_paper_has_are_written_out():
    axis = panel_of(show(switching, factory.made()), "energy of random switches")
    drawn_j = random_switches(factory.made())
    marked = [plots.short(curve[k // switching.THIN]) for curve in drawn_j.values() for k in (250, 500, 750, 1000)]
    assert sorted(text.get_text() for text in axis.texts) == sorted(marked)


def test_who_trains_anew_under_each_seed_is_averaged():
    tables = factory.made()
    tables.run.spec["student"] = {"per_seed": True}
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] * (3 if row["cell"].endswith("1") else 1))
    assert texts(show(switching, tables).grids[0])["a"] == ["40.0", "0.0", "66.7", "26.7"]
    assert random_switches(tables)["nested"][-1] == pytest.approx(40, rel=0.05)


def test_an_application_that_differs_between_workloads_is_two():
    tables = factory.made()
    tables.change("runs", workload=lambda row: "two" if row["seed"] == 0 else "other")
    assert list(show(switching, tables).grids[0].rows) == ["a", "b"]
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] + row["cell"].endswith("1"))
    assert list(show(switching, tables).grids[0].rows) == ["other · a", "other · b", "two · a", "two · b"]


def test_random_switches_need_both_ways_and_devices_that_load():
    assert hidden(switching, factory.made(only=("status_quo",)))
    assert hidden(switching, factory.made(only=("total-0.1",)))
    unmoved = factory.made()
    unmoved.change("shares", paged_in_bytes=lambda row: 0, paged_out_bytes=lambda row: 0)
    assert hidden(switching, unmoved)
    fewer = factory.made()
    fewer.drop("variants", lambda row: row["cell"].startswith("status_quo") and row["variant"] == 2)
    assert hidden(switching, fewer)


def test_pandas_frames_are_left_as_they_are():
    tables = factory.made()
    before = {name: tables.frame(name).copy() for name in ("runs", "shares", "variants")}
    for figure in OURS:
        figure.FIGURE.show(view_of(tables.run, tables))
    for name, frame in before.items():
        pd.testing.assert_frame_equal(tables.frame(name), frame)
