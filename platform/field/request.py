"""The request of a session over the network: the same experiment on the device and on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftlab.datasets.catalogue import CAMERA
from driftlab.errors import RequestError
from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Experiment, parse
from driftlab.platform.networks.zoo import task_of
from driftlab.platform.sim.setting import Cell

MOST_PIXELS = 1024 * 1024  # of a frame
MOST_STEPS = 20_000  # of pre-training, which the server does
MOST_SESSION_S = 7 * 86_400.0
OWN_STREAMS = ("video", "folder", "cityscapes", CAMERA)  # before the colon of a workload's name
PLAIN = r"^[A-Za-z0-9_+-]{1,64}$"  # a member by name: a path would load code
STREAM = r"^[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64})?$"  # likewise without files

PlainName = Annotated[str, Field(pattern=PLAIN)]
Slot = PlainName | dict[str, Any] | None


class _Asked(BaseModel):
    """Refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SlotsAsked(_Asked):
    """A system with some slots of its own."""

    name: PlainName
    base: PlainName | None = None
    streaming: Slot = None
    adaptation: Slot = None
    scaling: Slot = None
    scheduling: Slot = None


class WorkloadAsked(_Asked):
    """A built-in stream; a server never opens files for a device."""

    name: Annotated[str, Field(pattern=STREAM)]
    duration_s: Annotated[float, Field(gt=0, le=MOST_SESSION_S)] = 60.0
    fps: Annotated[float, Field(gt=0, le=240)] = 4.0
    height: Annotated[int, Field(ge=16, le=1024)] = 64
    width: Annotated[int, Field(ge=16, le=1024)] = 96


class StudentAsked(_Asked):
    """The network of the device; None as the zoo says."""

    network: PlainName = "tiny"
    pretrain_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] | None = None
    pretrain_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class TeacherAsked(_Asked):
    """The teacher on the server: an oracle, which plays the workload itself, or a network."""

    kind: Literal["oracle", "network"] = "oracle"
    network: PlainName = "teacher"
    pretrain_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 1000


class SessionAsked(_Asked):
    """The body of the request for a session."""

    system: PlainName | SlotsAsked = "ams"
    workload: WorkloadAsked
    student: StudentAsked = StudentAsked()
    teacher: TeacherAsked = TeacherAsked()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    task: PlainName | None = None  # None: that of the network
    hardware: PlainName = "jetson-nx"  # profile from which a device without a sensor computes its joules


def own_stream(workload: str) -> bool:
    """Tell whether a workload is a film, a folder or a camera, whose frames are on the device only."""
    return workload.partition(":")[0] in OWN_STREAMS and ":" in workload


def read_asked(document: Mapping[str, Any]) -> SessionAsked:
    """Validate the body of a request; every fault names its place."""
    try:
        return SessionAsked.model_validate(document)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:8]]
        raise RequestError("; ".join(faults)) from error


def experiment_of(asked: SessionAsked, source: str = "") -> Experiment:
    """Write the request as an experiment of one cell in wall time, without a modelled link.

    A device may show a stream of its own: a film, a folder or a camera, which its server knows as `camera`.
    """
    if asked.workload.height * asked.workload.width > MOST_PIXELS:
        raise RequestError(f"Frames have more than {MOST_PIXELS} pixels; ask for a smaller height or width.")
    system = asked.system if isinstance(asked.system, str) else asked.system.model_dump(exclude_none=True)
    _check_slots(system)
    experiment = parse(
        {
            "name": "field",
            "systems": [system],
            "workloads": [asked.workload.model_dump() | ({"name": source} if source else {})],
            "student": asked.student.model_dump(exclude_none=True),
            "teacher": asked.teacher.model_dump(),
            "seeds": [asked.seed],
            "fleets": [{"name": "field", "devices": [{"hardware": asked.hardware, "link": "null"}]}],
            "bounds": False,
            "pictures": 0,
            "clock": "wall",
        }
    )
    task = task_of(experiment.student.network).name
    if asked.task not in (None, task):
        raise RequestError(f"task is '{asked.task}' and network '{asked.student.network}' does {task}.")
    return experiment


def cell_of(experiment: Experiment) -> Cell:
    """Return the only cell; refuse a bound, and a learner on the device whose teacher is not there."""
    (cell,) = cells_of(experiment)
    streaming = cell.system.streaming.make()
    if streaming.free:
        raise RequestError(f"'{cell.system.name}' is a bound over a link without limits, which no device has.")
    if streaming.place == "device" and cell.system.uses_teacher and experiment.teacher.kind == "network":
        raise RequestError(
            f"'{cell.system.name}' learns on the device from a teacher's labels, and the teacher is on the server; "
            "take a system without labels, or one whose learner is on the server."
        )
    return cell


def _check_slots(system: str | Mapping[str, Any]) -> None:
    """Refuse slots whose member is a file."""
    slots = {} if isinstance(system, str) else system
    for family in FAMILIES:
        slot = slots.get(family)
        name = slot.get("name") if isinstance(slot, Mapping) else slot
        if name is not None and not (isinstance(name, str) and name.replace("_", "").isalnum()):
            raise RequestError(f"{family}: over the network a member is given by its plain name.")
