"""The distribution of tests over workers."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from parallel_factory import FileScheduling

OTHERS = [
    "tests/unit/test_f.py::one@experiment-a",
    *(f"tests/unit/test_{name}.py::{n}" for name in "abcdeghi" for n in range(3)),
]


class Worker:
    """Receives tests; `gateway` and `shutting_down` are those that pytest-xdist reads."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.waiting: list[int] = []

    def __hash__(self) -> int:
        return hash(self.gateway.id)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run_all(tests: list[str], count: int = 3) -> list[list[str]]:
    """Return the tests that each worker runs, in turn."""
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * count, option=options)
    scheduling = FileScheduling(config)
    workers: Any = [Worker(f"gw{number}") for number in range(count)]
    ran: dict[Any, list[str]] = {worker: [] for worker in workers}
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    while any(worker.waiting for worker in workers):
        for worker in [one for one in workers if one.waiting]:
            index = worker.waiting.pop(0)
            ran[worker].append(tests[index])
            scheduling.mark_test_complete(worker, index)
    assert all(worker.shutting_down for worker in workers)
    assert sorted(chain(*ran.values())) == sorted(tests)
    return list(ran.values())


@pytest.mark.parametrize("processors", [2, 8])
def test_the_worker_of_ray_ends_with_its_tests_where_the_others_fill_the_processors(monkeypatch, processors):
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    (own,) = [tests for tests in run_all(["tests/ray/test_a.py::one@ray", *OTHERS]) if "@ray" in tests[0]]
    assert (len(own) == 1) == (processors == 2)


@pytest.mark.parametrize("workers", [3, 4])
def test_a_worker_continues_after_its_tests_of_ray_while_a_processor_is_idle(monkeypatch, workers):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    clusters = [f"tests/ray/test_a.py::{n}@ray" for n in range(7)]
    found = run_all([*clusters, "tests/serve/test_a.py::one@serve", *OTHERS], workers)
    assert clusters in found
    (served,) = [tests for tests in found if "@serve" in tests[0]]
    assert (len(served) > 7) == (workers == 3)


@pytest.mark.parametrize("order", [1, -1])
def test_the_last_worker_of_ray_goes_on_with_tests_in_real_time(monkeypatch, order):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    clusters = [f"tests/ray/test_a.py::{n}@ray" for n in range(7)]
    late = [f"tests/unit/test_field_agent.py::{n}@real-time" for n in range(3)]
    rest = [late, OTHERS][::order]
    found = run_all([*clusters, "tests/serve/test_a.py::one@serve", *chain(*rest)], 4)
    assert [*clusters, *late] in found


def test_without_ray_any_worker_runs_the_tests_in_real_time():
    late = [f"tests/unit/test_field_agent.py::{n}@real-time" for n in range(3)]
    assert any(tests[:3] == late for tests in run_all([*late, *OTHERS]))
