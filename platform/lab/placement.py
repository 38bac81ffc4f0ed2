"""Choose the processes of a run: an actor for whole cells, or an actor for each kind of node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftlab.platform.core import plugins
from driftlab.platform.lab.cells import points_of, systems_of
from driftlab.platform.lab.parts import PART_DEVICES, part_count

if TYPE_CHECKING:
    from driftlab.platform.core.spec import FleetPart
    from driftlab.platform.lab.read import Experiment


Kind = Literal["cells", "nodes"]


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a cell run under Ray, and why; tables do not depend on it."""

    kind: Kind
    reason: str


def placement_of(
    experiment: Experiment,
    workers: int | None = None,
    devices_per_actor: int | None = None,
    begun: Kind | None = None,
) -> Placement:
    """Choose before any process starts; a resumed run stays as it began.

    Devices that share a server, and a grid with fewer cells than workers, occupy the workers only as separate nodes.
    """
    asked = experiment.compute.placement
    if asked != "auto":
        return Placement(asked, f"compute.placement is {asked}")
    if devices_per_actor is not None:
        return Placement("nodes", "--devices-per-actor limits the devices of an actor")
    if begun is not None:
        return Placement(begun, "the run began so")
    systems = systems_of(experiment)
    served = next((system.name for system in systems if system.needs_server), None)
    for fleet in experiment.fleets:
        if _devices(fleet) > 1 and served is not None:
            return Placement(
                "nodes", f"'{served}' has a server, which the {_devices(fleet)} devices of '{fleet.name}' share"
            )
    points, least = points_of(experiment), workers or 2
    parts = sum(part_count(point.system, _devices(point.fleet)) for point in points)
    if parts < least:
        return Placement("nodes", f"the grid has fewer cells ({parts}) than workers ({least})")
    if parts > len(points):
        return Placement(
            "cells", f"the cells have {parts} parts of at most {PART_DEVICES} devices, which share no server"
        )
    what = "one device" if all(_devices(fleet) == 1 for fleet in experiment.fleets) else "devices that share no server"
    return Placement("cells", f"each of the {parts} cells has {what}")


def _devices(fleet: FleetPart) -> int:
    return sum(part.count for part in fleet.devices)


def sources_of(experiment: Experiment) -> dict[str, bytes]:
    """Read the files of a user's members, networks and weights, which other computers may lack."""
    members = [member.name for system in systems_of(experiment) for member in system.members]
    parts = [app.network for workload in experiment.workloads for app in workload.apps]
    networks = [name for name in (experiment.student.network, experiment.teacher.network, *parts) if name]
    weights = [file for file in (experiment.student.weights, experiment.teacher.weights) if file]
    return plugins.sources_of([*members, *networks], weights)
