"""Figures of paging and switching: drawn from tables whose numbers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sharing_factory as factory
from figures_factory import OURS, claimed, drawn, hidden, lines, panel_of, show, texts

from driftlab.platform.results.claims import nestdnn, nestdnn_sharing
from driftlab.platform.results.figures import paging, plots, switching
from driftlab.platform.results.figures.base import view_of

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
