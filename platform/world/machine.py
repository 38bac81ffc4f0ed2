"""A machine shared by tasks; each progresses at its share, and shares may change meanwhile.

Under the load of other programs the machine is slower, and so is each of its tasks.

A task enters the machine and leaves it. The machine asks its policy for shares whenever a task comes or goes: on a
device the policy is the scheduling member, on a server by default first come, first served. A task without end, such
as inference on a stream, only has a course: the shares that it had, and since when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import Engine, Need, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driftlab.platform.world.clock import Clock

Course = tuple[tuple[float, float], ...]  # (from this time on, this share), in order of time
Policy = Callable[["Machine", str], Mapping[str, Share]]  # shares by task; the second argument is the reason for asking
SHARE_TOLERANCE = 1e-6  # tolerance of the sum of shares
ROUNDING_S = 1e-9  # a need with less time left than this is done: the rest is rounding


class Pipelined(dict[Engine, float]):
    """Shares of the machine's parts for a task that uses them at the same time, one piece of work after another."""


def taken_s(start_s: float, alone_s: float, course: Course) -> float:
    """Return the time that a task takes from a start on; the last share of the course holds."""
    waited_s, now_s = 0.0, max(start_s, course[0][0])
    stops = (*(time_s for time_s, _ in course[1:]), math.inf)
    for (_, share), stop_s in zip(course, stops, strict=True):
        if stop_s <= now_s:
            continue
        if share and now_s + alone_s / share <= stop_s:
            return waited_s + alone_s / share
        waited_s, passed_s, now_s = waited_s + (stop_s - now_s), stop_s - now_s, stop_s
        if share and (alone_s := alone_s - passed_s * share) <= ROUNDING_S:
            return waited_s
    return math.inf


def done_s(start_s: float, alone_s: float, course: Course) -> float:
    """Return when a task that begins at a time is done."""
    return start_s + taken_s(start_s, alone_s, course)


def rate(need: Need, share: Share) -> float:
    """Return the speed of a task as a share of its speed alone; its parts run one after another, or pipelined."""
    if not isinstance(share, Mapping):
        return share
    parts = [(seconds, share.get(engine, 0.0)) for engine, seconds in need.seconds.items() if seconds]
    if not parts:
        return float(_any(share))
    if isinstance(share, Pipelined):
        return need.alone_s * min(part / seconds for seconds, part in parts)
    return need.alone_s / sum(seconds / part for seconds, part in parts) if all(part for _, part in parts) else 0.0


def accelerator_share(share: Share) -> float:
    """Return a share as one number: the part of the accelerator, where it names parts."""
    return share.get("accelerator", 0.0) if isinstance(share, Mapping) else share


def first_come(count: int) -> Policy:
    """Return a policy that gives each of the first tasks a processor of its own; the others wait in order of arrival.

    Each processor that becomes free starts one waiting task, as with a simpy.Resource, so that ties break the same way.
    """

    def shares(machine: Machine, reason: str) -> Mapping[str, Share]:
        busy = [name for name, work in machine.works.items() if work.share]
        waiting = [name for name, work in machine.works.items() if not work.share]
        return dict.fromkeys([*busy, *waiting[:1]][:count], 1.0)

    return shares


@dataclass(eq=False)
class MachineTask:
    """A task on a machine, from when it enters until it leaves."""

    name: str
    granted: simpy.Event  # its first share above zero
    share: Share = 0.0
    need: Need = field(default_factory=Need)  # of its current job
    left_s: float = 0.0  # of that need, alone on the machine, when shares last changed
    since_s: float = 0.0  # time of that change
    process: simpy.Process | None = None  # waits until it is done
    speed: float = 1.0  # of its machine under load
    woken: bool = False  # its process is interrupted, and has not gone on yet

    @property
    def pace(self) -> float:
        return rate(self.need, self.share) * self.speed

    def go_on(self, now_s: float) -> None:
        """Account for its progress at the current share."""
        self.left_s, self.since_s = max(0.0, self.left_s - (now_s - self.since_s) * self.pace), now_s


