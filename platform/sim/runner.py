"""One cell from its start to its rows: processes on one clock, the same for every system.

Devices process streams (`stream_runner.py`) and share out their processors (`device.py`); learners take samples, train
on the server or on the device, and reply (`teaching.py`, `rounds.py`). Every computation is a task on a processor. Real
work starts at its virtual start and is awaited at its virtual end, so it overlaps while the tables depend on spec and
seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from driftlab.platform.adaptation.base import Adaptation
from driftlab.platform.core.limits import limited
from driftlab.platform.core.registry import Member
from driftlab.platform.scaling.base import Scaling
from driftlab.platform.scheduling.base import ObservedBy, Scheduling
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.ledger import Account, Ledger
from driftlab.platform.sim.rounds import WeightRound
from driftlab.platform.sim.rows import (
    class_columns,
    device_row,
    motion_columns,
    run_row,
    system_columns,
    update_row,
    variant_rows,
)
from driftlab.platform.sim.server import ServerSim
from driftlab.platform.sim.session import Job, NodeId, Session
from driftlab.platform.sim.setting import AppNodeConfig, Cell, StudentSpec, WorkloadSetup
from driftlab.platform.streaming.base import Streaming
from driftlab.platform.world.clock import Process, make_clock

FROZEN = Member("adaptation", "frozen")
POLL_S = 0.01  # interval at which a wall clock checks whether a job is done


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell at the end of a window."""

    time_s: float
    accounts: Mapping[str, Account]  # by device, or device and application; the last window may be missing


