"""What all cells of a run share: the students and teachers that were built, and how the server is equipped."""

from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.core.records import ModelCost
from driftlab.platform.lab.backend import Job
from driftlab.platform.models.tasks import Task
from driftlab.platform.models.zoo import task_of
from driftlab.platform.nodes.specs import TeacherSpec
from driftlab.platform.world.clock import ClockKind
from driftlab.platform.world.cost import training_s
from driftlab.platform.world.hardware import Hardware


@dataclass(frozen=True)
class Network:
    """A network that was built: its account, and the job whose payload is its weights."""

    name: str
    cost: ModelCost
    digest: str
    weights: Job


@dataclass(frozen=True)
class Server:
    """The virtual machine that labels and trains."""

    hardware: Hardware
    gpus: int
    label_s: float | None  # per frame; None: computed from the teacher's account
    step_s: float | None  # per training iteration; None: computed from the student's account

    def training_s(self, cost: ModelCost, iterations: int, batch: int) -> float:
        """Time a training phase."""
        if self.step_s is not None:
            return iterations * self.step_s
        return training_s(cost, self.hardware, iterations=iterations, batch=batch)


@dataclass(frozen=True)
class Setting:
    """The conditions that hold for every cell of a run."""

    experiment: str
    clock: ClockKind
    window_s: float
    pictures: int
    student: Network
    teacher: Network | None
    teacher_spec: TeacherSpec
    label_s: float  # per frame on the server
    server: Server
    classes: int
    torch_device: str = "cpu"

    @property
    def task(self) -> Task:
        return task_of(self.student.name)

    @property
    def teacher_name(self) -> str:
        return self.teacher_spec.kind if self.teacher is None else self.teacher.name
