"""The threads of a device that sample, upload or train, and receive results."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from pydantic import NonNegativeInt, TypeAdapter

from driftlab.errors import DriftlabError, RunError, WireError, first_line, shortened
from driftlab.platform.core.documents import read_json
from driftlab.platform.core.records import StreamStatistics, Uploaded
from driftlab.platform.field.camera import CameraDevice, LiveCamera
from driftlab.platform.field.client import MAX_REPLY_BYTES, Backoff, Client, ServerUnavailable, SessionExpired
from driftlab.platform.field.messages import DeviceStatus, ResultMessage, SampleMessage, decode_results, load_state
from driftlab.platform.field.opening import FieldCell
from driftlab.platform.field.outbox import Outbox, WaitingUpload
from driftlab.platform.field.rounds import drive
from driftlab.platform.field.websocket import Line
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.messages import Delivery, Upload
from driftlab.platform.sim.rounds import Step
from driftlab.platform.sim.rows import sample_columns, transfer_row, update_row
from driftlab.platform.sim.session import NodeId
from driftlab.platform.streaming.base import RESYNC_BYTES, Sampling, Seen, check_sampling
from driftlab.platform.world.link import Transfer

log = logging.getLogger(__name__)
CAMERA = NodeId("device", "sampling")  # the stream as the sending thread reads it
MAX_LAG_S = 1.0  # of a plan; a later one starts at the current time
POLL_HOLD_S = 20.0  # for which the server holds a request for results
MAX_DIGITS = 9  # of the number of a result
RECEIVE_TIMEOUT_S = 1.0  # between checks whether the stream has ended


@dataclass
class Traffic:
    """State and network access shared by the threads of a device."""

    cell: FieldCell
    client: Client  # with the session's token
    path: str  # of the session on the server
    now: Callable[[], float]  # seconds since the start of the stream
    camera: LiveCamera | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)  # held during a call to the application node
    inbox: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)  # for the inference thread
    take: Callable[[ResultMessage, Transfer], None] = lambda result, transfer: None  # called by the inference thread
    reports: queue.SimpleQueue[DeviceStatus] = field(default_factory=queue.SimpleQueue)  # for the server's live page
    outbox: Outbox = field(default_factory=Outbox)
    resync: threading.Event = field(default_factory=threading.Event)
    begins_s: float | None = 0.0  # time of the first plan; None: now, for a resumed device
    line: Line = field(init=False)
    number: int | None = 0  # of the newest upload; None: request it from the server
    after: int = 0  # number of the newest result
    away: str = ""  # reason why the server does not respond
    failed: str = ""  # reason why the session has ended early
    max_result_bytes: int = MAX_REPLY_BYTES  # of all weights and their header

    def __post_init__(self) -> None:
        self.line = Line(self.client, self.path)

    def persist(self, ask: Callable[[], bytes]) -> tuple[bytes, int] | None:
        """Repeat a request until the server replies; return the reply and the number of retries.

        Return None if the stream ends first.
        """
        backoff = Backoff()
        while not self.stop.is_set():
            try:
                reply = ask()
            except ServerUnavailable as error:
                self.away = str(error)
                self.stop.wait(backoff.next_s(error))
                continue
            self.away = ""
            return reply, backoff.tries
        return None

    def wait_until(self, time_s: float) -> None:
        self.stop.wait(max(0.0, time_s - self.now()))

    def fail(self, error: DriftlabError) -> None:
        """Record the error that ends a thread; inference continues."""
        self.failed = self.failed or str(error)
        log.warning("the session has ended early, inference continues: %s", error)

    def guard(self, part: ThreadPart) -> None:
        """Run a part of the device; whatever ends it is recorded, so that no thread dies unseen."""
        try:
            part.run()
        except DriftlabError as error:
            self.fail(error)
        except Exception as error:
            log.debug("the thread %s failed", type(part).__name__, exc_info=True)
            self.fail(RunError(f"{type(part).__name__} failed with {type(error).__name__}: {first_line(error)}"))


class ThreadPart(Protocol):
    """The work of one thread of a device."""

    def run(self) -> None:
        """Run until the stream ends."""


class Sender:
    """Takes and queues samples according to the streaming member's plans."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.client = traffic, traffic.client.another()
        self.runner, self.app = traffic.cell.runner, traffic.cell.app
        self.open_camera()

    def open_camera(self) -> None:
        """Open the stream for this thread; a live camera is shared, as it can be opened only once."""
        session, camera = self.runner.session, self.traffic.camera
        assert isinstance(session, InlineSession)
        if camera is None:
            session.place(CAMERA, self.app.spec.stream)
        else:
            session.nodes[CAMERA] = CameraDevice(self.app.spec.stream, camera)

    def run(self) -> None:
        """Sample and queue until the stream ends."""
        due_s = self.traffic.now() if self.traffic.begins_s is None else self.traffic.begins_s
        while not self.traffic.stop.is_set() and (sampling := self._plan(due_s)) is not None:
            self.traffic.wait_until(sampling.send_s)
            if sampling.times_s and not self.traffic.stop.is_set():
                self._send(sampling)
            due_s = sampling.send_s if sampling.next_s is None else sampling.next_s
            self.traffic.wait_until(due_s)

    def _plan(self, due_s: float) -> Sampling | None:
        """Return the plan from the end of the last one, or from now if that is too long ago; None at the end."""
        now_s = due_s if self.traffic.now() - due_s < MAX_LAG_S else self.traffic.now()
        if now_s >= self.app.facts.duration_s:
            return None
        state, facts = self.app.learner.device_state, self.app.facts
        planned = self.runner.streaming.plan_uplink(state, facts, now_s, self._statistics())
        if planned is None:
            return None
        check_sampling(planned, now_s, self.app.learner.planner)
        if planned.send_s >= facts.duration_s:
            return None
        self.app.learner.remembered = planned.state
        return planned

    def _statistics(self) -> Seen:
        """Return statistics of the stream, empty unless the streaming member uses them."""
        if not self.runner.streaming.uses_statistics:
            return Seen(state=self.app.learner.remembered)
        with self.traffic.turn:
            job = self.runner.session.call(self.app.node("application"), "stream_statistics")
        noticed: StreamStatistics = self.runner.session.result(job).facts
        seen = noticed.frames, noticed.entropy, noticed.distance, noticed.domain
        return Seen(*seen, self.app.learner.remembered)

    def _send(self, sampling: Sampling) -> None:
        """Queue samples; if the server is away for too long, the oldest waiting ones are dropped."""
        session, traffic = self.runner.session, self.traffic
        packing = session.call(CAMERA, "upload", sampling)
        sent: Uploaded = session.result(packing).facts
        payload: bytes = packing.reply.payload  # type: ignore[attr-defined]
        upload = WaitingUpload(sampling, sent, payload, self.app.choice.runs, traffic.now())
        for dropped in traffic.outbox.put(upload):
            traffic.inbox.put(partial(write_upload, traffic, dropped, None, "dropped: too many uploads are waiting"))