class Runner:
    """One cell while it runs: its request, clock, nodes, members, devices and rows."""

    def __init__(
        self,
        cell: Cell,
        setup: WorkloadSetup,
        session: Session,
        advanced: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.cell, self.setup, self.session, self.advanced = cell, setup, session, advanced
        self.clock, self.ledger = make_clock(setup.clock), Ledger()
        self.streaming: Streaming
        self.adaptation: Adaptation
        self.scaling: Scaling
        self.scheduling: Scheduling
        members = (limited(member, setup.member_limit_s) for member in cell.system.members)
        self.streaming, self.adaptation, self.scaling, self.scheduling = members
        self.open_rounds: dict[str, WeightRound] = {}  # by application: unfinished ones
        self.devices = {spec.name: DeviceSim(self, spec) for spec in cell.devices}
        self.apps: dict[str, AppSim] = {app.name: app for one in self.devices.values() for app in one.apps.values()}
        self.server = ServerSim(self)

    # Consequences of the members --------------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Return whether links and servers take no time, and plans may sample later frames: a bound."""
        return self.cell.system.uses_future and self.streaming.free

    @property
    def learns_on_stream(self) -> bool:
        """Return whether applications learn on their stream."""
        return not self.streaming.feeds_learner and self.adaptation.learns_on_stream

    @property
    def observes(self) -> ObservedBy | None:
        """Return how accuracies are observed; None where the scheduler does not require them."""
        if not self.scheduling.uses_observed_accuracy:
            return None
        if self.setup.accuracy_source == "oracle":
            return "oracle"
        return "teacher" if self.streaming.feeds_learner and self.adaptation.labels == "teacher" else "confidence"

    @property
    def measures_gain(self) -> bool:
        """Return whether rounds measure their gain, for a scheduler that shares out the server."""
        return (
            self.scheduling.schedules_server and self.observes == "teacher" and self.streaming.learner_site == "server"
        )

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Place the nodes and run every process to its end."""
        for _ in self.windows():
            pass

    def windows(self) -> Iterator[CellProgress]:
        """Run window by window, so that the caller can read the scores so far, or stop."""
        self._start()
        duration_s, window_s, now_s = self.cell.duration_s, self.setup.window_s, 0.0
        while now_s < duration_s:
            stop_s = min(now_s + window_s, duration_s)
            if stop_s < duration_s:
                while self.clock.peek() <= stop_s:  # `run(until)` would leave out events at exactly that time
                    self.clock.step()
            else:
                self.clock.run()
                self.close()
            self.advanced((stop_s - now_s) * len(self.devices))
            now_s = stop_s
            yield CellProgress(now_s, {name: app.account for name, app in self.apps.items()})

    def _start(self) -> None:
        """Place the initial nodes, and start every process."""
        self.place_teachers()
        for device in self.devices.values():
            for app in device.apps.values() if self.setup.run_networks else ():
                self.place_app(app)
                self.clock.process(app.learner.sample())
                if self.scheduling.detects_boundaries and app.learner.local:
                    self.clock.process(app.learner.follow_domains())
            self.clock.process(device.stream.run())
            self.clock.process(device.stream.follow_presence())
            if device.spec.load is not None:
                self.clock.process(device.stream.track_load(device.spec.load))

    def ready(self, job: Job) -> Process:
        """Wait until a job is done; in virtual time this returns at once, as reading the result waits."""
        while self.setup.clock == "wall" and not self.session.ready(job):
            yield self.clock.timeout(POLL_S)

    def close(self) -> None:
        """Write the rows of unfinished rounds, of every device, and of the cell itself."""
        live, ledger = self.setup.run_networks, self.ledger
        for done in self.open_rounds.values():
            ledger.row("updates", **update_row(done, "the session ended before it was done"))
        digests = [digest for device in self.devices.values() if live for digest in device.stream.finish()]
        for device in self.devices.values():
            if live:
                first = next(iter(device.apps.values()))
                first.account.spend("radio", device.radio.close(device.spec.duration_s))
            ledger.row("devices", **device_row(device, live=live))
            if live and (columns := motion_columns(device)):
                ledger.add("motion", columns)
            for row in variant_rows(device):
                ledger.row("variants", **row)
        for columns in filter(None, map(class_columns, self.apps.values())):
            ledger.add("classes", columns)
        ledger.add("systems", system_columns(self.cell))
        accounts = [app.account for app in self.apps.values()]
        ledger.row("runs", **run_row(self.cell, self.setup, accounts, digests))

    # Nodes ------------------------------------------------------------------------------------------------------------

    def place_teachers(self) -> None:
        """Place a teacher for every task; devices share it."""
        for app, networks in self.setup.apps.items():
            weights = [networks.teacher.weights] if networks.teacher else []
            self.session.place(NodeId("teacher", app), networks.teacher_spec, *weights)

    def place_app(self, app: AppSim) -> None:
        """Place a camera and its application."""
        learns = self.learns_on_stream
        self.session.place(app.node("device"), app.spec.stream)
        spec = AppNodeConfig(
            device=app.device.spec.name,
            app=app.spec.name,
            student=self._student(app, self.cell.system.adaptation if learns else FROZEN),
            hardware=app.device.spec.hardware,
            cost=app.networks.student.cost,
            cost_ratios=app.networks.cost_ratios(app.device.spec.hardware),
            scored=app.spec.scored,
            tracks=self.streaming.label_tracking is not None,
            chained=self.streaming.label_tracking != "direct",
            grace_s=self.setup.grace_of(app.spec.stream),
            snapshot_times_s=self._snapshot_times(app),
            uses_statistics=self.streaming.uses_statistics,
            reports_confidence=self.observes == "confidence",
            domain_oracle=self.setup.domain_oracle,
            detects_domains=self.setup.domains_detected,
            training_batch_limit_s=self.setup.training_batch_limit_s,
            member_limit_s=self.setup.member_limit_s,
        )
        pack = self._pack(app) if learns else []
        self.session.place(app.node("application"), spec, app.networks.student.weights, *pack)

    def place_learner(self, app: AppSim) -> None:
        """Place the learner of an application, when its first samples have arrived."""
        spec = self._student(app, self.cell.system.adaptation)
        limits = (self.setup.member_limit_s, self.setup.domain_oracle)
        self.session.place(app.node("learner"), spec, app.networks.student.weights, *limits, *self._pack(app))
        app.learner.placed = True

    def _pack(self, app: AppSim) -> list[Job]:
        """Return the adaptation's summary of the source, if it has one."""
        pack = app.networks.packs.get(repr(self.cell.system.adaptation))
        return [] if pack is None else [pack]

    def _student(self, app: AppSim, adaptation: Member) -> StudentSpec:
        return StudentSpec(
            network=app.networks.student.name,
            classes=app.networks.classes,
            height=app.spec.stream.height,
            width=app.spec.stream.width,
            adaptation=adaptation,
            scaling=self.cell.system.scaling,
            seed=app.spec.stream.seed,
            torch_device=self.setup.torch_device,
        )

    def _snapshot_times(self, app: AppSim) -> tuple[float, ...]:
        """Spread the report's snapshots over the first stream of the first device."""
        if app.spec is not self.cell.devices[0].apps[0] or not self.setup.snapshots:
            return ()
        middles = (np.arange(self.setup.snapshots) + 0.5) / self.setup.snapshots * app.facts.duration_s
        return tuple(float(np.floor(middle * app.facts.fps) / app.facts.fps) for middle in middles)
