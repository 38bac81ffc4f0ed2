"""The figure of who learns when on one device."""

from __future__ import annotations

import pandas as pd
import pytest
import sharing_factory as factory
from figures_factory import drawn, hidden, show, texts

from driftlab.platform.results.figures import compute_shares, plots


def made():
    """Make half of every share train; frames are correct in the first half of each 4 s window."""
    tables = factory.made(only=("status_quo", "total-0.1"))
    both = {
        "inference_share": lambda row: row["inference_share"] / 2,
        "training_share": lambda row: row["inference_share"] / 2,
    }
    tables.change("shares", **both, host_schedule_seconds=lambda row: 0.002 if row["time_s"] else 0.0)
    tables.run.spec["window_s"] = 4
    cells = sorted(set(tables.frame("runs")["cell"]))
    rows = [
        {"cell": cell, "time_s": at, "score_frame": float(at % 4 < 2)} for cell in cells for at in (0.0, 1.0, 2.0, 7.0)
    ]
    tables._frames["frames"] = pd.DataFrame(rows)
    return tables


def test_training_shares_are_stacked_on_inference_shares():
    shown = show(compute_shares, made())
    assert [panel.title for panel in shown.panels] == ["status_quo", "total-0.1", "accuracy over a window"]
    bars = [
        (bar.get_x(), bar.get_y(), bar.get_height())
        for bar in drawn(shown.panels[0]).patches
        if bar.get_y() >= 1 and bar.get_facecolor()[:3] == pytest.approx(plots_rgb(compute_shares.TRAINING))
    ]
    alone = compute_shares.FILL / 2
    assert bars[:2] == [pytest.approx((0, 1 + alone, alone)), pytest.approx((1, 1 + alone, alone))]


def plots_rgb(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def test_accuracy_is_averaged_by_the_time_since_the_window_began():
    lines = drawn(show(compute_shares, made()).panels[2]).get_lines()
    assert {tuple(line.get_xdata()) for line in lines} == {(0.0, 1.0, 2.0, 3.0)}
    assert {tuple(line.get_ydata()) for line in lines} == {(1.0, 1.0, 0.0, 0.0)}
    assert [line.get_color() for line in lines] == list(plots.COLOURS[:2])


def test_bars_and_lines_have_separate_legends():
    lanes, *_, window = show(compute_shares, made()).panels
    assert [look.colour for look in lanes.legend.values()] == [compute_shares.INFERENCE, compute_shares.TRAINING]
    assert list(window.legend) == ["status_quo", "total-0.1"]


def test_decision_times_are_in_milliseconds():
    (grid,) = show(compute_shares, made()).grids
    assert texts(grid) == {"status_quo": ["2.00", "2.00"], "total-0.1": ["2.00", "2.00"]}


def test_without_learning_there_is_no_such_figure():
    assert hidden(compute_shares, factory.made())
