"""The files of the applications of a shared device: goals, arrival, departure and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from driftlab.errors import DataError, RequestError, first_line
from driftlab.platform.core.documents import read_text, read_yaml, shape_fault
from driftlab.platform.core.registry import Member
from driftlab.platform.core.spec import AppPart, Positive, StrictPart
from driftlab.platform.field.request import own_stream
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Experiment, parse
from driftlab.platform.sim.setting import Cell
from driftlab.platform.world.apps import AppGoals, Event

TimeS = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ChangePart(StrictPart):
    """New goals of an application from a time on; a goal that is not given stays."""

    at_s: TimeS
    priority: Positive | None = None
    accuracy_goal: Annotated[float, Field(ge=0, le=1)] | None = None
    latency_goal_s: TimeS | None = None


class AppFile(AppPart):
    """An application of a shared device; times are those of the stream."""

    arrives_s: TimeS = 0.0
    departs_s: TimeS | None = None  # none: it stays
    changes: Annotated[tuple[ChangePart, ...], Field(strict=False)] = ()

    def events(self, goals: AppGoals) -> Iterator[Event]:
        """Yield its arrival, its changes and its departure in order of time."""
        yield Event(self.arrives_s, "start", goals)
        for change in sorted(self.changes, key=lambda change: change.at_s):
            given = change.model_dump(exclude={"at_s"}, exclude_none=True)
            goals = replace(goals, **given)
            yield Event(change.at_s, "change", goals)
        if self.departs_s is not None:
            yield Event(self.departs_s, "stop", goals)


@dataclass(frozen=True)
class AppSettings:
    """Settings that all applications of a shared device have in common."""

    system: str | Mapping[str, Any]
    workload: Mapping[str, Any]  # stream, rate and size of applications that have no other
    student: Mapping[str, Any]  # network of applications that have no other
    seed: int = 0
    hardware: str = "jetson-nx"  # profile for the energy of a device without a sensor
    window_s: float = 10.0  # between regular calls of the scheduler
    memory_bytes: int | None = None  # for the networks of all applications; none: that of the profile


def read_app_files(files: Sequence[Path]) -> list[AppFile]:
    """Read the applications; one without a name has that of its file."""
    apps = [_read(file) for file in files]
    names = Counter(app.name for app in apps)
    for file, app in zip(files, apps, strict=True):
        if names[app.name] > 1:
            raise RequestError(
                f"'{file}': {names[app.name]} applications are called {app.name}. Give each another name."
            )
    return apps


def _read(file: Path) -> AppFile:
    try:
        document = read_yaml(read_text(file))
    except (OSError, DataError, UnicodeError, yaml.YAMLError) as error:
        raise RequestError(f"'{file}' cannot be read: {first_line(error)}.") from error
    if not isinstance(document, dict):
        raise RequestError(f"'{file}' is no mapping. Give the keys of an application, such as `fps: 4`.")
    document = {"name": file.stem, **document}
    if fault := shape_fault(AppFile, document):
        raise RequestError(f"'{file}': {fault}.")
    app = AppFile.model_validate(document)
    end_s = float("inf") if app.departs_s is None else app.departs_s
    if end_s <= app.arrives_s:
        raise RequestError(f"'{file}': departs_s is {end_s:g}; it must be above arrives_s, which is {app.arrives_s:g}.")
    if outside := [f"{change.at_s:g}" for change in app.changes if not app.arrives_s < change.at_s < end_s]:
        raise RequestError(f"'{file}': changes at {', '.join(outside)} s, when the application is not there.")
    return app


def experiment_of_apps(apps: Sequence[AppFile], settings: AppSettings) -> Experiment:
    """Return the experiment of a shared device: one cell in wall-clock time, without a server."""
    own = {"arrives_s", "departs_s", "changes"}
    parts = [app.model_dump(mode="json", exclude=own, exclude_none=True) for app in apps]
    system = settings.system if isinstance(settings.system, str) else dict(settings.system)
    device = {"hardware": settings.hardware, "link": "zero-delay", "memory_bytes": settings.memory_bytes}
    unlabelled = any(own_stream(app.workload or settings.workload["name"]) for app in apps)
    # No teacher runs here, but an experiment on streams without truth must name one
    teacher = {"kind": "network", "network": settings.student["network"], "pretrain_steps": 1} if unlabelled else {}
    return parse(
        {
            "name": "field",
            "systems": [system],
            "workloads": [{**settings.workload, "alias": "apps", "apps": parts}],
            "student": dict(settings.student),
            "teacher": teacher,
            "seeds": [settings.seed],
            "window_s": settings.window_s,
            "fleets": [{"name": "field", "devices": [device]}],
            "bounds": False,
            "snapshots": 0,
            "clock": "wall",
        },
        source="applications",
    )


def cell_of_apps(experiment: Experiment, apps: Sequence[AppFile]) -> Cell:
    """Return the cell with arrivals, departures and changes; refuse systems that a lone device cannot run."""
    (cell,) = cells_of(experiment)
    system, (device,) = cell.system, cell.devices
    if system.uses_future:
        raise RequestError(f"'{system.name}' is a bound: it uses frames or loads before their time. Choose a method.")
    if learner := _learner(system.streaming, system.adaptation):
        raise RequestError(
            f"'{system.name}' learns with {learner}, but applications that share a device do not learn. "
            "Choose a system without learning, such as nestdnn."
        )
    late = [app.name for app in apps if app.arrives_s >= device.duration_s]
    if late:
        raise RequestError(f"{', '.join(late)} would arrive after the end of the streams at {device.duration_s:g} s.")
    goals = {spec.name: spec.goals for spec in device.apps}
    events = [event for app in apps for event in app.events(goals[app.name]) if event.time_s < device.duration_s]
    ordered = tuple(sorted(events, key=lambda event: event.time_s))
    return replace(cell, devices=(replace(device, events=ordered),))


def _learner(streaming: Member, adaptation: Member) -> str:
    """Return the member with which a system learns; empty if it does not."""
    if streaming.make().feeds_learner or streaming.make().label_tracking is not None:
        return f"streaming {streaming.name}"
    return f"adaptation {adaptation.name}" if adaptation.make().learns_on_stream else ""
