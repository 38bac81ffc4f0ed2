"""The request that opens a session; device and server derive the same experiment from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftlab.datasets.catalogue import CAMERA
from driftlab.errors import RequestError
from driftlab.platform.core.documents import shape_faults
from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Experiment, parse
from driftlab.platform.networks.named import known, task_of
from driftlab.platform.networks.spaces import is_space_file
from driftlab.platform.sim.setting import Cell

MAX_PIXELS = 1024 * 1024  # of a frame
MAX_STEPS = 20_000  # of pre-training on the server
MAX_FAULTS = 8  # that a refusal lists
MAX_SESSION_S = 7 * 86_400.0
OWN_STREAMS = ("video", "folder", "cityscapes", "acdc", "shift", CAMERA)  # workloads with frames on the device
PLAIN = r"^[A-Za-z0-9_+-]{1,64}$"  # the name of a member; a path would make the server load code
STREAM = r"^[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64})?$"  # the name of a stream; a path would make it read files

PlainName = Annotated[str, Field(pattern=PLAIN)]
Slot = PlainName | dict[str, Any] | None


class _Asked(BaseModel):
    """A part of the request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SystemRequest(_Asked):
    """A system, or a base system with some members replaced."""

    name: PlainName
    base: PlainName | None = None
    streaming: Slot = None
    adaptation: Slot = None
    scaling: Slot = None
    scheduling: Slot = None


class WorkloadRequest(_Asked):
    """A built-in stream; a server never reads files for a device."""

    name: Annotated[str, Field(pattern=STREAM)]
    duration_s: Annotated[float, Field(gt=0, le=MAX_SESSION_S)] = 60.0
    fps: Annotated[float, Field(gt=0, le=240)] = 4.0
    height: Annotated[int, Field(ge=16, le=1024)] = 64
    width: Annotated[int, Field(ge=16, le=1024)] = 96


class StudentRequest(_Asked):
    """The network of the device; None: the number of steps in the zoo."""

    network: PlainName = "tiny"
    pretrain_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = None
    pretrain_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class TeacherRequest(_Asked):
    """The teacher on the server: an oracle, which renders the workload itself, or a network."""

    kind: Literal["oracle", "network"] = "oracle"
    network: PlainName = "teacher"
    pretrain_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = 1000


class GoalsRequest(_Asked):
    """Goals of the application on the device; None: it has none."""

    latency_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    energy_j: Annotated[float, Field(gt=0, le=1e6)] | None = None  # per frame
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


class SessionRequest(_Asked):
    """The body of the request that opens a session."""

    name: PlainName | None = None  # of the device, for the live page
    system: PlainName | SystemRequest = "ams"
    workload: WorkloadRequest
    student: StudentRequest = StudentRequest()
    teacher: TeacherRequest = TeacherRequest()
    goals: GoalsRequest | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    task: PlainName | None = None  # None: the task of the network
    hardware: PlainName = "jetson-nx"  # profile for the energy of a device without a sensor


def own_stream(workload: str) -> bool:
    """Return whether the frames of a workload are only on the device: a video file, a folder or a camera."""
    return workload.partition(":")[0] in OWN_STREAMS and ":" in workload


def parse_session_request(document: Mapping[str, Any]) -> SessionRequest:
    """Validate the body of a request; raise RequestError with the places of its first faults."""
    try:
        return SessionRequest.model_validate(document)
    except ValidationError as error:
        raise RequestError(faults_of(error.errors())) from error


def faults_of(details: Sequence[Any]) -> str:
    """Describe the first errors that pydantic lists for a request; a body may have thousands."""
    return "; ".join(shape_faults(details[:MAX_FAULTS], SessionRequest))


def experiment_of(asked: SessionRequest, source: str = "", torch_device: str = "cpu") -> Experiment:
    """Return the experiment of a request: one cell in wall-clock time, without a simulated link.

    A device replaces the workload by its `source`: a video file, a folder or a camera. Its request names the workload
    `camera`. The torch device is that of the process, which no request chooses.
    """
    if asked.workload.height * asked.workload.width > MAX_PIXELS:
        raise RequestError(f"Frames have more than {MAX_PIXELS} pixels. Reduce workload.height or workload.width.")
    system = asked.system if isinstance(asked.system, str) else asked.system.model_dump(exclude_none=True)
    _check_slots(system)
    workload = asked.workload.model_dump() | ({"name": source} if source else {}) | _apps_of(asked)
    experiment = parse(
        {
            "name": "field",
            "systems": [system],
            "workloads": [workload],
            "student": asked.student.model_dump(exclude_none=True),
            "teacher": asked.teacher.model_dump(),
            "seeds": [asked.seed],
            "fleets": [{"name": "field", "devices": [{"hardware": asked.hardware, "link": "zero-delay"}]}],
            "bounds": False,
            "snapshots": 0,
            "clock": "wall",
            "compute": {"torch_device": torch_device},
        }
    )
    task = task_of(experiment.student.network).name
    if asked.task not in (None, task):
        raise RequestError(
            f"task is '{asked.task}', but network '{asked.student.network}' does {task}. Leave task out, or set it to "
            f"{task}."
        )
    return experiment


def _apps_of(asked: SessionRequest) -> dict[str, Any]:
    """Return the application of a device with goals, under the name that it has without them."""
    if asked.goals is None or not known(asked.student.network):
        return {}
    goals = {"latency_s": "latency_goal_s", "energy_j": "energy_goal_j", "accuracy": "accuracy_goal"}
    given = {goals[name]: value for name, value in asked.goals.model_dump(exclude_none=True).items()}
    return {"apps": [{"name": task_of(asked.student.network).name, **given}]}


def cell_of(experiment: Experiment) -> Cell:
    """Return the cell of a field experiment; raise RequestError for a system that no device can run."""
    (cell,) = cells_of(experiment)
    streaming = cell.system.streaming.make()
    if cell.system.uses_future:
        raise RequestError(
            f"'{cell.system.name}' is a bound: it uses frames or loads before their time, which no device can. "
            "Choose a system that is a method."
        )
    if streaming.learner_site == "device" and cell.system.uses_teacher and experiment.teacher.kind == "network":
        raise RequestError(
            f"'{cell.system.name}' trains on the device with a teacher's labels, but the teacher is on the server. "
            "Use a system without labels, or one that trains on the server."
        )
    return cell


def _check_slots(system: str | Mapping[str, Any]) -> None:
    """Refuse members given by a file: a server loads no code from devices."""
    slots = {} if isinstance(system, str) else system
    for family in FAMILIES:
        slot = slots.get(family)
        name = slot.get("name") if isinstance(slot, Mapping) else slot
        if name is not None and not (isinstance(name, str) and name.replace("_", "").isalnum()):
            raise RequestError(f"{family}: a request over the network cannot name a file. Use the name of a member.")
        if isinstance(slot, Mapping) and is_space_file(slot.get("space")):
            raise RequestError(f"{family}: a request over the network cannot name a file. List the space as text.")
