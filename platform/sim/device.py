"""A device and its scheduling: its running applications, their networks, and their allocations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, astuple, dataclass, field, replace
from typing import Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import Need, Share, Variant
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scheduling.base import Allocation, Demand, Grant, Reason, Window
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.interleaving import interleaved
from driftlab.platform.sim.load_sensor import LoadSensor
from driftlab.platform.sim.runtime import CellRuntime, Process
from driftlab.platform.sim.setting import Device
from driftlab.platform.world.apps import AppGoals
from driftlab.platform.world.cost import memory_bytes
from driftlab.platform.world.link import Radio, RadioMeter
from driftlab.platform.world.machine import Machine, accelerator_share
from driftlab.platform.world.measured import paged_bytes


@dataclass(frozen=True)
class AppShare:
    """The allocation of one application, and the time for which it was planned."""

    app: AppSim
    demand: Demand
    grant: Grant
    start_s: float
    window_s: float
    variant: int | None  # None: it waits, or there is no choice
    answer: Share  # of the machine's compute, in force; 0: it waits
    learn: Share  # the same for training on the device
    moved_bytes: tuple[int, int]  # paged in and out to run it after the previous one
    host_seconds: float  # processor time of the decision on this host

    @property
    def network(self) -> Variant | None:
        """Return the network that it runs, where one is chosen."""
        known = self.demand.variants
        if self.variant is not None:
            return known[self.variant]
        return known[0] if accelerator_share(self.grant.answer) and len(known) == 1 else None


@dataclass
class DeviceSim:
    """One device of the cell, its applications, its machine, and the networks in its memory."""

    parts: CellRuntime
    spec: Device
    apps: Mapping[str, AppSim]  # by name
    variants: Mapping[str, Sequence[Variant]]  # the networks that each application could run here, from the smallest on
    draws: InitVar[Radio]
    beside: bool  # whether applications learn on the stream, on a share beside inference
    machine: Machine = field(init=False)
    radio: RadioMeter = field(init=False)
    sensing: LoadSensor = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)  # the network of each application's last chosen way
    held: dict[str, int | None] = field(default_factory=dict)  # the network of each application in memory
    state: Any = None  # returned by the scheduler
    again: simpy.Event | None = None  # the scheduler is called again then, unless it is called before
    asked_s: float = 0.0  # time of the last check for arrivals and departures
    until_s: float = 0.0  # start of the next window
    present: tuple[AppGoals, ...] = ()  # the applications that the scheduler knows
    preparing: set[str] = field(default_factory=set)  # applications that label or try ways out before an offer
    offering: dict[str, simpy.Event] = field(default_factory=dict)  # by application: its offer waits for this
    grants: dict[str, Grant] = field(default_factory=dict)
    left_open: dict[str, Grant] = field(default_factory=dict)  # by application: the network is scaling's to choose
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes paged in and out at this instant
    chose_s: float = 0.0  # processor time of this host for scaling's choices at this instant
    allocations: list[AppShare] = field(default_factory=list)  # in force
    closed: list[tuple[AppShare, float]] = field(default_factory=list)  # ended ones, with their real lengths
    follow: Callable[[DeviceSim], None] = lambda device: None  # called whenever allocations change

    def __post_init__(self, draws: Radio) -> None:
        self.machine = Machine(self.parts.clock, self.shares)
        self.radio = RadioMeter(draws)
        self.sensing = LoadSensor(self.spec.load, self.spec.hardware.memory_bytes)

    def begin_window(self, start_s: float, window_s: float) -> None:
        """Let the scheduler allocate the machine to the applications at the start of a window."""
        self.until_s = start_s + window_s
        self._meet(start_s)
        self.machine.share_out("window")

    def visit(self, reason: Reason) -> None:
        """Handle arrivals and departures between two windows, where the scheduler asks for that."""
        self._meet(self.machine.clock.now)
        self.machine.share_out(reason)

    def sense(self) -> bool:
        """Take the reading of the load that is due, if one is; a device whose battery is empty stops for good."""
        if self.spec.load is None or self.sensing.empty:
            return False
        now_s, spent_j = self.machine.clock.now, sum(app.account.energy_j for app in self.apps.values())
        if not self.sensing.sense(now_s, spent_j):
            return False
        if self.sensing.empty:
            for app in self.apps.values():
                app.off_s = min(app.off_s, now_s)
        return True

    def respond(self) -> None:
        """Let the scheduler, or else scaling, respond to a new reading between two windows."""
        if self.sensing.empty:
            if self.present:
                self.visit("go")
        elif "load" in self.parts.scheduling.asks.reasons or self._choose_again():
            self.machine.share_out("load")

    @property
    def prepares(self) -> bool:
        """Tell whether a present application will still offer ways, for which held offers wait."""
        return any(app.name in self.preparing for app in self.present)

    def offer(self, app: AppSim) -> Process:
        """Ask the scheduler about an offer: at once, or together with those that are being prepared."""
        self.preparing.discard(app.app)
        if not self.parts.scheduling.asks.together:
            self.machine.share_out("offer")
            return
        decided = self.offering[app.app] = self.machine.clock.event()
        self.machine.share_out("end" if self.prepares else "offer")
        yield decided

    def _release(self) -> None:
        """Let the applications go on whose offers the scheduler has just decided."""
        for name in [app.name for app in self.present if app.name in self.offering]:
            self.offering.pop(name).succeed()

    def shares(self, machine: Machine, reason: str) -> Mapping[str, Share]:
        """Return shares for the machine: call the scheduling member where it wants that, and split the allocations."""
        now_s = machine.clock.now
        took_s = 0.0
        wanted = reason == "window" or reason in self.parts.scheduling.asks.reasons
        if wanted and now_s < self.until_s:  # else the next window is about to begin, or the session is over
            took_s = self._ask(now_s, reason)
        took_s, self.chose_s = took_s + self.chose_s, 0.0
        self.close(now_s)
        known = [demand for demand in map(self._demand, self.present) if demand.app in self.grants]
        self.allocations = [self._allocation(one, now_s, took_s) for one in known]
        self.moved = {}
        self.follow(self)
        return dict(self._works())

    def close(self, now_s: float) -> None:
        """Close the current allocations, whose lengths are known now."""
        for one in self.allocations:
            planned = one.start_s + one.window_s == now_s
            length_s = one.window_s if planned else now_s - one.start_s
            if length_s > 0 and one.window_s > 0:  # tasks after the end of the session have shares, but no rows
                self.closed.append((one, length_s))
        self.allocations = []

    def _meet(self, now_s: float) -> None:
        """Update the running applications, and drop the networks of those that stopped."""
        self.present = () if self.sensing.empty else self.spec.present(now_s)
        stopped = self.spec.stopped(self.asked_s, now_s)  # also those that came back meanwhile
        self.held = {app.name: None if app.name in stopped else self.held.get(app.name) for app in self.present}
        self.asked_s = now_s
        here = {f"{app.name}/answer": memory_bytes(self.apps[app.name].context.student.cost) for app in self.present}
        here |= {f"{app.name}/beside": 0 for app in self.present if self.beside}
        for name in [name for name in self.machine.works if not name.endswith("/learn") and name not in here]:
            self.machine.leave(self.machine.works[name], None)
        for name, held_bytes in here.items():
            if name not in self.machine.works:
                self.machine.enter(name, None, Need({}, held_bytes))

    def _ask(self, now_s: float, reason: str) -> float:
        """Call the scheduler, load the chosen networks, and return the host time of the decision."""
        demands = tuple(map(self._demand, self.present))
        window = Window(
            now_s,
            self.until_s - now_s,
            self.sensing.free_bytes,
            demands,
            self.state,
            reason,  # type: ignore[arg-type]
            self.sensing.readings,
        )
        started_s = time.thread_time()  # of this thread only: other cells run beside it
        allocation = self.parts.scheduling.allocate(window)
        took_s = time.thread_time() - started_s
        if len(allocation.grants) != len(demands):
            raise RunError(
                f"{self.parts.cell.system.scheduling} gave {len(allocation.grants)} grants to {len(demands)} "
                f"applications (device={self.spec.name}, time={now_s:g} s)"
            )
        self.state, self.grants = allocation.state, self._settled(demands, allocation)
        self._plan_again(allocation.again_s, now_s)
        for demand in demands:
            grant = self.grants[demand.app]
            self._hold(demand, grant)
            self.apps[demand.app].way, self.apps[demand.app].tries = grant.way, grant.tries
        if not self.prepares:
            self._release()
        return took_s

    def _plan_again(self, after_s: float | None, now_s: float) -> None:
        """Call the scheduler again after a time that it named, unless something else calls it before."""
        self.again = None
        if after_s is None or now_s + after_s >= self.until_s:
            return  # the next window begins before that
        if after_s <= 0:
            raise RunError(
                f"{self.parts.cell.system.scheduling} asked to be called again after {after_s:g} s, which would never "
                f"end (device={self.spec.name}, time={now_s:g} s)"
            )
        self.again = due = self.machine.clock.timeout(after_s)
        due.callbacks.append(lambda _: self.machine.share_out("again") if self.again is due else None)

    def _hold(self, demand: Demand, grant: Grant) -> None:
        """Hold the network of a grant in memory from now on."""
        keeps = grant.variant is None and accelerator_share(grant.answer) > 0
        before = self.held[demand.app]
        after = before if keeps else grant.variant  # a waiting application frees its memory
        self.moved[demand.app] = paged_bytes(demand.variants, before, after, nested=self.parts.scaling.nested)
        self.held[demand.app] = after

    def _settled(self, demands: Sequence[Demand], allocation: Allocation) -> dict[str, Grant]:
        """Let scaling choose the networks that the scheduler leaves open."""
        settled, self.left_open = {}, {}
        for demand, given in zip(demands, allocation.grants, strict=True):
            grant, share = self._sized(demand, given), accelerator_share(given.answer)
            if grant.variant is None and share and len(demand.variants) > 1:
                self.left_open[demand.app] = grant
                grant = self._chosen(demand, grant)
            settled[demand.app] = grant
        return settled

    def _chosen(self, demand: Demand, grant: Grant) -> Grant:
        """Let scaling choose a network within the application's goals and its share of the machine."""
        app, share, slowest_s = self.apps[demand.app], accelerator_share(grant.answer), 1 / demand.fps
        goal_s = slowest_s if demand.latency_goal_s is None else min(slowest_s, demand.latency_goal_s)
        energy_j, accuracy, now_s = demand.energy_goal_j, demand.accuracy_goal, self.machine.clock.now
        budget = Budget(latency_s=goal_s, energy_j=energy_j, accuracy=accuracy, share=share, now_s=now_s)
        if self.sensing.taken:
            free_bytes = int(self.sensing.free_bytes * share)
            coming = self.sensing.foresee(self.machine.clock.now) if self.parts.scaling.foresees else None
            budget = replace(budget, memory_bytes=free_bytes, load=self.sensing.readings, coming=coming)
        started_s = time.thread_time()
        variant, app.chosen = self.parts.scaling.choose(app.as_estimated(demand.variants), budget, app.chosen)
        self.chose_s += time.thread_time() - started_s
        return replace(grant, variant=variant)

    def _choose_again(self) -> bool:
        """Let scaling choose anew where the scheduler leaves it open; tell whether a network changes."""
        changed, self.chose_s = False, 0.0
        for app in self.present:
            given = self.left_open.get(app.name)
            if given is None:
                continue
            demand = self._demand(app)
            grant = self._chosen(demand, given)
            if grant.variant != self.grants[app.name].variant:
                self.grants[app.name], changed = grant, True
                self._hold(demand, grant)
        return changed

    def _sized(self, demand: Demand, grant: Grant) -> Grant:
        """Let an application run the network that the chosen way trains, and keep it afterwards."""
        learning = demand.learning
        if grant.variant is not None:
            return grant
        if learning is not None and learning.state == "offered" and grant.way is not None:
            chosen = learning.ways[grant.way].variant if 0 <= grant.way < len(learning.ways) else None
            if chosen is not None:
                self.sizes[demand.app] = chosen
        return replace(grant, variant=self.sizes.get(demand.app)) if accelerator_share(grant.answer) else grant

    def _demand(self, app: AppGoals) -> Demand:
        run = self.apps[app.name]
        learning, work = run.learning, self.machine.works.get(f"{app.name}/learn")
        if app.name in self.offering and self.prepares:
            learning = None  # it has nothing to compute until the other offers are there
        if learning is not None and learning.state == "running" and work is not None:
            learning = replace(learning, left=self.machine.left(work))
        return Demand(
            app.name,
            app.fps,
            tuple(self.variants[app.name]),
            self.held[app.name],
            app.accuracy_goal,
            app.latency_goal_s,
            app.priority,
            self.parts.scaling.nested,
            learning,
            app.energy_goal_j,
            *((None, None, None) if run.observed is None else astuple(run.observed)),
        )

    def _allocation(self, demand: Demand, now_s: float, took_s: float) -> AppShare:
        grant, length_s, moved_bytes = self.grants[demand.app], self.until_s - now_s, self.moved.get(demand.app, (0, 0))
        answer, learn = self._split(demand.app, grant)
        app, variant = self.apps[demand.app], grant.variant
        return AppShare(app, demand, grant, now_s, length_s, variant, answer, learn, moved_bytes, took_s)

    def _split(self, app: str, grant: Grant) -> tuple[Share, Share]:
        """Split an application's share between inference and training on the device."""
        in_phase = f"{app}/learn" in self.machine.works and app not in self.offering
        if not in_phase and not self.beside:
            return grant.answer, 0.0
        if in_phase and self.parts.streaming.learns == "instead":
            return 0.0, accelerator_share(grant.answer) + accelerator_share(grant.learn or 0.0)
        if grant.learn is None:
            return accelerator_share(grant.answer) / 2, accelerator_share(grant.answer) / 2
        return grant.answer, grant.learn

    def _works(self) -> Iterator[tuple[str, Share]]:
        groups = interleaved(self.allocations)
        for one in self.allocations:
            yield f"{one.demand.app}/answer", one.answer
            yield f"{one.demand.app}/{'beside' if self.beside else 'learn'}", groups.get(one.demand.app, one.learn)
