"""The learner of one application: samples from the device, rounds, and results back to the device."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.platform.core.records import Received, StreamStatistics, Uploaded
from driftlab.platform.scheduling.base import TrainingOffer
from driftlab.platform.sim.messages import Delivery, Message, UpdateDelivery, Upload
from driftlab.platform.sim.nodes.boundaries import STATISTIC_MACS
from driftlab.platform.sim.offers import Offer
from driftlab.platform.sim.rounds import Await, LabelRound, Round, RoundGain, Step, Steps, WeightRound
from driftlab.platform.sim.rows import sample_columns, update_row
from driftlab.platform.sim.session import Job, NodeId
from driftlab.platform.sim.setting import TrainingSite
from driftlab.platform.streaming.base import RESYNC_BYTES, Sampling, Seen, check_sampling, choose_times
from driftlab.platform.streaming.wire.samples import coding_macs
from driftlab.platform.world.clock import Process
from driftlab.platform.world.cost import auxiliary_cost
from driftlab.platform.world.processor import Processor, ProcessorTask

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim

FOLLOWED_S, FOLLOWED_FPS = 2.0, 4.0  # time between two tests for a boundary of domains, and their frames
RETRY_S = 1.0  # delay between two requests of a device without weights


class LearnerSim:
    """The learner of one application, on the server or on the device; one round of it runs at a time.

    One process samples. Each sampling has a separate process, which sends the samples, waits for the round that takes
    them, and delivers the result.
    """

    def __init__(self, app: AppSim) -> None:
        self.app, self.runner = app, app.runner
        self.clock, self.session, self.streaming = app.runner.clock, app.runner.session, app.runner.streaming
        self.server_state: Any = self.streaming.start(app.facts)  # the streaming member's, at the learner's site
        self.device_state = self.server_state  # the device's copy of it, as of the last plan
        self.remembered: Any = None  # `Sampling.state` of the device's last plan
        self.placed = False  # whether its node exists: its first samples have arrived
        self.turn = simpy.Resource(self.clock)  # one round at a time, regardless of the number of GPUs
        self.waiting: list[Upload] = []  # for the next round, which takes all of them
        self.domain: int | None = None  # as the device detected it before its newest samples
        self.in_step = True  # whether the device applied the last update; if not, it can apply none that builds on it
        self.offer: TrainingOffer | None = None  # training that it offers or runs on the device
        self.config: int | None = 0  # the configuration that the scheduler chose; None: none
        self.trials: tuple[int, ...] = ()  # configurations of which the scheduler requires a trial first
        self.trained = False  # whether any phase has ended
        self.last_gain: RoundGain | None = None  # by its newest round, on a server that a scheduling member shares
        self.domain_began_s: float | None = None  # first frame of its domain, where a boundary was detected
        self.detected_s = -math.inf  # time of that detection
        self.purpose = ""  # of the newest step on the device

    @property
    def local(self) -> bool:
        """Return whether it is on the device."""
        return self.streaming.learner_site == "device"

    @property
    def site(self) -> TrainingSite:
        """Return the site where it labels and trains."""
        server = self.runner.setup.server
        return self.app.networks.on_device(server, self.app.device.spec.hardware) if self.local else server

    @property
    def receiver(self) -> NodeId:
        """Return the node that decodes its samples from the link."""
        return self.app.node("learner") if self.streaming.label_tracking is None else self.app.teacher

    @property
    def planner(self) -> str:
        """Return the streaming member and the device, for messages about its plans."""
        return f"{self.runner.cell.system.streaming} (device={self.app.name})"

    @property
    def reads_truth(self) -> bool:
        """Return whether its teacher is an oracle, which gets frames with their truth."""
        return self.runner.cell.system.uses_teacher and self.app.networks.teacher is None

    # From the device --------------------------------------------------------------------------------------------------

    def sample(self) -> Process:
        """Sample as the streaming member plans; send each sampling in a new process."""
        while (sampling := (yield from self._plan())) is not None:
            if sampling.times_s:  # a slow camera may show no frame between two uploads
                message = self.app.message("up", "samples")
                verb = "sample" if self.local else "upload"
                packing = self.session.call(self.app.node("device"), verb, sampling)
            yield self.clock.timeout(sampling.send_s - self.clock.now)
            if sampling.times_s and self.app.present(self.clock.now):  # one that has gone drops its samples
                self.clock.process(self.send(message, sampling, packing))
            if sampling.next_s is not None:
                yield self.clock.timeout(sampling.next_s - self.clock.now)

    def _plan(self) -> Generator[simpy.Event, Any, Sampling | None]:
        """Return the next plan; a buffer that would be sent after the stream's end is dropped."""
        now_s, facts = self.clock.now, self.app.facts
        if now_s >= facts.duration_s:
            return None
        seen = yield from self._observe()
        sampling: Sampling | None = self.streaming.plan_uplink(self.device_state, facts, now_s, seen)
        if sampling is None:
            return None
        check_sampling(sampling, now_s, self.planner, ahead=self.runner.free)
        if sampling.send_s >= facts.duration_s:
            return None
        self.remembered = sampling.state
        times_s = tuple(time_s for time_s in sampling.times_s if self.app.present(time_s))
        return replace(sampling, times_s=times_s, state=None)  # which stays here

    def _observe(self) -> Generator[simpy.Event, Any, Seen]:
        """Return the device's observations, where the streaming member uses them."""
        if not self.streaming.uses_statistics:
            return Seen(state=self.remembered)
        self.app.device.stream.catch_up(self.app)
        summary = self.session.call(self.app.node("application"), "stream_statistics")
        yield from self.runner.ready(summary)
        statistics: StreamStatistics = self.session.result(summary).facts
        self.domain = statistics.domain if self.runner.setup.domains_detected else None
        seen = statistics.frames, statistics.entropy, statistics.distance, statistics.domain
        return Seen(*seen, self.remembered)

    def send(self, message: Message, sampling: Sampling, packing: Job) -> Process:
        """Send samples to the learner, run a round on all waiting ones, and return its results."""
        yield from self.runner.ready(packing)
        sent: Uploaded = self.session.result(packing).facts
        if not self.local:
            macs = coding_macs(sampling.codec) * sent.frames * self.app.pixels * sampling.scale**2
            coding = auxiliary_cost(self.app.device.spec.hardware, macs=macs)
            self.app.account.spend("coding", coding.joules)
            yield from self.app.device.run_auxiliary(coding)
        yield from message.carry(sent.bytes)
        upload = yield from self._receive(message, sampling, packing, sent)
        message.write(**sample_columns(sent, sampling))
        if message.refused or upload is None:
            return
        self.waiting.append(upload)
        with self.turn.request() as turn:
            yield turn
            if not self.waiting:  # a round that began after this arrival has taken it
                return
            deliveries = yield from self.run_round()
        for delivery in deliveries[:-1]:
            self.clock.process(self.reply(delivery))
        for delivery in deliveries[-1:]:
            yield from self.reply(delivery)

    def _receive(
        self, message: Message, sampling: Sampling, packing: Job, sent: Uploaded
    ) -> Generator[simpy.Event, Any, Upload | None]:
        """Decode samples from the link; damaged ones are refused."""
        if message.missed:
            return None
        frames = packing
        if self.streaming.label_tracking is None and not self.placed:
            self.runner.place_learner(self.app)
        if not self.local:
            arrived = (packing, sampling, self.app.size, message.damage)
            frames = self.session.call(self.receiver, "receive", *arrived)
            if message.damage is not None:
                yield from self.runner.ready(frames)
                received: Received = self.session.result(frames).facts
                message.refused = received.refused
        truth = frames
        if self.reads_truth:
            truth = self.session.call(self.app.node("device"), "sample_with_truth", sampling.times_s)
        return Upload(sent, sampling, frames, truth, message.arrive_s if sampling.stamp == "receipt" else None)

    # Boundaries of domains --------------------------------------------------------------------------------------------

    def follow_domains(self) -> Process:
        """Test the newest frames for a boundary of domains; after one, return to the network as built."""
        app, hardware, start_s = self.app, self.app.device.spec.hardware, 0.0
        self.clock.process(self._sample_first(0.0))
        while self.clock.now + FOLLOWED_S < app.facts.duration_s:
            yield self.clock.timeout(FOLLOWED_S)
            times_s = choose_times(start_s, self.clock.now, fps=app.facts.fps, rate_fps=FOLLOWED_FPS)
            start_s = self.clock.now
            if not times_s or not app.present(self.clock.now):
                continue
            testing = self.session.call(app.node("device"), "detect_boundary", times_s)
            macs = STATISTIC_MACS * app.pixels * len(times_s)
            self.app.account.spend("training", auxiliary_cost(hardware, macs=macs).joules)
            yield from self.runner.ready(testing)
            if self.session.result(testing).facts:
                yield from self._enter_domain(times_s[0])
                self.clock.process(self._sample_first(times_s[0]))

    def _sample_first(self, began_s: float) -> Process:
        """Take the first samples of a domain where the scheduler does not wait for streaming."""
        first_s, app = self.runner.scheduling.first_samples_s, self.app
        if first_s is None:
            return
        yield self.clock.timeout(max(0.0, began_s + first_s - self.clock.now))
        now_s = self.clock.now
        times_s = choose_times(began_s, now_s, fps=app.facts.fps, rate_fps=FOLLOWED_FPS)
        if times_s and app.present(now_s) and began_s == (self.domain_began_s or 0.0):
            sampling = Sampling(times_s, send_s=now_s)
            packing = self.session.call(app.node("device"), "sample", sampling)
            yield from self.send(app.message("up", "samples"), sampling, packing)

    def _enter_domain(self, began_s: float) -> Process:
        """Drop samples and work of the domain before, and return to the network as built."""
        device, name = self.app.device, self.app.spec.name
        self.domain_began_s, self.detected_s, self.app.observed = began_s, self.clock.now, None
        self.waiting = [upload for upload in self.waiting if upload.sent.newest_s >= began_s]
        work = device.processor.tasks.get(f"{name}/training")
        if work is not None and self.purpose:
            self.app.account.spend(self.purpose, -device.processor.cancel_job(work).joules)
        delivery = None
        if self.placed:
            packing = self.session.call(self.app.node("learner"), "leave_domain", began_s)
            yield from self.runner.ready(packing)
            if self.session.result(packing).facts is not None:
                delivery = self.delivery_of_all(packing)
        device.processor.share_out("offer")
        if delivery is not None:
            yield from self.reply(delivery)

    # A round ----------------------------------------------------------------------------------------------------------

    def round(self, uploads: Sequence[Upload], now_s: float) -> Round:
        """Create the round that labels these uploads and trains on them."""
        kind: type[Round] = WeightRound if self.streaming.label_tracking is None else LabelRound
        return kind(self.app, tuple(uploads), now_s)

    def run_round(self) -> Generator[simpy.Event, Any, Sequence[Delivery]]:
        """Wait for the learner's processor, then run one round on all waiting samples."""
        device, name = self.app.device, self.app.spec.name
        processor = device.processor if self.local else self.runner.server.processor
        if self.local:
            if self.clock.now >= self.app.facts.duration_s:
                return []
            self.offer = TrainingOffer("running")
            device.offers.preparing.add(name)
        with processor.entered(f"{name}/training" if self.local else self.app.name) as work:
            yield work.granted
            uploads, self.waiting = self.waiting, []
            if not uploads:  # a boundary of domains was detected meanwhile
                self.offer = None
                device.offers.preparing.discard(name)
                return []
            done = yield from self._drive(self.round(uploads, self.clock.now).steps(), processor, work)
            self.offer = None
            device.offers.preparing.discard(name)
        return done

    def _drive(
        self, steps: Steps, processor: Processor, work: ProcessorTask
    ) -> Generator[simpy.Event, Any, Sequence[Delivery]]:
        """Run the steps of a round on a processor."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Await):
                    yield from self.runner.ready(step.job)
                elif isinstance(step, Offer):
                    self.offer = step.training
                    yield from self.app.device.offers.submit(self.app)
                else:
                    if self.local:
                        self.offer = step.offer or TrainingOffer("running", left=step.cost)
                        self._spend(step)
                    free = self.runner.free or not self.streaming.costs_time
                    yield from processor.run_job(work, replace(step.cost, seconds={}) if free else step.cost)
                step = steps.send(self.clock.now)
        except StopIteration as end:
            deliveries: Sequence[Delivery] = end.value
            return deliveries

    def _spend(self, step: Step) -> None:
        """Count the energy of a step on the device; `settle` subtracts the part after the session."""
        if self.clock.now < self.app.facts.duration_s:
            self.app.account.spend(step.purpose, step.cost.joules)
            self.purpose = step.purpose

    def settle(self) -> None:
        """Subtract the energy that an unfinished step on the device would consume after the session."""
        processor = self.app.device.processor
        work = processor.tasks.get(f"{self.app.spec.name}/training")
        if work is not None and self.purpose:
            self.app.account.spend(self.purpose, -processor.remaining_cost(work).joules)

    def switch_network(self) -> None:
        """Switch to the network that the device runs."""
        choice = self.app.choice
        if choice.trains != choice.runs:
            self.session.call(self.app.node("learner"), "switch", choice.runs)
            choice.trains = choice.runs

    # Back to the device -----------------------------------------------------------------------------------------------

    def reply(self, delivery: Delivery) -> Process:
        """Send a round's result to the device, and hand it over."""
        applied = None
        message = self.app.message("down", delivery.kind)
        yield from message.carry(delivery.bytes)
        intake = delivery.intake
        if not message.missed:
            yield from self.app.device.run_auxiliary(intake)
            message.receive_at(self.clock.now)
        taking = None if message.missed else delivery.take(message)
        if taking is not None:
            yield from self.runner.ready(taking)
            applied = self.session.result(taking).facts
        columns = {}
        if applied is not None:
            message.refused = applied.reason
            columns = {} if applied.unlisted_labels is None else {"unlisted_labels": applied.unlisted_labels}
            if applied.accepted or not isinstance(delivery, UpdateDelivery):
                self.app.account.spend(delivery.purpose, intake.joules)
        message.write(**columns)
        row = delivery.settle(message, applied)
        if row is not None:
            self.runner.ledger.row("updates", **update_row(**row))
        if isinstance(delivery, UpdateDelivery) and applied is not None and not applied.accepted and self.in_step:
            self.in_step = False
            self.clock.process(self._resync())

    def _resync(self) -> Process:
        """Request every weight once a second until they arrive; pause while the application is absent."""
        while not self.in_step and self.clock.now < self.app.facts.duration_s:
            if self.app.present(self.clock.now):
                message = self.app.message("up", "resync")
                yield from message.carry(RESYNC_BYTES)
                message.write()
                if not message.refused:
                    yield from self._resend()
            yield self.clock.timeout(RETRY_S)

    def _resend(self) -> Process:
        """Send every weight, as the learner has it between two phases."""
        with self.turn.request() as turn:
            yield turn
            packing = self.pack_all()
            yield from self.runner.ready(packing)
            delivery = self.delivery_of_all(packing)
        yield from self.reply(delivery)

    def pack_all(self) -> Job:
        """Encode every weight, as the learner has it between two phases."""
        self.switch_network()
        return self.session.call(self.app.node("learner"), "resend")

    def delivery_of_all(self, packing: Job) -> UpdateDelivery:
        """Return a delivery of all weights, with the current plan."""
        done = WeightRound(self.app)
        done.state, done.trained = self.server_state, self.session.result(packing).facts
        return UpdateDelivery(self.app, done, packing)
