"""The Ray actors: one class per kind of node, since the Ray dashboard shows an actor by its class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray

from driftlab.actors.node_host import NodeHost
from driftlab.actors.wire import pack_head, unpack_call
from driftlab.determinism import make_deterministic
from driftlab.platform.core import plugins
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim import portable
from driftlab.platform.sim.host import keep_freed_memory, search_garbage_rarely
from driftlab.platform.sim.session import Kind, NodeId

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENCV_FOR_THREADS_NUM": "1"}


class NodeHostActor:
    """A node host in a process of Ray."""

    def __init__(
        self, name: str, classes: Mapping[Kind, str], sources: Mapping[str, bytes], torch_device: str = "cpu"
    ) -> None:
        os.environ.update(ONE_THREAD)  # before torch and OpenCV: nodes run in parallel, operators on one thread
        make_deterministic(torch_device)
        portable.settle()
        keep_freed_memory()
        plugins.install_finder(sources)  # makes the files of users' members importable by name
        self._name = name
        self._host = NodeHost(classes)
        for path in classes.values():
            import_class(path)  # at the start, in parallel with other actors, not at the first call
        search_garbage_rarely()  # all modules are imported, and are left out from now on

    def __repr__(self) -> str:
        return self._name

    @ray.method(max_task_retries=-1)
    def ready(self, *payloads: Any) -> str:
        """Return the id of the computer once the process and these payloads exist; Ray retries without limit."""
        return ray.get_runtime_context().get_node_id()

    def place(self, address: tuple[str, int, NodeId], *args: Any) -> None:
        self._host.place(*address, *args)

    @ray.method(num_returns=2)
    def call(self, packed: bytes, *payloads: Any) -> tuple[bytes, Any]:
        """Run a verb; return head and payload separately, as the payload can stay on its computer."""
        (session, epoch, step, kind, name, verb), args = unpack_call(packed, payloads)
        head, payload = self._host.call(session, epoch, step, NodeId(kind, name), verb, *args)
        return pack_head(head), payload

    @ray.method(num_returns=2)
    def checkpoint(self, session: str, epoch: int, steps: Mapping[NodeId, int]) -> tuple[int, bytes]:
        state = self._host.checkpoint(session, epoch, steps)
        return len(state), state

    def restore(self, session: str, epoch: int, state: bytes | None) -> None:
        self._host.restore(session, epoch, state)

    def drop(self, session: str) -> None:
        self._host.drop(session)


@ray.remote
class EdgeDevice(NodeHostActor):
    """The actor of devices."""


@ray.remote
class Application(NodeHostActor):
    """The actor of applications and their models."""


@ray.remote
class Teacher(NodeHostActor):
    """The actor of teachers."""


@ray.remote
class Learner(NodeHostActor):
    """The actor of learners, and of the builders that train a run's networks if nodes are separate."""


@ray.remote
class Recorder(NodeHostActor):
    """The actor of the node that writes tables."""


@ray.remote
class Cell(NodeHostActor):
    """The actor of whole cells, and of the builders that train their networks."""


ACTORS: Mapping[Kind, Any] = {
    "device": EdgeDevice,
    "application": Application,
    "teacher": Teacher,
    "learner": Learner,
    "recorder": Recorder,
    "cell": Cell,
}
