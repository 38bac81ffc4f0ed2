"""A rack: many logical nodes in one process; each runs its calls in order or refuses them."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim.session import Kind, NodeId, run_verb

RAYS_OWN = "ray_terminate_msg"  # an attribute of the SystemExit with which Ray ends a process: that is a loss
Head = tuple[Any, Any]  # facts and rows: the driver's part of a reply


class OutOfStep(Exception):
    """A node received a call out of order: an earlier one was lost with a process."""


@dataclass(frozen=True)
class Failure:
    """An error of a node's own code. It replaces the reply, and is passed on to every use of the payload."""

    error: DriftlabError
    trace: str


@dataclass
class _Node:
    """A node and the number of its calls."""

    thing: Any  # the node, or the failure that ended it
    step: int = 0


@dataclass
class _Shelf:
    """The nodes of one session. Every recovery opens a new epoch, so that late calls of an older one are refused."""

    epoch: int
    nodes: dict[NodeId, _Node] = field(default_factory=dict)


class Rack:
    """Holds nodes of several sessions and passes their calls on."""

    def __init__(self, classes: Mapping[Kind, str]) -> None:
        self._classes = classes
        self._shelves: dict[str, _Shelf] = {}

    def place(self, session: str, epoch: int, node: NodeId, *args: Any) -> None:
        """Construct a node; an error of its constructor is the reply to every later call."""
        shelf = self._shelves.setdefault(session, _Shelf(epoch))
        if shelf.epoch != epoch:
            raise OutOfStep(f"{node.kind} {node.name}: placed in epoch {epoch}, this is {shelf.epoch}")
        shelf.nodes[node] = _Node(_run(node, "start", import_class(self._classes[node.kind]), args))

    def call(
        self, session: str, epoch: int, step: int, node: NodeId, verb: str, *args: Any
    ) -> tuple[Head | Failure, Any]:
        """Run a verb; head and payload are returned separately, so that the payload can stay on its machine."""
        target = self._find(session, epoch, step, node)
        target.step += 1
        reply = target.thing
        if not isinstance(reply, Failure):
            reply = _run(node, verb, getattr(target.thing, verb, None), args)
        if isinstance(reply, Failure):
            target.thing = reply  # the state after a failed call is not used
            return reply, reply
        return (reply.facts, reply.rows), reply.payload

    def checkpoint(self, session: str, epoch: int, steps: Mapping[NodeId, int]) -> bytes:
        """Pickle the nodes of a session, each after exactly the given number of calls."""
        nodes = {node: self._find(session, epoch, step, node) for node, step in steps.items()}
        return pickle.dumps(nodes, protocol=pickle.HIGHEST_PROTOCOL)

    def restore(self, session: str, epoch: int, state: bytes | None) -> None:
        """Start a new epoch with the nodes of a checkpoint, or with none."""
        self._shelves[session] = _Shelf(epoch, pickle.loads(state) if state is not None else {})

    def drop(self, session: str) -> None:
        """Forget a session."""
        self._shelves.pop(session, None)

    def _find(self, session: str, epoch: int, step: int, node: NodeId) -> _Node:
        shelf = self._shelves.get(session)
        found = shelf.nodes.get(node) if shelf is not None and shelf.epoch == epoch else None
        if found is None or found.step != step:
            where = "not here" if found is None else f"at step {found.step}"
            raise OutOfStep(f"{node.kind} {node.name} is {where}, wanted epoch {epoch}, step {step}")
        return found


def _run(node: NodeId, verb: str, function: Any, args: tuple[Any, ...]) -> Any:
    """Run node code; its errors become the reply, because only lost processes may look like faults."""
    for argument in args:
        if isinstance(argument, Failure):
            return argument
    try:
        return run_verb(node, verb, function, args)
    except DriftlabError as error:
        cause = error.__cause__
        if cause is not None and hasattr(cause, RAYS_OWN):
            raise cause from None
        return Failure(error, traceback.format_exc())