class Uploader:
    """Sends the waiting uploads in order."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.client = traffic, traffic.client.another()

    def run(self) -> None:
        """Send until the stream ends; uploads that the server does not have then get a row without an arrival."""
        traffic = self.traffic
        try:
            self._find_number()
            while not traffic.stop.is_set():
                if (upload := traffic.outbox.first(RECEIVE_TIMEOUT_S)) is not None:
                    self._send(upload)
        finally:
            self.client.close()

    def _find_number(self) -> None:
        """Request the number of the newest upload, for a resumed device; wait until the server replies."""
        traffic = self.traffic
        if traffic.number is None:
            done = traffic.persist(lambda: self.client.ask("GET", traffic.path))
            traffic.number = 0 if done is None else _count_of(done[0])

    def _send(self, upload: WaitingUpload) -> None:
        traffic, fps = self.traffic, self.traffic.cell.app.facts.fps
        assert traffic.number is not None
        if upload.number is None:
            upload = traffic.outbox.begin(upload, traffic.number + 1)
        number = upload.number
        assert number is not None
        message = SampleMessage(number, upload.queued_s, upload.sampling, upload.payload, upload.runs)

        def post() -> bytes:
            fresh = replace(message, sent_s=traffic.now())  # a retry must carry the current time: the server's clock
            body = fresh.encode(fps)
            return traffic.line.post(body) or self.client.ask("POST", f"{traffic.path}/uploads", body)

        if number <= traffic.number:  # acknowledged before the device was killed
            done: tuple[bytes, int] | None = b"", 0
        elif (done := traffic.persist(post)) is None:
            return
        traffic.number = max(number, traffic.number)
        traffic.outbox.done(upload)
        traffic.inbox.put(partial(write_upload, traffic, upload, done, ""))


def write_upload(traffic: Traffic, upload: WaitingUpload, done: tuple[bytes, int] | None, refused: str) -> None:
    """Write the row of an upload; without an acknowledgement its arrival is NaN."""
    app, sent, queued_s = traffic.cell.app, upload.sent, upload.queued_s
    now_s = traffic.now() if done else float("nan")
    framed = len(SampleMessage(0, queued_s, upload.sampling, upload.payload, upload.runs).encode(app.facts.fps))
    transfer = Transfer(queued_s, queued_s, now_s, now_s, sent.bytes, framed, done[1] if done else 0)
    message = app.message("up", "samples")
    app.links.messages["up"] += 1
    message.sequence, message.transfer, message.refused = app.links.messages["up"], transfer, refused
    app.account.sent("up", replace(transfer, wire_bytes=sent.bytes))
    traffic.cell.runner.ledger.row("transfers", **transfer_row(message), **sample_columns(sent, upload.sampling))


def _count_of(reply: bytes) -> int:
    """Return the number of uploads in the status of a session."""
    try:
        return TypeAdapter(NonNegativeInt).validate_python(read_json(reply.decode())["uploads"], strict=True)
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the status of the session has no number of uploads: {first_line(error)}") from error


class LocalLearner(Sender):
    """Takes samples according to the streaming member's plans, and trains on this device."""

    def _send(self, sampling: Sampling) -> None:
        """Train on new samples; the inference thread applies the update between two frames."""
        session, app, runner = self.runner.session, self.app, self.runner
        if not app.learner.placed:
            runner.place_teachers()
            runner.place_learner(app)
        frames = session.call(CAMERA, "sample", sampling)
        sent: Uploaded = session.result(frames).facts
        truth = session.call(CAMERA, "sample_with_truth", sampling.times_s) if app.learner.reads_truth else frames
        stamp_s = self.traffic.now() if sampling.stamp == "receipt" else None
        upload = Upload(sent, sampling, frames, truth, stamp_s)
        steps = app.learner.round([upload], self.traffic.now()).steps()
        for delivery in drive(steps, session, self.traffic.now, self._spend):
            self.traffic.inbox.put(lambda delivery=delivery: self._take(delivery))  # type: ignore[misc]

    def _spend(self, step: Step) -> None:
        """Charge the energy of a step according to the hardware profile."""
        self.traffic.inbox.put(lambda: self.app.account.spend(step.purpose, step.cost.joules))

    def _take(self, delivery: Delivery) -> None:
        """Apply an update between two frames, and write its row."""
        message = self.app.message("down", delivery.kind)
        message.arrive_s = message.ready_s = self.traffic.now()
        with self.traffic.turn:
            job = delivery.take(message)
        applied = None
        if job is not None:
            assert isinstance(job, InlineJob)
            applied = job.reply.facts
            message.refused = applied.reason
        row = delivery.settle(message, applied)
        if row is not None:
            self.runner.ledger.row("updates", **update_row(**row))


