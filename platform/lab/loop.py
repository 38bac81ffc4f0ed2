"""The loop: one cell as processes on one clock, the same for every system.

A device watches its windows one after another; beside it, an uplink sends what the streaming member samples, a server
labels and trains, and a downlink brings back what was learned. Work starts when its virtual start comes and is waited
for when its virtual end comes, so real work overlaps while the tables depend on spec and seed alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import simpy

from driftlab.errors import RunError
from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import Applied, Captured, Stored, Trained, Uploaded, Variant, Watched
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.lab.backend import Job, Kind, NodeId, Session
from driftlab.platform.lab.cells import Cell, EdgeSpec
from driftlab.platform.lab.ledger import Account, Ledger
from driftlab.platform.lab.rows import device_row, run_row
from driftlab.platform.lab.setting import Setting
from driftlab.platform.nodes.specs import AppSpec, StudentSpec
from driftlab.platform.scheduling.base import Demand, Window
from driftlab.platform.streaming.base import PLAN_BYTES, Answer, Sampling, Wire
from driftlab.platform.streaming.base import Session as Plan
from driftlab.platform.world.clock import make_clock
from driftlab.platform.world.cost import inference_s
from driftlab.platform.world.link import LINKS, Link, Transfer

log = logging.getLogger(__name__)
Process = Generator[simpy.Event, Any, Any]
FROZEN = Member("adaptation", "frozen")


@dataclass
class Edge:
    """One device of the cell, as the loop sees it."""

    spec: EdgeSpec
    plan: Plan
    up: Link
    down: Link
    server_state: Any  # the streaming member's state at the server
    device_state: Any  # and as the device last heard of it
    turn: simpy.Resource  # uploads of one device are served one after another, however many GPUs there are
    has_trainer: bool = False
    messages: Counter[str] = field(default_factory=Counter)  # by direction
    version: int = 0
    in_step: bool = True  # whether the device took the last update; if it did not, it can take none that builds on it
    account: Account = field(default_factory=Account)

    @property
    def name(self) -> str:
        return self.spec.name

    def node(self, kind: Kind) -> NodeId:
        return NodeId(kind, self.spec.name)


@dataclass
class Visit:
    """One upload's stay at the server, for its row in the updates table."""

    edge: Edge
    sent: Uploaded
    teach_start_s: float
    teach_end_s: float = 0.0
    train_end_s: float = 0.0
    state: Any = None  # the streaming member's, after this visit
    stored: Stored | None = None
    trained: Trained | None = None


