"""The backend in this process: for debugging, and the reference for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftlab.platform.core.kept import kept
from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim import portable
from driftlab.platform.sim.host import keep_freed_memory, use_one_thread
from driftlab.platform.sim.session import Job, Kind, NodeId, run_verb

NODE_CLASSES: Mapping[Kind, str] = {  # plain classes, which every backend runs
    "device": "driftlab.platform.sim.nodes.camera:CameraNode",
    "application": "driftlab.platform.sim.nodes.application:AppNode",
    "teacher": "driftlab.platform.sim.nodes.teacher:TeacherNode",
    "learner": "driftlab.platform.sim.nodes.learner:LearnerNode",
    "builder": "driftlab.platform.sim.nodes.networks:Builder",
    "recorder": "driftlab.platform.results.tables.recorder:Recorder",
    "cell": "driftlab.platform.sim.nodes.cell:CellNode",
}


@dataclass(eq=False)
class InlineJob:
    """A call that is already done."""

    node: NodeId
    verb: str
    reply: Reply


@dataclass(eq=False)
class InlineSession:
    """Nodes as plain objects, calls as plain calls."""

    nodes: dict[NodeId, Any] = field(default_factory=dict)

    def place(self, node: NodeId, *args: Any) -> None:
        construct = import_class(NODE_CLASSES[node.kind])
        self.nodes[node] = run_verb(node, "start", construct, [*map(_payload, args)])

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        function = getattr(self.nodes[node], verb, None)
        return InlineJob(node, verb, run_verb(node, verb, function, [*map(_payload, args)]))

    def result(self, job: Job) -> Reply:
        assert isinstance(job, InlineJob)
        return Reply(job.reply.facts, job.reply.rows)

    def ready(self, job: Job) -> bool:
        return True

    def checkpoint(self) -> None:
        """Do nothing: nodes and runner are in one process."""

    def close(self) -> None:
        self.nodes.clear()


class InlineBackend:
    """Runs every call at once in this process."""

    name = "inline"
    concurrency = 1
    whole_cells = 0

    def __init__(self) -> None:
        use_one_thread()
        portable.settle()
        keep_freed_memory()
        kept().clear()

    def open(self, session: str) -> InlineSession:
        return InlineSession()

    def close(self) -> None:
        """Do nothing: no process was started."""


def _payload(argument: Any) -> Any:
    return argument.reply.payload if isinstance(argument, InlineJob) else argument
