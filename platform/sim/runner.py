"""The loop: one cell as processes on one clock, the same for every system.

Devices process streams (`watching.py`), messages cross links (`carrying.py`), and learners train, on the server or on
the device (`learning.py`, `rounds.py`). Every computation is a task on a machine. Real work starts at its virtual start
and is awaited at its virtual end, so it overlaps while the tables depend on spec and seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import simpy

from driftlab.platform.core.limits import limited
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.context import WorkloadSetup
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.ledger import Account
from driftlab.platform.sim.messages import Direction
from driftlab.platform.sim.placing import place_app, place_teachers
from driftlab.platform.sim.rows import class_columns, device_row, motion_columns, run_row, system_columns, variant_rows
from driftlab.platform.sim.runtime import CellRuntime, Process
from driftlab.platform.sim.session import Session
from driftlab.platform.sim.setting import App, Cell, Device
from driftlab.platform.sim.stream_runner import StreamRunner
from driftlab.platform.sim.teaching import LearnerSim
from driftlab.platform.sim.transport import Transport
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.world.clock import make_clock
from driftlab.platform.world.link import LINKS, Link


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell at the end of a window."""

    time_s: float
    accounts: Mapping[str, Account]  # by device, or device and application; the last window may be missing


class Runner:
    """One cell while it runs."""

    def __init__(
        self,
        cell: Cell,
        context: WorkloadSetup,
        session: Session,
        advanced: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        members = (limited(member, context.member_limit_s) for member in cell.system.members)
        self.parts = CellRuntime(cell, context, session, make_clock(context.clock), *members)
        self.clock, self.ledger, self.advanced = self.parts.clock, self.parts.ledger, advanced
        self.devices = {spec.name: self._device(spec) for spec in cell.devices}
        self.watching = StreamRunner(self.parts, self.devices)
        self.teaching = LearnerSim(self.parts, Transport(self.parts, self.devices), self.watching)

    def run(self) -> None:
        """Place the nodes and run every process to its end."""
        for _ in self.windows():
            pass

    def windows(self) -> Iterator[CellProgress]:
        """Run window by window, so that the caller can read the scores so far, or stop."""
        self._start()
        duration_s, window_s, now_s = self.parts.cell.duration_s, self.parts.context.window_s, 0.0
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
            yield CellProgress(now_s, {app.name: app.account for app in self._apps})

    @property
    def _apps(self) -> list[AppSim]:
        return [app for device in self.devices.values() for app in device.apps.values()]

    def _start(self) -> None:
        """Place the initial nodes, and start every process."""
        place_teachers(self.parts)
        for device in self.devices.values():
            for app in device.apps.values() if self.parts.context.live else ():
                place_app(self.parts, app)
                self.clock.process(self.teaching.send(app))
            self.clock.process(self._watch(device))
            self.clock.process(self.watching.visitors(device))
            if device.spec.load is not None:
                self.clock.process(self.watching.follow_load(device, device.spec.load))

    def _watch(self, device: DeviceSim) -> Process:
        """Process the device's streams until the session ends, then stop the accounts."""
        yield from self.watching.watch(device)
        self.teaching.settle(device)

    def _device(self, spec: Device) -> DeviceSim:
        """Open the device's links, which its applications share, and prepare its machine and applications."""
        parts = self.parts
        profile = LINKS["null"] if parts.streaming.free else spec.link
        up, down = (
            open_link(self.clock, rng_for(parts.cell.seed, "link", spec.name, way))
            for way, open_link in (("up", profile.up), ("down", profile.down))
        )
        apps = {wish.name: self._app(spec, wish, up, down, profile.damaged) for wish in spec.apps}
        variants = {name: app.context.variants(spec.hardware) for name, app in apps.items()}
        beside = parts.learns_on_stream and parts.adaptation.learns == "beside"
        return DeviceSim(parts, spec, apps, variants, profile.radio, beside)

    def _app(self, spec: Device, wish: App, up: Link, down: Link, damaged: float) -> AppSim:
        streaming, context = self.parts.streaming, self.parts.context.apps[wish.name]
        facts = StreamFacts(wish.stream.fps, wish.stream.duration_s)
        state, turn = streaming.start(facts), simpy.Resource(self.clock)
        faults = {way: rng_for(self.parts.cell.seed, "damage", spec.name_of(wish), way) for way in get_args(Direction)}
        run = AppSim(spec, wish, context, facts, up, down, faults, damaged, state, state, turn)
        run.local = streaming.place == "device"
        return run

    def close(self) -> None:
        """Write a row per device and the cell's own row."""
        live = self.parts.context.live
        self.teaching.close()
        digests = [digest for device in self.devices.values() if live for digest in self.watching.finish(device)]
        for device in self.devices.values():
            if live:
                first = next(iter(device.apps.values()))
                first.account.spend("radio", device.radio.close(device.spec.duration_s))
            self.ledger.row("devices", **device_row(device, live=live))
            if live and (columns := motion_columns(device)):
                self.ledger.add("motion", columns)
            for row in variant_rows(device):
                self.ledger.row("variants", **row)
        for columns in filter(None, map(class_columns, self._apps)):
            self.ledger.add("classes", columns)
        self.ledger.add("systems", system_columns(self.parts.cell))
        accounts = [app.account for app in self._apps]
        self.ledger.row("runs", **run_row(self.parts.cell, self.parts.context, accounts, digests))
