"""Training rounds: a learner's processing of samples and its result, independent of the clock.

A round is a generator: it yields steps that take time and is sent the time at which each was done. The loop runs them
on a machine in virtual time; a server with real devices waits for the work itself. Before a round asks for the result
of a job it yields that too, so that a driver in real time can do something else until the job is done.

There are two kinds of result: weights, which a learner trains on its samples, and labels, which the device warps by
itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driftlab.platform.adaptation.base import Adaptation, Phase
from driftlab.platform.core.records import Estimated, Need, Packed, Passes, Recalled, Stored, Trained, Tried
from driftlab.platform.scheduling.base import Learning, Scheduling, Way
from driftlab.platform.sim.app import AppSim, RoundGain, SeenAccuracy
from driftlab.platform.sim.context import Site
from driftlab.platform.sim.deliveries import (
    LabelDelivery,
    PlanDelivery,
    Round,
    UpdateDelivery,
)
from driftlab.platform.sim.messages import Upload
from driftlab.platform.sim.session import Job, Session
from driftlab.platform.streaming.base import DownlinkPlan, Streaming
from driftlab.platform.world.cost import add_needs, need_of

if TYPE_CHECKING:
    from driftlab.platform.sim.session import NodeId

VERSION = 2  # raise it when rounds over several networks do or price something else: their cells are made anew
NO_LABEL = "no sample within the horizon has a label that counts"
NO_STEPS = Phase(iterations=0)
DECLINED = "the scheduler gave it no way to learn"
NO_MEMORY = "learning needs more memory than the device has"


@dataclass(frozen=True)
class Step:
    """Something that takes time on the learner's machine."""

    purpose: str  # as in the energy account
    need: Need
    learning: Learning | None = None  # for the scheduler; None: only the need


@dataclass(frozen=True)
class Offer:
    """Ways to learn, for a scheduler to choose from; the round is sent the time, and reads `app.way`."""

    learning: Learning


@dataclass(frozen=True, eq=False)
class Await:
    """A job whose result the round reads next."""

    job: Job


Steps = Generator["Step | Offer | Await", float, Any]


class Rounds(ABC):
    """The processing of an application's waiting uploads."""

    drafts = False  # whether each phase begins by cutting the network anew, which is part of its work
    weighs = False  # whether rounds measure what they gain, for the scheduler of the server
    looks = False  # whether the learner scores its network on labels, for the scheduler

    def __init__(self, session: Session, streaming: Streaming, adaptation: Adaptation, scheduling: Scheduling) -> None:
        self.session, self.streaming, self.adaptation, self.scheduling = session, streaming, adaptation, scheduling
        self.open: dict[str, Round] = {}  # by application: unfinished ones

    @abstractmethod
    def receiver(self, app: AppSim) -> NodeId:
        """Return the node that decodes samples from the link."""

    @abstractmethod
    def round(self, app: AppSim, uploads: Sequence[Upload], site: Site, now_s: float) -> Steps:
        """Process the uploads; return the deliveries."""

    def _label(self, app: AppSim, upload: Upload) -> Job:
        return self.session.call(app.teacher, "label", upload.truth)

    def _facts(self, job: Job) -> Steps:
        """Wait for a job and return its facts."""
        yield Await(job)
        return self.session.result(job).facts


def frames_of(uploads: Sequence[Upload]) -> int:
    """Count the samples of some uploads."""
    return sum(upload.sent.frames for upload in uploads)


# Labels ---------------------------------------------------------------------------------------------------------------


class LabelRounds(Rounds):
    """Label the samples, and send the labels back."""

    def receiver(self, app: AppSim) -> NodeId:
        return app.teacher

    def round(self, app: AppSim, uploads: Sequence[Upload], site: Site, now_s: float) -> Steps:
        labelling = [self._label(app, upload) for upload in uploads]
        packed = [self.session.call(app.teacher, "pack", labels) for labels in labelling]
        yield Step("labelling", app.context.label(site, frames_of(uploads)))
        deliveries = []
        for upload, labels in zip(uploads, packed, strict=True):
            facts: Packed = yield from self._facts(labels)
            deliveries.append(LabelDelivery(app, self.session, upload, labels, facts.bytes))
        return deliveries


# Weights --------------------------------------------------------------------------------------------------------------


