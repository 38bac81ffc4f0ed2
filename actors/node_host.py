"""Many nodes in one process; each runs its calls in order and refuses any other call."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftlab.determinism import plain_error
from driftlab.errors import DriftlabError
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim.session import Kind, NodeId, run_verb

RAYS_OWN = "ray_terminate_msg"  # attribute of the SystemExit that Ray raises to end a process: not an error of a node
Head = tuple[Any, Any]  # facts and rows: the part of a reply that the driver receives


class StaleCall(Exception):
    """A node received a call out of order: an earlier call was lost with a process."""


@dataclass(frozen=True)
class Failure:
    """An error of a node's code; the reply of its call and of every call that uses the payload."""

    error: DriftlabError
    trace: str


@dataclass
class _Node:
    """A node and the number of calls it has run."""

    instance: Any  # the node, or the failure that ended it
    step: int = 0


@dataclass
class _SessionNodes:
    """The nodes of one session; each recovery starts an epoch, and calls of older epochs are refused."""

    epoch: int
    nodes: dict[NodeId, _Node] = field(default_factory=dict)


class NodeHost:
    """Hosts the nodes of several sessions and runs their calls."""

    def __init__(self, classes: Mapping[Kind, str]) -> None:
        self._classes = classes
        self._sessions: dict[str, _SessionNodes] = {}

    def place(self, session: str, epoch: int, node: NodeId, *args: Any) -> None:
        """Construct a node; an error of its constructor is the reply to every later call."""
        hosted = self._sessions.setdefault(session, _SessionNodes(epoch))
        if hosted.epoch != epoch:
            raise StaleCall(f"{node.kind} {node.name}: placed in epoch {epoch}, this is {hosted.epoch}")
        hosted.nodes[node] = _Node(_run(node, "start", import_class(self._classes[node.kind]), args))

    def call(
        self, session: str, epoch: int, step: int, node: NodeId, verb: str, *args: Any
    ) -> tuple[Head | Failure, Any]:
        """Run a verb; return head and payload separately, as the payload can stay on its computer."""
        target = self._find(session, epoch, step, node)
        target.step += 1
        reply = target.instance
        if not isinstance(reply, Failure):
            reply = _run(node, verb, getattr(target.instance, verb, None), args)
        if isinstance(reply, Failure):
            target.instance = reply  # the state after a failed call is not used
            return reply, reply
        return (reply.facts, reply.rows), reply.payload

    def checkpoint(self, session: str, epoch: int, steps: Mapping[NodeId, int]) -> bytes:
        """Pickle the nodes of a session; raise StaleCall unless each has run the given number of calls."""
        nodes = {node: self._find(session, epoch, step, node) for node, step in steps.items()}
        return pickle.dumps(nodes, protocol=pickle.HIGHEST_PROTOCOL)

    def restore(self, session: str, epoch: int, state: bytes | None) -> None:
        """Start a new epoch with the nodes of a checkpoint, or without nodes."""
        self._sessions[session] = _SessionNodes(epoch, pickle.loads(state) if state is not None else {})

    def drop(self, session: str) -> None:
        """Delete the nodes of a session."""
        self._sessions.pop(session, None)

    def _find(self, session: str, epoch: int, step: int, node: NodeId) -> _Node:
        hosted = self._sessions.get(session)
        target = hosted.nodes.get(node) if hosted is not None and hosted.epoch == epoch else None
        if target is None or target.step != step:
            where = "not here" if target is None else f"at step {target.step}"
            raise StaleCall(f"{node.kind} {node.name} is {where}, expected epoch {epoch}, step {step}")
        return target


def _run(node: NodeId, verb: str, function: Any, args: tuple[Any, ...]) -> Any:
    """Run a node's code and return its reply or its error: a raised one would count as a lost process."""
    for argument in args:
        if isinstance(argument, Failure):
            return argument
    try:
        return run_verb(node, verb, function, args)
    except DriftlabError as error:
        cause = error.__cause__
        if cause is not None and hasattr(cause, RAYS_OWN):
            raise cause from None
        return Failure(plain_error(error), traceback.format_exc())
