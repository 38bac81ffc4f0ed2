"""A cell: one system on one workload with one fleet and one seed."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.systems import System
from driftlab.platform.sim.specs import StreamSpec
from driftlab.platform.world.apps import AppGoals, Event, running_apps
from driftlab.platform.world.hardware import Hardware
from driftlab.platform.world.link import LinkProfile
from driftlab.platform.world.load import Load


@dataclass(frozen=True)
class Cell:
    """One run: everything that it needs besides the experiment's common settings."""

    id: str
    system: System
    workload: str
    fleet: str
    devices: tuple[Device, ...]
    seed: int
    duration_s: float
    gpus: int = 1  # of the server that the devices share


@dataclass(frozen=True)
class Device:
    """One device of a fleet, with its applications."""

    name: str
    hardware: Hardware
    link: LinkProfile
    apps: tuple[App, ...]
    events: tuple[Event, ...] | None = None  # arrivals and departures; none: all applications run throughout
    load: Load | None = None  # of other programs; none: nothing else runs, and there is nothing to sense

    @property
    def duration_s(self) -> float:
        return self.apps[0].stream.duration_s

    def name_of(self, app: App) -> str:
        """Return the name of an application's nodes: the device, with the application where the device has several."""
        return self.name if len(self.apps) == 1 else f"{self.name}/{app.name}"

    def present(self, time_s: float) -> tuple[AppGoals, ...]:
        """Return the applications that run at a time, with their requirements then."""
        return tuple(app.goals for app in self.apps) if self.events is None else running_apps(self.events, time_s)

    def stopped(self, after_s: float, until_s: float) -> set[str]:
        """Return the applications that stopped in between, whether or not they came back."""
        events = self.events or ()
        return {event.app.name for event in events if event.kind == "stop" and after_s < event.time_s <= until_s}


@dataclass(frozen=True)
class App:
    """One application of a device: its requirements and its stream."""

    goals: AppGoals
    stream: StreamSpec

    @property
    def name(self) -> str:
        return self.goals.name
