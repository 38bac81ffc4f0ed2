"""Models of an experiment and of a run's spec: names, types and ranges, without files or networks.

`lab/read.py` completes a document before it is validated here. Readers of runs validate `spec.yaml` with the same
model and ignore keys that it does not have: another version may have written them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
)

from driftlab.datasets.catalogue import label_of
from driftlab.platform.core.plugins import make_absolute
from driftlab.platform.core.registry import FAMILIES

MAX_PARTS, MAX_SEEDS = 1000, 10_000
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=2**50)]
Gpus = Annotated[int, Field(ge=1, le=10_000)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=4096)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Network = Annotated[str, AfterValidator(make_absolute)]  # of the zoo, of a library, or FILE.py:make
Scalar = str | int | float | bool | None


def _check_slot(slot: Any, info: ValidationInfo) -> Any:
    example = f"such as {{name: {next(iter(FAMILIES[str(info.field_name)]))}}}"
    if not isinstance(slot, dict):
        raise ValueError(f"give a member, {example}")
    if "name" not in slot:
        raise ValueError(f"it has no 'name', {example}; only a mapping below a system with 'base' may omit it")
    if not isinstance(slot["name"], str):
        raise ValueError(f"its name is no text; give one, {example}")
    if not isinstance(slot.get("defaults", {}), dict):
        raise ValueError("its defaults are no mapping; write parameters next to the name instead")
    return slot


def _check_system(part: Any) -> Any:
    if not isinstance(part, dict | SystemPart):
        raise ValueError("give a system, such as {name: mine, base: ams}")
    return part


# A member's `name` and its parameters; in a stored spec the others under `defaults`.
Slot = Annotated[dict[str, Any], BeforeValidator(_check_slot)]


class StrictPart(BaseModel):
    """A part of an experiment: strict, and unchanged once it is made."""

    # An infinite rate stays one in spec.yaml: as a null it could not be read back.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class _GrownPart(StrictPart):
    """A part with later fields, written only if they are set, so that specs of other runs stay."""

    later: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            key: value
            for key, value in write(self).items()
            if key not in self.later or (value and value != fields[key].default)
        }


class SystemPart(StrictPart):
    """A system: a row of the table, or one that starts from a row, with all four slots."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$")]  # braces: see `lab/sets.py`
    base: str | None = Field(None, description="the system of the table to start from; the name itself by default")
    streaming: Slot
    adaptation: Slot
    scaling: Slot
    scheduling: Slot
    zero_delay_link: bool | None = Field(None, description="true: a bound, the row over a link without delay or loss")
    vary: dict[str, list[Any] | dict[Any, Any]] | None = Field(None, exclude=True, description="written out at once")


Systems = tuple[Annotated[SystemPart, BeforeValidator(_check_system)], ...]


class MeasuredPart(StrictPart):
    """Measured networks: a CSV or Parquet file, and how it is read."""

    file: str
    rename: dict[str, str] = {}  # its columns -> those that are known
    only: dict[str, Any] = {}  # its columns -> the value that a row must have


