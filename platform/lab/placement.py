"""Choose the processes of a run: an actor for whole cells, or an actor for each kind of node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftlab.platform.core import plugins
from driftlab.platform.lab.cells import points_of, systems_of

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a cell run under Ray, and why; tables do not depend on it."""

    kind: Literal["cells", "nodes"]
    reason: str


def placement_of(experiment: Experiment, workers: int | None = None, devices_per_actor: int | None = None) -> Placement:
    """Choose from the request alone, so that a resumed run has the same processes.

    A fleet, and a grid with fewer cells than workers, occupies the workers only if its nodes are separate.
    """
    asked = experiment.compute.placement
    if asked != "auto":
        return Placement(asked, f"compute.placement is {asked}")
    if devices_per_actor is not None:
        return Placement("nodes", "--devices-per-actor limits the devices of an actor")
    for fleet in experiment.fleets:
        devices = sum(part.count for part in fleet.devices)
        if devices > 1:
            return Placement("nodes", f"fleet '{fleet.name}' has {devices} devices")
    cells, least = len(points_of(experiment)), workers or 2
    if cells < least:
        return Placement("nodes", f"the grid has fewer cells ({cells}) than workers ({least})")
    return Placement("cells", f"each of the {cells} cells has one device")


def sources_of(experiment: Experiment) -> dict[str, bytes]:
    """Read the files of a user's members and networks: the processes may be on computers without them."""
    members = [member.name for system in systems_of(experiment) for member in system.members]
    parts = [app.network for workload in experiment.workloads for app in workload.apps]
    networks = [name for name in (experiment.student.network, experiment.teacher.network, *parts) if name]
    return plugins.sources_of([*members, *networks])
