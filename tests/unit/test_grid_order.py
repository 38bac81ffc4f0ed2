"""Threads of a grid take the cells of one stream in turn; fast cells report less often."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from driftlab.platform.lab import grid
from driftlab.platform.lab.grid import WaitingCells
from driftlab.platform.sim.session import NodeId


def cells(counts):
    """Return cells of streams with these numbers of systems."""
    return [
        SimpleNamespace(id=f"{stream}{number}", workload=stream, seed=0)
        for stream, count in counts.items()
        for number in range(count)
    ]


def taken(counts, turns):
    """Return the cells that each of several threads takes if they take them in this order."""
    waiting, found = WaitingCells(cells(counts)), {name: [] for name in sorted(set(turns))}
    threads = {name: ThreadPoolExecutor(1) for name in found}
    for name in turns:
        found[name].append(threads[name].submit(waiting.take).result().id)
    for thread in threads.values():
        thread.shutdown()
    return found


def test_a_thread_ends_its_stream_before_it_begins_another_one():
    assert taken({"a": 3, "b": 2, "c": 1}, "xyxyxy") == {"x": ["a0", "a1", "a2"], "y": ["b0", "b1", "c0"]}


def test_a_thread_without_a_stream_helps_with_the_longest_one():
    assert taken({"a": 5, "b": 2, "c": 1}, "xyzzyx") == {"x": ["a0", "a2"], "y": ["b0", "b1"], "z": ["c0", "a1"]}


def test_every_cell_is_taken_once_for_any_order_of_threads():
    every = {one.id for one in cells({"a": 3, "b": 2})}
    for turns in itertools.product("xy", repeat=5):
        found = [name for names in taken({"a": 3, "b": 2}, turns).values() for name in names]
        assert set(found) == every
        assert len(found) == len(every)


@pytest.mark.parametrize(
    ("step_s", "reported"),
    [(0.01, [1.0, 3.0, 7.0, 10.0]), (1.0, [float(number) for number in range(1, 11)])],
)
def test_a_fast_cell_reports_less_often_and_at_its_end(monkeypatch, step_s, reported):
    clock = itertools.count()
    monkeypatch.setattr(grid.time, "monotonic", lambda: next(clock) * step_s)
    session = SimpleNamespace(call=lambda node, *call: call)
    calls = list(grid._calls(session, NodeId("cell", "one"), [float(number) for number in range(1, 11)], ("rows",)))
    assert calls == [*(("advance", time_s) for time_s in reported), ("rows",)]


def test_a_process_has_its_next_call_before_the_driver_waits_for_the_reply_to_the_last_one():
    started = []

    def jobs():
        for number in range(4):
            started.append(number)
            yield number

    assert [(job, started[-1]) for job in grid._started_ahead(jobs())] == [(0, 1), (1, 2), (2, 3), (3, 3)]
