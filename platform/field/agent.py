"""A device in wall time: it answers its stream frame by frame, and learns from a server when there is one."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from driftlab.errors import DataError, RequestError, WireError, first_line
from driftlab.platform.core.documents import read_json, read_text
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Receipt, Weights
from driftlab.platform.field.camera import CameraDevice, LiveCamera, is_camera, open_camera
from driftlab.platform.field.client import BUILD_S, Backoff, Client, ServerAway
from driftlab.platform.field.energy import EnergyMeter, sensors_here
from driftlab.platform.field.messages import ResultMessage, load_state
from driftlab.platform.field.network_cache import KeptNetwork
from driftlab.platform.field.opening import Fetched, FieldCell, load_weights, open_on_device
from driftlab.platform.field.request import PLAIN, SessionAsked, read_asked
from driftlab.platform.field.sending import LocalLearner, Receiver, Sender, Traffic
from driftlab.platform.field.tables import write_update_rows
from driftlab.platform.results.tables.shapes import shape_fault
from driftlab.platform.sim.device import DeviceRun
from driftlab.platform.sim.inline import InlineSession
from driftlab.platform.sim.placing import place_app
from driftlab.platform.sim.rows import transfer_row
from driftlab.platform.world.link import Transfer

STATE = "field.json"  # beside the tables: how a killed device finds its session again
MOST_SHARES = 1000  # the newest ones, for the laboratory's experiment
RECENT_S = 10.0  # over which rates and latency are told
MOST_TRIES = 40  # to fetch the network again: about nine minutes
LEAVE_S = 5.0  # for the network threads to end


class Ticket(BaseModel):
    """A session on a server, as the device keeps it on disk."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    server: str
    id: Annotated[str, Field(pattern=PLAIN)]
    token: str
    asked: dict[str, Any]
    source: str = ""  # a film, a folder or a camera of the device, instead of the workload that the server knows
    began: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # wall clock at the stream's start; 0: not yet


@dataclass(frozen=True)
class DeviceReport:
    """The state of a device, for a person."""

    time_s: float
    fps: float
    latency_ms: float | None
    up_kbps: float
    down_kbps: float
    version: int
    score: float | None
    away: str


def join(server: str, token: str, asked: SessionAsked, source: str = "") -> Ticket:
    """Create a session on a server, which may have to train its network first."""
    client = Client(server.rstrip("/"), token, timeout_s=BUILD_S)
    document = asked.model_dump(mode="json", exclude_none=True)
    try:
        reply = client.ask_json("POST", "/sessions", document)
    finally:
        client.close()
    try:
        return Ticket(server=client.url, id=reply["id"], token=reply["token"], asked=document, source=source)
    except (TypeError, KeyError, ValueError) as error:
        raise WireError(f"{client.url} is no server of driftlab: it answers without a session.") from error


def keep_ticket(ticket: Ticket, folder: Path) -> None:
    """Write a ticket so that only its owner can read it."""
    file = folder / STATE
    write_atomically(file, ticket.model_dump_json())
    file.chmod(0o600)


def read_ticket(folder: Path) -> Ticket:
    """Read the ticket of a device that was stopped."""
    try:
        document = read_json(read_text(folder / STATE))
    except (OSError, ValueError, DataError) as error:
        raise RequestError(f"'{folder}' holds no device to continue: {first_line(error)}.") from error
    if fault := shape_fault(Ticket, document):
        raise RequestError(f"'{folder}' holds no device to continue: {fault}.")
    return Ticket.model_validate(document)


