"""Cells of a grid: each combines one system, workload, fleet and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from driftlab.datasets.catalogue import find_workload, open_stream
from driftlab.datasets.frames import FileStream, Stream
from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.core.plugins import drop_folder
from driftlab.platform.core.records import Variant
from driftlab.platform.core.registry import FAMILIES, Member
from driftlab.platform.core.seeding import rng_for, seed_for
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.networks.spaces import is_space_file, read_space
from driftlab.platform.sim.setting import AppSpec, Cell, Device, StreamSpec
from driftlab.platform.world import apps, hardware, link, load, load_csv, measured
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.hardware import Hardware
from driftlab.platform.world.link import LinkProfile
from driftlab.platform.world.load import Load, LoadProfile

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment
from driftlab.platform.core.spec import AppPart, DevicePart, FleetPart, SystemPart, WorkloadPart


class Point(NamedTuple):
    """System, workload, fleet and seed of a cell, before its devices are drawn."""

    system: System
    workload: WorkloadPart
    fleet: FleetPart
    seed: int

    @property
    def id(self) -> str:
        return f"{self.system.name}/{self.workload.label}/{self.fleet.name}/seed-{self.seed}"


def points_of(experiment: Experiment) -> list[Point]:
    """List the points of the grid, seed by seed, so that every system has a result early."""
    systems = systems_of(experiment)
    return [
        Point(system, workload, fleet, seed)
        for seed in experiment.seeds
        for fleet in experiment.fleets
        for workload in experiment.workloads
        for system in systems
    ]


def cells_of(experiment: Experiment) -> list[Cell]:
    """Draw devices, streams, arrivals and loads; they depend on the seed, not on the system."""
    apps_by_workload = {workload.label: app_specs_of(experiment, workload) for workload in experiment.workloads}
    drawn: dict[tuple[int, str, str], tuple[Device, ...]] = {}
    cells = []
    for point in points_of(experiment):
        where = (point.seed, point.fleet.name, point.workload.label)
        if where not in drawn:
            drawn[where] = devices_of(point.fleet, point.workload, apps_by_workload[point.workload.label], point.seed)
        cells.append(_cell(point, drawn[where], experiment.server.gpus))
    return cells


ADDED_BOUNDS = ("no_adaptation", "best_static", "oracle")  # those of any method


def systems_of(experiment: Experiment) -> list[System]:
    """List the systems of an experiment, then the missing bounds that need no family of networks."""
    systems = [system_of(part) for part in experiment.systems]
    if not experiment.bounds:
        return systems
    rows = [row for row in SYSTEMS.values() if row.bound in ADDED_BOUNDS]
    if experiment.bound_rows is not None:
        rows = [system_of(part) for part in experiment.bound_rows]
    present = {system.bound for system in systems}
    return systems + [row for row in rows if row.bound not in present]


def _cell(point: Point, devices: tuple[Device, ...], gpus: int) -> Cell:
    if point.system.bound == "zero_delay_link":
        devices = tuple(replace(device, link=link.find("zero-delay")) for device in devices)
    return Cell(
        point.id,
        point.system,
        point.workload.label,
        point.fleet.name,
        devices,
        point.seed,
        devices[0].duration_s,
        point.fleet.gpus or gpus,
    )


def devices_of(fleet: FleetPart, workload: WorkloadPart, specs: Sequence[AppSpec], seed: int) -> tuple[Device, ...]:
    """Draw the devices of a fleet, each with its own streams, arrivals and load, equal for all systems."""
    return tuple(
        Device(
            f"device-{index:04d}",
            machine,
            wire,
            tuple(_seeded(spec, seed, index) for spec in specs),
            _events(workload, specs, seed, index),
            _load(profile, specs, seed, index),
        )
        for index, (machine, wire, profile) in enumerate(fleet_of(fleet))
    )


def _seeded(spec: AppSpec, seed: int, index: int) -> AppSpec:
    """Seed an application's stream; applications with one stream on one device receive the same frames."""
    return replace(spec, stream=replace(spec.stream, seed=seed_for(seed, "stream", spec.stream.workload, index)))


