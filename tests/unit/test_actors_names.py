"""Task names in the dashboard: run, cell, device and verb; without a dashboard tasks are not named."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from driftlab.actors.session import RaySession
from driftlab.platform.sim.session import NodeId


class Method:
    """An actor's method that records the names of its calls."""

    def __init__(self) -> None:
        self.names: list[str | None] = []

    def options(self, name: str) -> Method:
        self.names.append(name)
        return self

    def remote(self, *args: object) -> tuple[object, object]:
        return object(), object()


@pytest.mark.parametrize("watched", [True, False])
def test_a_task_is_named_by_run_cell_device_and_verb(watched: bool):
    method, node = Method(), NodeId("device", "device-0003")
    actor = SimpleNamespace(call=method, place=method)
    backend = SimpleNamespace(
        using=contextlib.nullcontext, pool=SimpleNamespace(take=lambda kind: SimpleNamespace(actor=actor))
    )
    backend.run, backend.watched, backend.metrics = "demo-1", watched, None
    session = RaySession(backend, "ams/running/one/seed-0#7")
    session._slots[node] = SimpleNamespace(actor=actor)
    session._steps[node] = 0
    session._issue(session._record(node, "upload", ()), {})
    assert method.names == (["demo-1/ams/running/one/seed-0#7/device-0003.upload"] if watched else [])
