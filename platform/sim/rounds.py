"""One round: a learner's processing of samples and its result, independent of the clock.

The steps of a round are a generator: it yields each task and is sent the time at which the task ended. The simulator
runs them on a processor in virtual time; a server with real devices waits for the computation itself. Before a round
reads the result of a job it yields the job too, so that a driver in real time can run something else meanwhile.

There are two kinds of result: weights, which a learner trains on its samples, and labels, which the device warps by
itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Packed, PhaseCheck, Reply, Stored, TaskCost, Trained, TrialScores
from driftlab.platform.scheduling.base import TrainingOffer
from driftlab.platform.sim.experts import Recall
from driftlab.platform.sim.messages import LabelDelivery, PlanDelivery, UpdateDelivery, Upload
from driftlab.platform.sim.offers import ChosenConfig, Offer, TrainingChoice
from driftlab.platform.sim.session import Job
from driftlab.platform.sim.stages import stage_rows
from driftlab.platform.streaming.base import DownlinkPlan, check_plan
from driftlab.platform.world.cost import add_costs

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim

VERSION = 3  # raise it when rounds over several networks change their steps or costs: their cells are computed again
NO_LABEL = "no sample within the horizon has a label that counts"
NO_STEPS = Phase(iterations=0)
OTHER_DOMAIN = "a boundary of domains was detected meanwhile"
DECLINED = "the scheduler chose no training configuration"


@dataclass(frozen=True)
class Step:
    """A task of a round on the learner's processor."""

    purpose: str  # as in the energy account
    cost: TaskCost
    offer: TrainingOffer | None = None  # for the scheduler; None: only the cost


@dataclass(frozen=True, eq=False)
class Await:
    """A job whose result the round reads next."""

    job: Job


Steps = Generator["Step | Offer | Await", float, Any]


@dataclass(eq=False)
class Round(ABC):
    """One processing of an application's waiting uploads."""

    app: AppSim
    uploads: tuple[Upload, ...] = ()
    now_s: float = 0.0  # end of the last step

    @abstractmethod
    def steps(self) -> Steps:
        """Process the uploads; return the deliveries."""

    @property
    def frames(self) -> int:
        """Return the number of samples."""
        return sum(upload.sent.frames for upload in self.uploads)

    def call(self, verb: str, *args: Any) -> Job:
        """Start a verb of the learner's node."""
        return self.app.runner.session.call(self.app.node("learner"), verb, *args)

    def facts_of(self, job: Job) -> Steps:
        """Wait for a job and return its facts."""
        return (yield from self.reply_to(job)).facts

    def reply_to(self, job: Job) -> Steps:
        """Wait for a job and return its reply."""
        yield Await(job)
        return self.app.runner.session.result(job)

    def _label(self, upload: Upload) -> Job:
        return self.app.runner.session.call(self.app.teacher, "label", upload.truth)


class LabelRound(Round):
    """Label the samples, and send the labels back."""

    def steps(self) -> Steps:
        app, session = self.app, self.app.runner.session
        labelling = [self._label(upload) for upload in self.uploads]
        packed = [session.call(app.teacher, "pack", labels) for labels in labelling]
        yield Step("labelling", app.networks.labelling_cost(app.learner.site, self.frames))
        deliveries = []
        for upload, labels in zip(self.uploads, packed, strict=True):
            facts: Packed = yield from self.facts_of(labels)
            deliveries.append(LabelDelivery(app, upload, labels, facts.bytes))
        return deliveries


@dataclass(frozen=True)
class RoundGain:
    """The duration of an application's newest round, and its gain in accuracy."""

    ended_s: float
    interval_s: float  # since the one before, or since the start
    isolated_s: float
    after: float  # accuracy on the samples
    gain: float  # at least 0