def _events(workload: WorkloadPart, specs: Sequence[AppSpec], seed: int, index: int) -> tuple[Event, ...] | None:
    if workload.churn is None:
        return None
    churn = apps.from_mapping({"duration_s": specs[0].stream.duration_s, **workload.churn})
    return apps.draw_trace([spec.goals for spec in specs], churn, rng_for(seed, "churn", workload.label, index))


def _load(profile: LoadProfile, specs: Sequence[AppSpec], seed: int, index: int) -> Load | None:
    return load_csv.load_of(profile, specs[0].stream.duration_s, rng_for(seed, "load", index))


def app_specs_of(experiment: Experiment, workload: WorkloadPart) -> tuple[AppSpec, ...]:
    """Describe the applications of a workload."""
    return tuple(
        AppSpec(
            AppGoals(
                part.name,
                part.fps or workload.fps,
                part.accuracy_goal,
                part.latency_goal_s,
                part.priority,
                part.energy_goal_j,
            ),
            stream_of(workload.seen_by(part)),
            scored_of(workload, open_workload(workload.seen_by(part))) if workload.scored else (),
        )
        for part in experiment.apps_of(workload)
    )


def scored_of(workload: WorkloadPart, stream: Stream) -> tuple[int, ...]:
    """Return the numbers of the classes that count; RequestError for a name that the stream does not have."""
    for name in workload.scored:
        if name not in stream.classes:
            raise unknown_name("class", name, stream.classes)
    return tuple(sorted(map(stream.classes.index, workload.scored)))


def stream_of(workload: WorkloadPart) -> StreamSpec:
    """Describe a workload's stream; the duration of a video file is read from the file."""
    return StreamSpec(
        workload=workload.name,
        seed=0,
        height=workload.height,
        width=workload.width,
        fps=workload.fps,
        duration_s=open_workload(workload).duration_s,
        params=tuple(workload.params.items()),
    )


def open_workload(workload: WorkloadPart) -> Stream:
    """Open a workload's stream; RequestError for wrong parameters."""
    if elsewhere := sorted(set(workload.params) & {"seed", *type(workload).model_fields}):
        raise RequestError(f"params holds {', '.join(elsewhere)}; write such settings next to params, seeds in seeds")
    return open_stream(
        workload.name,
        seed=0,
        height=workload.height,
        width=workload.width,
        fps=workload.fps,
        duration_s=workload.duration_s,
        **workload.params,
    )


def check_files(experiment: Experiment) -> None:
    """Read all stream files before a run starts; DataError for a damaged file."""
    live = [workload for workload in experiment.workloads if workload.run_networks]
    seen = {repr(part): part for each in live for app in experiment.apps_of(each) for part in [each.seen_by(app)]}
    for workload in seen.values():
        stream = open_workload(workload)
        if isinstance(stream, FileStream):
            stream.check()


def agreement_of(experiment: Experiment) -> dict[str, dict[str, str]]:
    """Name the teacher whose labels replace the ground truth of each workload without any."""
    if experiment.teacher.kind != "network":
        return {}
    blind = [
        workload.label
        for workload in experiment.workloads
        if workload.run_networks and not open_workload(workload.seen_by(experiment.apps_of(workload)[0])).has_truth
    ]
    return {"agreement": dict.fromkeys(blind, drop_folder(experiment.teacher.network))} if blind else {}


def has_own_classes(workload: WorkloadPart, stream: Stream) -> bool:
    """Return whether a stream has classes that the pre-training images lack."""
    return find_workload(workload.name).classes not in (None, stream.classes)


def measured_of(app: AppPart) -> tuple[Variant, ...]:
    """Read an application's measured networks: those under its name, or the only ones in the file."""
    if app.variants is None:
        return ()
    if isinstance(app.variants, str):
        found = measured.read(Path(app.variants))
    else:
        found = measured.read(Path(app.variants.file), app.variants.rename, app.variants.only)
    if app.name not in found and len(found) > 1:
        raise unknown_name("application", app.name, found)
    return found.get(app.name) or next(iter(found.values()))


