"""A session on Ray: sends calls to actors, and repeats them from a log after the loss of a process.

When a process is lost, the whole session returns to its last checkpoint, or to its start, and repeats the calls since.
Nodes are deterministic, so every job gets the same reply. The log holds no payload of a call that it can repeat; memory
is bounded by the payloads that the simulator still references.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray import exceptions

from driftlab.actors import pool
from driftlab.actors.node_host import Failure, StaleCall
from driftlab.actors.pool import ActorSlot
from driftlab.actors.wire import pack_call, unpack_head
from driftlab.errors import RunError
from driftlab.platform.core.records import Reply
from driftlab.platform.sim.session import Job, NodeId

if TYPE_CHECKING:
    from driftlab.actors.backend import RayBackend

log = logging.getLogger(__name__)

PLACE = ""  # verb of the log entry of a node's construction
CHECKPOINT_CALLS = 200  # minimum of calls between checkpoints: repeating fewer is cheaper than storing all states
CHECKPOINT_CALLS_PER_NODE = 20  # the minimum with many nodes
SETTLE_CALLS = 50  # calls between checks whether a checkpoint is complete
RETRY_S = 0.5  # between questions to an actor whose computer is lost
MAX_RECOVERIES = 6  # for one reply; a call may kill its process every time
MAX_SHARED_RECOVERIES = 2  # then on separate actors, so that other sessions are not affected
LOST_PROCESS = (
    StaleCall,
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
)


@dataclass(eq=False)
class LoggedCall:
    """An entry of the log; its arguments are jobs, or log entries for calls that a replay repeats."""

    node: NodeId
    verb: str
    args: tuple[Any, ...]
    index: int
    job: weakref.ReferenceType[RayJob] | None = None


@dataclass(eq=False)
class RayJob:
    """A started call; its Ray references are replaced when the call is repeated."""

    session: RaySession
    call: LoggedCall
    head: Any
    payload: Any

    @property
    def node(self) -> NodeId:
        return self.call.node

    @property
    def verb(self) -> str:
        return self.call.verb


@dataclass
class Checkpoint:
    """A position in the log and references to the nodes' states, which stay in Ray's object store."""

    index: int = 0
    steps: dict[NodeId, int] = field(default_factory=dict)
    sizes: list[Any] = field(default_factory=list)  # available as soon as the states are
    states: dict[ActorSlot, Any] = field(default_factory=dict)


class RaySession:
    """The nodes of one cell, on shared or separate actors."""

    def __init__(self, backend: RayBackend, key: str) -> None:
        self._backend, self._key = backend, key
        self._lock = threading.RLock()  # another session may recover a payload of this one from its own thread
        self._slots: dict[NodeId, ActorSlot] = {}
        self._twins: dict[ActorSlot, ActorSlot] = {}  # shared actor -> the separate one of this session
        self._separate = False
        self._steps: dict[NodeId, int] = {}
        self._epoch = 0
        self._log: list[LoggedCall] = []
        self._others: set[RaySession] = set()  # whose payloads are used here
        self._cut = Checkpoint()
        self._pending: Checkpoint | None = None
        self._due = CHECKPOINT_CALLS

    # Interface of the simulator ----------------------------------------------------------------------------------

    def place(self, node: NodeId, *args: Any) -> None:
        with self._backend.using(), self._lock:
            slot = self._backend.pool.take(node.kind)
            self._slots[node] = self._twin(node, slot) if self._separate else slot
            self._issue(self._record(node, PLACE, args), {})

    def call(self, node: NodeId, verb: str, *args: Any) -> RayJob:
        if self._backend.metrics is not None and (node.kind, verb) == ("recorder", "write"):
            self._backend.metrics.count(*args[:2])
        with self._backend.using(), self._lock:
            self._checkpoint_when_due()
            call = self._record(node, verb, args)
            job = RayJob(self, call, *self._issue(call, {}))
            call.job = weakref.ref(job)
            return job

    def result(self, job: Job) -> Reply:
        assert isinstance(job, RayJob)
        for attempt in range(MAX_RECOVERIES + 1):
            with self._lock:
                epoch, head = self._epoch, job.head
            try:
                reply = unpack_head(self._backend.get(head, self._actors))
            except exceptions.RayError as error:
                if not is_loss(error) or attempt == MAX_RECOVERIES:
                    raise RunError(_describe_loss(job, error, attempt)) from error
                log.debug("%s: lost %s of %s, %s", self._key, job.verb, job.node, reason(error))
                self._recover(job, epoch, attempt, error)
                continue
            if isinstance(reply, Failure):
                log.debug("%s", reply.trace)
                raise reply.error
            facts, rows = reply
            return Reply(facts, rows)
        raise AssertionError("the last attempt returns or raises")

    def ready(self, job: Job) -> bool:
        assert isinstance(job, RayJob)
        with self._backend.using(), self._lock:
            return bool(ray.wait([job.head], timeout=0, fetch_local=False)[0])

    def checkpoint(self) -> None:
        with self._backend.using(), self._lock:
            pending = Checkpoint(len(self._log), dict(self._steps))
            for slot in set(self._slots.values()):
                steps = {node: step for node, step in self._steps.items() if self._slots[node] is slot}
                size, state = slot.actor.checkpoint.remote(self._key, self._epoch, steps)
                pending.sizes.append(size)
                pending.states[slot] = state
            self._pending = pending
            self._due = len(self._log) + max(CHECKPOINT_CALLS, CHECKPOINT_CALLS_PER_NODE * len(self._slots))

    def close(self) -> None:
        with self._backend.using(), self._lock:
            for slot in set(self._slots.values()):
                slot.actor.drop.remote(self._key)
            for node, slot in self._slots.items():
                self._backend.pool.give(slot, node.kind)
            for twin in self._twins.values():
                self._backend.pool.retire(twin)
            self._slots, self._twins, self._steps, self._log = {}, {}, {}, []
            self._cut, self._pending = Checkpoint(), None

    # The log -----------------------------------------------------------------------------------------------------

    def _record(self, node: NodeId, verb: str, args: Sequence[Any]) -> LoggedCall:
        """Log a call; it holds those arguments whose calls a replay would not repeat."""
        horizon = (self._pending or self._cut).index
        logged = [arg.call if self._owns(arg) and arg.call.index >= horizon else arg for arg in args]
        self._others |= {arg.session for arg in args if isinstance(arg, RayJob) and arg.session is not self}
        call = LoggedCall(node, verb, tuple(logged), len(self._log))
        self._log.append(call)
        return call

    def _issue(self, call: LoggedCall, fresh: Mapping[LoggedCall, Any]) -> tuple[Any, Any]:
        """Send a call to its node's actor; return references of head and payload."""
        actor = self._slots[call.node].actor
        args = [_reference(arg, fresh) for arg in call.args]
        if call.verb == PLACE:
            self._steps[call.node] = 0
            return actor.place.remote((self._key, self._epoch, call.node), *args), None
        step = self._steps[call.node]
        self._steps[call.node] = step + 1
        method = actor.call
        if call.node.kind == "cell":
            method = method.options(name=f"Cell {call.node.name}")
        elif self._backend.watched:  # the dashboard lists tasks by this name: run, cell, device and verb
            method = method.options(name=f"{self._backend.run}/{self._key}/{call.node.name}.{call.verb}")
        address = self._key, self._epoch, step, call.node.kind, call.node.name, call.verb
        packed, payloads = pack_call(address, args)
        head, payload = method.remote(packed, *payloads)
        return head, payload

    def _owns(self, arg: Any) -> bool:
        return isinstance(arg, RayJob) and arg.session is self

    def _checkpoint_when_due(self) -> None:
        pending = self._pending
        if pending is not None and (len(self._log) - pending.index) % SETTLE_CALLS == 0:
            self._settle(pending)
        elif pending is None and len(self._log) >= self._due:
            self.checkpoint()

    def _settle(self, pending: Checkpoint) -> None:
        """Use a checkpoint once every actor has delivered its part; the calls before it need no results then."""
        if len(ray.wait(pending.sizes, num_returns=len(pending.sizes), timeout=0)[0]) < len(pending.sizes):
            return
        self._pending = None
        try:
            size = sum(ray.get(pending.sizes))
        except exceptions.RayError as error:
            level = logging.DEBUG if is_loss(error) else logging.WARNING
            log.log(level, "%s: the checkpoint failed, the previous one is kept: %s", self._key, reason(error))
            return
        for call in self._log[self._cut.index : pending.index]:
            call.args = tuple(arg.call if self._owns(arg) else arg for arg in call.args)
        self._cut = pending
        log.debug("%s: checkpoint of %d bytes after %d calls", self._key, size, pending.index)

    # After a loss ------------------------------------------------------------------------------------------------

    def _recover(self, job: RayJob, epoch: int, attempt: int, error: BaseException) -> None:
        """Return to the last checkpoint and repeat the calls since.

        After a failed attempt they are repeated from the start, after more of them on separate actors.
        """
        with self._backend.using(), self._lock:
            if self._epoch != epoch:
                return  # another thread has recovered this session
            if is_lost_object(error) or attempt > 0 or job.call.index < self._cut.index:
                self._cut = Checkpoint()
            if attempt >= MAX_SHARED_RECOVERIES:
                self._move_away()
            self._await_actors()
            self._revive_others()
            self._rewind()

    def _actors(self) -> set[ActorSlot]:
        """Return the actors that replies need: a call waits for the calls whose payloads it takes."""
        with self._lock:
            return {slot for session in (self, *self._others) for slot in session._slots.values()}

    def _revive_others(self) -> None:
        """Recover the other sessions whose payloads are used here and were lost with their computer."""
        others = {arg for call in self._log for arg in call.args if isinstance(arg, RayJob) and arg.session is not self}
        slot = next(iter(self._slots.values()))
        for job in others:
            session, epoch = job.session, job.session._epoch
            try:
                self._backend.get(slot.actor.ready.remote(job.payload), session._actors)
                for one in session._actors():  # a payload may outlive its actor, which would be noticed again and again
                    self._backend.pool.check(one)
            except exceptions.RayError as error:
                log.debug("%s: lost the payload of %s, or its actor, %s", self._key, job.node, reason(error))
                with session._lock:
                    if session._epoch == epoch:
                        session._cut = Checkpoint()
                        session._await_actors()
                        session._rewind()

    def _move_away(self) -> None:
        """Move all nodes to separate actors, so that further losses do not affect other sessions."""
        self._separate = True
        self._slots = {node: self._twin(node, slot) for node, slot in self._slots.items()}

    def _twin(self, node: NodeId, slot: ActorSlot) -> ActorSlot:
        if slot in self._twins.values():
            return slot
        if slot not in self._twins:
            self._twins[slot] = self._backend.pool.twin(slot)
        self._backend.pool.give(slot, node.kind)
        return self._twins[slot]

    def _rewind(self) -> None:
        """Restore every node on its actor, and repeat the calls since the checkpoint, in order."""
        self._epoch += 1
        self._pending = None
        self._steps = dict(self._cut.steps)
        for slot in set(self._slots.values()):
            slot.actor.restore.remote(self._key, self._epoch, self._cut.states.get(slot))
        calls = self._log[self._cut.index :]
        last_use = {arg: call for call in calls for arg in call.args if isinstance(arg, LoggedCall)}
        fresh: dict[LoggedCall, Any] = {}
        for call in calls:
            head, payload = self._issue(call, fresh)
            job = call.job() if call.job else None
            if job is not None:
                job.head, job.payload = head, payload
            if call in last_use:
                fresh[call] = payload
            for arg in call.args:
                if isinstance(arg, LoggedCall) and last_use[arg] is call:
                    fresh.pop(arg, None)

    def _await_actors(self) -> None:
        """Wait until all actors have restarted: they would refuse calls before.

        The nodes of an actor without a computer move to another actor, and begin again.
        """
        waiting = set(self._slots.values())
        while waiting:
            slot = waiting.pop()
            if self._restarts(slot, pool.RESTART_TIMEOUT_S):
                continue
            nodes = [node for node, one in self._slots.items() if one is slot]
            other = self._backend.pool.replace(slot, nodes)
            if other is not None:
                log.warning("%s: no computer for actor %s, so %s takes its nodes", self._key, slot.name, other.name)
                self._slots |= dict.fromkeys(nodes, other)
                self._cut = Checkpoint()
                waiting.add(other)
            elif not self._restarts(slot, self._backend.pool.start_timeout_s):
                lacking = self._backend.pool.lacking(slot)
                raise RunError(f"Actor {slot.name} cannot restart: the cluster lacks {lacking}.")

    def _restarts(self, slot: ActorSlot, within_s: float) -> bool:
        """Wait until an actor has restarted; return False if it lacks resources after a time."""
        ready, until_s = slot.actor.ready.remote(), time.monotonic() + within_s
        while True:
            try:
                computer = self._backend.get(ready, until_s=until_s)
            except exceptions.GetTimeoutError:
                if self._backend.pool.lacking(slot):
                    return False
                until_s += within_s
            except exceptions.RayError as error:
                raise RunError(f"Actor {slot.name} does not restart: {reason(error)}") from error
            else:
                if self._backend.pool.lives(computer):
                    slot.ready = ready
                    return True
                if time.monotonic() > until_s:
                    return False
                time.sleep(RETRY_S)
                ready = slot.actor.ready.remote()


