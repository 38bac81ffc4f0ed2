"""One device while its cell runs: its applications, its processor and its scheduler's decisions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import Share, TaskCost, TimedInference, Variant
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.choosers import select
from driftlab.platform.scheduling.base import Allocation, Demand, Grant, Reason, SchedulerInput, check_allocation
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.experts import Experts, ExpertStore
from driftlab.platform.sim.interleaving import interleaved
from driftlab.platform.sim.load_sensor import LoadSensor
from driftlab.platform.sim.offers import OfferQueue
from driftlab.platform.sim.setting import Device
from driftlab.platform.sim.stream_runner import StreamRunner
from driftlab.platform.world.apps import AppGoals
from driftlab.platform.world.clock import Process
from driftlab.platform.world.cost import memory_bytes
from driftlab.platform.world.link import LINKS, RadioMeter
from driftlab.platform.world.load import Load, LoadStep, speed_of_network
from driftlab.platform.world.measured import paged_bytes
from driftlab.platform.world.processor import Processor, accelerator_share

if TYPE_CHECKING:
    from driftlab.platform.sim.runner import Runner


Prediction = tuple[str, TimedInference, float]  # application, its measured latency, and the predicted one


@dataclass(frozen=True)
class AppShare:
    """The share of one application in the processor, and the time for which it was planned."""

    app: AppSim
    demand: Demand
    grant: Grant
    start_s: float
    window_s: float
    variant: int | None  # None: it waits, or there is no choice
    inference_share: Share  # of the processor's compute, in force; 0: it waits
    training_share: Share  # the same for training on the device
    moved_bytes: tuple[int, int]  # paged in and out to run it after the previous one
    loading_s: tuple[float, float]  # start and end of the newest load of its network; the application waits meanwhile
    host_seconds: float  # processor time of the decision on this host

    @property
    def network(self) -> Variant | None:
        """Return the network that it runs, where one is chosen."""
        variants = self.demand.variants
        if self.variant is not None:
            return variants[self.variant]
        return variants[0] if accelerator_share(self.grant.inference_share) and len(variants) == 1 else None


class DeviceSim:
    """One device of the cell: its applications, its processor, and the networks in its memory."""

    def __init__(self, runner: Runner, spec: Device) -> None:
        self.runner, self.spec = runner, spec
        profile = LINKS["zero-delay"] if runner.free else spec.link
        up, down = (
            open_link(runner.clock, rng_for(runner.cell.seed, "link", spec.name, direction))
            for direction, open_link in (("up", profile.up), ("down", profile.down))
        )
        self.radio = RadioMeter(profile.radio)
        self.apps = {app.name: AppSim(self, app, up, down, profile.damage_prob) for app in spec.apps}
        # The networks that each application could run here, from the smallest on
        self.variants = {name: app.networks.variants(spec.hardware) for name, app in self.apps.items()}
        self.trains_concurrently = runner.learns_on_stream and runner.adaptation.training_runs == "concurrent"
        self.processor = Processor(runner.clock, self.shares)
        self.coder = simpy.Resource(runner.clock)  # codes frames and labels, and patches weights: one at a time
        self.sensor = LoadSensor(spec.load, spec.hardware.memory_bytes)
        self.predictions: list[Prediction] = []  # at the newest reading
        self.offers = OfferQueue(self)
        self.experts: Experts = defaultdict(ExpertStore)  # of the learners on it
        self.stream = StreamRunner(self)
        self.on_shares: Callable[[], None] = self.stream.apply_shares  # called whenever shares change
        self.present: tuple[AppGoals, ...] = ()  # the applications that the scheduler serves
        self.present_s = 0.0  # time of the last check for arrivals and departures
        self.until_s = 0.0  # start of the next window
        self.state: Any = None  # returned by the scheduler
        self.next_call: simpy.Event | None = None  # the scheduler is called again then, unless it is called before
        self.grants: dict[str, Grant] = {}
        self.open_grants: dict[str, Grant] = {}  # by application: the network is scaling's to choose
        self.sizes: dict[str, int] = {}  # the network of each application's last configuration
        self.in_memory: dict[str, int | None] = {}  # the network of each application
        self.paged: dict[str, tuple[int, int]] = {}  # bytes paged in and out at this instant
        self.loading_s: dict[str, tuple[float, float]] = {}  # start and end of each application's newest load
        self.storage_free_s = 0.0  # end of the newest load of all: storage reads one network at a time
        self.chose_s = 0.0  # processor time of this host for scaling's choices at this instant
        self.current: list[AppShare] = []  # in force
        self.closed: list[tuple[AppShare, float]] = []  # ended ones, with their real lengths

    def run_auxiliary(self, cost: TaskCost) -> Process:
        """Take the time of coding or patching, in order of arrival; under load it is slower."""
        if self.runner.free or not cost.isolated_s:
            return
        with self.coder.request() as turn:
            yield turn
            yield self.runner.clock.timeout(cost.isolated_s / self.processor.speed)

    # Occasions for new shares -----------------------------------------------------------------------------------------

    def begin_window(self, start_s: float, window_s: float) -> None:
        """Share out the processor at the start of a window."""
        self.until_s = start_s + window_s
        self._update_presence(start_s)
        self.processor.share_out("window")

    def on_presence_change(self, reason: Reason) -> None:
        """Share out the processor after an arrival or a departure between two windows."""
        self._update_presence(self.processor.clock.now)
        self.processor.share_out(reason)

    def sense(self) -> bool:
        """Take the load reading that is due, if any; a device whose battery is empty never resumes."""
        if self.spec.load is None or self.sensor.empty:
            return False
        now_s, spent_j = self.processor.clock.now, sum(app.account.energy_j for app in self.apps.values())
        if not self.sensor.sense(now_s, spent_j):
            return False
        self.predictions = list(self._time_inferences(self.spec.load))
        if self.sensor.empty:
            for app in self.apps.values():
                app.off_s = min(app.off_s, now_s)
        return True

    def _time_inferences(self, load: Load) -> Iterator[Prediction]:
        """Measure the networks that ran since the last reading, each with its prediction from this reading."""
        if load.steps[0].contention != "operators":
            return
        reading, span_s = self.sensor.taken[-1], 1 / load.sense_hz
        for app in self.present:
            grant, choice = self.grants.get(app.name), self.apps[app.name].choice
            share = accelerator_share(grant.inference_share) if grant else 0.0
            if grant is None or grant.variant is None or not share or not reading.time_s:
                continue
            variants = self.variants[app.name]
            network = variants[grant.variant]
            idle_s = network.latency_s / share
            speed = load.network_speed(max(0.0, reading.time_s - span_s), reading.time_s, network.sensitivity)
            timed = TimedInference(network.name, idle_s, idle_s / speed, reading)
            predicted_s = idle_s * self.runner.scaling.predict_slowdown(network, reading, tuple(choice.timed))
            choice.timed.append(timed)
            yield app.name, timed, predicted_s

    def on_reading(self) -> None:
        """Share out the processor after a load reading to which the scheduler or scaling responds."""
        if self.sensor.empty:
            if self.present:
                self.on_presence_change("departure")
        elif "load" in self.runner.scheduling.triggers or self._choose_again():
            self.processor.share_out("load")

    def _update_presence(self, now_s: float) -> None:
        """Update the running applications, and drop the networks of those that stopped."""
        self.present = () if self.sensor.empty else self.spec.present(now_s)
        stopped = self.spec.stopped(self.present_s, now_s)  # also those that came back meanwhile
        self.in_memory = {
            app.name: None if app.name in stopped else self.in_memory.get(app.name) for app in self.present
        }
        self.present_s = now_s
        tasks = {
            f"{app.name}/inference": memory_bytes(self.apps[app.name].networks.student.cost) for app in self.present
        }
        tasks |= {f"{app.name}/concurrent-training": 0 for app in self.present if self.trains_concurrently}
        for name in [name for name in self.processor.tasks if not name.endswith("/training") and name not in tasks]:
            self.processor.leave(self.processor.tasks[name], None)
        for name, task_bytes in tasks.items():
            if name not in self.processor.tasks:
                self.processor.enter(name, None, TaskCost({}, task_bytes))

    # Shares -----------------------------------------------------------------------------------------------------------

    def shares(self, processor: Processor, reason: str) -> Mapping[str, Share]:
        """Return the processor's shares; call the scheduling member first where it requires that."""
        now_s = processor.clock.now
        took_s = 0.0
        required = reason == "window" or reason in self.runner.scheduling.triggers
        if required and now_s < self.until_s:  # else the next window is about to begin, or the session is over
            took_s = self._call_scheduler(now_s, reason)
        took_s, self.chose_s = took_s + self.chose_s, 0.0
        self.close(now_s)
        demands = [demand for demand in map(self._demand, self.present) if demand.app in self.grants]
        self.current = [self._share(demand, now_s, took_s) for demand in demands]
        self.paged = {}
        self.on_shares()
        return dict(self._task_shares())

    def close(self, now_s: float) -> None:
        """Close the current shares, whose lengths are known now."""
        for one in self.current:
            planned = one.start_s + one.window_s == now_s
            length_s = one.window_s if planned else now_s - one.start_s
            if length_s > 0 and one.window_s > 0:  # tasks after the end of the session have shares, but no rows
                self.closed.append((one, length_s))
        self.current = []

    def _share(self, demand: Demand, now_s: float, took_s: float) -> AppShare:
        grant, length_s, moved_bytes = self.grants[demand.app], self.until_s - now_s, self.paged.get(demand.app, (0, 0))
        inference, training = self._split_share(demand.app, grant)
        app, variant = self.apps[demand.app], grant.variant
        loading_s = self.loading_s.get(demand.app, (0.0, 0.0))
        return AppShare(
            app, demand, grant, now_s, length_s, variant, inference, training, moved_bytes, loading_s, took_s
        )

    def _split_share(self, app: str, grant: Grant) -> tuple[Share, Share]:
        """Split an application's share between inference and training on the device."""
        in_phase = f"{app}/training" in self.processor.tasks and app not in self.offers.waiting
        if not in_phase and not self.trains_concurrently:
            return grant.inference_share, 0.0
        if in_phase and self.runner.streaming.training_runs == "exclusive":
            return 0.0, accelerator_share(grant.inference_share) + accelerator_share(grant.training_share or 0.0)
        if grant.training_share is None:
            return accelerator_share(grant.inference_share) / 2, accelerator_share(grant.inference_share) / 2
        return grant.inference_share, grant.training_share

    def _task_shares(self) -> Iterator[tuple[str, Share]]:
        groups = interleaved(self.current)
        for one in self.current:
            yield f"{one.demand.app}/inference", one.inference_share
            yield (
                f"{one.demand.app}/{'concurrent-training' if self.trains_concurrently else 'training'}",
                groups.get(one.demand.app, one.training_share),
            )

    # The scheduler ----------------------------------------------------------------------------------------------------

    def _call_scheduler(self, now_s: float, reason: str) -> float:
        """Call the scheduler, load the chosen networks, and return the host time of the decision."""
        demands = tuple(map(self._demand, self.present))
        window = SchedulerInput(
            now_s,
            self.until_s - now_s,
            self.sensor.free_bytes,
            demands,
            self.state,
            reason,  # type: ignore[arg-type]
            self.sensor.readings,
            self.spec.duration_s - now_s,
        )
        started_s = time.thread_time()  # of this thread only: other cells run in parallel
        allocation = self.runner.scheduling.allocate(window)
        took_s = time.thread_time() - started_s
        check_allocation(
            allocation, demands, f"{self.runner.cell.system.scheduling} (device={self.spec.name}, time={now_s:g} s)"
        )
        self.state, self.grants = allocation.state, self._choose_networks(demands, allocation)
        self._schedule_next_call(allocation.again_s, now_s)
        for demand in demands:
            grant, learner = self.grants[demand.app], self.apps[demand.app].learner
            self._keep_in_memory(demand, grant)
            learner.config, learner.trials = grant.config, grant.trials
        self.offers.release()
        return took_s

    def _demand(self, goals: AppGoals) -> Demand:
        app, work = self.apps[goals.name], self.processor.tasks.get(f"{goals.name}/training")
        learning = app.learner.offer
        if goals.name in self.offers.waiting and self.offers.incomplete:
            learning = None  # it has nothing to compute until the other offers are there
        if learning is not None and learning.state == "running" and work is not None:
            learning = replace(learning, left=self.processor.remaining_cost(work))
        accuracy, by, since_s = (None, None, None) if app.observed is None else astuple(app.observed)
        return Demand(
            goals.name,
            goals.fps,
            tuple(self.variants[goals.name]),
            self.in_memory[goals.name],
            goals.accuracy_goal,
            goals.latency_goal_s,
            goals.priority,
            self.runner.scaling.nested,
            learning,
            goals.energy_goal_j,
            accuracy,
            by,
            since_s,
            app.learner.domain_began_s,
            app.video,
        )

    def _schedule_next_call(self, after_s: float | None, now_s: float) -> None:
        """Call the scheduler again after a time that it named, unless something else calls it before."""
        self.next_call = None
        if after_s is None or now_s + after_s >= self.until_s:
            return  # the next window begins before that
        self.next_call = due = self.processor.clock.timeout(after_s)
        due.callbacks.append(lambda _: self.processor.share_out("timer") if self.next_call is due else None)

    def _keep_in_memory(self, demand: Demand, grant: Grant) -> None:
        """Keep the network of a grant in memory from now on."""
        keeps = grant.variant is None and accelerator_share(grant.inference_share) > 0
        before = self.in_memory[demand.app]
        after = before if keeps else grant.variant  # a waiting application frees its memory
        self.paged[demand.app] = paged_bytes(demand.variants, before, after, nested=self.runner.scaling.nested)
        self.in_memory[demand.app] = after
        self._load(demand.app, self.paged[demand.app][0])

    def _load(self, app: str, count: int) -> None:
        """Read a network from storage while its application waits; the first ones are in memory."""
        now_s, seconds = self.processor.clock.now, self.spec.hardware.page_in_s(count)
        if now_s and seconds:
            self.storage_free_s = max(now_s, self.storage_free_s) + seconds
            self.loading_s[app] = now_s, self.storage_free_s
            self.processor.pause(f"{app}/inference", self.storage_free_s)

    def follow_load(self, step: LoadStep) -> None:
        """Set the speed of the processor and of networks by the load."""
        self.processor.set_speed(step.speed)
        self.follow_networks(step)

    def follow_networks(self, step: LoadStep) -> None:
        """Set the speed of each network relative to that of the processor."""
        for one in self.current:
            if one.network is not None and step.contention == "operators":
                factor = speed_of_network(step, one.network.sensitivity) / step.speed if step.speed else 1.0
                self.processor.set_factor(f"{one.demand.app}/inference", factor)

    # Networks ---------------------------------------------------------------------------------------------------------

    def _choose_networks(self, demands: Sequence[Demand], allocation: Allocation) -> dict[str, Grant]:
        """Complete the grants with the networks that the scheduler leaves open to scaling."""
        grants, self.open_grants = {}, {}
        for demand, granted in zip(demands, allocation.grants, strict=True):
            grant, share = self._apply_size(demand, granted), accelerator_share(granted.inference_share)
            if grant.variant is None and share and len(demand.variants) > 1:
                self.open_grants[demand.app] = grant
                grant = self._choose_network(demand, grant)
            grants[demand.app] = grant
        return grants

    def _choose_network(self, demand: Demand, grant: Grant) -> Grant:
        """Choose a network by scaling, within the application's goals and its share of the processor."""
        choice, share, slowest_s = (
            self.apps[demand.app].choice,
            accelerator_share(grant.inference_share),
            1 / demand.fps,
        )
        goal_s = slowest_s if demand.latency_goal_s is None else min(slowest_s, demand.latency_goal_s)
        energy_j, accuracy, now_s = demand.energy_goal_j, demand.accuracy_goal, self.processor.clock.now
        budget = Budget(latency_s=goal_s, energy_j=energy_j, accuracy=accuracy, share=share, now_s=now_s)
        if self.sensor.taken:
            free_bytes = int(self.sensor.free_bytes * share)
            bound = self.runner.cell.system.uses_future and self.runner.scaling.uses_true_load
            coming = self.sensor.foresee(now_s) if bound else None
            timed = tuple(choice.timed)
            budget = replace(budget, memory_bytes=free_bytes, load=self.sensor.readings, timed=timed, coming=coming)
        started_s = time.thread_time()
        variants = choice.with_estimates(demand.variants)
        variant, choice.state = select(self.runner.scaling, variants, budget, choice.state)
        self.chose_s += time.thread_time() - started_s
        if variant not in range(len(variants)):
            raise RunError(
                f"{self.runner.cell.system.scaling} (device={self.spec.name}, time={now_s:g} s) chose network "
                f"{variant} for {demand.app}, which has networks 0 to {len(variants) - 1}"
            )
        return replace(grant, variant=variant)

    def _choose_again(self) -> bool:
        """Repeat the choices that the scheduler leaves to scaling; return whether a network changes."""
        changed, self.chose_s = False, 0.0
        for app in self.present:
            open_grant = self.open_grants.get(app.name)
            if open_grant is None:
                continue
            demand = self._demand(app)
            grant = self._choose_network(demand, open_grant)
            if grant.variant != self.grants[app.name].variant:
                self.grants[app.name], changed = grant, True
                self._keep_in_memory(demand, grant)
        return changed

    def _apply_size(self, demand: Demand, grant: Grant) -> Grant:
        """Run the network that the chosen configuration trains, and keep it afterwards."""
        learning = demand.learning
        if grant.variant is not None:
            return grant
        if learning is not None and learning.state == "offered" and grant.config is not None:
            chosen = learning.configs[grant.config].variant if 0 <= grant.config < len(learning.configs) else None
            if chosen is not None:
                self.sizes[demand.app] = chosen
        return replace(grant, variant=self.sizes.get(demand.app)) if accelerator_share(grant.inference_share) else grant