class WeightRounds(Rounds):
    """Store the samples, with labels where the adaptation uses them, train once, and send the update."""

    def receiver(self, app: AppSim) -> NodeId:
        return app.node("learner")

    def round(self, app: AppSim, uploads: Sequence[Upload], site: Site, now_s: float) -> Steps:
        done = Round(app, tuple(uploads), teach_start_s=now_s, now_s=now_s)
        self.open[app.name] = done
        plan = yield from self._teach(done, site)
        training = yield from self._train(done, plan, site)
        del self.open[app.name]
        learned = plan.state if done.trained is None else self.streaming.learn(plan.state, done.trained)
        done.state = app.server_state = learned
        if training is None or done.trained is None or not done.trained.bytes:
            return [PlanDelivery(app, self.session, done)]
        return [UpdateDelivery(app, self.session, done, training)]

    def resend(self, app: AppSim) -> Job:
        """Encode every weight, as the learner has it between two phases."""
        self._follow(app)
        return self.session.call(app.node("learner"), "resend")

    def resent(self, app: AppSim, packing: Job) -> UpdateDelivery:
        """Return a delivery of all weights, with the current plan."""
        done = Round(app, state=app.server_state, trained=self.session.result(packing).facts)
        return UpdateDelivery(app, self.session, done, packing)

    def _teach(self, done: Round, site: Site) -> Steps:
        """Label the arrived samples, if the adaptation uses labels, and store them in the learner's buffer."""
        app = done.app
        self._follow(app)
        taught, storing = self.adaptation.labels == "teacher", []
        for upload in done.uploads:
            labels = self._label(app, upload) if taught else None
            detected = () if app.domain is None else (app.domain,)
            given = (upload.frames, labels, upload.stamp_s, *detected)
            storing.append(self.session.call(app.node("learner"), "store", *given))
        need = app.context.label(site, frames_of(done.uploads)) if taught else Need()
        yield from self._do(done, Step("labelling", need))
        stored = []
        for job in storing:
            stored.append((yield from self._facts(job)))
        done.stored = merge_stored(stored)
        if taught:
            done.teach_end_s = done.now_s
        else:
            done.teach_start_s = None
        done.plan = self.streaming.plan_downlink(app.server_state, app.facts, done.stored, done.now_s)
        return done.plan

    def _do(self, done: Round, step: Step) -> Steps:
        done.now_s = yield step
        done.needs.append(step.need)

    def _train(self, done: Round, plan: DownlinkPlan, site: Site) -> Steps:
        """Train as planned; where only the phase itself determines its work, the call comes before the time."""
        if plan.phase is None or lacks_labels(done.stored, plan):
            done.idle = "stored" if plan.phase is None else NO_LABEL
            return None
        wanted, running = replace(plan, state=None), None
        learner = done.app.node("learner")
        kept: int = yield from self._facts(self.session.call(learner, "forget", plan.oldest_s))
        if done.app.local:
            offered: Chosen | None = yield from self._offer(done, wanted, site, kept)
            if offered is None and done.begins is None:
                done.idle = DECLINED
                return None
            wanted = replace(wanted, phase=NO_STEPS if offered is None else offered.phase)
            if offered is not None:
                running = Learning("running", way=offered.way, now=offered.now, then=offered.then)
        assert wanted.phase is not None
        done.train_start_s = done.now_s
        before = (yield from self._score(done, wanted, site)) if self.weighs else None
        training = self.session.call(learner, "train", wanted)
        work = None if self.drafts else self.adaptation.work_of(wanted.phase, kept)
        if work is None:
            known: Trained = yield from self._facts(training)
            work = known.work
        need = site.learn(done.app.cost_of(wanted.phase.variant), work)
        yield from self._do(done, Step("learning", need, running and replace(running, left=need)))
        trained: Trained = yield from self._facts(training)
        done.trained, done.train_end_s, done.idle = trained, done.now_s, trained.skipped
        if done.app.local and self.recalls and trained.iterations:
            yield from self._facts(self.session.call(learner, "remember"))
        if before is not None:
            yield from self._weigh(done, wanted, site, before)
        return training

    def _score(self, done: Round, plan: DownlinkPlan, site: Site) -> Steps:
        """Score the learner's network on its labelled samples; None without any."""
        trying = self.session.call(done.app.node("learner"), "try_out", plan, (), False)
        tried: Tried = yield from self._facts(trying)
        yield from self._do(done, Step("learning", need_of(done.app.cost_of(), site.hardware, tried.looks)))
        return tried.before

    def _weigh(self, done: Round, plan: DownlinkPlan, site: Site, before: float) -> Steps:
        """Note what the round gained, and what it took."""
        after: float | None = yield from self._score(done, plan, site)
        last_s = 0.0 if done.app.gained is None else done.app.gained.ended_s
        work_s = sum(need.alone_s for need in done.needs)
        if after is not None and done.now_s > last_s:
            gain = max(0.0, after - before)
            done.app.gained = RoundGain(done.now_s, done.now_s - last_s, work_s, after, gain)

    def _offer(self, done: Round, plan: DownlinkPlan, site: Site, frames: int) -> Steps:
        """Offer the ways to learn to the device's scheduler, tried out where it wants that; return its choice."""
        app = done.app
        assert plan.phase is not None
        phases, ways, now = yield from self._known_ways(done, plan, site, frames)
        done.now_s = yield Offer(Learning("offered", ways, now=now))
        while wanted := [i for i in app.tries if 0 <= i < len(ways) and ways[i].accuracy is None]:
            ways, _ = yield from self._try_out(done, plan, site, (phases, ways), wanted)
            done.now_s = yield Offer(Learning("offered", ways, now=now))
        self._follow(app)  # the choice may have been of another network
        if app.way is None or not 0 <= app.way < len(phases):
            return None
        way = ways[app.way]
        done.way = "; ".join(filter(None, (done.way, way.name if len(ways) > 1 else ""))) or None
        return Chosen(phases[app.way], way.name, now if way.before is None else way.before, way.accuracy)

    def _known_ways(self, done: Round, plan: DownlinkPlan, site: Site, frames: int) -> Steps:
        """Return phases, the ways that they are, and the accuracy now: as estimated, else as tried out."""
        assert plan.phase is not None
        estimated = (yield from self._estimate(done, plan.phase, site)) if self.adaptation.estimates else None
        if estimated is not None:
            return estimated
        phases = self._phases(done.app, plan.phase)
        ways = tuple(self._way(done.app, site, phase, frames) for phase in phases)
        every = range(len(ways)) if self.scheduling.asks.trials else ()
        now = (yield from self._recall(done, site)) if self.recalls else None
        if every or now is None:
            ways, now = yield from self._try_out(done, plan, site, (phases, ways), every)
        return phases, ways, now

    @property
    def recalls(self) -> bool:
        """Tell whether the learner stores its networks; those that are cut for samples differ in their channels."""
        return self.scheduling.asks.recall is not None and not self.drafts

    def _recall(self, done: Round, site: Site) -> Steps:
        """Let the learner go on with a stored network where that is better; return the accuracy now."""
        app, fall = done.app, self.scheduling.asks.recall
        last = None if app.observed is None else app.observed.accuracy
        found: Recalled = yield from self._facts(self.session.call(app.node("learner"), "recall", last, fall))
        yield from self._do(done, Step("learning", need_of(app.cost_of(), site.hardware, found.work)))
        if found.accuracy is not None:
            app.observed = SeenAccuracy(found.accuracy, "teacher", done.now_s)
        if found.begins is not None:
            done.begins, done.way = found.begins, f"stored network {found.begins}"
        return found.accuracy

    def _estimate(self, done: Round, phase: Phase, site: Site) -> Steps:
        """Let the adaptation estimate every network of the family; return the ways where the scheduler wants them.

        Scaling goes by the estimates where it chooses among networks that are not cut for samples.
        """
        app, profile, asks = done.app, done.app.context.student.profile, self.scheduling.asks
        if not (asks.trials or asks.choosy) and (self.drafts or len(profile) < 2):
            return None
        found: Estimated | None = yield from self._facts(self.session.call(app.node("learner"), "estimate", phase))
        if found is None:
            return None
        yield from self._do(done, Step("learning", need_of(app.context.student.cost, site.hardware, found.work)))
        app.estimated = found.after
        if not (asks.trials or asks.choosy):
            return None
        runs = app.context.student.first if app.runs is None else app.runs
        estimates = enumerate(zip(profile, found.after, found.before, found.sizes, strict=True))
        ways = tuple(
            Way(one.name, site.learn(one.cost, found.phase), after, before, size, variant=which)
            for which, (one, after, before, size) in estimates
        )
        return [replace(phase, variant=way.variant) for way in ways], ways, found.before[runs]

    def _try_out(
        self,
        done: Round,
        plan: DownlinkPlan,
        site: Site,
        offer: tuple[Sequence[Phase], tuple[Way, ...]],
        which: Sequence[int],
    ) -> Steps:
        """Try some ways out and score the network, as the scheduler wants; return all ways and the accuracy now."""
        app, (phases, ways) = done.app, offer
        if not (which or self.looks):
            return ways, None
        tries = tuple(shortened(phases[i], self.scheduling.asks.part)[0] for i in which)
        trying = self.session.call(app.node("learner"), "try_out", plan, tries)
        tried: Tried = yield from self._facts(trying)
        works = ((None, tried.looks), *zip((phase.variant for phase in tries), tried.work, strict=True))
        needs = [need_of(app.cost_of(variant), site.hardware, work) for variant, work in works]
        yield from self._do(done, Step("learning", add_needs(needs)))
        if self.looks and tried.before is not None:
            app.observed = SeenAccuracy(tried.before, "teacher", done.now_s)
        begins, known = tried.begins or (None,) * len(which), list(ways)
        parts = zip(tries, tried.beside or (Passes(),) * len(which), strict=True)
        fixed = [need_of(app.cost_of(phase.variant), site.hardware, each) for phase, each in parts]
        for i, after, begin, *trial in zip(which, tried.after, begins, needs[1:], fixed, strict=True):
            known[i] = measured(replace(ways[i], accuracy=after), begin, *trial)
        return tuple(known), tried.before

    def _phases(self, app: AppSim, planned: Phase) -> Sequence[Phase]:
        """List the ways to learn; where networks are cut for samples, of every size."""
        phases, sizes = self.adaptation.ways(planned), range(len(app.context.student.profile))
        if not self.drafts or len(sizes) < 2:
            return phases
        return [replace(phase, variant=variant) for variant in sizes for phase in phases]

    def _way(self, app: AppSim, site: Site, phase: Phase, frames: int) -> Way:
        """Describe a phase with its need, as far as that is known in advance."""
        name, size = f"{phase.iterations or 'usual'} steps", None
        if phase.variant is not None:
            profile = app.context.student.profile
            size = profile[phase.variant].cost.macs / profile[-1].cost.macs
            name = f"{profile[phase.variant].name}, {name}"
        need = site.learn(app.cost_of(phase.variant), self.adaptation.work_of(phase, frames) or Passes())
        part = shortened(phase, self.scheduling.asks.part)[1]
        return Way(name, need, size=size, tried=part, variant=phase.variant)

    def _follow(self, app: AppSim) -> None:
        """Let the learner switch to the network that the device runs."""
        if app.trains != app.runs:
            self.session.call(app.node("learner"), "switch", app.runs)
            app.trains = app.runs