@dataclass(eq=False)
class WeightRound(Round):
    """Store the samples, with labels where the adaptation uses them, train once, and send the update.

    It is a row of the updates table; one without uploads only sends weights.
    """

    began_s: float = math.inf
    label_start_s: float | None = None
    label_end_s: float | None = None
    train_start_s: float | None = None
    train_end_s: float | None = None
    state: Any = None  # of the streaming member, after this round
    stored: Stored | None = None
    trained: Trained | None = None
    plan: DownlinkPlan | None = None
    training_config: str | None = None  # the one of several that the scheduler chose
    stored_network: int | None = None  # number of the stored network that it continues
    costs: list[TaskCost] = field(default_factory=list)  # of every step
    idle: str = ""  # why nothing was trained

    @property
    def cost(self) -> TaskCost:
        return add_costs(self.costs)

    @cached_property
    def recall(self) -> Recall | None:
        """Return its stored networks; None where the scheduler stores none at this site.

        Networks cut for samples differ in channels, so none are stored.
        """
        runner, local = self.app.runner, self.app.learner.local
        stores = runner.scheduling.recall_drop is not None and (local or runner.scheduling.recalls_on_server)
        return Recall(self) if stores and not runner.scaling.cuts_per_domain else None

    @property
    def outdated(self) -> bool:
        """Return whether another domain was detected at its beginning or since."""
        return self.began_s <= self.app.learner.detected_s

    def steps(self) -> Steps:
        app, open_rounds = self.app, self.app.runner.open_rounds
        self.began_s = self.now_s
        open_rounds[app.name] = self
        plan = yield from self._label_and_store()
        training = yield from self._train(plan)
        del open_rounds[app.name]
        state = plan.state if self.trained is None else app.runner.streaming.learn(plan.state, self.trained)
        self.state = app.learner.server_state = state
        if training is None or self.trained is None or not self.trained.bytes:
            return [PlanDelivery(app, self)]
        return [UpdateDelivery(app, self, training)]

    def do(self, purpose: str, cost: TaskCost, learning: TrainingOffer | None = None) -> Steps:
        """Take the time of a step on the processor."""
        self.now_s = yield Step(purpose, cost, learning)
        self.costs.append(cost)

    def _label_and_store(self) -> Steps:
        """Label the arrived samples, if the adaptation uses labels, and store them in the learner's buffer."""
        app, learner, runner = self.app, self.app.learner, self.app.runner
        self.label_start_s = self.now_s
        learner.switch_network()
        uses_labels, storing = runner.adaptation.labels == "teacher", []
        limit = runner.scheduling.labels_per_round if learner.local and uses_labels else None
        stores = newest_of([upload.sent.frames for upload in self.uploads], limit)
        for upload, newest in zip(self.uploads, stores, strict=True):
            if not newest:
                continue
            labels = self._label(upload) if uses_labels else None
            more = (
                (learner.domain, newest) if limit is not None else () if learner.domain is None else (learner.domain,)
            )
            storing.append(self.call("store", upload.frames, labels, upload.stamp_s, *more))
        yield from self.do(
            "labelling", app.networks.labelling_cost(learner.site, sum(stores)) if uses_labels else TaskCost()
        )
        stored = []
        for job in storing:
            stored.append((yield from self.facts_of(job)))
        self.stored = merge_stored(stored)
        if uses_labels:
            self.label_end_s = self.now_s
        else:
            self.label_start_s = None
        self.plan = runner.streaming.plan_downlink(learner.server_state, app.facts, self.stored, self.now_s)
        check_plan(self.plan, self.now_s, learner.planner)
        return self.plan

    def _train(self, plan: DownlinkPlan) -> Steps:
        """Train as planned; where only the phase itself determines its passes, it is called before its time."""
        app, runner = self.app, self.app.runner
        if self.outdated or plan.phase is None or lacks_labels(self.stored, plan):
            self.idle = OTHER_DOMAIN if self.outdated else "stored" if plan.phase is None else NO_LABEL
            return None
        plan = replace(plan, oldest_s=max(plan.oldest_s, app.learner.domain_began_s or 0.0))
        plan, running = replace(plan, state=None), None
        frames: int = yield from self.facts_of(self.call("drop_samples_before", plan.oldest_s))
        offer = TrainingChoice(self, plan, frames) if app.learner.local else None
        if offer is not None:
            chosen: ChosenConfig | None = yield from offer.choose()
            if self.outdated:
                self.idle = OTHER_DOMAIN
                return None
            if chosen is None and self.stored_network is None:
                offer.estimates.write(None)
                self.idle = DECLINED
                return None
            plan = replace(plan, phase=NO_STEPS if chosen is None else chosen.phase)
            if chosen is not None:
                running = TrainingOffer(
                    "running",
                    config=chosen.config,
                    accuracy_before=chosen.accuracy_before,
                    accuracy_after=chosen.accuracy_after,
                )
        elif self.recall is not None:
            yield from self.recall.start()
        assert plan.phase is not None
        self.train_start_s = self.now_s
        before = (yield from self._score(plan)) if runner.measures_gain else None
        watched = (True,) if offer is not None and offer.estimates else ()
        training = self.call("train", plan, *watched)
        work = None if runner.scaling.cuts_per_domain else runner.adaptation.passes_of(plan.phase, frames)
        if work is None:
            counted: Trained = yield from self.facts_of(training)
            work = counted.passes
        cost = app.learner.site.training_cost(app.cost_of(plan.phase.variant), work)
        yield from self.do("training", cost, running and replace(running, left=cost))
        if self.outdated:  # the learner has dropped the trained weights
            self.idle = OTHER_DOMAIN
            return None
        reply: Reply = yield from self.reply_to(training)
        trained: Trained = reply.facts
        app.take_rows(reply.rows)
        if app.learner.local:
            network = app.cost_of(plan.phase.variant)
            app.take_rows({"stages": [stage_rows(network, cost, trained, app.pixels, self.train_start_s)]})
        self.trained, self.train_end_s, self.idle = trained, self.now_s, trained.skipped
        app.learner.trained = True
        if self.recall is not None and trained.iterations:
            self.recall.store()
        if watched and offer is not None:
            later = offer.estimates.later_frames(self.uploads[-1].sampling.times_s)
            check: PhaseCheck = yield from self.facts_of(self.call("check", later))
            offer.estimates.write(offer.trained_config, check)
        if before is not None:
            yield from self._measure_gain(plan, before)
        return training

    def _score(self, plan: DownlinkPlan) -> Steps:
        """Score the learner's network on its labelled samples; None without any."""
        tried: TrialScores = yield from self.facts_of(self.call("run_trials", plan, (), False))
        yield from self.do("training", self.app.learner.site.training_cost(self.app.cost_of(), tried.scoring_passes))
        return tried.before

    def _measure_gain(self, plan: DownlinkPlan, before: float) -> Steps:
        """Record the gain of the round and its duration."""
        learner = self.app.learner
        after: float | None = yield from self._score(plan)
        last_s = 0.0 if learner.last_gain is None else learner.last_gain.ended_s
        isolated_s = sum(cost.isolated_s for cost in self.costs)
        if after is not None and self.now_s > last_s:
            gain = max(0.0, after - before)
            learner.last_gain = RoundGain(self.now_s, self.now_s - last_s, isolated_s, after, gain)


def newest_of(frames: Sequence[int], limit: int | None) -> list[int]:
    """Return how many of each upload's frames are among the newest ones up to a limit."""
    left, found = math.inf if limit is None else limit, list[int]()
    for count in reversed(frames):
        found.append(int(min(count, left)))
        left -= found[-1]
    return found[::-1]


def merge_stored(stored: Sequence[Stored]) -> Stored:
    """Merge the facts of consecutive uploads."""
    phis = tuple(phi for one in stored for phi in one.phis)
    frames, unlisted = sum(one.frames for one in stored), sum(one.unlisted_labels for one in stored)
    return replace(stored[-1], frames=frames, unlisted_labels=unlisted, phis=phis)


def lacks_labels(stored: Stored | None, plan: DownlinkPlan) -> bool:
    """Return whether no sample within the plan's horizon has a usable label."""
    return stored is None or stored.usable_s is None or stored.usable_s < plan.oldest_s
