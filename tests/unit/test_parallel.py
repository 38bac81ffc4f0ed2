"""The distribution of tests over workers."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from parallel_factory import FileScheduling

TESTS = [
    "tests/ray/test_a.py::one@ray",
    "tests/unit/test_f.py::one@experiment-a",
    *(f"tests/unit/test_{name}.py::{n}" for name in "abcde" for n in range(3)),
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


def run_all(count: int) -> dict[str, list[str]]:
    """Return the tests that each worker runs, in turn."""
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen"] * count, option=options)
    scheduling = FileScheduling(config)
    workers: Any = [Worker(f"gw{number}") for number in range(count)]
    ran: dict[str, list[str]] = {worker.gateway.id: [] for worker in workers}
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, TESTS)
    scheduling.schedule()
    while any(worker.waiting for worker in workers):
        for worker in [one for one in workers if one.waiting]:
            index = worker.waiting.pop(0)
            ran[worker.gateway.id].append(TESTS[index])
            scheduling.mark_test_complete(worker, index)
    assert all(worker.shutting_down for worker in workers)
    assert sorted(chain(*ran.values())) == sorted(TESTS)
    return ran


@pytest.mark.parametrize("processors", [2, 8])
def test_the_worker_of_ray_ends_with_its_tests_where_the_others_fill_the_processors(monkeypatch, processors):
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    ran = run_all(3)
    (own,) = [tests for tests in ran.values() if any("@ray" in test for test in tests)]
    assert (len(own) == 1) == (processors == 2)