class Reporter:
    """Sends the reports of the device for the live page; reports are lost while the server is unavailable."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.client = traffic, traffic.client.another()

    def run(self) -> None:
        traffic = self.traffic
        try:
            while not traffic.stop.is_set():
                with suppress(queue.Empty, ServerUnavailable):
                    text = traffic.reports.get(timeout=RECEIVE_TIMEOUT_S).encode()
                    if not traffic.line.report(text):
                        self.client.ask("POST", f"{traffic.path}/report", text.encode())
        except DriftlabError as error:  # the session has ended, which the other threads report
            log.debug("no more reports: %s", error)
        finally:
            self.client.close()


def _number_of(reply: bytes) -> int:
    """Return the number of a result."""
    if not (reply.isdigit() and len(reply) <= MAX_DIGITS):
        raise WireError(f"'{shortened(reply.decode('utf-8', 'replace'))}' is not the number of a result")
    return int(reply)


class Receiver:
    """Receives the results after the newest one that the device has."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.client = traffic, traffic.client.another()

    def run(self) -> None:
        traffic = self.traffic
        try:
            while not traffic.stop.is_set():
                if traffic.resync.is_set():
                    self._resync()
                self.receive()
        finally:
            traffic.line.close()
            self.client.close()

    def receive(self) -> None:
        """Receive the next results over the WebSocket, or over HTTP if it does not open."""
        traffic = self.traffic
        if not traffic.line.is_open and not traffic.line.open(traffic.after):
            self.poll()
            return
        traffic.away = ""
        asked_s, body = traffic.now(), traffic.line.receive(RECEIVE_TIMEOUT_S)
        if body is None:
            self.poll(0.0)  # its reply gives the reason; it waits while the server is unavailable
        elif body:
            self._take(body, asked_s)

    def poll(self, max_s: float = POLL_HOLD_S) -> None:
        """Receive results over HTTP; wait up to `max_s` for the next one."""
        traffic = self.traffic
        asked_s = traffic.now()
        hold_s = min(max_s, max(0.0, traffic.cell.app.facts.duration_s - asked_s))
        path = f"{traffic.path}/updates?after={traffic.after}&hold_s={hold_s:.3f}"
        try:
            done = traffic.persist(lambda: self.client.ask("GET", path, max_bytes=traffic.max_result_bytes))
        except SessionExpired:  # the server has dropped messages that this device lacks
            traffic.resync.set()
            return
        if done is not None:
            self._take(done[0], asked_s)

    def _take(self, body: bytes, asked_s: float) -> None:
        """Queue results for the inference thread."""
        traffic, now_s, facts = self.traffic, self.traffic.now(), self.traffic.cell.app.facts
        fps = facts.fps
        for result in decode_results(body, fps):
            if result.number <= traffic.after:
                continue
            load_state(traffic.cell.runner.streaming, facts, result.plan)  # an invalid one ends the session here
            traffic.after = result.number
            size = len(result.payload) or len(result.plan)
            transfer = Transfer(asked_s, now_s, now_s, now_s, size, len(result.encode(fps)), 0)
            traffic.inbox.put(partial(traffic.take, result, transfer))

    def _resync(self) -> None:
        """Request all weights; they arrive as the next update."""
        traffic = self.traffic
        done = traffic.persist(lambda: self.client.ask("POST", f"{traffic.path}/resync", b""))
        if done is not None:
            traffic.after = max(traffic.after, _number_of(done[0]))
            traffic.resync.clear()
            traffic.inbox.put(self._write_resync_row)

    def _write_resync_row(self) -> None:
        app, now_s = self.traffic.cell.app, self.traffic.now()
        message = app.message("up", "resync")
        app.links.messages["up"] += 1
        message.sequence = app.links.messages["up"]
        message.transfer = Transfer(now_s, now_s, now_s, now_s, RESYNC_BYTES, RESYNC_BYTES, 0)
        self.traffic.cell.runner.ledger.row("transfers", **transfer_row(message))
