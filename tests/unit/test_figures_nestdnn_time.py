"""Figures of NestDNN over time: running applications, and the loads and energy of switches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sharing_factory as factory
from figures_factory import claimed, drawn, hidden, lines, panel_of, show, texts
from matplotlib.colors import to_hex

from driftlab.platform.results.figures import allocation_timeline, plots, switching, switching_cost

# --- who runs when


def bars(axis: Any) -> list[tuple[float, float, float, float, float]]:
    """Begin, end, foot, height and strength of every bar."""
    return [
        (bar.get_x(), bar.get_x() + bar.get_width(), bar.get_y(), bar.get_height(), bar.get_alpha())
        for bar in axis.patches
    ]


@pytest.mark.slow
def test_windows_on_the_same_network_and_share_are_one_bar_in_a_lane():
    shown = show(allocation_timeline, factory.made())
    assert [panel.title for panel in shown.panels] == ["two: status_quo", "two: total-0.1", "two: exact-0.1"]
    axis = drawn(shown.panels[1])
    whole, half = allocation_timeline.FILL, allocation_timeline.FILL / 2
    middle = allocation_timeline.FAINTEST + (1 - allocation_timeline.FAINTEST) / 2
    expected = [(0, 2, 1, whole, 1.0), (2, 5, 1, half, middle), (5, 6, 1, whole, 1.0), (2, 5, 0, half, middle)]
    assert bars(axis) == [pytest.approx(bar) for bar in expected]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["b", "a"]
    assert {to_hex(bar.get_facecolor()) for bar in axis.patches} == {plots.COLOURS[0]}


@pytest.mark.slow
def test_another_share_is_another_bar_and_another_application_too():
    tables = factory.made()
    first = drawn(show(allocation_timeline, tables).panels[0])  # one network all the time
    assert [(begin, end) for begin, end, foot, *_ in bars(first) if foot == 1] == [(0, 2), (2, 5), (5, 6)]
    tables.change("shares", inference_share=lambda row: 0.5)
    tables.drop("shares", lambda row: (row["app"] == "a") == (row["time_s"] >= 2))  # one comes as the other goes
    relay = drawn(show(allocation_timeline, tables).panels[0])
    assert [(begin, end, foot) for begin, end, foot, *_ in bars(relay)] == [(0, 2, 1), (2, 5, 0)]


def test_the_colours_are_named_where_networks_differ():
    assert {"smallest network", "largest"} == {
        text.get_text() for text in drawn(show(allocation_timeline, factory.made()).panels[1]).texts
    }


@pytest.mark.slow
def test_the_key_of_many_networks_stays_within_its_panel(monkeypatch: pytest.MonkeyPatch):
    def squares() -> list[float]:
        axis = drawn(show(allocation_timeline, factory.made()).panels[1])
        return [line.get_xdata()[0] for line in axis.get_lines() if line.get_marker() == "s"]

    assert len(squares()) == 3
    monkeypatch.setattr(allocation_timeline, "SHADES", 2)
    assert squares() == pytest.approx([0.835, 0.87])


@pytest.mark.slow
def test_an_application_that_waits_has_a_dotted_line():
    tables = factory.made()
    tables.change("shares", inference_share=lambda row: 0.0 if row["app"] == "b" else row["inference_share"])
    axis = drawn(show(allocation_timeline, tables).panels[1])
    assert {foot for _, _, foot, _, _ in bars(axis)} == {1}
    waits = [part for part in axis.collections if to_hex(part.get_color()[0]) == plots.QUIET]
    assert [segment.tolist() for part in waits for segment in part.get_segments()] == [[[2, 0], [5, 0]]]


@pytest.mark.slow
def test_the_time_is_shared_out_over_all_traces():
    tables = factory.made()
    first, second = show(allocation_timeline, tables).grids
    assert (first.columns, second.columns) == (["1", "2"], ["a", "b"])
    assert texts(first)["share of the time"] == [f"{100 * 5 / 12:.1f} %", f"{100 * 7 / 12:.1f} %"]
    assert texts(second)["share of the time"] == [f"{100 * 12 / 19:.1f} %", f"{100 * 7 / 19:.1f} %"]
    tables.drop("shares", lambda row: row["app"] == "b")
    assert show(allocation_timeline, tables).grids == []


@pytest.mark.slow
def test_one_application_on_one_network_has_no_timeline():
    tables = factory.made(only=("status_quo",))
    assert not hidden(allocation_timeline, tables)
    tables.drop("shares", lambda row: row["app"] == "b")
    assert hidden(allocation_timeline, tables)
    switching = factory.made(only=("total-0.1",))
    switching.drop("shares", lambda row: row["app"] == "b")
    assert not hidden(allocation_timeline, switching)


def test_one_window_is_no_time():
    tables = factory.made()
    tables.drop("shares", lambda row: row["time_s"] != 3)
    assert hidden(allocation_timeline, tables)


# --- loading and dropping


def test_loaded_and_dropped_bytes_add_up():
    shown = show(switching_cost, factory.made())
    loaded, dropped = (drawn(panel) for panel in shown.panels[:2])
    assert [panel.title for panel in shown.panels[:2]] == ["two: loaded", "two: dropped"]
    colour = shown.legend["total-0.1"].colour
    assert lines(loaded)[colour] == ([0, 1, 2, 3, 4, 5], pytest.approx([40, 40, 60, 60, 60, 70]))  # 20 in one of two
    assert lines(dropped)[colour][1] == pytest.approx([0, 0, 20, 20, 20, 20])
    assert lines(loaded)[shown.legend["status_quo"].colour][1] == [20, 20, 40, 40, 40, 40]
    assert loaded.get_ylim() == dropped.get_ylim()


@pytest.mark.slow
def test_energy_is_counted_as_far_as_all_traces_switch():
    once = show(switching_cost, factory.made(seeds=(0,)))
    curve = lines(panel_of(once, "two: energy of switching"))[once.legend["total-0.1"].colour]
    assert curve == ([1, 2], pytest.approx([0, 20]))  # down, which loads nothing, and up
    assert len(show(switching_cost, factory.made()).panels) == 2  # the second trace has one switch


def test_one_switch_is_no_curve():
    tables = factory.made(seeds=(0,))
    tables.drop("shares", lambda row: row["time_s"] < 3)
    shown = show(switching_cost, tables)
    assert texts(shown.grids[0])["total-0.1"][0] == "1"
    assert [panel.title for panel in shown.panels] == ["two: loaded", "two: dropped"]


def test_a_switch_moves_the_difference_and_a_thousand_agree_with_the_claim():
    tables = factory.made()
    (grid,) = show(switching_cost, tables).grids
    assert texts(grid)["total-0.1"] == ["1.5", "20.0", "0.0", "0.0", "20.0", "5"]
    assert texts(grid)["status_quo"] == ["0", "–", "–", "–", "–", "–"]
    assert claimed("N-6", tables) == 0


def test_systems_without_switches_are_hidden():
    assert hidden(switching_cost, factory.made(only=("status_quo", "total-1.0")))


# --- switching at random


def random_switches(tables: Any) -> dict[str, Any]:
    """Return the energy of each scaling member, over the number of switches."""
    shown = show(switching, tables)
    found = lines(panel_of(shown, "energy of random switches"))
    x, _ = found[shown.legend["nested"].colour]
    assert x == list(range(0, 1001, switching.THIN))
    return {way: np.array(found[look.colour][1]) for way, look in shown.legend.items()}


def test_a_random_walk_never_stays_and_visits_all_domains_equally_often():
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


@pytest.mark.slow
def test_random_switches_consume_the_energy_of_the_claim():
    tables = factory.made()
    drawn_j = random_switches(tables)
    assert all(curve[0] == 0 for curve in drawn_j.values())
    assert drawn_j["nested"][-1] == pytest.approx(1000 * 10e-3, rel=0.05)  # 10, 20 and 30 kB at 1 uJ for a loaded byte
    assert drawn_j["independent"][-1] == pytest.approx(1000 * 70e-3 / 3, rel=0.05)  # 30, 50 and 60 kB
    saved = drawn_j["independent"][-1] - drawn_j["nested"][-1]
    assert saved == pytest.approx(claimed("N-8", tables), rel=0.05)


def test_nested_and_independent_networks_switch_in_the_same_order(monkeypatch):
    """Networks of 10, 20 and 40 kB in turn: nested ones load 10, 20, 0 kB, independent ones 20, 40, 10."""
    monkeypatch.setattr(switching, "walk", lambda count, rng: np.arange(switching.SWITCHES + 1) % count)
    drawn_j = random_switches(factory.made())
    for kind, loads in (("nested", (10, 20, 0)), ("independent", (20, 40, 10))):
        after = np.cumsum([0.0, *np.resize(loads, switching.SWITCHES)])[:: switching.THIN]
        np.testing.assert_allclose(drawn_j[kind], 1e-3 * after)


@pytest.mark.slow
def test_random_switches_are_the_same_again_and_others_for_each_application():
    first, again = random_switches(factory.made()), random_switches(factory.made())
    alone = factory.made()
    alone.drop("variants", lambda row: row["app"] == "b")
    for way, curve in first.items():
        assert list(curve) == list(again[way])
        assert list(curve) != list(random_switches(alone)[way])


def test_a_switch_moves_the_difference_of_nested_networks_or_both_others():
    tables = factory.made()
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] * (2 if row["app"] == "b" else 1))
    up, down = show(switching, tables).grids
    assert [grid.title for grid in (up, down)] == [f"switch to a {word} network, kB" for word in ("larger", "smaller")]
    assert up.columns == ["nested: loaded", "nested: dropped", "independent: loaded", "independent: dropped"]
    assert texts(up) == {"a": ["20.0", "0.0", "33.3", "13.3"], "b": ["40.0", "0.0", "66.7", "26.7"]}
    assert texts(down) == {"a": ["0.0", "20.0", "13.3", "33.3"], "b": ["0.0", "40.0", "26.7", "66.7"]}


@pytest.mark.slow
def test_the_heights_that_the_paper_has_are_written_out():
    axis = panel_of(show(switching, factory.made()), "energy of random switches")
    drawn_j = random_switches(factory.made())
    marked = [plots.short(curve[k // switching.THIN]) for curve in drawn_j.values() for k in (250, 500, 750, 1000)]
    assert sorted(text.get_text() for text in axis.texts) == sorted(marked)


@pytest.mark.slow
def test_networks_trained_per_seed_are_averaged():
    tables = factory.made()
    tables.run.spec["student"] = {"per_seed": True}
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] * (3 if row["cell"].endswith("1") else 1))
    assert texts(show(switching, tables).grids[0])["a"] == ["40.0", "0.0", "66.7", "26.7"]
    assert random_switches(tables)["nested"][-1] == pytest.approx(20, rel=0.05)


def test_an_application_that_differs_between_workloads_is_two():
    tables = factory.made()
    tables.change("runs", workload=lambda row: "two" if row["seed"] == 0 else "other")
    assert list(show(switching, tables).grids[0].rows) == ["a", "b"]
    tables.change("variants", memory_bytes=lambda row: row["memory_bytes"] + row["cell"].endswith("1"))
    assert list(show(switching, tables).grids[0].rows) == ["other · a", "other · b", "two · a", "two · b"]


def test_random_switches_require_nested_and_independent_networks_that_load():
    assert hidden(switching, factory.made(only=("status_quo",)))
    assert hidden(switching, factory.made(only=("total-0.1",)))
    unmoved = factory.made()
    unmoved.change("shares", paged_in_bytes=lambda row: 0, paged_out_bytes=lambda row: 0)
    assert hidden(switching, unmoved)
    fewer = factory.made()
    fewer.drop("variants", lambda row: row["cell"].startswith("status_quo") and row["variant"] == 2)
    assert hidden(switching, fewer)