@dataclass(frozen=True)
class Chosen:
    """The way to learn that a scheduler chose, and its expected accuracies."""

    phase: Phase
    way: str
    now: float | None
    then: float | None


def measured(way: Way, before: float | None, trial: Need, fixed: Need) -> Way:
    """Add what a trial showed: the accuracy that its network begins with, and its need where none was known.

    A part of the trial's need is the same for any number of steps.
    """
    if way.need.alone_s:
        return replace(way, before=before)

    def whole(trial: float, fixed: float) -> float:
        return fixed + (trial - fixed) / way.tried

    seconds = {engine: whole(each, fixed.seconds.get(engine, 0.0)) for engine, each in trial.seconds.items()}
    return replace(way, before=before, need=Need(seconds, trial.memory_bytes, whole(trial.joules, fixed.joules)))


def shortened(phase: Phase, part: float) -> tuple[Phase, float]:
    """Return a phase of a part of the steps, and that part exactly; a phase of unknown length stays whole."""
    if phase.iterations is None or part >= 1:
        return phase, 1.0
    steps = max(1, round(part * phase.iterations))
    return replace(phase, iterations=steps), steps / phase.iterations


def merge_stored(stored: Sequence[Stored]) -> Stored:
    """Merge the facts of consecutive uploads."""
    phis = tuple(phi for one in stored for phi in one.phis)
    frames, unknown = sum(one.frames for one in stored), sum(one.unknown for one in stored)
    return replace(stored[-1], frames=frames, unknown=unknown, phis=phis)


def lacks_labels(stored: Stored | None, plan: DownlinkPlan) -> bool:
    """Tell whether no sample within the plan's horizon has a usable label."""
    return stored is None or stored.usable_s is None or stored.usable_s < plan.oldest_s
