"""The processing of a device's streams: window by window, and in between where an event requires it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.core.records import Captured, InferenceReport
from driftlab.platform.scheduling.base import Reason
from driftlab.platform.sim.app import AppSim, StreamSegment
from driftlab.platform.sim.rows import load_rows, prediction_rows, share_row
from driftlab.platform.sim.session import Job
from driftlab.platform.world.clock import Process
from driftlab.platform.world.load import Load
from driftlab.platform.world.processor import accelerator_share

if TYPE_CHECKING:
    from driftlab.platform.sim.device import DeviceSim

Running = list[tuple[AppSim, Job, float]]  # applications on segments, with their starts


class StreamRunner:
    """Runs the applications of a device on their streams, at their shares of its processor."""

    def __init__(self, device: DeviceSim) -> None:
        self.device, self.runner = device, device.runner
        self.running: Running = []  # whose results are not read yet

    def run(self) -> Process:
        """Share out the processor per window until the session ends, and process frames after each window."""
        device, runner = self.device, self.runner
        while runner.clock.now < device.spec.duration_s:
            start_s = runner.clock.now
            stop_s = min(start_s + runner.setup.window_s, device.spec.duration_s)
            sensed = device.sense()
            device.begin_window(start_s, stop_s - start_s)
            if sensed:
                self._write_load()
            yield runner.clock.timeout(stop_s - start_s)
            segments = [(one.app, one.app.segment) for one in device.current if one.app.segment is not None]
            for _, segment in segments:
                yield from runner.ready(segment.capturing)
            captured = [runner.session.result(segment.capturing).facts for _, segment in segments]
            before, self.running = self.running, []
            yield from self._read(before)
            for (app, segment), frames in zip(segments, captured, strict=True):
                self._process(app, segment, frames, stop_s)
                app.segment = None
        device.close(runner.clock.now)
        self.write_shares()
        before, self.running = self.running, []
        yield from self._read(before)
        for app in device.apps.values():
            app.learner.settle()

    def follow_presence(self) -> Process:
        """Share out the processor at arrivals and departures between windows, if the scheduler requires it."""
        clock, window_s = self.runner.clock, self.runner.setup.window_s
        for event in self.device.spec.events or ():
            reason: Reason = "departure" if event.kind == "stop" else "arrival"
            between = abs(event.time_s / window_s - round(event.time_s / window_s)) > 1e-9
            required = reason in self.runner.scheduling.triggers
            if between and event.time_s < self.device.spec.duration_s and required:
                yield clock.timeout(event.time_s - clock.now)
                self.device.on_presence_change(reason)

    def track_load(self, load: Load) -> Process:
        """Set the processor's speed by the device's load, and take readings of it."""
        clock, device = self.runner.clock, self.device
        for time_s in load.instants(device.spec.duration_s):
            yield clock.timeout(time_s - clock.now)
            device.follow_load(load.at(time_s))
            if device.sense():
                device.on_reading()
                self._write_load()

    def apply_shares(self) -> None:
        """Write the rows of ended shares, and run the applications at the current ones."""
        device, runner = self.device, self.runner
        self.write_shares()
        if device.spec.load is not None:
            device.follow_networks(device.spec.load.at(runner.clock.now))
        if not runner.setup.run_networks or runner.clock.now >= device.until_s:
            return
        running = {one.demand.app: one for one in device.current if accelerator_share(one.grant.inference_share)}
        for name, app in device.apps.items():
            if name not in running:
                self.catch_up(app)
                app.segment = None
        for one in running.values():
            app = one.app
            if one.variant not in (None, app.choice.runs):
                self.catch_up(app)
                runner.session.call(app.node("application"), "switch", one.variant)
                app.choice.runs = one.variant
            if app.segment is None:
                app.segment = self._open(app, runner.clock.now, device.until_s)

    def catch_up(self, app: AppSim) -> None:
        """Process the frames until now, before the end of the window."""
        segment, now_s = app.segment, self.runner.clock.now
        if segment is None or now_s <= segment.start_s:
            return
        until_now = self._open(app, segment.start_s, now_s)
        self._process(app, until_now, self.runner.session.result(until_now.capturing).facts, now_s)
        app.segment = self._open(app, now_s, segment.stop_s) if now_s < segment.stop_s else None

    def finish(self) -> list[str]:
        """Settle every application; return the digests of their final states."""
        session, digests = self.runner.session, []
        finishing = [(app, session.call(app.node("application"), "finish")) for app in self.device.apps.values()]
        for app, job in finishing:
            reply = session.result(job)
            self.runner.ledger.take(reply.rows)
            app.account.watched(reply.facts.last)
            digests.append(str(reply.facts.digest))
            if app.learner.local and app.learner.placed:  # the learner's state is part of the device
                learner = session.result(session.call(app.node("learner"), "finish"))
                app.take_rows(learner.rows)
                digests.append(str(learner.facts))
        return digests

    def _open(self, app: AppSim, start_s: float, stop_s: float) -> StreamSegment:
        capturing = self.runner.session.call(app.node("device"), "capture", start_s, stop_s)
        return StreamSegment(start_s, stop_s, capturing)

    def _process(self, app: AppSim, segment: StreamSegment, captured: Captured, stop_s: float) -> None:
        """Start the model on a segment of the stream; without truth it is scored against the teacher's labels."""
        processor, name, session = self.device.processor, app.spec.name, self.runner.session
        schedules = [processor.share_schedule(f"{name}/inference", segment.start_s, stop_s)]
        if self.device.trains_concurrently:
            schedules.append(processor.share_schedule(f"{name}/concurrent-training", segment.start_s, stop_s))
        if not captured.frames:
            return
        truth = None if captured.has_truth else session.call(app.teacher, "label", segment.capturing)
        job = session.call(app.node("application"), "run_stream", segment.capturing, truth, stop_s, *schedules)
        self.running.append((app, job, segment.start_s))

    def _read(self, running: Running) -> Process:
        """Read the results of the models, one window late, so that they had a window's time to compute."""
        by = self.runner.observes
        for app, job, start_s in running:
            yield from self.runner.ready(job)
            reply = self.runner.session.result(job)
            seen: InferenceReport = reply.facts
            if by == "oracle" and seen.scored:
                app.observe(seen.window_score_sum / seen.scored, by, start_s)
            elif by == "confidence" and seen.confidence is not None:
                app.observe(seen.confidence, by, start_s)
            self.runner.ledger.take(reply.rows)
            app.account.watched(seen)

    def _write_load(self) -> None:
        for row in load_rows(self.device):
            self.runner.ledger.row("loads", **row)
        for row in prediction_rows(self.device):
            self.runner.ledger.row("predictions", **row)

    def write_shares(self) -> None:
        """Write the rows of ended shares, whose lengths are known now."""
        for one, length_s in self.device.closed:
            row = share_row(one, length_s)
            one.app.account.spend("paging", row["paging_j"])
            self.runner.ledger.row("shares", **row)
        self.device.closed = []
