"""Figures of NestDNN: drawn from tables whose numbers are known, and agreeing with the claims that read the same."""

from __future__ import annotations

from typing import Any

import pytest
import sharing_factory as factory
from figures_factory import OURS, claimed, drawn, hidden, lines, panel_of, show, texts
from matplotlib.colors import to_hex
from tables_factory import Made

from driftlab.platform.results.claims import nestdnn, nestdnn_sharing
from driftlab.platform.results.figures import capacity, plots, pruning, timeline, tradeoff
from driftlab.platform.results.figures.base import Grid, common, view_of
from driftlab.platform.results.figures.table import FIGURES

SEEN = ("tradeoff", "paging", "switching", "capacity", "timeline")


def notes(grid: Grid) -> dict[str, list[str]]:
    return {name: [entry.note for entry in entries] for name, entries in grid.rows.items()}


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
