"""Progress of a run: first the networks by name, then the cells, both with their numbers."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

import driftlab
from driftlab.cli.progress import Bar, Lines, NotebookBar
from driftlab.platform.lab import builds
from driftlab.platform.lab.progress import Progress
from driftlab.platform.networks.training import pretrain
from driftlab.platform.networks.training.states import note_step

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


def test_a_training_shows_its_step_loss_and_time_left(bars, capsys, monkeypatch):
    bar, lines = Bar(bars), Lines()
    for listener in (bar, lines):
        listener.begins(cells=1, kept=0, work_s=1.0)
        listener.building("tiny 32x48", 1, 1)
        for now_s, step in ((1e6, 0), (1e6 + 20, 500)):
            monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
            listener.training("tiny 32x48", step, 2500, 0.41234)
        monkeypatch.undo()
    state = "tiny 32x48: step 500/2500, loss 0.412, about 80 seconds left"
    assert bars.tasks[0].description == state
    assert capsys.readouterr().err.splitlines()[-1] == state


class Heard(Progress):
    """Keeps the states of trainings."""

    def __init__(self) -> None:
        self.states: list[tuple[str, int, int, float]] = []

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        self.states.append((network, step, of, loss))


@pytest.mark.slow
def test_a_run_reports_the_training_of_its_network(tmp_path, monkeypatch):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(builds, "WATCH_S", 0.02)
    noted, heard = [], Heard()

    def keep(recipe, step, loss):
        """Wait until the first steps are heard."""
        noted.append((step, loss))
        note_step(recipe, step, loss)
        until_s = time.monotonic() + 60
        while len(noted) < 5 and step not in {one for _, one, *_ in heard.states} and time.monotonic() < until_s:
            time.sleep(0.005)

    monkeypatch.setattr(pretrain, "note_step", keep)
    document = {
        "name": "heard",
        "bounds": False,
        "snapshots": 0,
        "systems": ["no_custom"],
        "student": {"network": "tiny_classifier", "pretrain_steps": 200},
        "workloads": [{"name": "signs/town", "duration_s": 1, "fps": 2, "height": 32, "width": 32}],
    }
    driftlab.run(document, out=tmp_path / "run", progress=heard)
    steps = [step for _, step, of, _ in heard.states]
    assert len(set(steps)) > 3
    assert steps == sorted(steps)
    assert {of for _, _, of, _ in heard.states} == {200}
    assert {(step, loss) for _, step, _, loss in heard.states} <= set(noted)
    assert not list((tmp_path / "cache").glob("*.training"))


def test_a_notebook_shows_the_progress_of_a_run(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert getattr(driftlab.run, "keywords", {}) == {}
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    assert isinstance(driftlab.run.keywords["progress"], NotebookBar)


def test_a_notebook_updates_one_bar_per_run(capsys, monkeypatch):
    shown = []  # the outputs of the cell

    class Handle:
        def __init__(self):
            shown.append([])

        def update(self, content, raw):
            shown[-1].append(content)

    def display(content, raw, display_id):
        handle = Handle()
        handle.update(content, raw)
        return handle

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    bar = NotebookBar()
    for _ in range(2):
        bar.begins(cells=2, kept=0, work_s=24.0)
        bar.building("<tiny>", 1, 1)
        bar.training("<tiny>", 500, 2500, 0.41234)
        bar.built("<tiny>", 1, 1)
        for now_s in (1e6, 1e6 + 6):
            monkeypatch.setattr(time, "monotonic", lambda now_s=now_s: now_s)
            bar.advanced(6.0)
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
        bar.finished("ams/running/one/seed-0", "")
        bar.finished("no_custom/running/one/seed-0", "out of luck")
    first, second = ([content["text/plain"] for content in output] for output in shown)
    assert first == second
    assert first[:4] == [
        "2 cells to run",
        "network 1/1: <tiny>",
        "<tiny>: step 500/2500, loss 0.412",
        "network 1/1 ready: <tiny>",
    ]
    assert "0/2 cells done, about 12 seconds left" in first
    assert first[-1] == "2/2 cells done"
    pages = [content["text/html"] for content in shown[0]]
    assert "<tiny>" not in "".join(pages)
    assert 'value="0.200"' in pages[2]
    assert 'value="1.000"' in pages[-1]
    assert capsys.readouterr().err.count("FAILED no_custom/running/one/seed-0: out of luck") == 2