class AppPart(_GrownPart):
    """One of several applications on a device; missing values come from the workload and the experiment."""

    later = ("pretrain_steps",)

    name: Name
    workload: str | None = None  # another stream than the workload's own
    params: dict[str, Any] = {}
    network: Network | None = None
    pretrain_seed: Seed | None = None
    pretrain_steps: Annotated[Steps, Field(ge=1)] | None = None
    variants: str | MeasuredPart | None = None  # measured networks
    accuracy_goal: Annotated[float, Field(ge=0, le=1)] | None = None
    latency_goal_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # 0: every prediction is late
    energy_goal_j: Positive | None = None  # per frame, at most
    priority: Positive = 1.0
    fps: Positive | None = None  # of its stream; none: the workload's own

    @model_serializer(mode="wrap")
    def _leave_out_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `fps` only if it is given: specs and seals of other runs stay as they were."""
        return {key: value for key, value in write(self).items() if key != "fps" or value}


class WorkloadPart(_GrownPart):
    """A stream and how it is read, or several: one for each application."""

    later = ("scored",)

    name: str
    duration_s: Positive | None = 60.0  # none: as long as the file is
    fps: Positive = 4.0
    height: Annotated[int, Field(ge=16, le=4096)] = 64
    width: Annotated[int, Field(ge=16, le=4096)] = 96
    params: dict[str, Any] = {}
    scored: Annotated[tuple[str, ...], Field(strict=False)] = ()  # names of the classes that count; none: all
    apps: Annotated[
        tuple[AppPart, ...], Field(max_length=100, strict=False)
    ] = ()  # none: one, which does the student's task
    churn: dict[str, Any] | None = None  # arrivals and departures of applications; none: they stay
    domain_labels: Literal["oracle", "detected", "hidden"] = "hidden"  # how devices learn the domain of a frame
    accuracy_source: Literal["device", "oracle"] = "device"  # teacher or confidence; oracle: the ground truth
    run_networks: bool = True  # whether applications run their networks; if not, they only get shares
    alias: Name | None = None

    @property
    def label(self) -> str:
        """How tables and plots call it."""
        return self.alias or label_of(self.name)

    def seen_by(self, app: AppPart) -> WorkloadPart:
        """Return the workload with the stream of one application."""
        own = {"name": app.workload or self.name, "fps": app.fps or self.fps}
        return self.model_copy(update={**own, "params": {**self.params, **app.params}, "apps": ()})


class DevicePart(StrictPart):
    """Devices of one kind."""

    hardware: str | dict[str, Any] = "jetson-nx"
    link: str | dict[str, Any] = "lte"
    memory_bytes: Bytes | None = None  # for applications; none: all that the hardware has
    load: str | dict[str, Any] = "idle"  # of other programs: a preset, a CSV file, or a preset with changes
    count: Annotated[int, Field(ge=1, le=10_000)] = 1


class FleetPart(StrictPart):
    """The devices of one cell."""

    name: Name = "one"
    gpus: Gpus | None = None  # of the server that serves them; none: as many as `server` has
    devices: Annotated[tuple[DevicePart, ...], Field(min_length=1, max_length=1000, strict=False)] = (DevicePart(),)


SourceShifts = Annotated[tuple[str, ...], Field(strict=False)]  # source domains besides frames as they are


class StudentPart(_GrownPart):
    """The network on every device, and how the generic one was made.

    Missing values come from the zoo entry of a published network, else from the defaults below.
    """

    later = ("pretrain_shifts",)

    network: Network = "tiny"
    pretrain_steps: Steps = 2500  # 35 s: mediocre on streets it has never seen
    pretrain_learning_rate: Positive = 0.006
    pretrain_batch: BatchSize = 4
    pretrain_seed: Seed = 0  # of weights and pre-training data of the network and its family
    weights: str | None = None  # a file to begin from; without steps said, none follow
    pretrain_set: str | None = None  # a labelled set that the network learns first, as `set:signs/ri100`
    pretrain_set_steps: Steps = 4000
    pretrain_shifts: SourceShifts = ()
    per_seed: bool = False  # whether each seed of the run builds separate networks


class ServerPart(StrictPart):
    """The machine that labels and trains; null times are computed from its profile.

    Its `order` is that of training rounds without a scheduling member: by arrival, each to its end, or round robin in
    turns so short that all waiting rounds progress equally. `label_s` is that of a large teacher, for which the oracle
    stands; `step_s` is for servers that were measured.
    """

    hardware: str = "server-v100"
    gpus: Gpus = 1
    order: Literal["arrival", "round_robin"] = "arrival"
    label_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.2
    step_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class TeacherPart(_GrownPart):
    """The teacher: the labels of the samples, and their cost."""

    later = ("weights", "pretrain_shifts")

    kind: Literal["oracle", "network"] = "oracle"
    network: Network = "teacher"
    pretrain_steps: Steps = 1000  # a minute
    pretrain_learning_rate: Positive = 0.002
    pretrain_batch: BatchSize = 4
    pretrain_seed: Seed = 0
    weights: str | None = None  # as of the student
    pretrain_shifts: SourceShifts = ()
    border_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    label_jitter_px: Annotated[float, Field(ge=0, le=16)] = 0.0  # movement of outlines, per frame


class ComputePart(_GrownPart):
    """Torch device, precision, GPU share per actor and placement; tables of CPU and GPU runs may differ."""

    later = ("portable", "placement")

    torch_device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"  # of forward passes while networks are pre-trained
    gpus_per_actor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # under Ray; one process shares nothing
    portable: bool = False  # the same bytes on every x86-64 processor with AVX2
    placement: Literal["auto", "cells", "nodes"] = "auto"  # under Ray: an actor for whole cells, or for nodes of a kind


class BudgetPart(StrictPart):
    """Budget that a search has used."""

    trials: Annotated[int, Field(ge=1)]
    streamed_s: Annotated[float, Field(ge=0)]
    searcher: str


class TunedPart(StrictPart):
    """Settings of a system that a search recommends."""

    space: str
    system: str
    trial: Annotated[int, Field(ge=0)]
    settings: dict[str, Any]
    seeds: Annotated[tuple[Seed, ...], Field(strict=False)]
    budget: BudgetPart


class LimitsPart(StrictPart):
    """How long learning may go on before it is broken off, with a row that says so."""

    training_batch_s: Positive = 60.0  # one training batch without co-running tasks, in virtual time
    member_s: Positive = 600.0  # one call of a member, in time of this machine


class Spec(StrictPart):
    """A grid: every system on every workload, every fleet, every seed."""

    other_keys: ClassVar = ("extends", "sizes")  # of a file; `lab/read.py` applies and removes them

    name: Name
    summary: str = ""
    size: str | None = None  # of the sizes in its file, before changes by options such as `--set`
    systems: Annotated[Systems, Field(min_length=1, max_length=MAX_PARTS, strict=False)]
    workloads: Annotated[tuple[WorkloadPart, ...], Field(min_length=1, max_length=MAX_PARTS, strict=False)]
    fleets: Annotated[tuple[FleetPart, ...], Field(min_length=1, max_length=MAX_PARTS, strict=False)] = (FleetPart(),)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAX_SEEDS, strict=False)] = (0,)
    window_s: Positive = 10.0
    grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # of live predictions; none: 1 / fps
    snapshots: Annotated[int, Field(ge=0, le=1000)] = 4
    bounds: bool = True
    bound_rows: Annotated[Systems, Field(strict=False)] | None = None  # in a run's spec: as they were
    clock: Literal["virtual", "wall"] = "virtual"
    student: StudentPart = StudentPart()
    teacher: TeacherPart = TeacherPart()
    server: ServerPart = ServerPart()
    compute: ComputePart = ComputePart()
    limits: LimitsPart = LimitsPart()
    tuned: tuple[TunedPart, ...] | None = Field(None, strict=False, description="where settings come from")
    tune: dict[str, Any] | None = Field(None, exclude=True, description="a space that `driftlab tune` reads")


class _Provenance(BaseModel):
    model_config = ConfigDict(strict=True)

    command: str | list[str] | None = None
    packages: dict[str, str | None] = {}
    git_commit: str | None = None
    placement: Literal["cells", "nodes"] | None = None  # under Ray


class Info(RootModel[dict[str, Scalar | list[Scalar] | dict[str, Scalar]]]):
    """The shape of run.json: one level of lists and mappings at most."""

    def model_post_init(self, _: Any) -> None:
        """Check the keys that readers use."""
        _Provenance.model_validate(self.root)
