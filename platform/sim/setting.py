"""The settings of a cell before it runs, as plain values that any process can receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from driftlab.platform.core.plugins import drop_folder
from driftlab.platform.core.records import ModelCost, Passes, Resource, TaskCost, Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.core.systems import System
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.tasks.tasks import Task
from driftlab.platform.scaling.base import WHOLE, Profile, most_accurate, variants_on
from driftlab.platform.sim.session import Job
from driftlab.platform.world.apps import AppGoals, Event, running_apps
from driftlab.platform.world.clock import ClockKind
from driftlab.platform.world.cost import inference_j, inference_s, task_cost
from driftlab.platform.world.hardware import Hardware
from driftlab.platform.world.link import LinkProfile
from driftlab.platform.world.load import Load
from driftlab.platform.world.measured import matched

# The cell ------------------------------------------------------------------------------------------------------------


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
    apps: tuple[AppSpec, ...]
    events: tuple[Event, ...] | None = None  # arrivals and departures; none: all applications run throughout
    load: Load | None = None  # of other programs; none: nothing else runs, and there is nothing to sense

    @property
    def duration_s(self) -> float:
        return self.apps[0].stream.duration_s

    def name_of(self, app: AppSpec) -> str:
        """Return the name of an application's nodes; it names the application if the device has several."""
        return self.name if len(self.apps) == 1 else f"{self.name}/{app.name}"

    def present(self, time_s: float) -> tuple[AppGoals, ...]:
        """Return the applications that run at a time, with their requirements then."""
        return tuple(app.goals for app in self.apps) if self.events is None else running_apps(self.events, time_s)

    def stopped(self, after_s: float, until_s: float) -> set[str]:
        """Return the applications that stopped in between, whether or not they came back."""
        events = self.events or ()
        return {event.app.name for event in events if event.kind == "stop" and after_s < event.time_s <= until_s}


@dataclass(frozen=True)
class AppSpec:
    """One application of a device: its requirements and its stream."""

    goals: AppGoals
    stream: StreamSpec
    scored: tuple[int, ...] = ()  # classes that count; none: all

    @property
    def name(self) -> str:
        return self.goals.name


# Constructor arguments of nodes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamSpec:
    """The stream of a device: enough to open the same stream anywhere."""

    workload: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class StudentSpec:
    """A student network, with its adaptation and scaling members."""

    network: str
    classes: int
    height: int
    width: int
    adaptation: Member
    scaling: Member
    seed: int
    torch_device: str = "cpu"


@dataclass(frozen=True)
class AppNodeConfig:
    """The application node of a device."""

    device: str
    app: str
    student: StudentSpec
    hardware: Hardware
    cost: ModelCost  # of the student as built
    cost_ratios: Mapping[int | None, tuple[float, float]] = field(default_factory=dict)  # see `AppNetworks`; none: 1
    tracks: bool = False  # whether labels will come, to be warped along optical flow
    chained: bool = True  # whether to warp frame by frame
    grace_s: float = 0.0  # how long after a frame is shown a prediction may be ready and still be the live one
    scored: tuple[int, ...] = ()  # classes that count; none: all
    snapshot_times_s: tuple[float, ...] = ()  # frames to keep for the report
    uses_statistics: bool = False  # whether the simulator reads its observations
    reports_confidence: bool = False  # whether the simulator reads the confidence of its predictions
    domain_oracle: bool = False  # whether it gets the true domain of each frame
    detects_domains: bool = False  # whether it detects domain boundaries, at a cost
    training_batch_limit_s: float = 60.0  # isolated: a longer batch on the stream is cancelled
    member_limit_s: float = 600.0  # of this host's time, for one call of a member


@dataclass(frozen=True)
class TeacherSpec:
    """The kind of teacher: an oracle (the truth after a virtual cost) or a real network."""

    kind: Literal["oracle", "network"] = "oracle"
    task: str = "segmentation"
    network: str = "teacher"
    classes: int = 8
    height: int = 64
    width: int = 96
    border_noise: float = 0.0  # oracle: probability that a pixel at a class border gets its neighbour's label
    label_jitter_px: float = 0.0  # oracle: how many pixels outlines move about from frame to frame
    torch_device: str = "cpu"


