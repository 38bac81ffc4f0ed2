"""The actors: a rack for each kind of node, in its own process, under a readable name in the Ray dashboard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from driftlab.actors.rack import Failure, Head, Rack
from driftlab.platform.core import plugins
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim import portable
from driftlab.platform.sim.host import keep_freed_memory
from driftlab.platform.sim.session import Kind, NodeId

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


class RackActor:
    """Passes every call on to its rack."""

    def __init__(self, name: str, classes: Mapping[Kind, str]) -> None:
        os.environ.update(ONE_THREAD)  # before torch or OpenCV: parallelism is across nodes, not inside an operator
        portable.settle()
        keep_freed_memory()
        plugins.install_finder()  # users' member files are importable by name here as well
        self._name = name
        self._rack = Rack(classes)
        for path in classes.values():
            import_class(path)  # now, while the other actors import too, rather than at the first call

    def __repr__(self) -> str:
        return self._name

    @ray.method(max_task_retries=-1)
    def ready(self, *payloads: Any) -> str:
        """Answer when the process and these payloads are available, however often the process has to be started."""
        return self._name

    def place(self, address: tuple[str, int, NodeId], *args: Any) -> None:
        self._rack.place(*address, *args)

    @ray.method(num_returns=2)
    def call(self, address: tuple[str, int, int, NodeId, str], *args: Any) -> tuple[Head | Failure, Any]:
        return self._rack.call(*address, *args)  # the address in one piece: Ray packs every argument by itself

    @ray.method(num_returns=2)
    def checkpoint(self, session: str, epoch: int, steps: Mapping[NodeId, int]) -> tuple[int, bytes]:
        state = self._rack.checkpoint(session, epoch, steps)
        return len(state), state

    def restore(self, session: str, epoch: int, state: bytes | None) -> None:
        self._rack.restore(session, epoch, state)

    def drop(self, session: str) -> None:
        self._rack.drop(session)


@ray.remote
class EdgeDevice(RackActor):
    """Hosts devices."""


@ray.remote
class Application(RackActor):
    """Hosts applications and their models."""


@ray.remote
class Teacher(RackActor):
    """Hosts teachers."""


@ray.remote
class Learner(RackActor):
    """Hosts learners, and builds the networks that a run needs."""


@ray.remote
class Recorder(RackActor):
    """Hosts the node that writes tables."""


ACTORS: Mapping[Kind, Any] = {
    "device": EdgeDevice,
    "application": Application,
    "teacher": Teacher,
    "learner": Learner,
    "builder": Learner,
    "recorder": Recorder,
}
