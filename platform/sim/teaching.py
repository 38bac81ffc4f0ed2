"""The path of samples to a learner, training rounds, and their results back to the device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from driftlab.errors import RunError
from driftlab.platform.core.records import Noticed, Received, Uploaded
from driftlab.platform.scheduling.base import Learning
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.context import Site
from driftlab.platform.sim.deliveries import Delivery, UpdateDelivery
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.messages import Message, Upload
from driftlab.platform.sim.placing import place_learner
from driftlab.platform.sim.rounds import Await, LabelRounds, Offer, Step, Steps, WeightRounds
from driftlab.platform.sim.rows import sample_columns, update_row
from driftlab.platform.sim.runtime import CellRuntime, Process
from driftlab.platform.sim.server import ServerSim
from driftlab.platform.sim.session import Job
from driftlab.platform.sim.stream_runner import StreamRunner
from driftlab.platform.sim.transport import Transport
from driftlab.platform.streaming.base import RESYNC_BYTES, Sampling, Seen
from driftlab.platform.streaming.wire.samples import coding_macs
from driftlab.platform.world.cost import computing_j, moving_j
from driftlab.platform.world.machine import Machine, MachineTask, first_come

RETRY_S = 1.0  # delay between two requests of a device without weights
UNPACKED_MACS = 2  # per pixel of a label map from the server


class LearnerSim:
    """Runs one process per application that brings its samples to its learner, on the server or on the device."""

    def __init__(self, parts: CellRuntime, carrying: Transport, watching: StreamRunner) -> None:
        self.parts, self.carrying, self.watching = parts, carrying, watching
        self.clock, self.session, self.streaming = parts.clock, parts.session, parts.streaming
        self._running: dict[str, str] = {}  # by application on a device: the purpose of its last step
        kinds = {"weights": WeightRounds, "labels": LabelRounds}
        self.rounds = kinds[parts.streaming.returns](parts.session, parts.streaming, parts.adaptation, parts.scheduling)
        self.rounds.drafts, self.rounds.looks = parts.scaling.drafts, parts.observes == "teacher"
        apps = {app.name: app for device in carrying.devices.values() for app in device.apps.values()}
        self.rounds.weighs = (
            parts.scheduling.asks.server and parts.observes == "teacher" and parts.streaming.place == "server"
        )
        policy = ServerSim(parts, self.rounds, apps).shares if self.rounds.weighs else first_come(parts.cell.gpus)
        self.server = Machine(parts.clock, policy, capacity=parts.cell.gpus)

    # Sending from the device --------------------------------------------------------------------------------------

    def send(self, app: AppSim) -> Process:
        """Sample and send as planned by the streaming member, until the stream ends."""
        while (sampling := (yield from self._sampling(app))) is not None:
            if sampling.times_s:  # a slow camera may show no frame between two uploads
                message = app.message("up", "samples")
                packing = self.session.call(app.node("device"), "sample" if app.local else "upload", sampling)
            yield self.clock.timeout(sampling.send_s - self.clock.now)
            if sampling.times_s and app.present(self.clock.now):  # an application that has gone drops its samples
                self.clock.process(self._serve(message, sampling, packing))
            if sampling.next_s is not None:
                yield self.clock.timeout(sampling.next_s - self.clock.now)

    def _sampling(self, app: AppSim) -> Generator[simpy.Event, Any, Sampling | None]:
        """Return the next plan; a buffer that would be sent after the stream's end is dropped."""
        now_s = self.clock.now
        if now_s >= app.facts.duration_s:
            return None
        seen = yield from self._notice(app)
        sampling: Sampling | None = self.streaming.plan_uplink(app.device_state, app.facts, now_s, seen)
        if sampling is None or sampling.send_s >= app.facts.duration_s:
            return None
        again_s = sampling.send_s if sampling.next_s is None else sampling.next_s
        if not now_s <= sampling.send_s <= again_s > now_s:
            raise RunError(
                f"{self.parts.cell.system.streaming} planned at {now_s} s to send at {sampling.send_s} s and to "
                f"plan again at {again_s} s, which would never end (device={app.name})"
            )
        return replace(sampling, times_s=tuple(time_s for time_s in sampling.times_s if app.present(time_s)))

    def _notice(self, app: AppSim) -> Generator[simpy.Event, Any, Seen]:
        """Return the device's observations, where the streaming member uses them."""
        if not self.streaming.notices:
            return Seen()
        self.watching.look(app)
        noticing = self.session.call(app.node("application"), "notice")
        yield from self.parts.ready(noticing)
        noticed: Noticed = self.session.result(noticing).facts
        app.domain = noticed.domain if self.parts.context.domains_detected else None
        return Seen(noticed.frames, noticed.entropy, noticed.distance, noticed.domain)

    def _serve(self, message: Message, sampling: Sampling, packing: Job) -> Process:
        """Bring samples to the learner; the next round takes all waiting samples."""
        app = message.app
        yield from self.parts.ready(packing)
        sent: Uploaded = self.session.result(packing).facts
        yield from self.carrying.carry(message, sent.bytes)
        upload = yield from self._receive(message, sampling, packing, sent)
        self.carrying.arrived(message, **sample_columns(sent, sampling))
        if not app.local:
            macs = coding_macs(sampling.codec) * sent.frames * self._pixels(app) * sampling.scale**2
            app.account.spend("coding", computing_j(macs, app.spec.hardware))
        if message.refused or upload is None:
            return
        app.waiting.append(upload)
        with app.turn.request() as turn:
            yield turn
            if not app.waiting:  # a round that began after this arrival has taken it
                return
            deliveries = yield from self._round(app)
        for delivery in deliveries[:-1]:
            self.clock.process(self._deliver(delivery))
        for delivery in deliveries[-1:]:
            yield from self._deliver(delivery)

    def _receive(
        self, message: Message, sampling: Sampling, packing: Job, sent: Uploaded
    ) -> Generator[simpy.Event, Any, Upload | None]:
        """Decode samples from the link; damaged ones are refused."""
        app = message.app
        if message.missed:
            return None
        frames = packing
        if self.streaming.returns == "weights" and not app.has_learner:
            place_learner(self.parts, app)
        if not app.local:
            frames = self.session.call(
                self.rounds.receiver(app), "receive", packing, sampling, app.size, message.damage
            )
            if message.damage is not None:
                yield from self.parts.ready(frames)
                received: Received = self.session.result(frames).facts
                message.refused = received.refused
        asked = self.parts.cell.system.uses_teacher and app.context.teacher is None  # an oracle, which gets the truth
        truth = self.session.call(app.node("device"), "reveal", sampling.times_s) if asked else frames
        return Upload(sent, sampling, frames, truth, message.arrive_s if sampling.stamp == "receipt" else None)

    def _pixels(self, app: AppSim) -> int:
        height, width = app.size
        return height * width

    # Training -----------------------------------------------------------------------------------------------------

    def _round(self, app: AppSim) -> Generator[simpy.Event, Any, Sequence[Delivery]]:
        """Wait for the learner's machine, then run one round on all waiting samples."""
        device = self.carrying.devices[app.device]
        machine = device.machine if app.local else self.server
        site = app.context.on_device(self.parts.context.server, app.spec.hardware) if app.local else self._server_site
        if app.local:
            if self.clock.now >= app.facts.duration_s:
                return []
            app.learning = Learning("running")
            device.preparing.add(app.app)
        with machine.entered(f"{app.app}/learn" if app.local else app.name) as work:
            yield work.granted
            uploads, app.waiting = tuple(app.waiting), []
            steps = self.rounds.round(app, uploads, site, self.clock.now)
            done = yield from self._drive(steps, app, machine, work)
            app.learning = None
            device.preparing.discard(app.app)
        return done

    @property
    def _server_site(self) -> Site:
        return self.parts.context.server

    def _drive(
        self, steps: Steps, app: AppSim, machine: Machine, work: MachineTask
    ) -> Generator[simpy.Event, Any, Sequence[Delivery]]:
        """Run the steps of a round on a machine."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Await):
                    yield from self.parts.ready(step.job)
                elif isinstance(step, Offer):
                    app.learning = step.learning
                    yield from self.carrying.devices[app.device].offer(app)
                else:
                    if app.local:
                        app.learning = step.learning or Learning("running", left=step.need)
                        self._spend(app, step)
                    yield from machine.do(work, replace(step.need, seconds={}) if self.streaming.free else step.need)
                step = steps.send(self.clock.now)
        except StopIteration as end:
            deliveries: Sequence[Delivery] = end.value
            return deliveries

    def _spend(self, app: AppSim, step: Step) -> None:
        """Count the energy of a step on the device; `settle` subtracts what lies beyond the session."""
        if self.clock.now < app.facts.duration_s:
            app.account.spend(step.purpose, step.need.joules)
            self._running[app.name] = step.purpose

    def settle(self, device: DeviceSim) -> None:
        """Subtract the energy that unfinished tasks would draw after the session."""
        for app in device.apps.values():
            work = device.machine.works.get(f"{app.app}/learn")
            if work is not None and app.name in self._running:
                app.account.spend(self._running[app.name], -device.machine.left(work).joules)

    # Back to the device -------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> Process:
        """Send a round's result to its device, and hand it over."""
        app, applied = delivery.app, None
        message = app.message("down", delivery.kind)
        yield from self.carrying.carry(message, delivery.bytes)
        taking = None if message.missed else delivery.take(message)
        if taking is not None:
            yield from self.parts.ready(taking)
            applied = self.session.result(taking).facts
        columns = {}
        if applied is not None:
            message.refused = applied.reason
            columns = {} if applied.unknown is None else {"unknown": applied.unknown}
            self._pay(delivery, applied.accepted)
        self.carrying.arrived(message, **columns)
        row = delivery.settle(message, applied)
        if row is not None:
            self.parts.ledger.row("updates", **update_row(**row, site=self._site_name(app)))
        if isinstance(delivery, UpdateDelivery) and applied is not None and not applied.accepted and app.in_step:
            app.in_step = False
            self.clock.process(self._resync(app))

    def _pay(self, delivery: Delivery, accepted: bool) -> None:
        """Count the energy of decoding labels or patching the shadow copy: read, write, and the message itself."""
        app = delivery.app
        if isinstance(delivery, UpdateDelivery) and accepted:
            moved_bytes = 2 * app.cost_of().weight_bytes + delivery.bytes
            app.account.spend("patching", moving_j(moved_bytes, app.spec.hardware))
        elif not isinstance(delivery, UpdateDelivery):
            app.account.spend("coding", computing_j(UNPACKED_MACS * self._pixels(app), app.spec.hardware))

    def close(self) -> None:
        """Write a row for every round that the end of the session cut off."""
        for done in self.rounds.open.values():
            site = self._site_name(done.app)
            self.parts.ledger.row("updates", **update_row(done, "the session ended before it was done", site))

    def _site_name(self, app: AppSim) -> str:
        return "device" if app.local else "server"

    def _resync(self, app: AppSim) -> Process:
        """Request every weight once a second until they arrive; pause while the application is absent."""
        while not app.in_step and self.clock.now < app.facts.duration_s:
            if app.present(self.clock.now):
                message = app.message("up", "resync")
                yield from self.carrying.carry(message, RESYNC_BYTES)
                self.carrying.arrived(message)
                if not message.refused:
                    yield from self._resend(app)
            yield self.clock.timeout(RETRY_S)

    def _resend(self, app: AppSim) -> Process:
        """Send every weight, as the learner has it between two phases."""
        assert isinstance(self.rounds, WeightRounds)
        with app.turn.request() as turn:
            yield turn
            packing = self.rounds.resend(app)
            yield from self.parts.ready(packing)
            delivery = self.rounds.resent(app, packing)
        yield from self._deliver(delivery)