# Shared by the cells of a workload -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """The reply about a family of networks that is ready; the process that reads it need not load torch."""

    profile: tuple[Profile, ...]
    digest: str


@dataclass(frozen=True)
class BuiltNetwork:
    """A built network, or the family of networks that a scaling member made of one."""

    name: str
    profile: tuple[Profile, ...]  # of each, from the smallest on
    digest: str
    weights: Job  # its payload is the stored family

    @property
    def first(self) -> int:
        """Return the network that runs until another is chosen."""
        return most_accurate([one.accuracy for one in self.profile])

    @property
    def cost(self) -> ModelCost:
        """Return the cost of the network that runs first."""
        return self.profile[self.first].cost


@dataclass(frozen=True)
class TrainingSite:
    """The hardware that labels and trains: the virtual server's, or the device's."""

    hardware: Hardware
    label_s: float | None  # per frame; None: computed from the teacher's cost
    step_s: float | None  # per training step, as measured; None: computed from the student's cost

    def labelling_cost(self, frames: int, label_s: float, label_j: float | None = None) -> TaskCost:
        """Return the cost of labelling; an oracle consumes the hardware's power above idle."""
        seconds = frames * label_s
        consumed_j = seconds * (self.hardware.busy_w - self.hardware.idle_w) if label_j is None else frames * label_j
        return TaskCost({"accelerator": seconds}, 0, consumed_j)

    def training_cost(self, cost: ModelCost, passes: Passes) -> TaskCost:
        """Return the cost of a phase, trial, estimate or recall: of its passes and of feeding it frames.

        A step is a backward pass and a forward pass of equal size. A measured duration of a step holds for both and
        for its frames; passes outside the steps have the computed price.
        """
        task = task_cost(cost, self.hardware, passes)
        if self.step_s is not None:
            outside = (Counter(passes.forward) - Counter(passes.backward)).elements()
            others = task_cost(cost, self.hardware, replace(passes, forward=tuple(outside), backward=()))
            return replace(task, seconds={"accelerator": len(passes.backward) * self.step_s + others.isolated_s})
        frames = sum(passes.backward)
        feeding: dict[Resource, float] = {
            "storage": frames * self.hardware.load_s,
            "cpu": frames * self.hardware.prepare_s,
        }
        return replace(task, seconds={**task.seconds, **{part: taken for part, taken in feeding.items() if taken}})


