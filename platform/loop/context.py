"""What the cells of a workload share: students and teachers that were built, and the machines that teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from driftlab.platform.backend.base import Job
from driftlab.platform.core.catalogue import Member
from driftlab.platform.core.records import ModelCost, Need, Passes, Variant
from driftlab.platform.networks.zoo import task_of
from driftlab.platform.nodes.specs import TeacherSpec
from driftlab.platform.scaling.base import Profile, most_accurate, variants_on
from driftlab.platform.tasks.tasks import Task
from driftlab.platform.world.clock import ClockKind
from driftlab.platform.world.cost import inference_j, inference_s, need_of
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
class Site:
    """The machine that labels and learns: the virtual server, or the device itself."""

    hardware: Hardware
    label_s: float | None  # per frame; None: computed from the teacher's account
    step_s: float | None  # per learning step; None: computed from the student's account

    def label(self, frames: int, label_s: float, label_j: float | None = None) -> Need:
        """Say what labelling takes; a teacher that is no network draws what the machine draws above idling."""
        seconds = frames * label_s
        drawn_j = seconds * (self.hardware.busy_w - self.hardware.idle_w) if label_j is None else frames * label_j
        return Need({"accelerator": seconds}, 0, drawn_j)

    def learn(self, cost: ModelCost, passes: Passes) -> Need:
        """Say what counted passes take; where a step has a given length, it has that length."""
        need = need_of(cost, self.hardware, passes)
        if self.step_s is None:
            return need
        return replace(need, seconds={"accelerator": len(passes.backward) * self.step_s})


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
    packs: Mapping[str, Job] = field(default_factory=dict)  # by adaptation: what it knows of the source
    measured: tuple[Variant, ...] = ()  # the networks that it could run, where somebody has measured them

    @property
    def task(self) -> Task:
        return task_of(self.student.name)

    @property
    def teacher_name(self) -> str:
        return self.teacher_spec.kind if self.teacher is None else self.teacher.name

    def label(self, site: Site, frames: int) -> Need:
        """Say what the teacher takes to label frames on a machine."""
        teacher_j = None if self.teacher is None else inference_j(self.teacher.cost, site.hardware)
        return site.label(frames, self.label_s if site.label_s is None else site.label_s, teacher_j)

    def on_device(self, server: Site, hardware: Hardware) -> Site:
        """Move the learner to a device; an oracle stands for a network that takes longer there in proportion."""
        if self.teacher is not None:
            return Site(hardware, inference_s(self.teacher.cost, hardware), None)
        return Site(hardware, self.label_s * server.hardware.macs_per_s / hardware.macs_per_s, None)

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
    server: Site
    domains_told: bool = False  # whether devices are told which domain a frame is of
    learn_limit_s: float = 60.0  # longer than that no single piece of learning on the stream may keep a device busy
    member_limit_s: float = 600.0  # of this machine's time, for one call of a member
    live: bool = True  # whether applications run their networks, or are only given shares
    torch_device: str = "cpu"
    tuned: Mapping[str, str] = field(default_factory=dict)  # by system: which search its settings come from
