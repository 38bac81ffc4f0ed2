"""The program on a device: runs the network in wall-clock time and applies the server's updates."""

from __future__ import annotations

import contextlib
import math
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from driftlab.errors import DriftlabError
from driftlab.platform.core.records import Applied, Weights
from driftlab.platform.field.camera import CameraDevice, LiveCamera, is_camera, open_camera
from driftlab.platform.field.client import MAX_REPLY_BYTES, Backoff, Client, ServerUnavailable
from driftlab.platform.field.energy import EnergyMeter, sensors_here
from driftlab.platform.field.journal import FILE as JOURNAL
from driftlab.platform.field.journal import FLUSH_S, Clocks, Journal, JournalEntry, read_entries
from driftlab.platform.field.load_follower import HostSensor, LoadFollower, NetworkTimes, chooses_by_load
from driftlab.platform.field.messages import (
    REPORT_INTERVAL_S,
    DeviceStatus,
    ResultMessage,
    load_state,
)
from driftlab.platform.field.network_cache import CachedNetwork
from driftlab.platform.field.opening import Fetched, FieldCell, load_weights, max_weight_bytes, open_on_device
from driftlab.platform.field.profiling import with_quick_times
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.rounds import payload_of
from driftlab.platform.field.sending import (
    LocalLearner,
    Receiver,
    Reporter,
    Sender,
    ThreadPart,
    Traffic,
    Uploader,
    write_upload,
)
from driftlab.platform.field.tables import write_update_rows
from driftlab.platform.field.ticket import Ticket, keep_ticket
from driftlab.platform.sim.inline import InlineSession
from driftlab.platform.sim.rows import transfer_row
from driftlab.platform.world.link import Transfer

MAX_SHARES = 1000  # the newest ones, for the experiment of the laboratory
RECENT_S = 10.0  # interval of the rates and the latency in a report
MAX_TRIES = 40  # requests for the network of a resumed device: about nine minutes
DATE_TIMEOUT_S = 5.0  # for the server's clock
JOIN_TIMEOUT_S = 5.0  # for each network thread to end
MEASURING_S = 5.0  # of all networks before the stream, after which the others keep computed times


@dataclass(frozen=True)
class DeviceReport:
    """The state of a device, for display."""

    time_s: float
    fps: float
    latency_ms: float | None
    up_kbps: float
    down_kbps: float
    version: int
    score_live: float | None
    away: str
    measure: str = "score"  # name of the score: accuracy, mIoU or F1 by task
    network: str | None = None  # that runs, if the device chooses among several


def is_finished(folder: Path) -> bool:
    """Return whether a device's tables are complete: its journal is removed after they are written."""
    return not (folder / JOURNAL).exists() and any((folder / "tables").glob("*"))


