"""Sessions whose rounds run at the same time, and the batches of their learners.

Each round has a thread, and one of them computes at a time. A round that reaches `adapt` waits until every other one
has reached it too or has ended. Learners that fit together then train as one batch, the others alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode

from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.field.together import adapt_together, key_of
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.session import NodeId

log = logging.getLogger(__name__)
WAIT_S = 2.0  # for other rounds, which may be longer; then a learner trains alone
POLL_S = 0.05  # between checks of a waiting thread, whose time limit can interrupt it then


@dataclass(eq=False)
class _Call:
    """A call of `adapt` that waits."""

    key: Hashable
    given: tuple[Any, Any, Batch, Phase]  # the arguments of `adapt`
    member: Any
    done: Adapted | None = None
    alone: bool = False  # whether its own thread trains it


class Meeting:
    """The rounds that run at the same time."""

    def __init__(self, train: Callable[..., list[Adapted]] = adapt_together) -> None:
        self._turn, self._train = threading.Condition(), train
        self._count = threading.Lock()
        self._active = 0
        self._waiting: list[_Call] = []

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Run the round of this thread within this context."""
        with self._count:
            self._active += 1
        with self._turn:
            try:
                yield
            finally:
                with self._count:
                    self._active -= 1
                self._go_on()

    def open(self) -> JoiningSession:
        """Return the nodes of a session whose rounds take part."""
        return JoiningSession(self)

    def adapt(self, member: Any, *given: Any) -> Adapted:
        """Train a member as `member.adapt(*given)` does, together with others that fit."""
        model, _, batch, phase = given
        key = key_of(member, model, batch, phase)
        if key is None or _get_current_dispatch_mode() is not None:  # an audit counts the operators of this thread
            return member.adapt(*given)  # type: ignore[no-any-return]
        call, until_s = _Call(key, given, member), time.monotonic() + WAIT_S
        self._waiting.append(call)
        try:
            self._go_on()
            while not (call.done or call.alone) and time.monotonic() < until_s:
                self._turn.wait(POLL_S)
        finally:
            if call in self._waiting:  # it has waited too long, or its time limit has interrupted it
                self._waiting.remove(call)
        return call.done or member.adapt(*given)

    def _go_on(self) -> None:
        """Train if every round waits."""
        with self._count:
            if len(self._waiting) < self._active:
                return
        groups: dict[Hashable, list[_Call]] = {}
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            groups.setdefault(call.key, []).append(call)
        try:
            for calls in groups.values():
                self._train_group(calls)
        finally:
            for call in waiting:
                call.alone = call.done is None
            self._turn.notify_all()

    def _train_group(self, calls: Sequence[_Call]) -> None:
        """Train one batch; if that fails, each call trains alone with the same random numbers."""
        if len(calls) == 1:
            return
        drawn = [call.given[2].rng.bit_generator.state for call in calls]
        models, states, batches, phases = zip(*(call.given for call in calls), strict=True)
        try:
            results = self._train([call.member for call in calls], models, states, batches, phases)
        except BaseException as error:
            for call, state in zip(calls, drawn, strict=True):
                call.given[2].rng.bit_generator.state = state
            if not isinstance(error, Exception):
                raise
            log.warning("%d learners cannot train as one batch, each trains alone", len(calls), exc_info=True)
            return
        for call, result in zip(calls, results, strict=True):
            call.done = result


class JoiningSession(InlineSession):
    """Nodes in this process; the training of a learner goes to a meeting."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        """Run a verb; a learner has its own member between calls, as its state is stored then."""
        if node.kind != "learner":
            return super().call(node, verb, *args)
        learner = self.nodes[node]
        own = learner._adaptation
        learner._adaptation = _Joined(own, self._meeting)
        try:
            return super().call(node, verb, *args)
        finally:
            learner._adaptation = own


class _Joined:
    """A member whose `adapt` goes to a meeting; everything else is its own."""

    def __init__(self, own: Any, meeting: Meeting) -> None:
        self._own, self._meeting = own, meeting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __str__(self) -> str:
        return str(self._own)

    def adapt(self, model: Any, state: Any, batch: Batch, phase: Phase) -> Adapted:
        return self._meeting.adapt(self._own._made, model, state, batch, phase)