def _reference(arg: Any, fresh: Mapping[LoggedCall, Any]) -> Any:
    """Return the payload reference of an argument, the repeated one if its call was repeated."""
    if isinstance(arg, RayJob):
        return arg.payload
    if not isinstance(arg, LoggedCall):
        return arg
    if arg in fresh:
        return fresh[arg]
    job = arg.job() if arg.job else None
    assert job is not None, "a logged call refers to a payload that was released"
    return job.payload


def _describe_loss(job: RayJob, error: BaseException, attempts: int) -> str:
    lost = f": its process, or one it needs, was lost {attempts + 1} times in a row" if is_loss(error) else ""
    hint = "; the code of a member may crash, or memory may be short" if lost else ""
    return f"{job.node.kind} {job.node.name} cannot {job.verb}{lost}: {reason(error)}{hint}"


def is_loss(error: BaseException) -> bool:
    """Return whether a process was lost, so that the same call may succeed when repeated."""
    return any(isinstance(cause, LOST_PROCESS) for cause in _chain(error))


def is_lost_object(error: BaseException) -> bool:
    """Return whether a payload was lost with its computer."""
    return any(isinstance(cause, exceptions.ObjectLostError) for cause in _chain(error))


def reason(error: BaseException) -> str:
    """Return the last line of an error, where Ray writes the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of Ray and its causes in other processes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "cause", None)
