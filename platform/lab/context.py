"""What all cells of a run share: the students and teachers that were built, and how the server is equipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import ModelCost, Variant
from driftlab.platform.lab.backend import Job
from driftlab.platform.models.tasks import Task
from driftlab.platform.models.zoo import task_of
from driftlab.platform.nodes.specs import TeacherSpec
from driftlab.platform.scaling.base import Profile, most_accurate, variants_on
from driftlab.platform.world.clock import ClockKind
from driftlab.platform.world.cost import training_s
from driftlab.platform.world.hardware import Hardware


@dataclass(frozen=True)
class Network:
    """A network that was built, or the family of networks that a scaling member makes of one."""

    name: str
    profile: tuple[Profile, ...]  # what is known of each, from the smallest on
    digest: str
    weights: Job  # its payload is what the scaling member stores

    @property
    def first(self) -> int:
        """Say which of them runs as long as nobody has chosen another."""
        return most_accurate([one.accuracy for one in self.profile])

    @property
    def cost(self) -> ModelCost:
        """Account for the one that runs first."""
        return self.profile[self.first].cost


@dataclass(frozen=True)
class Server:
    """The virtual machine that labels and trains."""

    hardware: Hardware
    label_s: float | None  # per frame; None: computed from the teacher's account
    step_s: float | None  # per training iteration; None: computed from the student's account

    def training_s(self, cost: ModelCost, iterations: int, batch: int) -> float:
        """Time a training phase."""
        if self.step_s is not None:
            return iterations * self.step_s
        return training_s(cost, self.hardware, iterations=iterations, batch=batch)


def key(workload: str, scaling: Member, seed: int) -> str:
    """Name the conditions of a workload for systems with this scaling member under a seed."""
    return f"{workload} {scaling!r} {seed}"


@dataclass(frozen=True)
class AppContext:
    """What one application needs: its network, and who teaches it."""

    student: Network
    teacher: Network | None
    teacher_spec: TeacherSpec
    label_s: float  # per frame on the server
    classes: int
    measured: tuple[Variant, ...] = ()  # the networks that it could run, where somebody has measured them

    @property
    def task(self) -> Task:
        return task_of(self.student.name)

    @property
    def teacher_name(self) -> str:
        return self.teacher_spec.kind if self.teacher is None else self.teacher.name

    def variants(self, hardware: Hardware) -> tuple[Variant, ...]:
        """List the networks that it could run on a machine, from the smallest on."""
        if self.measured:
            return self.measured
        found = variants_on(hardware, self.student.profile)
        return found if len(found) > 1 else (replace(found[0], name=self.student.name),)


@dataclass(frozen=True)
class CellContext:
    """The conditions that hold for every cell of a workload."""

    experiment: str
    clock: ClockKind
    window_s: float
    pictures: int
    apps: Mapping[str, AppContext]
    server: Server
    live: bool = True  # whether applications run their networks, or are only given shares
    torch_device: str = "cpu"
