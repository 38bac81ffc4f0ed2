"""The loop: one cell as processes on one clock, the same for every system.

A device shares its windows among its applications, one after another. Beside each application an uplink sends what the
streaming member samples, a server labels and trains, and a downlink brings back what was learned. Work starts when its
virtual start comes and is waited for when its virtual end comes, so real work overlaps while the tables depend on spec
and seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import simpy

from driftlab.errors import RunError
from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import Applied, Captured, Trained, Uploaded, Watched
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.lab.app_run import AppRun, Direction, Message, TrainingRound, Upload, nothing_to_learn, together
from driftlab.platform.lab.backend import Job, NodeId, Session
from driftlab.platform.lab.cells import AppSpec, Cell, DeviceSpec
from driftlab.platform.lab.context import CellContext
from driftlab.platform.lab.device_run import AppAllocation, DeviceRun
from driftlab.platform.lab.ledger import Ledger
from driftlab.platform.lab.rows import (
    device_row,
    run_row,
    sample_columns,
    share_row,
    transfer_row,
    update_row,
    variant_rows,
)
from driftlab.platform.nodes.specs import AppNodeSpec, StudentSpec
from driftlab.platform.streaming.base import PLAN_BYTES, RESYNC_BYTES, DownlinkPlan, Sampling, StreamFacts
from driftlab.platform.world.clock import make_clock
from driftlab.platform.world.link import LINKS, Link

Process = Generator[simpy.Event, Any, None]
FROZEN = Member("adaptation", "frozen")
RETRY_S = 1.0  # a device that got no weights waits so long before it asks again
NOTHING = "no sample within the horizon has a label that counts"


class Loop:
    """One cell while it runs."""

    def __init__(
        self,
        cell: Cell,
        setting: CellContext,
        session: Session,
        advanced: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.cell, self.setting, self.session, self.advanced = cell, setting, session, advanced
        self.clock = make_clock(setting.clock)
        self.ledger = Ledger()
        self.streaming = cell.system.streaming.make()
        self.adaptation = cell.system.adaptation.make()
        self.scaling = cell.system.scaling.make()
        self.scheduling = cell.system.scheduling.make()
        self.gpu = simpy.Resource(self.clock, capacity=cell.gpus)
        self.hosts = [self._host(spec) for spec in cell.devices]

    def run(self) -> None:
        """Place the nodes and let every process run to its end."""
        for app, needs in self.setting.apps.items():
            self.session.place(_teacher(app), needs.teacher_spec, *([needs.teacher.weights] if needs.teacher else []))
        for host in self.hosts:
            for edge in host.edges.values() if self.setting.live else ():
                self._place(edge)
                self.clock.process(self._send(edge))
            self.clock.process(self._watch(host))
        self.clock.run()
        self._close()

    # What a device does ------------------------------------------------------------------------------------------

    def _watch(self, host: DeviceRun) -> Process:
        """Share every window among those who run; what they see while it lasts goes through their models after it."""
        watching: list[tuple[AppRun, Job]] = []
        while self.clock.now < host.spec.duration_s:
            start_s, stop_s = self.clock.now, min(self.clock.now + self.setting.window_s, host.spec.duration_s)
            awake = self._share(host, start_s, stop_s - start_s)
            capturing = [self.session.call(grant.edge.node("device"), "capture", start_s, stop_s) for grant in awake]
            yield self.clock.timeout(stop_s - start_s)
            captured: list[Captured] = [self.session.result(job).facts for job in capturing]
            self._watched(watching)
            seen = zip(awake, capturing, captured, strict=True)
            watching = [(grant.edge, self._infer(grant, job, what)) for grant, job, what in seen if what.frames]
            self.advanced(stop_s - start_s)
        self._watched(watching)

    def _share(self, host: DeviceRun, start_s: float, window_s: float) -> list[AppAllocation]:
        """Ask the scheduler, write down what it says, and return who runs its model in this window."""
        grants = host.grant(self.scheduling, start_s, window_s)
        for grant in grants:
            self.ledger.row("shares", **share_row(grant, start_s, window_s))
        awake = [grant for grant in grants if grant.share] if self.setting.live else []
        for grant in awake:
            if grant.variant not in (None, grant.edge.runs):
                self.session.call(grant.edge.node("application"), "switch", grant.variant)
                grant.edge.runs = grant.variant
        return awake

    def _infer(self, grant: AppAllocation, capturing: Job, captured: Captured) -> Job:
        """Start the model over a window; a stream without truth is compared with the teacher's labels."""
        edge = grant.edge
        truth = None if captured.has_truth else self.session.call(_teacher(edge.app), "label", capturing)
        return self.session.call(edge.node("application"), "watch", capturing, truth, grant.share)

    def _watched(self, watching: Sequence[tuple[AppRun, Job]]) -> None:
        """Take what a window showed; asked for one window late, so that the work had a window's time."""
        for edge, job in watching:
            reply = self.session.result(job)
            seen: Watched = reply.facts
            self.ledger.take(reply.rows)
            edge.account.watched(seen)

    # What crosses the link and what the server does --------------------------------------------------------------

    def _send(self, edge: AppRun) -> Process:
        """Sample, pack and send, as often as the streaming member plans it and the stream lasts."""
        while (sampling := self._sampling(edge)) is not None:
            if sampling.times_s:  # a slow camera may show nothing between two uploads
                message = edge.message("up", "samples")
                packing = self.session.call(edge.node("device"), "upload", sampling, message.damage)
            yield self.clock.timeout(sampling.send_s - self.clock.now)
            if sampling.times_s and edge.present(self.clock.now):  # who has gone took them along
                self.clock.process(self._serve(message, sampling, packing))
            if sampling.next_s is not None:
                yield self.clock.timeout(sampling.next_s - self.clock.now)

    def _sampling(self, edge: AppRun) -> Sampling | None:
        """Ask for the next plan; what would leave when the stream is over is not sent."""
        if self.clock.now >= edge.plan.duration_s:
            return None
        sampling: Sampling | None = self.streaming.plan_uplink(edge.device_state, edge.plan, self.clock.now)
        if sampling is None or sampling.send_s >= edge.plan.duration_s:
            return None
        again_s = sampling.send_s if sampling.next_s is None else sampling.next_s
        if not self.clock.now <= sampling.send_s <= again_s > self.clock.now:
            raise RunError(
                f"{self.cell.system.streaming} planned at {self.clock.now} s to send at {sampling.send_s} s and to "
                f"plan again at {again_s} s, which would never end (device={edge.name})"
            )
        return replace(sampling, times_s=tuple(time_s for time_s in sampling.times_s if edge.present(time_s)))

    def _serve(self, message: Message, sampling: Sampling, packing: Job) -> Process:
        """Carry an upload to the server; the next visit takes it along with whatever else waits there by then."""
        edge = message.edge
        sent: Uploaded = self.session.result(packing).facts
        message.refused = sent.refused
        yield from self._carry(message, sent.bytes)
        self._arrived(message, **sample_columns(sent, sampling))
        if message.refused:
            return
        edge.waiting.append(Upload(sent, packing, message.arrive_s if sampling.stamp == "receipt" else None))
        with edge.turn.request() as turn:
            yield turn
            if not edge.waiting:  # a visit that began after this arrival took it along
                return
            with self.gpu.request() as gpu:
                yield gpu
                uploads, edge.waiting = tuple(edge.waiting), []
                if self.streaming.returns == "labels":
                    packed = yield from self._label(edge, uploads)
                else:
                    visit, training = yield from self._visit(edge, uploads)
        if self.streaming.returns == "labels":
            for upload, labels in zip(uploads, packed, strict=True):
                self.clock.process(self._return_labels(edge, upload, labels))
        else:
            yield from self._return(visit, training)

    def _label(self, edge: AppRun, uploads: Sequence[Upload]) -> Generator[simpy.Event, Any, list[Job]]:
        """Let the teacher label; pack the labels for the way back."""
        teacher = _teacher(edge.app)
        labelling = [self.session.call(teacher, "label", upload.packing) for upload in uploads]
        packed = [self.session.call(teacher, "pack", labels) for labels in labelling]
        yield self._busy(sum(upload.sent.frames for upload in uploads) * edge.setting.label_s)
        return packed

    def _return_labels(self, edge: AppRun, upload: Upload, packed: Job) -> Process:
        """Send labels down; the device carries them along from the moment of their arrival."""
        message = edge.message("down", "labels")
        yield from self._carry(message, self.session.result(packed).facts.bytes)
        if message.missed:
            self._arrived(message)
            return
        newest_s, arrive_s = upload.sent.newest_s, message.arrive_s
        tracking = self.session.call(edge.node("application"), "track", packed, newest_s, arrive_s, message.damage)
        applied: Applied = self.session.result(tracking).facts
        message.refused = applied.reason
        self._arrived(message, unknown=applied.unknown)

    def _visit(
        self, edge: AppRun, uploads: Sequence[Upload]
    ) -> Generator[simpy.Event, Any, tuple[TrainingRound, Job | None]]:
        """Do one whole step of a device: label everything that waits, then train once."""
        visit = TrainingRound(edge, tuple(uploads), teach_start_s=self.clock.now)
        answer = yield from self._teach(visit)
        training = yield from self._train(visit, answer)
        learned = answer.state if visit.trained is None else self.streaming.learn(answer.state, visit.trained)
        visit.state = edge.server_state = learned
        return visit, training

    def _teach(self, visit: TrainingRound) -> Generator[simpy.Event, Any, DownlinkPlan]:
        """Label what has arrived and put it into the learner's buffer."""
        edge = visit.edge
        if not edge.has_learner:
            self._place_learner(edge)
        self._follow(edge)
        storing, teacher = [], _teacher(edge.app)
        for upload in visit.uploads:
            labelling = self.session.call(teacher, "label", upload.packing)
            storing.append(self.session.call(edge.node("learner"), "store", upload.packing, labelling, upload.stamp_s))
        yield self._busy(sum(upload.sent.frames for upload in visit.uploads) * edge.setting.label_s)
        visit.stored, visit.teach_end_s = together([self.session.result(job).facts for job in storing]), self.clock.now
        visit.answer = self.streaming.plan_downlink(edge.server_state, edge.plan, visit.stored, self.clock.now)
        return visit.answer

    def _train(self, visit: TrainingRound, answer: DownlinkPlan) -> Generator[simpy.Event, Any, Job | None]:
        """Train as long as the plan says; where that depends on the score, the work comes before its duration."""
        if answer.phase is None or nothing_to_learn(visit.stored, answer):
            visit.idle = "stored" if answer.phase is None else NOTHING
            return None
        visit.train_start_s = self.clock.now
        training = self.session.call(visit.edge.node("learner"), "train", replace(answer, state=None))
        iterations = answer.phase.iterations or self.adaptation.phase_iterations
        batch = self.adaptation.phase_batch
        if answer.phase.stop_score is not None:  # every step takes all frames
            known: Trained = self.session.result(training).facts
            iterations, batch = known.iterations, known.frames
        yield self._busy(self.setting.server.training_s(visit.edge.setting.student.cost, iterations, batch))
        trained: Trained = self.session.result(training).facts
        visit.trained, visit.train_end_s, visit.idle = trained, self.clock.now, trained.skipped
        return training

    def _return(self, visit: TrainingRound, training: Job | None) -> Process:
        """Send the update down, or the new plan alone; the device uses it from the moment of its arrival."""
        if training is not None and not visit.idle:
            yield from self._update(visit, training)
            return
        message = visit.edge.message("down", "plan")
        yield from self._carry(message, PLAN_BYTES)
        self._arrived(message)
        if not message.refused:
            visit.edge.device_state = visit.state
        self._record(visit, visit.idle)

    def _update(self, visit: TrainingRound, packing: Job) -> Process:
        """Send weights down and hand them to the application; a device that cannot take them asks for all of them."""
        edge, trained = visit.edge, visit.trained
        assert trained is not None
        message = edge.message("down", "update")
        yield from self._carry(message, trained.bytes)
        if message.missed:
            self._arrived(message)
            self._record(visit, message.refused)
            return
        applying = self.session.call(edge.node("application"), "apply", packing, message.arrive_s, message.damage)
        applied: Applied = self.session.result(applying).facts
        message.refused = applied.reason
        self._arrived(message)
        self._record(visit, applied.reason, applied, message.arrive_s)
        edge.account.updates += applied.accepted
        if applied.accepted:
            edge.in_step, edge.device_state = True, visit.state
        elif edge.in_step:
            edge.in_step = False
            self.clock.process(self._resync(edge))

    def _resync(self, edge: AppRun) -> Process:
        """Ask the server for every weight, again and again until they have come; who has gone asks when it is back."""
        while not edge.in_step and self.clock.now < edge.plan.duration_s:
            if edge.present(self.clock.now):
                message = edge.message("up", "resync")
                yield from self._carry(message, RESYNC_BYTES)
                self._arrived(message)
                if not message.refused:
                    yield from self._resend(edge)
            yield self.clock.timeout(RETRY_S)

    def _resend(self, edge: AppRun) -> Process:
        """Send every weight as the server has it between two phases, with the plan that holds by now."""
        with edge.turn.request() as turn:
            yield turn
            self._follow(edge)
            packing = self.session.call(edge.node("learner"), "resend")
            visit = TrainingRound(edge, state=edge.server_state, trained=self.session.result(packing).facts)
        yield from self._update(visit, packing)

    def _busy(self, seconds: float) -> simpy.Event:
        return self.clock.timeout(0.0 if self.streaming.free else seconds)

    def _carry(self, message: Message, size: int) -> Process:
        """Put a message on the link and count it; nobody takes what comes when nobody is there."""
        edge = message.edge
        edge.messages[message.direction] += 1
        message.sequence = edge.messages[message.direction]
        link = edge.up if message.direction == "up" else edge.down
        message.transfer = yield from link.send(size)
        edge.account.sent(message.direction, message.transfer)
        message.refused = message.missed or message.refused

    def _arrived(self, message: Message, **columns: Any) -> None:
        """Write a message's row, now that its receiver has taken or refused it."""
        self.ledger.row("transfers", **transfer_row(message), **columns)

    def _record(
        self, visit: TrainingRound, reason: str, applied: Applied | None = None, arrive_s: float | None = None
    ) -> None:
        self.ledger.row("updates", **update_row(visit, reason, applied, arrive_s))

    # Beginning and end -------------------------------------------------------------------------------------------

    def _host(self, spec: DeviceSpec) -> DeviceRun:
        """Open the device's links, which its applications share, and prepare each application."""
        profile = LINKS["null"] if self.streaming.free else spec.link
        up, down = (
            open_link(self.clock, rng_for(self.cell.seed, "link", spec.name, way))
            for way, open_link in (("up", profile.up), ("down", profile.down))
        )
        edges = {tenant.app.name: self._edge(spec, tenant, up, down, profile.damaged) for tenant in spec.tenants}
        variants = {app: edge.setting.variants(spec.hardware) for app, edge in edges.items()}
        return DeviceRun(spec, edges, variants, nested=self.scaling.nested)

    def _edge(self, spec: DeviceSpec, tenant: AppSpec, up: Link, down: Link, damaged: float) -> AppRun:
        plan = StreamFacts(tenant.stream.fps, tenant.stream.duration_s)
        state = self.streaming.start(plan)
        faults = {way: rng_for(self.cell.seed, "damage", spec.name_of(tenant), way) for way in get_args(Direction)}
        needs, turn = self.setting.apps[tenant.app.name], simpy.Resource(self.clock)
        return AppRun(spec, tenant, needs, plan, up, down, faults, damaged, state, state, turn)

    def _place(self, edge: AppRun) -> None:
        self.session.place(edge.node("device"), edge.tenant.stream)
        follows_here = not self.adaptation.needs_labels
        spec = AppNodeSpec(
            device=edge.device,
            app=edge.app,
            student=self._student(edge, self.cell.system.adaptation if follows_here else FROZEN),
            hardware=edge.spec.hardware,
            cost=edge.setting.student.cost,
            tracks=self.streaming.returns == "labels",
            chained=self.streaming.chained,
            picture_times_s=self._picture_times(edge),
        )
        self.session.place(edge.node("application"), spec, edge.setting.student.weights)

    def _place_learner(self, edge: AppRun) -> None:
        spec = self._student(edge, self.cell.system.adaptation)
        self.session.place(edge.node("learner"), spec, edge.setting.student.weights)
        edge.has_learner = True

    def _follow(self, edge: AppRun) -> None:
        """Have the learner work on the network that the device runs."""
        if edge.trains != edge.runs:
            self.session.call(edge.node("learner"), "switch", edge.runs)
            edge.trains = edge.runs

    def _student(self, edge: AppRun, adaptation: Member) -> StudentSpec:
        return StudentSpec(
            network=edge.setting.student.name,
            classes=edge.setting.classes,
            height=edge.tenant.stream.height,
            width=edge.tenant.stream.width,
            adaptation=adaptation,
            scaling=self.cell.system.scaling,
            seed=edge.tenant.stream.seed,
            torch_device=self.setting.torch_device,
        )

    def _picture_times(self, edge: AppRun) -> tuple[float, ...]:
        """Spread the report's pictures over the first stream of the first device."""
        if edge.tenant is not self.cell.devices[0].tenants[0] or not self.setting.pictures:
            return ()
        middles = (np.arange(self.setting.pictures) + 0.5) / self.setting.pictures * edge.plan.duration_s
        return tuple(float(np.floor(middle * edge.plan.fps) / edge.plan.fps) for middle in middles)

    def _close(self) -> None:
        """Write a row per device and the cell's own."""
        edges = [edge for host in self.hosts for edge in host.edges.values()]
        live = edges if self.setting.live else []
        finishing = [self.session.call(edge.node("application"), "finish") for edge in live]
        digests = [str(self.session.result(job).facts) for job in finishing]
        for host in self.hosts:
            self.ledger.row("devices", **device_row(host, live=self.setting.live))
            for row in variant_rows(host):
                self.ledger.row("variants", **row)
        self.ledger.row("runs", **run_row(self.cell, self.setting, [edge.account for edge in edges], digests))


def _teacher(app: str) -> NodeId:
    return NodeId("teacher", app)
