"""An experiment as data: what runs against what, strictly validated, with every fault named at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from driftlab.datasets.catalogue import label_of
from driftlab.errors import MOST_LINE, RequestError, quoted, shortened, unknown_name
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.core.seeding import seed_for
from driftlab.platform.networks import zoo
from driftlab.platform.request import sets
from driftlab.platform.request.cells import systems_of, written_out
from driftlab.platform.request.check import faults_of, report, shape_faults
from driftlab.platform.request.overrides import apply_overrides, merged
from driftlab.platform.request.size import check_grid, size_faults, size_of
from driftlab.platform.request.tuned import read_tuned, tuned_faults, with_tuned
from driftlab.platform.request.vary import expanded

MOST_PARTS, MOST_SEEDS = 1000, 10_000
FOLDER = Path(__file__).parent / "experiments"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=2**50)]
Gpus = Annotated[int, Field(ge=1, le=10_000)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=4096)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class _Part(BaseModel):
    # An infinite rate stays one in spec.yaml: as a null it could not be read back.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class SystemPart(_Part):
    """A system of the table with some slots or parameters changed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9{][A-Za-z0-9_.+{}-]*$")]  # braces: see `vary.py`
    base: str | None = Field(None, description="the system of the table to start from; the name itself by default")
    streaming: str | dict[str, Any] | None = None
    adaptation: str | dict[str, Any] | None = None
    scaling: str | dict[str, Any] | None = None
    scheduling: str | dict[str, Any] | None = None
    null_link: bool | None = Field(None, description="true: a bound, what the row does where its link takes no time")
    vary: dict[str, list[Any] | dict[Any, Any]] | None = Field(None, exclude=True, description="written out at once")


class MeasuredPart(_Part):
    """Measured networks: a CSV or Parquet file, and how it is read."""

    file: str
    rename: dict[str, str] = {}  # its columns -> those that are known
    only: dict[str, Any] = {}  # its columns -> the value that a row must have


class AppPart(_Part):
    """One of several applications on a device; what it leaves out is as in the workload and the experiment."""

    name: Name
    watches: str | None = None  # another stream than the workload's own
    params: dict[str, Any] = {}
    network: str | None = None
    pretrain_seed: Seed | None = None
    variants: str | MeasuredPart | None = None  # measured networks
    accuracy_goal: Annotated[float, Field(ge=0, le=1)] | None = None
    latency_goal_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # 0: every answer is late
    priority: Positive = 1.0


class WorkloadPart(_Part):
    """A stream and how it is read, or several: one for each application."""

    name: str
    duration_s: Positive | None = 60.0  # none: as long as the file is
    fps: Positive = 4.0
    height: Annotated[int, Field(ge=16, le=4096)] = 64
    width: Annotated[int, Field(ge=16, le=4096)] = 96
    params: dict[str, Any] = {}
    apps: Annotated[
        tuple[AppPart, ...], Field(max_length=100, strict=False)
    ] = ()  # none: one, which does the student's task
    churn: dict[str, Any] | None = None  # how applications come and go; none: they stay
    domains: Literal["told", "detected", "hidden"] = "hidden"  # whether devices know which domain a frame is of
    observed: Literal["device", "oracle"] = "device"  # by teacher or confidence; oracle: by the truth
    live: bool = True  # whether they run their networks; if not, they are only given shares
    alias: Name | None = None

    @property
    def label(self) -> str:
        """How tables and plots call it."""
        return self.alias or label_of(self.name)

    def seen_by(self, app: AppPart) -> WorkloadPart:
        """Describe what one application watches."""
        return self.model_copy(
            update={"name": app.watches or self.name, "params": {**self.params, **app.params}, "apps": ()}
        )


class DevicePart(_Part):
    """Devices of one kind."""

    hardware: str | dict[str, Any] = "jetson-nx"
    link: str | dict[str, Any] = "lte"
    memory_bytes: Bytes | None = None  # for applications; none: all that the hardware has
    count: Annotated[int, Field(ge=1, le=10_000)] = 1


