"""A processor shared by tasks: each progresses at its share, which may change during the task.

The load of other programs reduces the speed of the processor and of all its tasks.

A task enters the processor and leaves it. At each entry and exit the processor calls its policy for new shares: on a
device the policy is the scheduling member, on a server by default first come, first served. A task without an end, such
as inference on a stream, only has a share schedule: its shares, and the time from which each holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import SHARE_TOLERANCE, Resource, Share, TaskCost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driftlab.platform.world.clock import Clock

ShareSchedule = tuple[tuple[float, float], ...]  # (from this time on, this share), in order of time
Policy = Callable[
    ["Processor", str], Mapping[str, Share]
]  # shares by task; the second argument is the reason of the call
ROUNDING_S = 1e-9  # a task with less time left has ended: the rest is rounding


class InterleavedShare(dict[Resource, float]):
    """Shares of resources for a task that uses them at the same time, interleaved with other tasks."""


def task_duration_s(start_s: float, isolated_s: float, schedule: ShareSchedule) -> float:
    """Return the duration of a task from its start; the last share of the schedule holds."""
    waited_s, now_s = 0.0, max(start_s, schedule[0][0])
    stops = (*(time_s for time_s, _ in schedule[1:]), math.inf)
    for (_, share), stop_s in zip(schedule, stops, strict=True):
        if stop_s <= now_s:
            continue
        if share and now_s + isolated_s / share <= stop_s:
            return waited_s + isolated_s / share
        waited_s, passed_s, now_s = waited_s + (stop_s - now_s), stop_s - now_s, stop_s
        if share and (isolated_s := isolated_s - passed_s * share) <= ROUNDING_S:
            return waited_s
    return math.inf


def task_end_s(start_s: float, isolated_s: float, schedule: ShareSchedule) -> float:
    """Return the end of a task that starts at a time."""
    return start_s + task_duration_s(start_s, isolated_s, schedule)


def rate(cost: TaskCost, share: Share) -> float:
    """Return the speed of a task relative to its isolated speed; its parts run in sequence, or pipelined."""
    if not isinstance(share, Mapping):
        return share
    parts = [(seconds, share.get(engine, 0.0)) for engine, seconds in cost.seconds.items() if seconds]
    if not parts:
        return float(_is_positive(share))
    if isinstance(share, InterleavedShare):
        return cost.isolated_s * min(part / seconds for seconds, part in parts)
    return cost.isolated_s / sum(seconds / part for seconds, part in parts) if all(part for _, part in parts) else 0.0


def accelerator_share(share: Share) -> float:
    """Return a share as one number: that of the accelerator if it has a share per resource."""
    return share.get("accelerator", 0.0) if isinstance(share, Mapping) else share


def first_come(count: int) -> Policy:
    """Return a policy that gives a processor to each of the first `count` tasks; the others wait.

    Each processor that becomes free starts one waiting task, as with a simpy.Resource, so that ties break the same way.
    """

    def shares(processor: Processor, reason: str) -> Mapping[str, Share]:
        busy = [name for name, task in processor.tasks.items() if task.share]
        waiting = [name for name, task in processor.tasks.items() if not task.share]
        return dict.fromkeys([*busy, *waiting[:1]][:count], 1.0)

    return shares


def round_robin(count: int) -> Policy:
    """Return a policy of short turns: all tasks get equal shares of `count` processors, at most one each."""

    def shares(processor: Processor, reason: str) -> Mapping[str, Share]:
        return dict.fromkeys(processor.tasks, min(1.0, count / max(1, len(processor.tasks))))

    return shares


@dataclass(eq=False)
class ProcessorTask:
    """A task on a processor, from its entry to its exit."""

    name: str
    granted: simpy.Event  # its first share above zero
    share: Share = 0.0
    cost: TaskCost = field(default_factory=TaskCost)  # cost of its current job
    left_s: float = 0.0  # isolated time left of that job when shares last changed
    since_s: float = 0.0  # time of that change
    process: simpy.Process | None = None  # waits for the end of the job
    speed: float = 1.0  # of its processor under load
    woken: bool = False  # whether its process is interrupted and has not resumed yet

    @property
    def progress_rate(self) -> float:
        return rate(self.cost, self.share) * self.speed

    def update_progress(self, now_s: float) -> None:
        """Update the time left by the progress at the current share."""
        self.left_s, self.since_s = max(0.0, self.left_s - (now_s - self.since_s) * self.progress_rate), now_s


class Processor:
    """The processor of a device or a server, shared by tasks."""

    def __init__(self, clock: Clock, policy: Policy, capacity: float = 1.0) -> None:
        self.clock, self.policy, self.capacity = clock, policy, capacity
        self.speed = 1.0  # relative to the idle device: other programs and a slower clock reduce it
        self.tasks: dict[str, ProcessorTask] = {}  # in order of entry
        self.peak_memory_bytes = 0
        self._schedules: dict[str, list[tuple[float, float]]] = {}
        self._paused_until_s: dict[str, float] = {}  # by name of a task
        self._factors: dict[str, float] = {}  # speed of a task without an end relative to the processor's, by name

    def enter(self, name: str, reason: str | None = "offer", cost: TaskCost | None = None) -> ProcessorTask:
        """Add a task and redistribute the shares; the memory of a task without an end counts by its `cost`.

        Without a reason the shares stay: the caller adds or removes several tasks and then calls `share_out`.
        """
        if name in self.tasks:
            raise RunError(f"The task '{name}' is on its processor already.")
        self.tasks[name] = task = ProcessorTask(name, self.clock.event(), cost=cost or TaskCost(), speed=self.speed)
        self._update_peak_memory()
        if reason is not None:
            self.share_out(reason)
        return task

    def leave(self, task: ProcessorTask, reason: str | None = "end") -> None:
        """Remove a task; its share is redistributed at this instant, after the events that are already due.

        The current job of the task is never completed. A second removal has no effect.
        """
        if self.tasks.get(task.name) is not task:
            return
        self._set_share(task, 0.0)
        del self.tasks[task.name]
        if reason is None:
            return
        freed = self.clock.event()  # as simpy.Resource does it, so that ties break the same way
        freed.callbacks.append(lambda _: self.share_out(reason))
        freed.succeed()

    @contextmanager
    def entered(self, name: str) -> Iterator[ProcessorTask]:
        """Keep a task on the processor during several jobs; wait for its `granted` before the first one."""
        task = self.enter(name)
        try:
            yield task
        finally:
            self.leave(task)

    def run_job(self, task: ProcessorTask, cost: TaskCost) -> Generator[simpy.Event, Any, None]:
        """Wait for the end of a job at the task's shares.

        At a constant rate it waits for a single timeout, so that ties break as with simpy.Resource.
        """
        if not 0 <= cost.isolated_s < math.inf:
            raise RunError(f"The task '{task.name}' takes {cost.isolated_s} s; it must be finite and at least 0.")
        if self.tasks.get(task.name) is not task:
            raise RunError(f"The task '{task.name}' is not on its processor: enter it first.")
        task.cost, task.left_s, task.since_s = cost, cost.isolated_s, self.clock.now
        task.process = self.clock.active_process
        self._update_peak_memory()
        try:
            while True:
                try:
                    yield self._end_of(task)
                    return
                except simpy.Interrupt as interrupt:
                    if interrupt.cause is not task:
                        raise
                    task.woken = False
                    if cost.isolated_s > 0 and task.left_s <= ROUNDING_S:
                        return  # it ended at the instant of the change
        finally:
            task.process, task.left_s, task.cost = None, 0.0, TaskCost()

    def cancel_job(self, task: ProcessorTask) -> TaskCost:
        """End the current job of a task at once; return its remaining cost."""
        left = self.remaining_cost(task)
        if task.process is not None:
            task.left_s, task.since_s = 0.0, self.clock.now
            if not task.woken:
                task.woken = True
                task.process.interrupt(task)
        return left

    def remaining_cost(self, task: ProcessorTask) -> TaskCost:
        """Return the remaining cost of the current job of a task."""
        left_s = max(0.0, task.left_s - (self.clock.now - task.since_s) * task.progress_rate)
        part = left_s / task.cost.isolated_s if task.cost.isolated_s else 0.0
        seconds = {engine: part * seconds for engine, seconds in task.cost.seconds.items()}
        return TaskCost(seconds, task.cost.memory_bytes, part * task.cost.joules)

    def _end_of(self, task: ProcessorTask) -> simpy.Event:
        """Return the event of a job's end at the current share; without a share, one that never occurs."""
        if task.left_s and not task.progress_rate:
            return self.clock.event()
        return self.clock.timeout(task.left_s / task.progress_rate if task.left_s else 0.0)

    def share_out(self, reason: str) -> None:
        """Call the policy, and apply its shares from now on."""
        for task in self.tasks.values():
            task.update_progress(self.clock.now)
        shares = self.policy(self, reason)
        _check(shares, self.capacity)
        for task in self.tasks.values():
            self._set_share(task, shares.get(task.name, 0.0))

    def set_speed(self, speed: float) -> None:
        """Change the speed of every task from now on; shares are unchanged."""
        if speed == self.speed:
            return
        self.speed = speed
        for task in self.tasks.values():
            task.update_progress(self.clock.now)
            before, task.speed = task.progress_rate, speed
            self._record(task.name, accelerator_share(task.share) * speed)
            self._wake(task, before)

    def set_factor(self, name: str, factor: float) -> None:
        """Change the speed of a task without an end relative to that of the processor, from now on."""
        if factor != self._factors.get(name, 1.0):
            self._factors[name] = factor
            self._resume(name)

    def share_schedule(self, name: str, start_s: float, stop_s: float) -> ShareSchedule:
        """Return the shares of a task in a span of time, times the speed; older shares are dropped."""
        recorded = self._schedules.get(name, [])
        before = [share for time_s, share in recorded if time_s <= start_s][-1:] or [0.0]
        later = [(time_s, share) for time_s, share in recorded if time_s > start_s]
        self._schedules[name] = [(start_s, before[0]), *later]
        return ((start_s, before[0]), *((time_s, share) for time_s, share in later if time_s < stop_s))

    def pause(self, name: str, until_s: float) -> None:
        """Stop a task without an end until a time, without a change of its share."""
        self._paused_until_s[name] = until_s
        self._record(name, 0.0)
        resumed = self.clock.timeout(until_s - self.clock.now)
        resumed.callbacks.append(lambda _: self._resume(name))

    def _resume(self, name: str) -> None:
        if task := self.tasks.get(name):
            self._record(name, accelerator_share(task.share) * self.speed)

    def _set_share(self, task: ProcessorTask, share: Share) -> None:
        if share != task.share:
            before = task.progress_rate
            task.share = share
            self._record(task.name, accelerator_share(share) * self.speed)
            self._wake(task, before)
        if _is_positive(share) and not task.granted.triggered:
            task.granted.succeed()

    def _wake(self, task: ProcessorTask, before: float) -> None:
        """Interrupt a waiting task if its rate has changed.

        If share and speed change at one instant, the task is interrupted once: a second interrupt could reach a process
        whose job has ended.
        """
        if task.process is not None and task.progress_rate != before and not task.woken:
            task.woken = True
            task.process.interrupt(task)

    def _record(self, name: str, share: float) -> None:
        """Append a share to the share schedule of a task; the last one of an instant holds."""
        schedule = self._schedules.setdefault(name, [])
        share = 0.0 if self.clock.now < self._paused_until_s.get(name, 0.0) else share * self._factors.get(name, 1.0)
        if schedule and schedule[-1][0] == self.clock.now:
            schedule.pop()
        schedule.append((self.clock.now, share))

    def _update_peak_memory(self) -> None:
        used_bytes = sum(task.cost.memory_bytes for task in self.tasks.values())
        self.peak_memory_bytes = max(self.peak_memory_bytes, used_bytes)


def _is_positive(share: Share) -> bool:
    return any(share.values()) if isinstance(share, Mapping) else share > 0


def _check(shares: Mapping[str, Share], capacity: float) -> None:
    """Refuse shares outside [0, 1], and shares that exceed the capacity."""
    parts: dict[str, float] = {"all": 0.0}
    for name, share in shares.items():
        for engine, part in (share if isinstance(share, Mapping) else {"all": share}).items():
            if not 0 <= part <= 1 + SHARE_TOLERANCE:
                raise RunError(f"The share of '{name}' is {part} of a processor ({engine}); it must be in [0, 1].")
            parts[engine] = parts.get(engine, 0.0) + part
    whole = parts.pop("all")
    for engine, part in (parts or {"all": 0.0}).items():
        if whole + part > capacity + SHARE_TOLERANCE:
            raise RunError(f"The shares of a processor add up to {whole + part:g} of {capacity:g} ({engine}).")