class Machine:
    """The compute of a device or a server, shared by tasks."""

    def __init__(self, clock: Clock, policy: Policy, capacity: float = 1.0) -> None:
        self.clock, self.policy, self.capacity = clock, policy, capacity
        self.speed = 1.0  # relative to the idle machine: other programs, and a slower clock, take from it
        self.works: dict[str, MachineTask] = {}  # in the order in which they entered
        self.peak_memory_bytes = 0
        self._courses: dict[str, list[tuple[float, float]]] = {}

    def enter(self, name: str, reason: str | None = "offer", need: Need | None = None) -> MachineTask:
        """Add a task and ask for shares; `need` is given for a task without end, whose memory counts.

        Without a reason no shares are asked for: the caller adds or removes several tasks at once and then asks itself.
        """
        if name in self.works:
            raise RunError(f"The work '{name}' is on its machine already.")
        self.works[name] = work = MachineTask(name, self.clock.event(), need=need or Need(), speed=self.speed)
        self._weigh()
        if reason is not None:
            self.share_out(reason)
        return work

    def leave(self, work: MachineTask, reason: str | None = "end") -> None:
        """Remove a task; its share is redistributed at this instant, after the events that are due already.

        The current need of the task is never completed. Removing it twice changes nothing.
        """
        if self.works.get(work.name) is not work:
            return
        self._give(work, 0.0)
        del self.works[work.name]
        if reason is None:
            return
        freed = self.clock.event()  # as simpy.Resource does it, so that ties break the same way
        freed.callbacks.append(lambda _: self.share_out(reason))
        freed.succeed()

    @contextmanager
    def entered(self, name: str) -> Iterator[MachineTask]:
        """Hold a place on the machine for consecutive needs; yield the task's `granted` before the first."""
        work = self.enter(name)
        try:
            yield work
        finally:
            self.leave(work)

    def do(self, work: MachineTask, need: Need) -> Generator[simpy.Event, Any, None]:
        """Wait until a need is done at the task's shares.

        While its pace stays, it waits for a single timeout, so that ties break as with simpy.Resource.
        """
        if not 0 <= need.alone_s < math.inf:
            raise RunError(f"The work '{work.name}' needs {need.alone_s} s; it must be finite and at least 0.")
        if self.works.get(work.name) is not work:
            raise RunError(f"The work '{work.name}' is not on its machine: enter it first.")
        work.need, work.left_s, work.since_s = need, need.alone_s, self.clock.now
        work.process = self.clock.active_process
        self._weigh()
        try:
            while True:
                try:
                    yield self._end(work)
                    return
                except simpy.Interrupt as woken:
                    if woken.cause is not work:
                        raise
                    work.woken = False
                    if need.alone_s > 0 and work.left_s <= ROUNDING_S:
                        return  # it was done at the instant of the change
        finally:
            work.process, work.left_s, work.need = None, 0.0, Need()

    def left(self, work: MachineTask) -> Need:
        """Return what is left of the current need of a task."""
        left_s = max(0.0, work.left_s - (self.clock.now - work.since_s) * work.pace)
        part = left_s / work.need.alone_s if work.need.alone_s else 0.0
        seconds = {engine: part * seconds for engine, seconds in work.need.seconds.items()}
        return Need(seconds, work.need.memory_bytes, part * work.need.joules)

    def _end(self, work: MachineTask) -> simpy.Event:
        """Wait until a task is done at its current share, or while it has none."""
        if work.left_s and not work.pace:
            return self.clock.event()
        return self.clock.timeout(work.left_s / work.pace if work.left_s else 0.0)

    def share_out(self, reason: str) -> None:
        """Ask the policy, and apply the new shares from now on."""
        for work in self.works.values():
            work.go_on(self.clock.now)
        shares = self.policy(self, reason)
        _check(shares, self.capacity)
        for work in self.works.values():
            self._give(work, shares.get(work.name, 0.0))

    def set_speed(self, speed: float) -> None:
        """Let every task go on at another speed from now on; shares stay."""
        if speed == self.speed:
            return
        self.speed = speed
        for work in self.works.values():
            work.go_on(self.clock.now)
            before, work.speed = work.pace, speed
            self._note(work.name, accelerator_share(work.share) * speed)
            self._wake(work, before)

    def course(self, name: str, start_s: float, stop_s: float) -> Course:
        """Return the shares of a task in a span of time, times the machine's speed; older ones are forgotten."""
        known = self._courses.get(name, [])
        before = [share for time_s, share in known if time_s <= start_s][-1:] or [0.0]
        later = [(time_s, share) for time_s, share in known if time_s > start_s]
        self._courses[name] = [(start_s, before[0]), *later]
        return ((start_s, before[0]), *((time_s, share) for time_s, share in later if time_s < stop_s))

    def _give(self, work: MachineTask, share: Share) -> None:
        if share != work.share:
            before = work.pace
            work.share = share
            self._note(work.name, accelerator_share(share) * self.speed)
            self._wake(work, before)
        if _any(share) and not work.granted.triggered:
            work.granted.succeed()

    def _wake(self, work: MachineTask, before: float) -> None:
        """Let a waiting task wait anew where its pace has changed.

        Share and speed may change at one instant: a second interrupt could reach a process that is done with its need.
        """
        if work.process is not None and work.pace != before and not work.woken:
            work.woken = True
            work.process.interrupt(work)

    def _note(self, name: str, share: float) -> None:
        course = self._courses.setdefault(name, [])
        if course and course[-1][0] == self.clock.now:
            course.pop()
        course.append((self.clock.now, share))

    def _weigh(self) -> None:
        held = sum(work.need.memory_bytes for work in self.works.values())
        self.peak_memory_bytes = max(self.peak_memory_bytes, held)


def _any(share: Share) -> bool:
    return any(share.values()) if isinstance(share, Mapping) else share > 0


def _check(shares: Mapping[str, Share], capacity: float) -> None:
    """Refuse impossible shares."""
    parts: dict[str, float] = {"all": 0.0}
    for name, share in shares.items():
        for engine, part in (share if isinstance(share, Mapping) else {"all": share}).items():
            if not 0 <= part <= 1 + SHARE_TOLERANCE:
                raise RunError(f"The share of '{name}' is {part} of a machine ({engine}); it must be in [0, 1].")
            parts[engine] = parts.get(engine, 0.0) + part
    whole = parts.pop("all")
    for engine, part in (parts or {"all": 0.0}).items():
        if whole + part > capacity + SHARE_TOLERANCE:
            raise RunError(f"The shares of a machine add up to {whole + part:g} of {capacity:g} ({engine}).")