class FleetPart(_Part):
    """The devices of one cell."""

    name: Name = "one"
    gpus: Gpus | None = None  # of the server that they take turns on; none: as many as `server` says
    devices: Annotated[tuple[DevicePart, ...], Field(min_length=1, max_length=1000, strict=False)] = (DevicePart(),)


class StudentPart(_Part):
    """The network on every device, and how the generic one was made.

    What is left out is as the zoo says of a network of a paper, or as below.
    """

    network: str = "tiny"
    pretrain_steps: Steps = 2500  # 35 s: mediocre on streets it has never seen
    pretrain_rate: Positive = 0.006
    pretrain_batch: BatchSize = 4
    pretrain_seed: Seed = 0  # of its weights, and of what it and its family learn from
    weights: str | None = None  # a safetensors file to begin from; without steps said, none follow
    per_seed: bool = False  # whether each seed of the run has networks of its own; if not, all share the same

    @model_validator(mode="before")
    @classmethod
    def _take_course(cls, given: Any) -> Any:
        """Fill in how the network is usually trained."""
        if not isinstance(given, Mapping):
            return given
        begun = {"pretrain_steps": 0} if given.get("weights") else {}
        return {**course_of(given.get("network")), **begun, **given}


def course_of(network: Any) -> dict[str, Any]:
    """Say how a network of a paper is usually trained; nothing of others."""
    one = zoo.ZOO.get(network) if isinstance(network, str) else None
    if one is None or one.course is None:
        return {}
    return {"pretrain_steps": one.course.steps, "pretrain_rate": one.course.rate, "pretrain_batch": one.course.batch}


class ServerPart(_Part):
    """The machine that labels and trains; null times are computed from its profile."""

    hardware: str = "server-v100"
    gpus: Gpus = 1
    label_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.2
    step_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 0.02


class TeacherPart(_Part):
    """The teacher: the labels of the samples, and their cost."""

    kind: Literal["oracle", "network"] = "oracle"
    network: str = "teacher"
    pretrain_steps: Annotated[Steps, Field(ge=1)] = 1000  # a minute
    pretrain_rate: Positive = 0.002
    pretrain_batch: BatchSize = 4
    pretrain_seed: Seed = 0
    border_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    flicker: Annotated[float, Field(ge=0, le=16)] = 0.0  # pixels that outlines move about, anew for every frame


class ComputePart(_Part):
    """Where tensors live and how much of a machine each actor asks for; tables of CPU and GPU runs may differ."""

    torch_device: str = "cpu"
    gpus_per_actor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # under Ray; one process shares nothing


class BudgetPart(_Part):
    """What the search for some settings has spent."""

    trials: Annotated[int, Field(ge=1)]
    streamed_s: Annotated[float, Field(ge=0)]
    searcher: str


class TunedPart(_Part):
    """Settings of a system that a search recommends."""

    space: str
    system: str
    trial: Annotated[int, Field(ge=0)]
    settings: dict[str, Any]
    seeds: Annotated[tuple[Seed, ...], Field(strict=False)]
    budget: BudgetPart


class LimitsPart(_Part):
    """How long learning may go on before it is broken off, with a row that says so."""

    lesson_s: Positive = 60.0  # one batch of the stream, alone on the device, in virtual time
    member_s: Positive = 600.0  # one call of a member, in time of this machine