class Loop:
    """One cell while it runs."""

    def __init__(
        self, cell: Cell, setting: Setting, session: Session, advanced: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self.cell, self.setting, self.session, self.advanced = cell, setting, session, advanced
        self.clock = make_clock(setting.clock)
        self.ledger = Ledger()
        self.streaming = cell.system.streaming.make()
        self.adaptation = cell.system.adaptation.make()
        self.scheduling = cell.system.scheduling.make()
        self.gpu = simpy.Resource(self.clock, capacity=setting.server.gpus)
        self.teacher = NodeId("teacher", "teacher")
        self.edges = [self._edge(spec) for spec in cell.devices]

    def run(self) -> None:
        """Place the nodes and let every process run to its end."""
        teacher = self.setting.teacher
        self.session.place(self.teacher, self.setting.teacher_spec, *([teacher.weights] if teacher else []))
        for edge in self.edges:
            self._place(edge)
            self.clock.process(self._watch(edge))
            self.clock.process(self._send(edge))
        self.clock.run()
        self._close()

    # What a device does ------------------------------------------------------------------------------------------

    def _watch(self, edge: Edge) -> Process:
        """See every frame: capture a window while it lasts, run the model over it when it is over."""
        watching: Job | None = None
        while self.clock.now < edge.plan.duration_s:
            start_s, stop_s = self.clock.now, min(self.clock.now + self.setting.window_s, edge.plan.duration_s)
            capturing = self.session.call(edge.node("device"), "capture", start_s, stop_s)
            yield self.clock.timeout(stop_s - start_s)
            captured: Captured = self.session.result(capturing).facts
            self._watched(edge, watching)
            watching = self._infer(edge, capturing, captured, start_s) if captured.frames else None
            self.advanced(stop_s - start_s)
        self._watched(edge, watching)

    def _infer(self, edge: Edge, capturing: Job, captured: Captured, start_s: float) -> Job:
        """Start the model over a window; a stream without truth is compared with the teacher's labels."""
        truth = None if captured.has_truth else self.session.call(self.teacher, "label", capturing)
        share = self._share(edge, start_s)
        return self.session.call(edge.node("application"), "watch", capturing, truth, share)

    def _share(self, edge: Edge, start_s: float) -> float:
        student = self.setting.student
        alone_s = inference_s(student.cost, edge.spec.hardware)
        only = Variant(student.name, None, student.cost.weight_bytes, alone_s, macs=student.cost.macs)
        demand = Demand(edge.name, edge.plan.fps, (only,), running=0)
        window = Window(start_s, self.setting.window_s, edge.spec.hardware.memory_bytes, (demand,))
        share: float = self.scheduling.allocate(window).shares[0]
        return share

    def _watched(self, edge: Edge, watching: Job | None) -> None:
        """Take what a window showed; asked for one window late, so that the work had a window's time."""
        if watching is None:
            return
        reply = self.session.result(watching)
        seen: Watched = reply.facts
        self.ledger.take(reply.rows)
        edge.account.watched(seen)

    # What crosses the link and what the server does --------------------------------------------------------------

    def _send(self, edge: Edge) -> Process:
        """Sample, pack and send, as often as the streaming member plans it and the stream lasts."""
        while (sampling := self._sampling(edge)) is not None:
            packing = self.session.call(edge.node("device"), "upload", sampling) if sampling.times_s else None
            yield self.clock.timeout(sampling.send_s - self.clock.now)
            if packing is not None:  # a slow camera may show nothing between two uploads
                self.clock.process(self._serve(edge, packing))
            if sampling.next_s is not None:
                yield self.clock.timeout(sampling.next_s - self.clock.now)

    def _sampling(self, edge: Edge) -> Sampling | None:
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
        return sampling

    def _serve(self, edge: Edge, packing: Job) -> Process:
        """Carry an upload to the server, do there what it is for, and carry the outcome back."""
        sent: Uploaded = self.session.result(packing).facts
        yield from self._carry(edge, "up", "samples", sent.bytes)
        with edge.turn.request() as turn:
            yield turn
            if self.streaming.returns == "labels":
                packed = yield from self._label(sent, packing)
            else:
                visit, training = yield from self._visit(edge, sent, packing)
        if self.streaming.returns == "labels":
            yield from self._return_labels(edge, sent, packed)
        else:
            yield from self._return(visit, training)

    def _label(self, sent: Uploaded, packing: Job) -> Generator[simpy.Event, Any, Job]:
        """Hold a GPU while the teacher labels; pack the labels for the way back."""
        with self.gpu.request() as gpu:
            yield gpu
            labelling = self.session.call(self.teacher, "label", packing)
            packed = self.session.call(self.teacher, "pack", labelling)
            yield self._busy(sent.frames * self.setting.label_s)
        return packed

    def _return_labels(self, edge: Edge, sent: Uploaded, packed: Job) -> Process:
        """Send labels down; the device carries them along from the moment of their arrival."""
        transfer = yield from self._carry(edge, "down", "labels", self.session.result(packed).facts.bytes)
        tracking = self.session.call(edge.node("application"), "track", packed, sent.newest_s, transfer.arrive_s)
        applied: Applied = self.session.result(tracking).facts
        if not applied.accepted:
            log.warning("%s refused labels: %s", edge.name, applied.reason)

    def _visit(self, edge: Edge, sent: Uploaded, packing: Job) -> Generator[simpy.Event, Any, tuple[Visit, Job | None]]:
        """Hold a GPU for one whole step of a device: label, then train."""
        with self.gpu.request() as gpu:
            yield gpu
            visit = Visit(edge, sent, teach_start_s=self.clock.now)
            answer = yield from self._teach(visit, packing)
            training = yield from self._train(visit, answer)
        learned = answer.state if visit.trained is None else self.streaming.learn(answer.state, visit.trained)
        visit.state = edge.server_state = learned
        return visit, training

    def _teach(self, visit: Visit, packing: Job) -> Generator[simpy.Event, Any, Answer]:
        """Label what has arrived and put it into the trainer's buffer."""
        edge = visit.edge
        if not edge.has_trainer:
            self._place_trainer(edge)
        labelling = self.session.call(self.teacher, "label", packing)
        storing = self.session.call(edge.node("trainer"), "store", packing, labelling)
        yield self._busy(visit.sent.frames * self.setting.label_s)
        visit.stored, visit.teach_end_s = self.session.result(storing).facts, self.clock.now
        answer: Answer = self.streaming.plan_downlink(edge.server_state, edge.plan, visit.stored, self.clock.now)
        return answer

    def _train(self, visit: Visit, answer: Answer) -> Generator[simpy.Event, Any, Job | None]:
        """Train as long as the plan says; where that depends on the score, the work comes before its duration."""
        if answer.phase is None:
            return None
        training = self.session.call(visit.edge.node("trainer"), "train", _order(visit.edge, answer))
        iterations = answer.phase.iterations or self.adaptation.phase_iterations
        if answer.phase.stop_score is not None:
            iterations = self.session.result(training).facts.iterations
        cost, batch = self.setting.student.cost, self.adaptation.phase_batch
        yield self._busy(self.setting.server.training_s(cost, iterations, batch))
        visit.trained, visit.train_end_s = self.session.result(training).facts, self.clock.now
        return training

    def _return(self, visit: Visit, training: Job | None) -> Process:
        """Send the update down, or the new plan alone; the device uses it from the moment of its arrival."""
        edge, trained = visit.edge, visit.trained
        if trained is None or trained.skipped:
            yield from self._carry(edge, "down", "plan", PLAN_BYTES)
            self._record(visit, trained.skipped if trained else "stored")
        else:
            transfer = yield from self._carry(edge, "down", "update", trained.bytes)
            if transfer.arrive_s < edge.plan.duration_s:
                self._apply(visit, training, transfer.arrive_s)
            else:
                self._record(visit, "it did not arrive in the session")
        edge.device_state = visit.state

    def _apply(self, visit: Visit, training: Job | None, arrive_s: float) -> None:
        """Hand an update to the application, which may refuse it."""
        edge = visit.edge
        applying = self.session.call(edge.node("application"), "apply", training, arrive_s)
        applied: Applied = self.session.result(applying).facts
        edge.version, edge.in_step = applied.version, applied.accepted
        edge.account.updates += applied.accepted
        self._record(visit, applied.reason, applied, arrive_s)

    def _busy(self, seconds: float) -> simpy.Event:
        return self.clock.timeout(0.0 if self.streaming.free else seconds)

    def _carry(self, edge: Edge, direction: str, kind: str, size: int) -> Generator[simpy.Event, Any, Transfer]:
        """Put a message on the link and count it."""
        edge.messages[direction] += 1
        sequence = edge.messages[direction]
        link = edge.up if direction == "up" else edge.down
        transfer = yield from link.send(size)
        edge.account.sent(direction, transfer)
        self.ledger.row(
            "transfers", device=edge.name, direction=direction, kind=kind, sequence=sequence, **vars(transfer)
        )
        return transfer

    # Beginning and end -------------------------------------------------------------------------------------------

    def _edge(self, spec: EdgeSpec) -> Edge:
        profile = LINKS["null"] if self.streaming.free else spec.link
        plan = Plan(spec.stream.fps, spec.stream.duration_s)
        up, down = (
            open_link(self.clock, rng_for(self.cell.seed, "link", spec.name, way))
            for way, open_link in (("up", profile.up), ("down", profile.down))
        )
        state = self.streaming.start(plan)
        return Edge(spec, plan, up, down, state, state, simpy.Resource(self.clock))

    def _place(self, edge: Edge) -> None:
        self.session.place(edge.node("device"), edge.spec.stream)
        follows_here = not self.adaptation.needs_labels
        spec = AppSpec(
            device=edge.name,
            app="segmentation",
            student=self._student(edge, self.cell.system.adaptation if follows_here else FROZEN),
            hardware=edge.spec.hardware,
            cost=self.setting.student.cost,
            tracks=self.streaming.returns == "labels",
            picture_times_s=self._picture_times(edge),
        )
        self.session.place(edge.node("application"), spec, self.setting.student.weights)

    def _place_trainer(self, edge: Edge) -> None:
        spec = self._student(edge, self.cell.system.adaptation)
        self.session.place(edge.node("trainer"), spec, self.setting.student.weights)
        edge.has_trainer = True

    def _student(self, edge: Edge, adaptation: Member) -> StudentSpec:
        return StudentSpec(
            network=self.setting.student.name,
            classes=self.setting.classes,
            height=edge.spec.stream.height,
            width=edge.spec.stream.width,
            adaptation=adaptation,
            scaling=self.cell.system.scaling,
            seed=edge.spec.stream.seed,
            torch_device=self.setting.torch_device,
        )

    def _picture_times(self, edge: Edge) -> tuple[float, ...]:
        """Spread the report's pictures over the first device's stream."""
        if edge.spec is not self.cell.devices[0] or not self.setting.pictures:
            return ()
        middles = (np.arange(self.setting.pictures) + 0.5) / self.setting.pictures * edge.plan.duration_s
        return tuple(float(np.floor(middle * edge.plan.fps) / edge.plan.fps) for middle in middles)

    def _close(self) -> None:
        """Write a row per device and the cell's own."""
        finishing = [self.session.call(edge.node("application"), "finish") for edge in self.edges]
        digests = [str(self.session.result(job).facts) for job in finishing]
        for edge in self.edges:
            self.ledger.row("devices", **device_row(edge.spec, edge.account, self.setting))
        accounts = [edge.account for edge in self.edges]
        self.ledger.row("runs", **run_row(self.cell, self.setting, accounts, digests))

    def _record(self, visit: Visit, reason: str, applied: Applied | None = None, arrive_s: float | None = None) -> None:
        stored, trained = visit.stored, visit.trained
        assert stored is not None
        self.ledger.row(
            "updates",
            device=visit.edge.name,
            version=applied.version if applied and applied.accepted else None,
            samples=visit.sent.frames,
            buffered=trained.frames if trained else stored.buffered,
            phi=float(np.mean(stored.phis)) if stored.phis else None,
            iterations=trained.iterations if trained else 0,
            values=trained.values if trained else 0,
            loss_first=trained.loss_first if trained else None,
            loss_last=trained.loss_last if trained else None,
            bytes=trained.bytes if trained else 0,
            teach_start_s=visit.teach_start_s,
            teach_end_s=visit.teach_end_s,
            train_start_s=visit.teach_end_s if trained else None,
            train_end_s=visit.train_end_s if trained else None,
            arrive_s=arrive_s,
            accepted=applied.accepted if applied else None,
            reason=reason or None,
            host_train_seconds=trained.host_seconds if trained else None,
        )


def _order(edge: Edge, answer: Answer) -> Answer:
    """Tell the trainer what to send; after a refusal a message that stands alone, in a form fit for whole weights."""
    if edge.in_step:
        return replace(answer, state=None)
    return replace(answer, state=None, dense=True, wire=Wire())