@dataclass(frozen=True)
class AppNetworks:
    """The networks of one application: its student and its teacher, as all cells of a workload share them."""

    student: BuiltNetwork
    teacher: BuiltNetwork | None
    teacher_spec: TeacherSpec
    label_s: float  # per frame on the server
    classes: int
    packs: Mapping[str, Job] = field(default_factory=dict)  # by adaptation: its summary of the source
    measured: tuple[Variant, ...] = ()  # measured networks that it could run, where a profile is given
    runs_measured: bool = False  # whether these networks run: those of its family

    def cost_of(self, variant: int | None) -> ModelCost:
        """Return the cost of a network of its family; None: the one that runs first."""
        return self.student.cost if variant is None else self.student.profile[variant].cost

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that built its networks and packs."""
        built = [one.weights for one in (self.student, self.teacher) if one is not None]
        return (*built, *self.packs.values())

    def with_jobs(self, jobs: Mapping[Any, Any]) -> AppNetworks:
        """Return a copy with other values for these jobs."""
        student = replace(self.student, weights=jobs[self.student.weights])
        teacher = None if self.teacher is None else replace(self.teacher, weights=jobs[self.teacher.weights])
        packs = {name: jobs[job] for name, job in self.packs.items()}
        return replace(self, student=student, teacher=teacher, packs=packs)

    @property
    def task(self) -> Task:
        return task_of(self.student.name)

    @property
    def teacher_name(self) -> str:
        return self.teacher_spec.kind if self.teacher is None else drop_folder(self.teacher.name)

    def labelling_cost(self, site: TrainingSite, frames: int) -> TaskCost:
        """Return the cost of labelling frames at a site."""
        teacher_j = None if self.teacher is None else inference_j(self.teacher.cost, site.hardware)
        return site.labelling_cost(frames, self.label_s if site.label_s is None else site.label_s, teacher_j)

    def on_device(self, server: TrainingSite, hardware: Hardware) -> TrainingSite:
        """Return a site on a device; an oracle stands for a network that is proportionally slower there."""
        if self.teacher is not None:
            return TrainingSite(hardware, inference_s(self.teacher.cost, hardware), None)
        return TrainingSite(hardware, self.label_s * server.hardware.macs_per_s / hardware.macs_per_s, None)

    def variants(self, hardware: Hardware) -> tuple[Variant, ...]:
        """List the networks that it could run on some hardware, from the smallest on."""
        if self.runs_measured:
            return matched(self.measured, self.computed(hardware))
        return self.measured or self.computed(hardware)

    def computed(self, hardware: Hardware) -> tuple[Variant, ...]:
        """List its networks with time and energy by the cost model."""
        variants = variants_on(hardware, self.student.profile)
        name = drop_folder(self.student.name)
        return tuple(replace(one, name=name) if one.name == WHOLE else one for one in variants)

    def cost_ratios(self, hardware: Hardware) -> Mapping[int | None, tuple[float, float]]:
        """Return measured over computed time and energy of a frame, by network; None: the one that runs first."""
        if not self.runs_measured:
            return {}
        ratios: dict[int | None, tuple[float, float]] = {
            which: (one.latency_s / computed.latency_s, (one.energy_j or 0.0) / (computed.energy_j or 1.0))
            for which, (one, computed) in enumerate(zip(self.variants(hardware), self.computed(hardware), strict=True))
        }
        return {None: ratios[self.student.first], **ratios}


@dataclass(frozen=True)
class WorkloadSetup:
    """The settings and the built networks of every cell of a workload."""

    experiment: str
    clock: ClockKind
    window_s: float
    snapshots: int
    apps: Mapping[str, AppNetworks]
    server: TrainingSite
    grace_s: float | None = None  # of live predictions; None: the interval between two frames
    domain_oracle: bool = False  # whether devices get the true domain of each frame
    domains_detected: bool = False  # whether devices detect domain boundaries
    accuracy_source: Literal["device", "oracle"] = "device"  # source of the accuracies that schedulers read
    training_batch_limit_s: float = 60.0  # isolated, of one training batch on the stream
    member_limit_s: float = 600.0  # of this host's time, for one call of a member
    run_networks: bool = True  # whether applications run their networks, or only get shares
    server_order: Literal["arrival", "round_robin"] = "arrival"  # of training rounds without a scheduling member
    torch_device: str = "cpu"
    tuned: Mapping[str, str] = field(default_factory=dict)  # by system: which search its settings come from

    @property
    def networks(self) -> tuple[Job, ...]:
        """Return the jobs that built its networks and packs, without duplicates."""
        found = [job for app in self.apps.values() for job in app.jobs]
        return tuple(dict.fromkeys(found))

    def with_networks(self, jobs: Mapping[Any, Any]) -> WorkloadSetup:
        """Return a copy with other values for the jobs of its networks."""
        return replace(self, apps={name: app.with_jobs(jobs) for name, app in self.apps.items()})

    def grace_of(self, stream: StreamSpec) -> float:
        """Return the grace of a stream: the time after a frame until which its live prediction may be ready."""
        return 1 / stream.fps if self.grace_s is None else self.grace_s


def setup_key(workload: str, scaling: Member, seed: int) -> str:
    """Return the key of a workload's setup for systems with this scaling member under a seed."""
    return f"{workload} {scaling!r} {seed}"
