"""The processing of streams on devices: window by window, and in between where an event needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from driftlab.platform.core.records import Captured, Watched
from driftlab.platform.scheduling.base import Reason
from driftlab.platform.sim.app import AppSim, SeenAccuracy, StreamSegment
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.rows import load_rows, share_row
from driftlab.platform.sim.runtime import CellRuntime, Process
from driftlab.platform.sim.session import Job
from driftlab.platform.world.load import Load
from driftlab.platform.world.machine import accelerator_share


@dataclass
class StreamRunner:
    """Runs applications on their streams, at their shares of the machine."""

    parts: CellRuntime
    devices: dict[str, DeviceSim]
    looking: dict[str, list[tuple[AppSim, Job, float]]] = field(default_factory=dict)  # by device: not read yet

    def __post_init__(self) -> None:
        for device in self.devices.values():
            device.follow = self.follow

    def watch(self, device: DeviceSim) -> Process:
        """Allocate the machine per window; the frames of a window are processed after its end."""
        parts = self.parts
        while parts.clock.now < device.spec.duration_s:
            start_s = parts.clock.now
            stop_s = min(start_s + parts.context.window_s, device.spec.duration_s)
            sensed = device.sense()
            device.begin_window(start_s, stop_s - start_s)
            if sensed:
                self._write_load(device)
            yield parts.clock.timeout(stop_s - start_s)
            views = [(one.app, one.app.view) for one in device.allocations if one.app.view is not None]
            for _, view in views:
                yield from parts.ready(view.capturing)
            captured = [parts.session.result(view.capturing).facts for _, view in views]
            before = self.looking.pop(device.spec.name, [])
            yield from self._take(before)
            for (app, view), what in zip(views, captured, strict=True):
                self._look(app, view, what, stop_s)
                app.view = None
        device.close(parts.clock.now)
        self.write_shares(device)
        yield from self._take(self.looking.pop(device.spec.name, []))

    def visitors(self, device: DeviceSim) -> Process:
        """Tell the device's scheduler of arrivals and departures between two windows, if it asks for them."""
        clock, window_s = self.parts.clock, self.parts.context.window_s
        for event in device.spec.events or ():
            reason: Reason = "go" if event.kind == "stop" else "come"
            between = abs(event.time_s / window_s - round(event.time_s / window_s)) > 1e-9
            if between and event.time_s < device.spec.duration_s and reason in self.parts.scheduling.asks.reasons:
                yield clock.timeout(event.time_s - clock.now)
                device.visit(reason)

    def follow_load(self, device: DeviceSim, load: Load) -> Process:
        """Let the machine's speed follow the device's load, and take readings of it."""
        clock = self.parts.clock
        for time_s in load.instants(device.spec.duration_s):
            yield clock.timeout(time_s - clock.now)
            device.machine.set_speed(load.at(time_s).speed)
            if device.sense():
                device.respond()
                self._write_load(device)

    def follow(self, device: DeviceSim) -> None:
        """Write the rows of ended allocations, and apply the current ones."""
        self.write_shares(device)
        if not self.parts.context.live or self.parts.clock.now >= device.until_s:
            return
        running = {one.demand.app: one for one in device.allocations if accelerator_share(one.grant.answer)}
        for name, app in device.apps.items():
            if name not in running:
                self.look(app)
                app.view = None
        for one in running.values():
            app = one.app
            if one.variant not in (None, app.runs):
                self.look(app)
                self.parts.session.call(app.node("application"), "switch", one.variant)
                app.runs = one.variant
            if app.view is None:
                app.view = self._open(app, self.parts.clock.now, device.until_s)

    def look(self, app: AppSim) -> None:
        """Process the frames until now, before the end of the window."""
        view, now_s = app.view, self.parts.clock.now
        if view is None or now_s <= view.start_s:
            return
        until = self._open(app, view.start_s, now_s)
        self._look(app, until, self.parts.session.result(until.capturing).facts, now_s)
        app.view = self._open(app, now_s, view.stop_s) if now_s < view.stop_s else None

    def finish(self, device: DeviceSim) -> list[str]:
        """Settle every application; return the digests of their final states."""
        session, digests = self.parts.session, []
        finishing = [(app, session.call(app.node("application"), "finish")) for app in device.apps.values()]
        for app, job in finishing:
            reply = session.result(job)
            self.parts.ledger.take(reply.rows)
            app.account.watched(reply.facts.last)
            digests.append(str(reply.facts.digest))
            if app.local and app.has_learner:  # the learner's state is part of the device
                digests.append(str(session.result(session.call(app.node("learner"), "finish")).facts))
        return digests

    def _open(self, app: AppSim, start_s: float, stop_s: float) -> StreamSegment:
        return StreamSegment(start_s, stop_s, self.parts.session.call(app.node("device"), "capture", start_s, stop_s))

    def _look(self, app: AppSim, view: StreamSegment, captured: Captured, stop_s: float) -> None:
        """Start the model on a piece of the stream; without truth it is scored against the teacher's labels."""
        device, session = self.devices[app.device], self.parts.session
        courses = [device.machine.course(f"{app.app}/answer", view.start_s, stop_s)]
        if device.beside:
            courses.append(device.machine.course(f"{app.app}/beside", view.start_s, stop_s))
        if not captured.frames:
            return
        truth = None if captured.has_truth else session.call(app.teacher, "label", view.capturing)
        job = session.call(app.node("application"), "watch", view.capturing, truth, stop_s, *courses)
        self.looking.setdefault(app.device, []).append((app, job, view.start_s))

    def _take(self, looking: list[tuple[AppSim, Job, float]]) -> Process:
        """Read the results of the models, one window late so that the work had a window's time."""
        for app, job, start_s in looking:
            yield from self.parts.ready(job)
            reply = self.parts.session.result(job)
            seen: Watched = reply.facts
            self._observe(app, seen, start_s)
            self.parts.ledger.take(reply.rows)
            app.account.watched(seen)

    def _observe(self, app: AppSim, seen: Watched, start_s: float) -> None:
        """Keep how accurate the newest read predictions are, where the scheduler wants to know."""
        by = self.parts.observes
        if by == "oracle" and seen.scored:
            app.observed = SeenAccuracy(seen.window_score_sum / seen.scored, by, start_s)
        elif by == "confidence" and seen.confidence is not None:
            app.observed = SeenAccuracy(seen.confidence, by, start_s)

    def _write_load(self, device: DeviceSim) -> None:
        for row in load_rows(device):
            self.parts.ledger.row("loads", **row)

    def write_shares(self, device: DeviceSim) -> None:
        """Write the rows of ended allocations, whose lengths are known now."""
        for one, length_s in device.closed:
            row = share_row(one, length_s)
            one.app.account.spend("paging", row["paging_j"])
            self.parts.ledger.row("shares", **row)
        device.closed = []