class Experiment(_Part):
    """A grid: every system on every workload, every fleet, every seed."""

    name: Name
    summary: str = ""
    size: str | None = None  # of those that its file offers, before what `--set` and the like changed
    systems: Annotated[tuple[str | SystemPart, ...], Field(min_length=1, max_length=MOST_PARTS, strict=False)]
    workloads: Annotated[tuple[WorkloadPart, ...], Field(min_length=1, max_length=MOST_PARTS, strict=False)]
    fleets: Annotated[tuple[FleetPart, ...], Field(min_length=1, max_length=MOST_PARTS, strict=False)] = (FleetPart(),)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MOST_SEEDS, strict=False)] = (0,)
    window_s: Positive = 10.0
    pictures: Annotated[int, Field(ge=0, le=1000)] = 4
    bounds: bool = True
    bound_rows: Annotated[tuple[SystemPart, ...], Field(strict=False)] | None = None  # in a run's spec: as they were
    clock: Literal["virtual", "wall"] = "virtual"
    student: StudentPart = StudentPart()
    teacher: TeacherPart = TeacherPart()
    server: ServerPart = ServerPart()
    compute: ComputePart = ComputePart()
    limits: LimitsPart = LimitsPart()
    tuned: tuple[TunedPart, ...] | None = Field(None, strict=False, description="where settings come from")
    tune: dict[str, Any] | None = Field(None, exclude=True, description="a space that `driftlab tune` reads")

    def apps_of(self, workload: WorkloadPart) -> tuple[AppPart, ...]:
        """List a workload's applications; where it lists none there is one, called by its task."""
        network = zoo.ZOO.get(self.student.network)
        return workload.apps or (AppPart(name=network.task.name if network else "unknown"),)

    def student_of(self, app: AppPart, seed: int) -> StudentPart:
        """Describe the network of an application under a seed of the run."""
        own = course_of(app.network) if app.network != self.student.network else {}
        own |= {key: value for key in ("network", "pretrain_seed") if (value := getattr(app, key)) is not None}
        part = self.student.model_copy(update=own)
        if not part.per_seed:
            return part
        return part.model_copy(update={"pretrain_seed": seed_for(seed, "student", part.pretrain_seed)})


@dataclass(frozen=True)
class Choice:
    """Part of a grid, as the command line asks for it; an empty choice leaves the grid as it is."""

    systems: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()

    def of(self, document: dict[str, Any]) -> dict[str, Any]:
        """Narrow a complete document; a name that it does not list is added, like its first workload or by its name."""
        chosen = dict(document)
        if self.systems:
            known = {part["name"]: part for part in document["systems"] if isinstance(part, dict)}
            chosen["systems"] = [known.get(name, name) for name in self.systems]
            chosen["bounds"] = False
        if self.workloads:
            chosen["workloads"] = [part for name in self.workloads for part in _called(name, document["workloads"])]
        if self.seeds:
            chosen["seeds"] = list(self.seeds)
        return chosen


