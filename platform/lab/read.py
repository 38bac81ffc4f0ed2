"""An experiment as data: what runs against what, strictly validated, with every fault named at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from driftlab.errors import MOST_LINE, RequestError, quoted, shortened, unknown_name
from driftlab.platform.core.documents import read_text, read_yaml
from driftlab.platform.core.seeding import seed_for
from driftlab.platform.core.spec import (
    MOST_PARTS,
    MOST_SEEDS,
    AppPart,
    ComputePart,
    FleetPart,
    LimitsPart,
    Name,
    Positive,
    Seed,
    ServerPart,
    StrictPart,
    StudentPart,
    SystemPart,
    TeacherPart,
    TunedPart,
    WorkloadPart,
    course_of,
)
from driftlab.platform.lab import sets
from driftlab.platform.lab.cells import systems_of, written_out
from driftlab.platform.lab.check import faults_of, report, shape_faults
from driftlab.platform.lab.overrides import apply_overrides, merged
from driftlab.platform.lab.size import check_grid, size_faults, size_of
from driftlab.platform.lab.tuned import read_tuned, tuned_faults, with_tuned
from driftlab.platform.lab.vary import expanded
from driftlab.platform.networks import zoo

FOLDER = Path(__file__).parent / "experiments"


class Experiment(StrictPart):
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
