"""Figures of NestDNN, drawn from tables with known numbers, agree with the claims on these tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import sharing_factory as factory
from figures_factory import claimed, drawn, hidden, lines, notes, panel_of, show, texts
from tables_factory import Made

from driftlab.platform.results.figures import (
    allocation_timeline,
    capacity,
    plots,
    pruning,
    switching,
    switching_cost,
    tradeoff,
)
from driftlab.platform.results.figures.base import common, view_of
from driftlab.platform.results.figures.table import FIGURES

OURS = (pruning, capacity, tradeoff, allocation_timeline, switching_cost, switching)
SEEN = ("tradeoff", "switching_cost", "switching", "capacity", "allocation_timeline")


# --- which figures a run has


@pytest.mark.slow
def test_a_run_that_shares_a_device_has_these_figures():
    tables = factory.made()
    view = view_of(tables.run, tables)
    shown = [figure.name for figure in FIGURES if figure.show(view) is not None]
    assert tuple(name for name in shown if name in SEEN) == SEEN
    assert "accuracy" not in shown  # no frame was computed


@pytest.mark.slow
def test_a_run_without_shares_or_networks_has_none():
    empty = Made({"systems": factory.SYSTEMS}, runs=factory.rows_of(factory.SYSTEMS[0], 0)["runs"])
    assert all(hidden(figure, empty) for figure in OURS)
    assert all(hidden(figure, Made()) for figure in OURS)


@pytest.mark.slow
def test_every_panel_of_every_figure_names_its_axes():
    tables = factory.made()
    for figure in OURS[1:]:
        shown = show(figure, tables)
        assert all(drawn(panel).get_xlabel() for panel in shown.panels)
        for grid in shown.grids:
            assert {len(entries) for entries in grid.rows.values()} == {len(grid.columns)}


@pytest.mark.slow
def test_pandas_frames_are_left_as_they_are():
    tables = factory.made()
    before = {name: tables.frame(name).copy() for name in ("runs", "shares", "variants")}
    for figure in OURS:
        figure.FIGURE.show(view_of(tables.run, tables))
    for name, frame in before.items():
        pd.testing.assert_frame_equal(tables.frame(name), frame)


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
def test_a_group_has_the_common_part_of_its_names(names, name):
    assert common(names) == name


# --- networks


def test_accuracy_is_drawn_over_memory_with_one_line_per_scaling_member():
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


def test_all_sizes_take_the_largest_or_the_sum_as_in_the_claim():
    tables = factory.made()
    grid = show(capacity, tables).grids[1]
    assert texts(grid)["all"] == ["140.0", "80.0"]
    assert notes(grid)["all"] == ["", "\u221243 %"]
    assert claimed("N-5", tables) == pytest.approx(1 - 80 / 140)


def test_without_independent_networks_no_saving_is_shown():
    assert len(show(capacity, factory.made(only=("total-0.1",))).grids) == 1


@pytest.mark.slow
def test_networks_that_differ_between_workloads_have_separate_panels():
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
    untrained = {"name": "nested", "prune_epochs": 0, "grow_epochs": 0, "keep_ratios": [1.0, 0.5, 0.1]}
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


def test_each_layer_is_drawn_over_its_pruned_share():
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
    assert claimed("N-1", tables) == pytest.approx(0.300 - 0.350)


def test_one_ranking_without_a_baseline_is_hidden():
    tables = pruned()
    tables.drop("runs", lambda row: row["system"].startswith("l1"))
    assert hidden(pruning, tables)


# --- accuracy against frame rate


@pytest.mark.slow
def test_a_line_follows_alpha_with_its_optimum_and_the_status_quo():
    shown = show(tradeoff, factory.made(seeds=(0,)))
    assert list(shown.legend) == ["total", "exact"]
    axis = panel_of(shown, "two: MinTotalCost")
    found = lines(axis)
    x, y = found[shown.legend["total"].colour]
    assert x == pytest.approx([0.5, (3 * 0.5 + 6) / 9, 2.0])
    assert y == pytest.approx([5.0, 100 * (3 * 0.05 - 6 * 0.05) / 9, -15.0])
    assert found[plots.GREYS["no_adaptation"]] == ([1], [0])
    assert found[plots.GREYS["oracle"]] == (pytest.approx(x), pytest.approx(y))
    assert [text.get_text() for text in axis.texts] == ["0.01", "0.1", "1"]


@pytest.mark.slow
def test_a_line_goes_from_alpha_to_alpha_also_where_that_is_back():
    tables = factory.made(seeds=(0,))
    slow = {"total-0.1/": 4.0}
    tables.change("shares", latency_ms=lambda row: row["latency_ms"] * slow.get(row["cell"][:10], 1.0))
    shown = show(tradeoff, tables)
    x, _ = lines(panel_of(shown, "two: MinTotalCost"))[shown.legend["total"].colour]
    assert x[1] < x[0] < x[2]
    assert list(shown.grids[0].rows) == ["total", "exact"]


@pytest.mark.slow
def test_points_that_lie_on_one_another_share_a_label():
    tables = factory.made()
    tables.change("shares", **{name: _like_largest(name) for name in ("accuracy", "latency_ms")})
    axis = panel_of(show(tradeoff, tables), "two: MinTotalCost")
    assert [text.get_text() for text in axis.texts] == ["0.01\u20130.1", "1"]


def _like_largest(column: str) -> Any:
    """Copy the networks of alpha 0.01 to alpha 0.1."""
    usual = {
        (row["cell"], row["app"], row["time_s"]): row[column]
        for row in factory.made().frame("shares").to_dict("records")
    }

    def found(row: dict[str, Any]) -> Any:
        return usual[row["cell"].replace("-0.1/", "-0.01/"), row["app"], row["time_s"]]

    return found


@pytest.mark.slow
def test_the_table_and_the_claims_read_off_the_same():
    tables = factory.made()
    (grid,) = show(tradeoff, tables).grids
    at_accuracy, at_rate, *knee = texts(grid)["total"]
    assert at_accuracy == f"{claimed('N-11', tables):.2f} ×"
    assert at_rate == plots.signed(100 * claimed("N-12", tables))
    assert knee == [
        f"{claimed('N-13', tables):.2f} ×",
        plots.signed(100 * claimed("N-13b", tables)),
        f"{claimed('N-15', tables):.2f} ×",
    ]


@pytest.mark.slow
def test_a_level_that_some_traces_do_not_reach_is_counted():
    tables = factory.made()
    tables.change("shares", accuracy=lambda row: row["accuracy"] - (0.2 if _ours_in(row, seed=1) else 0))
    (grid,) = show(tradeoff, tables).grids
    assert notes(grid)["total"][0].endswith("1 of 2 traces")
    tables.change("shares", accuracy=lambda row: row["accuracy"] - (0.2 if _ours_in(row, seed=0) else 0))
    assert texts(show(tradeoff, tables).grids[0])["total"][0] == "–"


def _ours_in(row: dict[str, Any], seed: int) -> bool:
    return row["cell"].endswith(f"seed-{seed}") and not row["cell"].startswith("status_quo")


@pytest.mark.slow
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