def _called(name: str, workloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find workloads by name or alias; one that is not there is read as the first one is."""
    found = [part for part in workloads if name in (part["name"], part["alias"])]
    return found or [{**workloads[0], "name": name, "alias": None}]


def names() -> list[str]:
    """List the built-in experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(request: str) -> Path:
    """Locate an experiment by name or by path."""
    if request.endswith((".yaml", ".yml")):
        path = Path(request)
        if not path.is_file():
            raise RequestError(f"There is no experiment file '{request}'. Built-in experiments: {', '.join(names())}.")
        return path
    if "/" in request:
        raise RequestError(
            f"'{request}' is no experiment: the name of a file must end in .yaml or .yml; a run goes on with --resume."
        )
    if request not in names():
        raise unknown_name("experiment", request, names())
    return FOLDER / f"{request}.yaml"


def load(
    request: str, overrides: Sequence[str] = (), choice: Choice | None = None, tuned: Sequence[Path] = ()
) -> Experiment:
    """Read an experiment by name or path, apply its size, settings of searches and overrides, and validate it."""
    parts = [read_tuned(file) for file in tuned]
    return parse(document_of(find(request)), overrides, choice, source=str(request), tuned=parts)


def document_of(path: Path) -> dict[str, Any]:
    """Read a file; one that is `like` a built-in experiment says only what differs from it."""
    try:
        document = read_yaml(read_text(path))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not readable as YAML: {shortened(str(error), MOST_LINE)}") from error
    except RequestError as error:
        raise RequestError(f"{path}: {str(error).rstrip('.')}.") from None
    if not isinstance(document, dict):
        raise RequestError(f"{path} holds {type(document).__name__}, expected a mapping that begins with 'name:'.")
    return completed(document, path.stem)


def completed(document: Mapping[str, Any], own_name: str = "") -> dict[str, Any]:
    """Lay a document over the built-in experiment that it is `like`."""
    like, rest = document.get("like"), {key: value for key, value in document.items() if key != "like"}
    if like is None:
        return rest
    if like not in names() or like == own_name:
        raise unknown_name("experiment", str(like), [name for name in names() if name != own_name])
    return merged(document_of(find(like)), rest)


def parse(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    choice: Choice | None = None,
    *,
    source: str = "experiment",
    tuned: Sequence[Mapping[str, Any]] = (),
) -> Experiment:
    """Validate a document; every fault is named with its place, its value and what is allowed."""
    sizes = [override.removeprefix("size=") for override in overrides if override.startswith("size=")]
    others = [override for override in overrides if not override.startswith("size=")]
    complete = _validated(sized(dict(document), sizes, source), source).model_dump(mode="json")
    chosen = choice.of(complete) if choice else complete
    systems = _validated(chosen, source).systems
    chosen["systems"] = [_in_full(part, as_given) for part, as_given in zip(systems, chosen["systems"], strict=True)]
    return _as_table(_checked(apply_overrides(with_tuned(chosen, tuned), others), source))


def _as_table(experiment: Experiment) -> Experiment:
    """Forget the rows of bounds that a run's spec holds where the table of systems still has the same."""
    if experiment.bound_rows is None:
        return experiment
    plain = experiment.model_copy(update={"bound_rows": None})
    return plain if systems_of(plain) == systems_of(experiment) else experiment


def _in_full(part: str | SystemPart, as_given: Any) -> Any:
    """Write a system out; one that is wrong stays as it is, and is refused with all that is wrong besides."""
    try:
        return written_out(part)
    except RequestError:
        return as_given


def _checked(document: Mapping[str, Any], source: str) -> Experiment:
    experiment = _validated(document, source)
    faults = [*faults_of(experiment), *tuned_faults(experiment)]
    if faults:
        raise RequestError(report(source, faults))
    return experiment


def _validated(document: Mapping[str, Any], source: str) -> Experiment:
    document, faults = sets.written_out(document)
    if faults:
        raise RequestError(report(source, faults))
    try:
        experiment = Experiment.model_validate(document)
    except ValidationError as error:
        raise RequestError(report(source, shape_faults(error, Experiment))) from None
    check_grid(experiment.systems)
    systems, faults = expanded(experiment.systems)
    experiment = experiment.model_copy(update={"systems": systems})
    if faults := [*faults, *size_faults(size_of(experiment))]:
        raise RequestError(report(source, faults))
    return experiment


def sized(document: dict[str, Any], requested: Sequence[str], source: str) -> dict[str, Any]:
    """Choose among the sizes that a document offers: `sizes: {small: {...}, full: {...}}` and `size: small`."""
    sizes = document.pop("sizes", {})
    default = document.pop("size", None)
    size = requested[-1] if requested else default
    if not isinstance(sizes, dict) or not all(isinstance(changes, dict) for changes in sizes.values()):
        raise RequestError(
            f"{source}: sizes is {quoted(sizes)}; give changes by name, such as {{small: {{window_s: 5}}}}"
        )
    if size is None or (not sizes and not requested):  # none, or a document in full that names the size it was
        return {**document, "size": size}
    known = {str(name): changes for name, changes in sizes.items()}
    if str(size) not in known:
        raise RequestError(f"{source}: {unknown_name('size', str(size), known)}")
    return merged(document, {**known[str(size)], "size": str(size)})