def fleet_of(fleet: FleetPart) -> list[tuple[Hardware, LinkProfile, LoadProfile]]:
    """List hardware, link and load of every device."""
    kinds = [(_machine(part), described(link, part.link), described(load, part.load)) for part in fleet.devices]
    return [kind for kind, part in zip(kinds, fleet.devices, strict=True) for _ in range(part.count)]


def _machine(part: DevicePart) -> Hardware:
    """Return a device's hardware, with `memory_bytes` replaced if the device limits it."""
    machine: Hardware = described(hardware, part.hardware)
    return machine if part.memory_bytes is None else replace(machine, memory_bytes=part.memory_bytes)


def described(module: Any, given: Any) -> Any:
    """Find a profile by name, or read one that is given as a mapping."""
    return module.find(given) if isinstance(given, str) else module.from_mapping(given)


def system_of(part: SystemPart) -> System:
    """Construct the system of a part; RequestError lists the faults of its members."""
    base = _base_of(part)
    members: dict[str, Any] = {family: slot_of(family, getattr(part, family)) for family in FAMILIES}
    system = replace(base, name=part.name, **members)
    if [member.name for member in system.members] != [member.name for member in base.members]:
        system = replace(system, bound=None)  # a bound keeps its role with other parameters, but not with other members
    if part.zero_delay_link and not system.bound:
        system = replace(system, bound="zero_delay_link")
    faults = [fault for member in system.members for fault in _member_faults(member)] or system.faults()
    if faults:
        raise RequestError("; ".join(faults))
    return system


def resolved(experiment: Experiment) -> dict[str, Any]:
    """Write an experiment with all parameters of all systems, so that reading a run imports no member.

    Defaults are stored under `defaults`: given parameters enter a member's name in tables and the keys of networks.
    """
    systems, count = systems_of(experiment), len(experiment.systems)
    slots = [
        {one.family: {**plain_slot(one), "defaults": one.defaults()} for one in system.members} for system in systems
    ]
    document = experiment.model_dump(mode="json")
    document["systems"] = [{**part, **own} for part, own in zip(document["systems"], slots[:count], strict=True)]
    if experiment.bounds:
        rows = zip(systems[count:], slots[count:], strict=True)
        document["bound_rows"] = [{"name": system.name, **own} for system, own in rows]
    return document


def plain_slot(member: Member) -> dict[str, Any]:
    """Write a member as the mapping of a slot."""
    params = {key: list(value) if isinstance(value, tuple) else value for key, value in member.params}
    return {"name": member.name, **params}


def _base_of(part: SystemPart) -> System:
    """Find the base system of a row; an unknown name starts from the null members."""
    name = part.base or part.name
    if part.base and name not in SYSTEMS:
        raise unknown_name("system", name, SYSTEMS)
    return SYSTEMS.get(name, System(part.name, ""))


def slot_of(family: str, given: str | dict[str, Any]) -> Member:
    """Read a slot: a member's name, or a mapping of its name and parameters."""
    if isinstance(given, str):
        return Member(family, given)
    if "name" not in given:
        example = f"{{name: {next(iter(FAMILIES[family]))}}}"
        raise RequestError(f"{family} is {quoted(given)}: it has no 'name', such as {example}")
    own = {key: value for key, value in given.items() if key not in ("name", "defaults")}
    if family == "scaling" and is_space_file(own.get("space")):
        own["space"] = read_space(Path(own["space"]).expanduser())
    return _as_then(Member(family, str(given["name"]), tuple(own.items())), given.get("defaults") or {})


def _as_then(member: Member, defaults: Any) -> Member:
    """Set the defaults of a run's spec that differ now; parameters with the same default stay unset."""
    if not isinstance(defaults, dict):
        raise RequestError(
            f"{member.family}: defaults is {quoted(defaults)}; write parameters next to the name instead"
        )
    if not defaults:
        return member
    given = dict(member.params)
    now = member.defaults()
    changed = {key: value for key, value in defaults.items() if key not in given and now.get(key, now) != value}
    return replace(member, params=tuple({**given, **changed}.items()))


def _member_faults(member: Member) -> list[str]:
    try:
        member.make()
    except RequestError as error:
        return [str(error)]
    return []