@dataclass
class Agent:
    """The device of one session, from its first frame to the end of its stream."""

    ticket: Ticket
    folder: Path | None = None  # of a resumed device
    cell: FieldCell = field(init=False)
    traffic: Traffic = field(init=False)
    version: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=deque)  # time and latency of the last inferences
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SHARES))  # from latencies, see `_share`
    threads: list[threading.Thread] = field(default_factory=list)
    outcomes: dict[int, tuple[float, Applied]] = field(default_factory=dict)  # of updates, by number
    load: LoadFollower | None = None  # if the scaling member chooses among several networks
    switches: list[tuple[float, str]] = field(default_factory=list)  # time and network, since the newest report
    reported: tuple[float, int] = (0.0, 0)  # sum and number of the live scores until the newest report
    missing: str = ""  # reason why a table is empty
    resumed_by: str = ""  # the clock by which a killed device found its position

    def __post_init__(self) -> None:
        """Load the network from disk or from the server, and create the simulator's nodes in this process."""
        client = Client(self.ticket.server, self.ticket.token)
        path = f"/sessions/{self.ticket.id}"
        asked, self.kept = parse_session_request(self.ticket.asked), CachedNetwork(self.folder)

        max_bytes = max_weight_bytes(asked)

        def part(name: str) -> Weights:
            return load_weights(self.kept.part(name, lambda: self._fetch(client, f"{path}/{name}", max_bytes)))

        fetched = Fetched(asked.student.network, part("weights"), lambda: part("source_summary"))
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
            max_result_bytes=max(MAX_REPLY_BYTES, max_bytes),
        )
        self.meter = EnergyMeter(sensors_here())
        self.cell.device.on_shares = self._switch_network  # the agent runs the stream itself
        self._place()
        self.opening = self.stream_end = (0, 0)  # bytes up and down before the stream, and until its end
        self._zero = 0.0  # monotonic clock at the start of the stream
        self.fresh = not self.ticket.began
        self._warm_up()
        if chooses_by_load(self.cell.device):
            self.load = self._follower()

    def _follower(self) -> LoadFollower:
        """Measure all networks, and return the follower of this computer's load."""
        device, app = self.cell.device, self.cell.app
        scaling = self.cell.runner.cell.system.scaling
        idle = with_quick_times(app.spec, app.networks, scaling, device.spec.hardware, MEASURING_S)
        device.variants[app.spec.name] = idle
        return LoadFollower(device, NetworkTimes(idle), HostSensor(device.spec.hardware.memory_bytes))

    def _fetch(self, client: Client, path: str, max_bytes: int) -> bytes:
        """Download weights; a resumed device retries until its server is available, up to `MAX_TRIES` times."""
        backoff = Backoff()
        while True:
            try:
                return client.ask("GET", path, max_bytes=max_bytes)
            except ServerUnavailable as error:
                if not self.ticket.began or backoff.tries >= MAX_TRIES:
                    raise
                time.sleep(backoff.next_s(error))

    def _open_camera(self) -> LiveCamera | None:
        """Open the camera if the stream is one."""
        if not is_camera(self.ticket.source):
            return None
        return open_camera(self.cell.app.spec.stream, getattr(self.cell.runner.streaming, "scale", 1))

    def _place(self) -> None:
        """Create the application and its camera in this process."""
        app, session = self.cell.app, self.cell.runner.session
        self.cell.runner.place_app(app)
        if self.traffic.camera is not None:
            assert isinstance(session, InlineSession)
            session.nodes[app.node("device")] = CameraDevice(app.spec.stream, self.traffic.camera)

    def _warm_up(self) -> None:
        """Capture a frame and run the network once: the first call takes seconds."""
        app, session = self.cell.app, self.cell.runner.session
        frames = session.call(app.node("device"), "capture", 0.0, 0.5 / app.facts.fps).reply.payload  # type: ignore[attr-defined]
        session.call(app.node("application"), "predict_images", frames.images)

    def begin(self, folder: Path) -> None:
        """Start the stream, or join it at the current time; write the ticket to the folder."""
        if not self.ticket.began:
            self.ticket = self.ticket.model_copy(update={"began": time.time()})
        keep_ticket(self.ticket, folder)
        self.kept.begin(folder)
        self.traffic.outbox.open(folder)
        self.journal = Journal(folder / JOURNAL)
        position_s = self._restore(read_entries(self.journal.path))
        self._zero = time.monotonic() - position_s
        self._replay()
        self._flush()

    def _restore(self, entries: list[JournalEntry]) -> float:
        """Take the rows of a killed device, and return the position in the stream."""
        if not entries:
            return max(0.0, time.time() - self.ticket.began)
        runner, app, last = self.cell.runner, self.cell.app, entries[-1]
        for entry in entries:
            runner.ledger.take(entry.rows)
        self.journal.skip(runner.ledger)
        vars(app.account).update(vars(last.account))
        app.links.messages.update(last.messages)
        self.outcomes.update(last.outcomes)
        self._ask_date()
        elapsed_s, self.resumed_by = last.clocks.elapsed_s(Clocks.read(0.0, self.traffic.client.server_s))
        return last.clocks.stream_s + elapsed_s

    def _ask_date(self) -> None:
        """Read the server's clock, if it replies."""
        client = replace(self.traffic.client, timeout_s=DATE_TIMEOUT_S)
        with contextlib.suppress(DriftlabError):  # the threads report why it does not reply
            client.ask("GET", self.traffic.path)
        client.close()
        self.traffic.client.server_ahead_s = client.server_ahead_s

    def _flush(self) -> None:
        """Store the rows since the last call, and the accounts."""
        app, client = self.cell.app, self.traffic.client
        self.cell.device.stream.write_shares()
        clocks = Clocks.read(self.now(), client.server_s)
        self.journal.add(clocks, self.cell.runner.ledger, app.account, dict(app.links.messages), self.outcomes)

    def seal(self) -> None:
        """Remove the journal and the outbox, once the tables are written."""
        self.journal.path.unlink(missing_ok=True)
        if self.traffic.outbox.folder is not None:
            shutil.rmtree(self.traffic.outbox.folder)

    def _replay(self) -> None:
        """Apply the stored updates again, up to the one at which the device stopped."""
        app, runner = self.cell.app, self.cell.runner
        for result, applied in self.kept.results(app.facts.fps):
            if result.kind == "update":
                job = runner.session.call(app.node("application"), "apply", result.payload, self.now())
                receipt: Applied = runner.session.result(job).facts
                if not receipt.accepted:
                    return
                self.outcomes.setdefault(result.number, (max(0.0, applied - self.ticket.began), receipt))
                self.version = receipt.version
            app.learner.device_state = load_state(runner.streaming, app.facts, result.plan)
            self.traffic.after = result.number

    def now(self) -> float:
        """Return the seconds since the start of the stream."""
        return time.monotonic() - self._zero

    def run(
        self, tell: Callable[[DeviceReport], None] = lambda report: None, every_s: float = REPORT_INTERVAL_S
    ) -> None:
        """Run the stream in real time to its end, then stop the network threads and complete the tables.

        `tell` is called with a report every `every_s` seconds; the server gets a shorter one.
        """
        if self.traffic.camera is not None:
            self.traffic.camera.zero_s = self._zero
        self.opening = self.traffic.client.counted.both
        self._allocate(self.now())
        traffic, local = self.traffic, self.cell.app.learner.local
        parts: list[ThreadPart] = (
            [LocalLearner(traffic)] if local else [Sender(traffic), Uploader(traffic), Receiver(traffic)]
        )
        parts += [Reporter(traffic), self.journal]
        self.threads = [
            threading.Thread(
                target=traffic.guard, args=(part,), name=f"field-{type(part).__name__.lower()}", daemon=True
            )
            for part in parts
        ]
        for thread in self.threads:
            thread.start()
        try:
            self._run_stream(tell, every_s)
        finally:
            self.traffic.stop.set()
            self.apply_results()
            self._flush()
            self.journal.close()
            if self.traffic.camera is not None:
                self.traffic.camera.close()
        self._close()

    # Scheduling -----------------------------------------------------------------------------------------------------

    def _allocate(self, now_s: float) -> None:
        """Call the scheduler for every window that has begun, and advance the simulator's clock to it."""
        window_s, clock = self.cell.runner.setup.window_s, self.cell.runner.clock
        while self.cell.device.until_s <= now_s < self.cell.app.facts.duration_s:
            self.meter.charge(self.cell.app.account)
            begin_s = now_s // window_s * window_s
            if begin_s > clock.now:
                clock.run(until=begin_s)
            self.cell.device.begin_window(begin_s, min(window_s, self.cell.app.facts.duration_s - begin_s))

    def _switch_network(self) -> None:
        """Run the network that the scheduler chose; the next upload carries its number to the server."""
        app = self.cell.app
        current = self.cell.device.current
        for place, share in enumerate(current):
            if share.variant not in (None, app.choice.runs):
                begun_s = self.now()
                with self.traffic.turn:
                    self.cell.runner.session.call(app.node("application"), "switch", share.variant)
                app.choice.runs = share.variant
                current[place] = replace(share, loading_s=(begun_s, self.now()))
                self.switches.append((begun_s, share.network.name if share.network else ""))

    def _follow_load(self) -> None:
        """Take a reading of the load if one is due; a switch takes place now, between two frames."""
        now_s, clock = self.now(), self.cell.runner.clock
        if self.load is None or now_s >= self.cell.app.facts.duration_s:
            return
        self._allocate(now_s)
        if now_s > clock.now:
            clock.run(until=now_s)
        self.load.follow(now_s)

    # Inference ------------------------------------------------------------------------------------------------------

    def _run_stream(self, tell: Callable[[DeviceReport], None], every_s: float) -> None:
        """Run the network on every frame that arrives while it is free.

        A skipped frame keeps the previous prediction.
        """
        fps, duration_s = self.cell.app.facts.fps, self.cell.app.facts.duration_s
        unrecorded = chosen = 0 if self.fresh else math.ceil(self.now() * fps)  # first frame without a row, next input
        self._node.begin_at(chosen)
        shares, reported_s, flushed_s, first = ((0.0, 1.0),), self.now(), self.now(), chosen
        while chosen / fps < duration_s:
            self._wait_for(chosen / fps)
            self._allocate(chosen / fps)
            self.apply_results()
            inference_s = self._run_frames(unrecorded, chosen / fps, shares)
            latency_s = self.now() - chosen / fps
            self._collect_rows()
            self._record_latency(chosen / fps, latency_s)
            if self.load is not None and self.cell.app.choice.runs is not None and chosen > first:
                self.load.times.add(self.cell.app.choice.runs, inference_s, latency_s)
            shares = ((chosen / fps, self._share(latency_s)),)
            if not self.cell.runner.learns_on_stream:  # there, latencies come from the hardware profile
                self.shares.append(shares[0][1])
            unrecorded = chosen + 1
            chosen = max(unrecorded, math.ceil((chosen / fps + latency_s) * fps - 1e-9))
            self._follow_load()
            if self.now() - flushed_s >= FLUSH_S:
                flushed_s = self.now()
                self._flush()
            if self.now() - reported_s >= every_s:
                reported_s = self.now()
                report = self.report()
                tell(report)
                self.traffic.reports.put(self._status(report))
        self._wait_for(duration_s)
        self.apply_results()
        self._run_frames(unrecorded, duration_s, shares)  # frames that arrived during the last inference
        self._collect_rows()

    def _run_frames(self, unrecorded: int, until_s: float, shares: tuple[tuple[float, float], ...]) -> float:
        """Predict the frame at `until_s`, and return the time of the inference without capturing.

        Unrecorded frames before it keep the previous prediction.

        As in a simulation, the application derives the times of predictions from its processor shares. The share since
        the previous prediction is therefore set so that the inference takes its measured time.
        """
        app, session = self.cell.app, self.cell.runner.session
        fps = app.facts.fps
        with self.traffic.turn:
            frames = session.call(app.node("device"), "capture", unrecorded / fps, until_s + 0.5 / fps)
            began_s = self.now()
            session.call(app.node("application"), "run_frames", frames, until_s, shares)
            return self.now() - began_s

    def _collect_rows(self) -> None:
        """Score the frames whose predictions are ready, and write their rows."""
        app, session = self.cell.app, self.cell.runner.session
        with self.traffic.turn:
            reply = session.result(session.call(app.node("application"), "collect_rows"))
        self.cell.runner.ledger.take(reply.rows)
        app.account.watched(reply.facts)

    def _record_latency(self, time_s: float, latency_s: float) -> None:
        """Store a latency for the report; drop those older than `RECENT_S`."""
        self.recent.append((time_s, latency_s))
        while self.recent[0][0] <= time_s - RECENT_S:
            self.recent.popleft()

    def _share(self, latency_s: float) -> float:
        """Return the share of the simulated processor at which the newest inference takes its measured time."""
        inference_s: float = self._node.inference_s
        return inference_s / latency_s if inference_s and latency_s > 0 else 1.0

    @property
    def _network(self) -> str | None:
        """Return the name of the network that runs, if one was chosen."""
        runs = self.cell.app.choice.runs
        return None if runs is None else self.cell.device.variants[self.cell.app.spec.name][runs].name

    @property
    def _node(self) -> Any:
        session = self.cell.runner.session
        assert isinstance(session, InlineSession)
        return session.nodes[self.cell.app.node("application")]

    def _wait_for(self, time_s: float) -> None:
        """Wait until a time; apply results that arrive before it, as this is between two frames."""
        while (left_s := time_s - self.now()) > 0:
            with contextlib.suppress(queue.Empty):
                self.traffic.inbox.get(timeout=left_s)()

    # Results --------------------------------------------------------------------------------------------------------

    def apply_results(self) -> None:
        """Apply the results that the network threads have queued."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.traffic.inbox.get_nowait()()

    def _take(self, result: ResultMessage, transfer: Transfer) -> None:
        """Pass a result to the application; store its plan only if the application accepts the result."""
        app, runner = self.cell.app, self.cell.runner
        now_s, node, receipt = self.now(), app.node("application"), Applied(self.version, accepted=True)
        verb, *captured = ("track", result.captured_s) if result.kind == "labels" else ("apply",)
        if result.kind != "plan":
            with self.traffic.turn:
                job = runner.session.call(node, verb, result.payload, *captured, now_s)
            receipt = runner.session.result(job).facts
        self._record(result, transfer, receipt, now_s)
        if receipt.accepted:
            self.version = receipt.version
            app.learner.device_state = load_state(runner.streaming, app.facts, result.plan)
            self.kept.add(result, app.facts.fps)
            if result.kind == "update" and self.kept.is_long and app.choice.runs is None:
                self._store_network(result)
        elif result.kind == "update":
            self.traffic.resync.set()

    def _store_network(self, result: ResultMessage) -> None:
        """Replace the updates on disk by one with all weights of the newest version."""
        with self.traffic.turn:
            job = self.cell.runner.session.call(self.cell.app.node("application"), "pack")
        self.kept.add(replace(result, kind="update", payload=payload_of(job)), self.cell.app.facts.fps)

    def _record(self, result: ResultMessage, transfer: Transfer, receipt: Applied, now_s: float) -> None:
        """Write the row of a message from the server."""
        app = self.cell.app
        message = app.message("down", result.kind)
        app.links.messages["down"] += 1
        message.sequence, message.transfer, message.arrive_s = app.links.messages["down"], transfer, now_s
        message.refused = receipt.reason
        columns = {} if receipt.unlisted_labels is None else {"unlisted_labels": receipt.unlisted_labels}
        self.cell.runner.ledger.row("transfers", **transfer_row(message), **columns)
        payload = Transfer(**{**vars(transfer), "wire_bytes": transfer.bytes})
        app.account.sent("down", payload)
        if result.kind == "update":
            app.account.updates += receipt.accepted
            self.outcomes[result.number] = (now_s, receipt)

    # End ------------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        device, runner = self.cell.device, self.cell.runner
        for thread in self.threads:
            thread.join(JOIN_TIMEOUT_S)
        self.apply_results()
        for upload in self.traffic.outbox.waiting:
            write_upload(self.traffic, upload, None, "the server did not respond before the session ended")
        self.stream_end = self.traffic.client.counted.both
        if self.load is not None:
            self.load.close(self.cell.app.facts.duration_s)
        if not self.cell.app.learner.local:
            self.missing = write_update_rows(self.traffic, self.outcomes)
        device.close(self.cell.app.facts.duration_s)
        self.meter.charge(self.cell.app.account)
        device.stream.write_shares()
        runner.close()

    def _status(self, report: DeviceReport) -> DeviceStatus:
        """Shorten a report for the server, with the score of the frames since the report before."""
        account, (scores, frames) = self.cell.app.account, self.reported
        self.reported = account.live_scores, account.live_scored
        scored = account.live_scored - frames
        score = (account.live_scores - scores) / scored if scored else None
        switches, self.switches = self.switches, []
        return DeviceStatus(report.time_s, report.fps, report.latency_ms, score, report.network, tuple(switches))

    def report(self) -> DeviceReport:
        """Return the current state, with rates and latency over the last `RECENT_S` seconds."""
        now_s, account = self.now(), self.cell.app.account
        latencies = sorted(latency_s for _, latency_s in self.recent)
        span_s = min(RECENT_S, max(now_s, 1e-9))
        return DeviceReport(
            time_s=now_s,
            fps=len(latencies) / span_s,
            latency_ms=latencies[len(latencies) // 2] * 1e3 if latencies else None,
            up_kbps=account.up_bytes * 8e-3 / max(now_s, 1e-9),
            down_kbps=account.down_bytes * 8e-3 / max(now_s, 1e-9),
            version=self.version,
            score_live=account.score_live,
            away=self.traffic.failed or self.traffic.away,
            measure=self.cell.app.networks.task.measure,
            network=self._network,
        )
