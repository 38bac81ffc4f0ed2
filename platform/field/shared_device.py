"""A device with several applications: a scheduler divides one core among their networks in real time.

The scheduler is called when windows begin and when an application arrives, departs or changes its goals. An inference
uses up the share of its application for its processor time divided by the share. The application takes the next frame
that arrives when its share is free again, or at most one frame earlier, so that its rate is that of its share although
frames come at fixed times. A share that a stall of the computer left unused is made up for within half a second. Among
the applications with a frame, the one whose share is used up first runs.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from driftlab.platform.core.records import Variant
from driftlab.platform.field.app_files import AppFile, cell_of_apps
from driftlab.platform.field.camera import CameraDevice, LiveCamera, is_camera, open_camera
from driftlab.platform.field.energy import EnergyMeter, sensors_here
from driftlab.platform.field.opening import FieldCell
from driftlab.platform.field.profiling import profile_app
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.device import AppShare
from driftlab.platform.sim.inline import InlineBackend, InlineSession
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.setting import Cell, WorkloadSetup, setup_key
from driftlab.platform.world.processor import ShareSchedule, accelerator_share

RECENT = 6  # inferences whose processor time corrects the profile
PAUSE_S = 0.02  # between inferences before the streams start
PROFILE_S = 0.5  # per network, if no measurements are given
CATCH_UP_S = 0.5  # of its share that an application may use later
EDGE_S = 1e-9


@dataclass
class RunningApp:
    """One application while the device runs."""

    app: AppSim
    profile: tuple[Variant, ...]  # of its networks, on the part of the core that applications get
    share: float = 0.0  # of that part; 0: it waits or is not there
    row: int = 0  # first frame without a row
    free_s: float = 0.0  # its share is used up until then
    done_s: float = 0.0  # end of its newest inference
    schedule: ShareSchedule = ((0.0, 1.0),)  # at which the newest inference takes its measured time
    slower: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # measured over profiled times

    @property
    def fps(self) -> float:
        return self.app.facts.fps

    def next_frame(self, now_s: float) -> int:
        """Return the number of the next frame that it takes: the newest one, if several have arrived."""
        earliest_s = max(self.free_s - 1 / self.fps, self.done_s, self.row / self.fps)
        return max(math.ceil(earliest_s * self.fps - EDGE_S), math.floor(now_s * self.fps + EDGE_S))

    def due_s(self, frame: int) -> float:
        """Return when the inference of a frame should end at the share."""
        took_s = self.profile[self.app.choice.runs or 0].latency_s * self.correction
        return self.free_after(frame, took_s)

    def free_after(self, frame: int, took_s: float) -> float:
        """Return until when its share is used up by the inference of a frame."""
        return max(self.free_s, frame / self.fps - CATCH_UP_S) + took_s / self.share

    @property
    def correction(self) -> float:
        """Return the mean of the newest measured times over those of the profile."""
        return mean(self.slower) if self.slower else 1.0


@dataclass(frozen=True)
class AppReport:
    """The state of one application, for display."""

    app: str
    frames: int
    processed: int
    planned: float  # frames at its shares so far
    network: str
    score_live: float | None


class SharedDevice:
    """The applications of one device, from their first frame to the end of the streams."""

    def __init__(
        self, experiment: Experiment, apps: Sequence[AppFile], capacity: float = 1.0, progress: Progress | None = None
    ) -> None:
        """Build the networks, measure those without measurements, and create the nodes in this process."""
        self.capacity = capacity
        cell = cell_of_apps(experiment, apps)
        setup = settings_of(experiment, InlineBackend(), progress or Progress())[
            setup_key(cell.workload, cell.system.scaling, cell.seed)
        ]
        runner = Runner(cell, self._measured(setup, cell), InlineSession())
        self.cell = FieldCell(experiment, runner)
        self.device, self.session = self.cell.device, runner.session
        self.device.on_shares = self._apply_shares  # the streams run here
        self.meter = EnergyMeter(sensors_here())
        self.running = {
            name: RunningApp(app, tuple(self.device.variants[name])) for name, app in self.device.apps.items()
        }
        self._zero = 0.0  # monotonic clock at the start of the streams
        self.final: list[AppReport] = []  # at the end of the streams
        self.cameras: list[LiveCamera] = []
        self._place()
        times_s = {event.time_s for event in cell.devices[0].events or ()}
        windows = math.ceil(cell.duration_s / setup.window_s - EDGE_S)
        self._starts = deque(sorted(times_s | {number * setup.window_s for number in range(windows)}))

    def _measured(self, setup: WorkloadSetup, cell: Cell) -> WorkloadSetup:
        """Return the setup with measured networks, on the part of the core that applications get."""
        apps, (device,) = {}, cell.devices
        for spec in device.apps:
            networks, sensors = setup.apps[spec.name], sensors_here()
            measured: Sequence[Variant] = networks.measured
            if not measured:
                scaling = cell.system.scaling
                found = profile_app(spec, networks, scaling, device.hardware, PROFILE_S, sensors)
                measured = [one.variant for one in found]
            slowed = tuple(replace(one, latency_s=one.latency_s / self.capacity) for one in measured)
            apps[spec.name] = replace(networks, measured=slowed, runs_measured=True)
        return replace(setup, apps=apps, clock="virtual")  # advanced to wall-clock time

    def _place(self) -> None:
        """Create the nodes, open the cameras, and run the networks in turn, which corrects their profiles.

        The first call of a network takes long, and after others have run its weights are no longer in the cache.
        """
        nodes = self.session.nodes  # type: ignore[attr-defined]
        for one in self.running.values():
            app, stream = one.app, one.app.spec.stream
            self.cell.runner.place_app(app)
            if is_camera(stream.workload):
                self.cameras.append(open_camera(stream, 1))
                nodes[app.node("device")] = CameraDevice(stream, self.cameras[-1])
            self._warm_up(app)
        for _ in range(RECENT):
            for one in self.running.values():
                time.sleep(PAUSE_S)
                profiled_s = one.profile[self.cell.runner.setup.apps[one.app.spec.name].student.first].latency_s
                one.slower.append(self._warm_up(one.app) / self.capacity / profiled_s)

    def _warm_up(self, app: AppSim) -> float:
        """Run the network of an application on its first frame; return the processor time."""
        frames = self.session.call(app.node("device"), "capture", 0.0, 0.5 / app.facts.fps)
        images = frames.reply.payload.images  # type: ignore[attr-defined]
        started_s = time.thread_time()
        self.session.call(app.node("application"), "predict_images", images)
        return time.thread_time() - started_s

    def now(self) -> float:
        """Return the seconds since the start of the streams."""
        return time.monotonic() - self._zero

    def run(self, tell: Callable[[Sequence[AppReport]], None] = lambda reports: None, every_s: float = 5.0) -> None:
        """Run the streams in real time to their end, and complete the tables."""
        self._zero, duration_s, reported_s = time.monotonic(), self.cell.runner.cell.duration_s, 0.0
        for camera in self.cameras:
            camera.zero_s = self._zero
        try:
            while (now_s := self.now()) < duration_s:
                self._advance(now_s)
                waiting = [(one.next_frame(now_s), one) for one in self.running.values() if one.share]
                ready = [(one.due_s(frame), frame, one) for frame, one in waiting if frame / one.fps <= now_s]
                if ready:
                    _, frame, one = min(ready, key=lambda entry: entry[0])
                    self._predict(one, frame)
                else:
                    shown_s = [frame / one.fps for frame, one in waiting]
                    next_s = min([*shown_s, *list(self._starts)[:1], self.cell.runner.clock.peek(), duration_s])
                    time.sleep(max(0.0, next_s - self.now()))
                if now_s - reported_s >= every_s:
                    reported_s = now_s
                    tell(self._report_now())
        finally:
            for camera in self.cameras:
                camera.close()
        self._close(duration_s)

    # Scheduling -----------------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        """Call the scheduler for every start of a window, arrival, departure and change until now."""
        clock, duration_s = self.cell.runner.clock, self.cell.runner.cell.duration_s
        while self._starts and self._starts[0] <= now_s:
            start_s = self._starts.popleft()
            if start_s > clock.now:
                clock.run(until=start_s)
            for name, one in self.running.items():
                self.device.variants[name] = tuple(
                    replace(variant, latency_s=variant.latency_s * one.correction) for variant in one.profile
                )
            self.meter.charge(*(one.app.account for one in self.running.values()))
            self.device.begin_window(start_s, (self._starts[0] if self._starts else duration_s) - start_s)
        if clock.now < now_s and clock.peek() <= now_s:
            clock.run(until=now_s)

    def _apply_shares(self) -> None:
        """Load the chosen networks, and run the applications at their new shares from now on."""
        shares = {share.demand.app: place for place, share in enumerate(self.device.current)}
        for name, one in self.running.items():
            share, variant = 0.0, None
            if name in shares:
                granted = self.device.current[shares[name]]
                share, variant = accelerator_share(granted.inference_share), granted.variant
            now_s = self.now()
            if one.share and not share:
                self._write_rows(one, self.cell.runner.clock.now)
            elif share and not one.share:
                one.free_s = max(one.free_s, self.cell.runner.clock.now)
                one.row = math.ceil(self.cell.runner.clock.now * one.fps - EDGE_S)
            if share and variant not in (None, one.app.choice.runs):
                self.session.call(one.app.node("application"), "switch", variant)
                one.app.choice.runs = variant
                self._warm_up(one.app)
            if name in shares:
                loading_s = (now_s, self.now())
                self.device.current[shares[name]] = replace(self.device.current[shares[name]], loading_s=loading_s)
            if share and one.free_s > now_s:  # the same processor time at the new share
                one.free_s = now_s + (one.free_s - now_s) * one.share / share
            one.share = share

    # Inference ------------------------------------------------------------------------------------------------------

    def _predict(self, one: RunningApp, frame: int) -> None:
        """Run the network on a frame; frames before it keep the previous prediction."""
        frame_s, profiled_s = frame / one.fps, one.profile[one.app.choice.runs or 0].latency_s
        took_s = self._run_frames(one, frame_s, frame_s) / self.capacity
        one.row, one.done_s = frame + 1, self.now()
        one.free_s = one.free_after(frame, took_s)
        one.slower.append(took_s / profiled_s)
        node: Any = self.session.nodes[one.app.node("application")]  # type: ignore[attr-defined]
        one.schedule = ((frame_s, node.inference_s / (one.done_s - frame_s)),)
        self._collect_rows(one)

    def _run_frames(self, one: RunningApp, until_s: float, first_s: float) -> float:
        """Pass frames to the application, which predicts from `first_s` on; return the processor time."""
        frames = self.session.call(one.app.node("device"), "capture", one.row / one.fps, until_s + 0.5 / one.fps)
        started_s = time.thread_time()
        self.session.call(one.app.node("application"), "run_frames", frames, until_s, one.schedule, first_s)
        return time.thread_time() - started_s

    def _write_rows(self, one: RunningApp, until_s: float) -> None:
        """Write the rows of the frames before a time that the network does not predict."""
        last = math.ceil(until_s * one.fps - EDGE_S) - 1
        if last >= one.row:
            self._run_frames(one, last / one.fps, math.inf)
            one.row = last + 1
        self._collect_rows(one)

    def _collect_rows(self, one: RunningApp) -> None:
        reply = self.session.result(self.session.call(one.app.node("application"), "collect_rows"))
        self.cell.runner.ledger.take(reply.rows)
        one.app.account.watched(reply.facts)

    # End ------------------------------------------------------------------------------------------------------------

    def _close(self, duration_s: float) -> None:
        for one in self.running.values():
            if one.share:
                self._write_rows(one, duration_s)
        self.device.close(duration_s)
        self.meter.charge(*(one.app.account for one in self.running.values()))
        shares = list(self.device.closed)
        self.device.stream.write_shares()
        self.cell.runner.close()
        self.final = self._reports(shares)

    def _report_now(self) -> list[AppReport]:
        """Return the state of every application so far."""
        now_s = min(self.now(), self.cell.runner.cell.duration_s)
        return self._reports([*self.device.closed, *((share, now_s - share.start_s) for share in self.device.current)])

    def _reports(self, shares: Sequence[tuple[AppShare, float]]) -> list[AppReport]:
        """Return the state of every application, with the frames that it was to process in its shares."""
        found = []
        for name, one in self.running.items():
            planned, network = 0.0, ""
            for share, length_s in shares:
                if share.demand.app == name and share.network is not None:
                    sustained_fps = accelerator_share(share.inference_share) / share.network.latency_s
                    planned += min(one.fps, sustained_fps) * length_s
                    network = share.network.name
            account = one.app.account
            found.append(AppReport(name, account.frames, account.processed, planned, network, account.score_live))
        return found