@dataclass
class Agent:
    """Runs one session's device until its stream ends."""

    ticket: Ticket
    folder: Path | None = None  # of a device that goes on
    cell: FieldCell = field(init=False)
    traffic: Traffic = field(init=False)
    version: int = 0
    answered: deque[tuple[float, float]] = field(default_factory=deque)  # time and latency of the last answers
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SHARES))  # of measured times, see `_share`
    threads: list[threading.Thread] = field(default_factory=list)
    outcomes: dict[int, tuple[float, Receipt]] = field(default_factory=dict)  # of updates, by number
    missing: str = ""  # what the tables lack, and why

    def __post_init__(self) -> None:
        """Read or fetch the network, and place the lab's device and application in this process."""
        client = Client(self.ticket.server, self.ticket.token)
        path = f"/sessions/{self.ticket.id}"
        asked, self.kept = read_asked(self.ticket.asked), KeptNetwork(self.folder)

        def part(name: str) -> Weights:
            return load_weights(self.kept.part(name, lambda: self._fetch(client, f"{path}/{name}")))

        fetched = Fetched(asked.student.network, part("weights"), lambda: part("pack"))
        self.cell = open_on_device(asked, InlineSession(), fetched, self.ticket.source)
        begins_s = None if self.ticket.began else 0.0
        self.traffic = Traffic(
            self.cell,
            client,
            path,
            self.now,
            self._open_camera(),
            take=self._take,
            begins_s=begins_s,
            number=None if self.ticket.began else 0,
        )
        self.meter = EnergyMeter(sensors_here())
        self.cell.device.follow = self._follow  # the agent itself follows the stream
        self._place()
        self.opening = self.stream_end = (0, 0)  # bytes up and down before the stream, and until its end
        self._zero = 0.0  # of the monotonic clock, at the stream's start
        self.fresh = not self.ticket.began
        self._warm_up()

    def _fetch(self, client: Client, path: str) -> bytes:
        """Fetch what the device cannot begin without; one that goes on waits until its server is back."""
        waiting = Backoff()
        while True:
            try:
                return client.ask("GET", path)
            except ServerAway as error:
                if not self.ticket.began or waiting.tries >= MOST_TRIES:
                    raise
                time.sleep(waiting.next_s(error))

    def _open_camera(self) -> LiveCamera | None:
        """Open the camera of this machine, if that is the stream."""
        if not is_camera(self.ticket.source):
            return None
        return open_camera(self.cell.app.wish.stream, getattr(self.cell.loop.parts.streaming, "scale", 1))

    def _place(self) -> None:
        """Place the application and its camera in this process."""
        app, session = self.cell.app, self.cell.loop.parts.session
        place_app(self.cell.loop.parts, app)
        if self.traffic.camera is not None:
            assert isinstance(session, InlineSession)
            session.nodes[app.node("device")] = CameraDevice(app.wish.stream, self.traffic.camera)

    def _warm_up(self) -> None:
        """Open the camera and run the network once: the first time takes seconds."""
        app, session = self.cell.app, self.cell.loop.parts.session
        frames = session.call(app.node("device"), "capture", 0.0, 0.5 / app.facts.fps).reply.payload  # type: ignore[attr-defined]
        session.call(app.node("application"), "answer", frames.images)

    def begin(self, folder: Path) -> None:
        """Start the stream, or go on with it where it is by now; the folder keeps the ticket."""
        if not self.ticket.began:
            self.ticket = self.ticket.model_copy(update={"began": time.time()})
        self._zero = time.monotonic() - max(0.0, time.time() - self.ticket.began)  # the clock may have been set back
        keep_ticket(self.ticket, folder)
        self.kept.begin(folder)
        self._replay()

    def _replay(self) -> None:
        """Bring the network to where the device stopped; what the server has since comes later."""
        app, parts = self.cell.app, self.cell.loop.parts
        for result, applied in self.kept.results(app.facts.fps):
            if result.kind == "update":
                taking = parts.session.call(app.node("application"), "apply", result.payload, self.now())
                receipt: Receipt = parts.session.result(taking).facts
                if not receipt.accepted:
                    return
                self.outcomes[result.number] = (applied - self.ticket.began, receipt)
                self.version = receipt.version
            app.device_state = load_state(parts.streaming.start(app.facts), result.plan)
            self.traffic.after = result.number

    def now(self) -> float:
        """Return the seconds since the stream began."""
        return time.monotonic() - self._zero

    def run(self, tell: Callable[[DeviceReport], None] = lambda report: None, every_s: float = 5.0) -> None:
        """Answer the stream in real time until its end; then stop the network threads and close the accounts."""
        if self.traffic.camera is not None:
            self.traffic.camera.zero_s = self._zero
        self.opening = self.traffic.client.counted.both
        self._allocate(self.now())
        parts: list[Sender | Receiver] = [LocalLearner(self.traffic) if self.cell.app.local else Sender(self.traffic)]
        parts += [] if self.cell.app.local else [Receiver(self.traffic)]
        self.threads = [
            threading.Thread(target=part.run, name=f"field-{type(part).__name__.lower()}", daemon=True)
            for part in parts
        ]
        for thread in self.threads:
            thread.start()
        try:
            self._answer(tell, every_s)
        finally:
            self.traffic.stop.set()
            self.apply_results()
            if self.traffic.camera is not None:
                self.traffic.camera.close()
        self._close()

    # Scheduling -----------------------------------------------------------------------------------------------------

    def _allocate(self, now_s: float) -> None:
        """Let the scheduler allocate the machine for every window that has begun; the lab's clock follows."""
        window_s, clock = self.cell.loop.parts.context.window_s, self.cell.loop.clock
        while self.cell.device.until_s <= now_s < self.cell.app.facts.duration_s:
            self.meter.charge(self.cell.app.account)
            begin_s = now_s // window_s * window_s
            if begin_s > clock.now:
                clock.run(until=begin_s)
            self.cell.device.begin_window(begin_s, min(window_s, self.cell.app.facts.duration_s - begin_s))

    def _follow(self, device: DeviceRun) -> None:
        """Run the network that the scheduler chose; the server hears of it with the next upload."""
        app = self.cell.app
        for one in device.allocations:
            if one.variant not in (None, app.runs):
                with self.traffic.turn:
                    self.cell.loop.parts.session.call(app.node("application"), "switch", one.variant)
                app.runs = one.variant

    # Answering ------------------------------------------------------------------------------------------------------

    def _answer(self, tell: Callable[[DeviceReport], None], every_s: float) -> None:
        """Answer every frame that is shown while the network is free; the others keep the previous answer."""
        fps, duration_s = self.cell.app.facts.fps, self.cell.app.facts.duration_s
        shown = chosen = 0 if self.fresh else math.ceil(self.now() * fps)  # the first without a row, the next to answer
        course, told_s = ((0.0, 1.0),), self.now()
        while chosen / fps < duration_s:
            self._wait_for(chosen / fps)
            self._allocate(chosen / fps)
            self.apply_results()
            self._see(shown, chosen / fps, course)
            latency_s = self.now() - chosen / fps
            self._tell_rows()
            self._remember(chosen / fps, latency_s)
            course = ((chosen / fps, self._share(latency_s)),)
            if not self.cell.loop.parts.learns_on_stream:  # whose answers take as long as the profile says
                self.shares.append(course[0][1])
            shown = chosen + 1
            chosen = max(shown, math.ceil((chosen / fps + latency_s) * fps - 1e-9))
            if self.now() - told_s >= every_s:
                told_s = self.now()
                tell(self.report())
        self._wait_for(duration_s)
        self.apply_results()
        self._see(shown, duration_s, course)  # the rest is shown while the last answer is not ready
        self._tell_rows()

    def _see(self, shown: int, until_s: float, course: tuple[tuple[float, float], ...]) -> None:
        """Answer the frame of a time; those before it keep the previous answer.

        The application derives the times of answers from the machine's shares, as in the lab: the share since the
        previous answer is the one that makes that answer take as long as it took here.
        """
        app, session = self.cell.app, self.cell.loop.parts.session
        fps = app.facts.fps
        with self.traffic.turn:
            capturing = session.call(app.node("device"), "capture", shown / fps, until_s + 0.5 / fps)
            session.call(app.node("application"), "see", capturing, until_s, course)

    def _tell_rows(self) -> None:
        """Score the frames whose answers are ready, and write their rows."""
        app, session = self.cell.app, self.cell.loop.parts.session
        with self.traffic.turn:
            reply = session.result(session.call(app.node("application"), "tell"))
        self.cell.loop.ledger.take(reply.rows)
        app.account.watched(reply.facts)

    def _remember(self, time_s: float, latency_s: float) -> None:
        """Keep the latencies of the last seconds for the report."""
        self.answered.append((time_s, latency_s))
        while self.answered[0][0] < time_s - RECENT_S:
            self.answered.popleft()

    def _share(self, latency_s: float) -> float:
        """Return the share of the modelled machine that makes the newest answer take the measured time."""
        work_s: float = self._node.work_s
        return work_s / latency_s if work_s and latency_s > 0 else 1.0

    @property
    def _node(self) -> Any:
        session = self.cell.loop.parts.session
        assert isinstance(session, InlineSession)
        return session.nodes[self.cell.app.node("application")]

    def _wait_for(self, time_s: float) -> None:
        """Wait until a time, and apply what arrives meanwhile: between two frames."""
        while (left_s := time_s - self.now()) > 0:
            with contextlib.suppress(queue.Empty):
                self.traffic.inbox.get(timeout=left_s)()

    # Results --------------------------------------------------------------------------------------------------------

    def apply_results(self) -> None:
        """Apply what the network threads have brought."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.traffic.inbox.get_nowait()()

    def _take(self, result: ResultMessage, transfer: Transfer) -> None:
        """Hand a result to the application; its plan is in force once the result was accepted."""
        app, parts = self.cell.app, self.cell.loop.parts
        now_s, node, receipt = self.now(), app.node("application"), Receipt(self.version, accepted=True)
        verb, *captured = ("track", result.captured_s) if result.kind == "labels" else ("apply",)
        if result.kind != "plan":
            with self.traffic.turn:
                taking = parts.session.call(node, verb, result.payload, *captured, now_s)
            receipt = parts.session.result(taking).facts
        self._record(result, transfer, receipt, now_s)
        if receipt.accepted:
            self.version = receipt.version
            app.device_state = load_state(parts.streaming.start(app.facts), result.plan)
            self.kept.add(result, app.facts.fps)
        elif result.kind == "update":
            self.traffic.resync.set()

    def _record(self, result: ResultMessage, transfer: Transfer, receipt: Receipt, now_s: float) -> None:
        """Write the row of a message from the server."""
        app = self.cell.app
        message = app.message("down", result.kind)
        app.messages["down"] += 1
        message.sequence, message.transfer, message.arrive_s = app.messages["down"], transfer, now_s
        message.refused = receipt.reason
        columns = {} if receipt.unknown is None else {"unknown": receipt.unknown}
        self.cell.loop.ledger.row("transfers", **transfer_row(message), **columns)
        payload = Transfer(**{**vars(transfer), "wire_bytes": transfer.bytes})
        app.account.sent("down", payload)
        if result.kind == "update":
            app.account.updates += receipt.accepted
            self.outcomes[result.number] = (now_s, receipt)

    # End ------------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        device, loop = self.cell.device, self.cell.loop
        for thread in self.threads:
            thread.join(LEAVE_S)
        self.apply_results()
        self.stream_end = self.traffic.client.counted.both
        if not self.cell.app.local:
            self.missing = write_update_rows(self.traffic, self.outcomes)
        device.close(self.cell.app.facts.duration_s)
        self.meter.charge(self.cell.app.account)
        loop.watching.write_shares(device)
        loop.close()

    def report(self) -> DeviceReport:
        """Say how the device does."""
        now_s, account = self.now(), self.cell.app.account
        latencies = sorted(latency_s for _, latency_s in self.answered)
        span_s = min(RECENT_S, max(now_s, 1e-9))
        return DeviceReport(
            time_s=now_s,
            fps=len(latencies) / span_s,
            latency_ms=latencies[len(latencies) // 2] * 1e3 if latencies else None,
            up_kbps=account.up_bytes * 8e-3 / max(now_s, 1e-9),
            down_kbps=account.down_bytes * 8e-3 / max(now_s, 1e-9),
            version=self.version,
            score=account.score,
            away=self.traffic.failed or self.traffic.away,
        )
