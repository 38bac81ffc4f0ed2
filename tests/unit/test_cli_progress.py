"""Progress of a run: first the networks by name, then the cells, both with their numbers."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

from driftlab.cli.progress import Bar, Lines

NETWORKS = ("half 32x48", "tiny 32x48, 3 by nested", "teacher 32x48")


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def bars(screen) -> Bars:
    return Bars(console=Console(file=screen, force_terminal=True, width=100), auto_refresh=False)


def test_a_terminal_shows_networks_and_then_cells(bars, screen, monkeypatch):
    bar = Bar(bars)
    bar.begins(cells=2, kept=0, work_s=24.0)
    (task,) = bars.tasks
    for number, network in enumerate(NETWORKS[:2], start=1):
        bar.building(network, number, len(NETWORKS))
        assert (task.description, task.completed, task.total) == (f"network {number}/3: {network}", number - 1, 3)
        bar.built(network, number, len(NETWORKS))
        assert (task.description, task.completed) == (f"network {number}/3: {network}", number)
    bars.print(bars.get_renderable())
    assert "network 2/3: tiny 32x48, 3 by nested" in screen.getvalue()
    bar.built(NETWORKS[2], 3, len(NETWORKS))
    (task,) = bars.tasks
    assert (task.description, task.completed, task.total) == ("0/2 cells", 0, 24.0)
    for now_s in (100.0, 106.0):  # the work before the first report does not enter the speed
        monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
        bar.advanced(6.0)
    assert task.fields["left"] == "about 12 seconds left"
    bar.finished("ams/running/one/seed-0", "")
    bar.finished("no_custom/running/one/seed-0", "out of luck")
    assert (task.description, task.completed) == ("2/2 cells", 12.0)
    assert "FAILED no_custom/running/one/seed-0: out of luck" in screen.getvalue()


def test_plain_lines_list_networks_and_cells(capsys):
    lines = Lines()
    lines.begins(cells=2, kept=1, work_s=24.0)
    for number, network in enumerate(NETWORKS, start=1):
        lines.building(network, number, len(NETWORKS))
    for number, network in enumerate(NETWORKS, start=1):
        lines.building(network, number, len(NETWORKS))  # now waited for
        lines.built(network, number, len(NETWORKS))
    lines.advanced(12.0)
    lines.finished("ams/running/one/seed-0", "")
    lines.finished("no_custom/running/one/seed-0", "out of luck")
    assert capsys.readouterr().err.splitlines() == [
        "2 cells to run (1 already finished)",
        *(f"network {number}/3: {network}" for number, network in enumerate(NETWORKS, start=1)),
        *(f"network {number}/3 ready: {network}" for number, network in enumerate(NETWORKS, start=1)),
        "cell 1/2 done: ams/running/one/seed-0",
        "cell 2/2 FAILED: out of luck: no_custom/running/one/seed-0",
    ]
