"""A machine that works share: each goes on at its share of the machine, and shares change while it lasts.

Whatever computes for a while enters as a work and leaves again. The machine asks its policy for shares whenever a work
comes or goes: on a device the scheduling member's, on a server by default the order of arrival. A work that is never
done, such as answering a stream, only has a course: the shares that it had, and from when on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import Need, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driftlab.platform.world.clock import Clock

Course = tuple[tuple[float, float], ...]  # (from this time on, this share), in order of time
Policy = Callable[["Machine", str], Mapping[str, Share]]  # shares by work, asked for a reason
EXCESS = 1e-6  # that shares may exceed the machine by
DONE_S = 1e-9  # of a need, below which nothing of it is left but the rounding of times


def taken_s(start_s: float, alone_s: float, course: Course) -> float:
    """Tell how long a work takes that begins at a time; the last share of the course stays."""
    waited_s, now_s = 0.0, max(start_s, course[0][0])
    stops = (*(time_s for time_s, _ in course[1:]), math.inf)
    for (_, share), stop_s in zip(course, stops, strict=True):
        if stop_s <= now_s:
            continue
        if share and now_s + alone_s / share <= stop_s:
            return waited_s + alone_s / share
        waited_s, passed_s, now_s = waited_s + (stop_s - now_s), stop_s - now_s, stop_s
        if share and (alone_s := alone_s - passed_s * share) <= DONE_S:
            return waited_s
    return math.inf


def done_s(start_s: float, alone_s: float, course: Course) -> float:
    """Tell when a work is done that begins at a time."""
    return start_s + taken_s(start_s, alone_s, course)


def rate(need: Need, share: Share) -> float:
    """Tell how fast a work goes on, as a share of its speed alone; its parts come one after another."""
    if not isinstance(share, Mapping):
        return share
    parts = [(seconds, share.get(engine, 0.0)) for engine, seconds in need.seconds.items() if seconds]
    if not parts:
        return float(_any(share))
    return need.alone_s / sum(seconds / part for seconds, part in parts) if all(part for _, part in parts) else 0.0


def overall(share: Share) -> float:
    """Say as one number what a work has of a machine: its part of the accelerator, where it names parts."""
    return share.get("accelerator", 0.0) if isinstance(share, Mapping) else share


def first_come(count: int) -> Policy:
    """Give each of the first works a processor of its own, in the order in which they entered; the rest wait.

    Each time one more begins, as with a simpy.Resource, so that ties are broken as by one.
    """

    def shares(machine: Machine, reason: str) -> Mapping[str, Share]:
        busy = [name for name, work in machine.works.items() if work.share]
        waiting = [name for name, work in machine.works.items() if not work.share]
        return dict.fromkeys([*busy, *waiting[:1]][:count], 1.0)

    return shares


@dataclass(eq=False)
class Work:
    """Something that computes on a machine, from when it enters until it leaves."""

    name: str
    granted: simpy.Event  # its first share above zero
    share: Share = 0.0
    need: Need = field(default_factory=Need)  # of what it is doing
    left_s: float = 0.0  # of that, alone on the whole machine, when shares were given out last
    since_s: float = 0.0  # when that was
    process: simpy.Process | None = None  # that waits until it is done

    @property
    def pace(self) -> float:
        return rate(self.need, self.share)

    def go_on(self, now_s: float) -> None:
        """Count what it has done at its present share."""
        self.left_s, self.since_s = max(0.0, self.left_s - (now_s - self.since_s) * self.pace), now_s


class Machine:
    """A device's or a server's compute, shared by works."""

    def __init__(self, clock: Clock, policy: Policy, capacity: float = 1.0) -> None:
        self.clock, self.policy, self.capacity = clock, policy, capacity
        self.works: dict[str, Work] = {}  # in the order in which they entered
        self.peak_memory_bytes = 0
        self._courses: dict[str, list[tuple[float, float]]] = {}

    def enter(self, name: str, reason: str | None = "offer", need: Need | None = None) -> Work:
        """Let a work come and ask for shares; a need given here is for what has no end, and counts its memory.

        Without a reason nothing is asked: the caller lets several works come or go at once, and then asks itself.
        """
        if name in self.works:
            raise RunError(f"The work '{name}' is on its machine already.")
        self.works[name] = work = Work(name, self.clock.event(), need=need or Need())
        self._weigh()
        if reason is not None:
            self.share_out(reason)
        return work

    def leave(self, work: Work, reason: str | None = "end") -> None:
        """Let a work go; what it had is shared at this instant, after the events that are due already.

        One that is in the middle of something never gets it done. One that has gone already stays away.
        """
        if self.works.get(work.name) is not work:
            return
        self._give(work, 0.0)
        del self.works[work.name]
        if reason is None:
            return
        freed = self.clock.event()  # as a simpy.Resource does it, so that ties are broken as by one
        freed.callbacks.append(lambda _: self.share_out(reason))
        freed.succeed()

    @contextmanager
    def entered(self, name: str) -> Iterator[Work]:
        """Hold a place on the machine for works that follow one another; yield its `granted` before the first."""
        work = self.enter(name)
        try:
            yield work
        finally:
            self.leave(work)

    def do(self, work: Work, need: Need) -> Generator[simpy.Event, Any, None]:
        """Wait until a need is done at the shares that its work gets meanwhile.

        It waits for a single timeout while its pace stays, so that ties are broken as by one.
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
                    if need.alone_s > 0 and work.left_s <= DONE_S:
                        return  # it was done at the instant at which its share changed
        finally:
            work.process, work.left_s, work.need = None, 0.0, Need()

    def left(self, work: Work) -> Need:
        """Tell what the present need of a work has left."""
        left_s = max(0.0, work.left_s - (self.clock.now - work.since_s) * work.pace)
        part = left_s / work.need.alone_s if work.need.alone_s else 0.0
        seconds = {engine: part * seconds for engine, seconds in work.need.seconds.items()}
        return Need(seconds, work.need.memory_bytes, part * work.need.joules)

    def _end(self, work: Work) -> simpy.Event:
        """Wait until a work is done if nothing changes, or for as long as it has no share."""
        if work.left_s and not work.pace:
            return self.clock.event()
        return self.clock.timeout(work.left_s / work.pace if work.left_s else 0.0)

    def share_out(self, reason: str) -> None:
        """Ask the policy, and let every work go on at its share from now on."""
        for work in self.works.values():
            work.go_on(self.clock.now)
        shares = self.policy(self, reason)
        _check(shares, self.capacity)
        for work in self.works.values():
            self._give(work, shares.get(work.name, 0.0))

    def course(self, name: str, start_s: float, stop_s: float) -> Course:
        """Tell which shares a work had in a while; what is before it is forgotten."""
        known = self._courses.get(name, [])
        before = [share for time_s, share in known if time_s <= start_s][-1:] or [0.0]
        later = [(time_s, share) for time_s, share in known if time_s > start_s]
        self._courses[name] = [(start_s, before[0]), *later]
        return ((start_s, before[0]), *((time_s, share) for time_s, share in later if time_s < stop_s))

    def _give(self, work: Work, share: Share) -> None:
        if share != work.share:
            before = work.pace
            work.share = share
            self._note(work.name, overall(share))
            if work.process is not None and work.pace != before:
                work.process.interrupt(work)
        if _any(share) and not work.granted.triggered:
            work.granted.succeed()

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
    """Refuse shares that no machine has."""
    parts: dict[str, float] = {"all": 0.0}
    for name, share in shares.items():
        for engine, part in (share if isinstance(share, Mapping) else {"all": share}).items():
            if not 0 <= part <= 1 + EXCESS:
                raise RunError(f"The share of '{name}' is {part} of a machine ({engine}); it must be in [0, 1].")
            parts[engine] = parts.get(engine, 0.0) + part
    whole = parts.pop("all")
    for engine, part in (parts or {"all": 0.0}).items():
        if whole + part > capacity + EXCESS:
            raise RunError(f"The shares of a machine add up to {whole + part:g} of {capacity:g} ({engine}).")
