"""Read and validate a search: an experiment, one of its systems, and the settings to search."""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftlab.errors import RequestError, quoted, shortened, unknown_name
from driftlab.platform.core.documents import shape_faults
from driftlab.platform.core.space import Domain, Objective, OneOf, Range, SearchProblem, Space, constraint_of
from driftlab.platform.core.spec import Name, Seed
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab import read as experiments
from driftlab.platform.lab.cells import cells_of, open_workload, resolved
from driftlab.platform.lab.check import fault_of, report
from driftlab.platform.lab.forecast import can_act
from driftlab.platform.lab.overrides import apply_overrides, read_value, set_at
from driftlab.platform.lab.read import Choice as Narrowed
from driftlab.platform.lab.read import Experiment
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.search import METRICS
from driftlab.platform.streaming.base import StreamFacts

FIRST_SEED = 100  # seeds below are those of evaluations
TRIED = 12  # values of a choice that are tried on the experiment, each of the first ones
FIXED = ("name", "summary", "size", "seeds", "bounds", "bound_rows", "clock", "tune")  # no setting of a system
OF_SYSTEM = "systems.0."  # begins the paths of its settings
MAX_TRIALS = 100_000
MAX_VALUES = 1000  # of one setting
MAX_SEEDS = 100
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )


class DomainPart(_Part):
    """Values to choose from, or a range of numbers; a plain list is short for `values`."""

    values: Annotated[tuple[Any, ...], Field(min_length=1, max_length=MAX_VALUES, strict=False)] | None = None
    ordered: bool = Field(False, description="whether neighbours in the list of values are alike")
    low: Number | None = Field(None, alias="from")
    high: Number | None = Field(None, alias="to")
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False
    why: str = ""

    def domain(self) -> Domain:
        """Return the domain; RequestError if it is contradictory."""
        if self.values is not None:
            return self._choice(self.values)
        if self.low is None or self.high is None:
            raise RequestError("it has neither values nor both ends of a range; give values, or from and to")
        if not self.low < self.high:
            raise RequestError(f"from {self.low:g} to {self.high:g} is no range; give the lower end first")
        if self.scale == "log" and self.low <= 0:
            raise RequestError(f"from {self.low:g} has no logarithm; start above 0, or leave scale out")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise RequestError(f"from {self.low:g} to {self.high:g} are no whole numbers, and integer is true")
        return Range(self.low, self.high, self.scale == "log", self.integer)

    def _choice(self, values: tuple[Any, ...]) -> Domain:
        if self.low is not None or self.high is not None:
            raise RequestError("it has values and a range; give one of them")
        if len({repr(value) for value in values}) < len(values):
            raise RequestError(f"values hold one twice: {quoted(list(values))}")
        return OneOf(values, self.ordered)


class SpaceDocument(_Part):
    """A complete search; after reading, `experiment` is complete and lists only the tuned system."""

    name: Name
    summary: str = ""
    size: str | None = None
    system: str
    space: Annotated[dict[str, DomainPart], Field(min_length=1)]
    objectives: Annotated[dict[str, Literal["max", "min"]], Field(min_length=1)] = {LIVE_SCORE: "max"}
    constraints: Annotated[tuple[str, ...], Field(strict=False)] = ()
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAX_SEEDS, strict=False)] = (100, 101)
    held_out: Annotated[tuple[Seed, ...], Field(max_length=MAX_SEEDS, strict=False)] = (200, 201, 202, 203)
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] = 20
    searcher: str = "evolution"
    seed: Seed = 0
    early_stopping: bool = False
    experiment: dict[str, Any]

    @property
    def portable(self) -> bool:
        """Return whether trials compute the same on every processor."""
        return bool(self.experiment.get("compute", {}).get("portable", False))

    @property
    def problem(self) -> SearchProblem:
        """Return space, objectives and constraints for the searcher."""
        space = Space({path: part.domain() for path, part in self.space.items()})
        objectives = tuple(Objective(metric, better) for metric, better in self.objectives.items())
        return SearchProblem(space, objectives, tuple(map(constraint_of, self.constraints)), self.seed)

    def defaults(self) -> dict[str, Any]:
        """Return the experiment's values at the paths of the space, including defaults of members."""
        full = resolved(experiment_of(self.experiment, {}, self.seeds))
        for system in full["systems"]:
            for slot in system.values():
                if isinstance(slot, dict):
                    slot.update({**slot.pop("defaults", {}), **slot})
        return {path: _at(full, path) for path in self.space}


def parse(raw: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "space") -> SpaceDocument:
    """Validate a document; overrides of other keys are applied to its experiment."""

    sizes = [one.removeprefix("size=") for one in overrides if one.startswith("size=")]
    domains = [one for one in overrides if one.startswith("space.")]
    own = [one for one in overrides if _first(one) in SpaceDocument.model_fields and _first(one) != "size"]
    others = [one for one in overrides if one not in own]
    if raw.get("sizes"):
        raw = experiments.sized(dict(raw), sizes, source)
        others = [one for one in others if _first(one) != "size"]
    if first := [one for one in own if one.startswith(("system=", "space="))]:  # the experiment is read by them
        raw = apply_overrides(raw, first)
    space = _domains(_overridden(_domains(raw.get("space"), source), domains), source)
    document = {**raw, "space": space, "experiment": _experiment(raw, others, source)}
    if changes := [one for one in own if one not in (*domains, *first)]:
        document = validated(document, source).model_dump(mode="json")
        document = apply_overrides(document, changes)
    found = validated(document, source)
    if faults := faults_of(found):
        raise RequestError(report(source, faults))
    return found


def _first(override: str) -> str:
    return re.split(r"[.=]", override, maxsplit=1)[0]


def _domains(given: Any, source: str) -> dict[str, Any]:
    """Read the domains; a list is short for `values`."""
    if not isinstance(given, Mapping) or not given:
        raise RequestError(f"{source}: space is {quoted(given)}: give a path at least, with its values or its range")
    return {str(path): {"values": part} if isinstance(part, list) else part for path, part in given.items()}


def _overridden(space: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `space.PATH.KEY=VALUE` and `space.PATH=DOMAIN`, where PATH holds dots itself."""
    space = copy.deepcopy(space)
    for override in overrides:
        path, _, text = override.removeprefix("space.").partition("=")
        value = read_value(text, override)
        setting, _, key = path.rpartition(".")
        if path not in space and setting not in space and not isinstance(value, list | dict):
            raise unknown_name("setting of the space", setting or path, space)
        inside = path not in space and setting in space
        set_at(space, [setting, key] if inside else [path], value, f"--set '{shortened(override)}'")
    return space


def _experiment(raw: Mapping[str, Any], overrides: Sequence[str], source: str) -> dict[str, Any]:
    """Read the experiment and narrow it to the system that is tuned, with each of its slots written out."""
    given, system = raw.get("experiment"), raw.get("system")
    if isinstance(given, str):
        document = experiments.document_of(experiments.find(given))
    elif isinstance(given, Mapping):
        document = experiments.completed(given)
    else:
        raise RequestError(f"{source}: experiment is {quoted(given)}: give a name, a file, or the experiment itself")
    if not isinstance(system, str):
        raise RequestError(f"{source}: system is {quoted(system)}: name the system that is tuned")
    complete = {"name": str(raw.get("name", "space")), "systems": [system], **document}
    parsed = experiments.parse(complete, overrides, Narrowed(systems=(system,)), source=f"{source}, experiment")
    return parsed.model_dump(mode="json")


def validated(document: Mapping[str, Any], source: str) -> SpaceDocument:
    """Validate a complete document; RequestError lists keys and values of the wrong type."""
    try:
        return SpaceDocument.model_validate(document)
    except ValidationError as error:
        raise RequestError(report(source, shape_faults(error.errors(), SpaceDocument))) from None


def _at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; None if the path does not exist."""
    here = document
    for part in path.split("."):
        if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, Mapping):
            here = here.get(part)
        else:
            return None
    return here


def faults_of(document: SpaceDocument) -> list[str]:
    """List the faults of a search whose types are valid."""
    faults = [fault for place, check in _checks(document) for fault in fault_of(place, check)]
    faults += _seed_faults(document)
    if not faults:
        faults += fault_of("space", partial(_check_action, document))
        faults += fault_of("searcher", partial(_check_searcher, document))
    if not faults and document.early_stopping:
        faults += fault_of("early_stopping", partial(_check_stopping, document))
    return faults


def _checks(document: SpaceDocument) -> Iterator[tuple[str, Callable[[], Any]]]:
    experiment = experiment_of(document.experiment, {}, document.seeds)
    accepted = _accepts_all_ends(document)
    for path, part in document.space.items():
        yield f"space.{path}", partial(_check_domain, document, path, part, accepted)
    for metric in document.objectives:
        yield "objectives", partial(_check_metric, metric, experiment)
    for text in document.constraints:
        yield "constraints", partial(_check_constraint, text, experiment)
    yield "constraints", partial(_check_bounds, document)


def _accepts_all_ends(document: SpaceDocument) -> bool:
    """Return whether the experiment accepts its system with each end of its settings, a row per end.

    An experiment is refused if one of its rows would be, so this replaces an experiment for each end.
    """
    system, *others = document.experiment["systems"]
    base = system.get("base") or (system["name"] if system["name"] in SYSTEMS else None)
    rows = [{**system, "base": base}]
    try:
        for path, part in document.space.items():
            for value in _ends(part) if path.startswith(OF_SYSTEM) else ():
                row = apply_overrides({"systems": rows[:1]}, overrides_of({path: value}))["systems"][0]
                rows.append({**row, "name": f"{system['name']}-{len(rows)}"})
        experiment_of({**document.experiment, "systems": rows + others}, {}, document.seeds)
    except RequestError:
        return False  # the check of each domain finds and names the value
    return True


def _check_domain(document: SpaceDocument, path: str, part: DomainPart, accepted: bool) -> None:
    """Refuse contradictory domains, unknown paths, and values that the experiment refuses.

    With `accepted`, it is known to accept all ends of its system's settings.
    """
    if path.split(".")[0] in FIXED or path == f"{OF_SYSTEM}name":
        raise RequestError("it is no setting of a system; leave it out")
    for value in _ends(part) if not (accepted and path.startswith(OF_SYSTEM)) else ():
        try:
            experiment_of(document.experiment, {path: value}, document.seeds)
        except RequestError as error:
            said = str(error).split("\n  - ")
            raise RequestError(f"{quoted(value)} is refused: {'; '.join(said[1:] or said)}") from None


def _ends(part: DomainPart) -> tuple[Any, ...]:
    """Return the ends of a range, or the first values of a choice."""
    domain = part.domain()
    return part.values[:TRIED] if part.values is not None else (domain.at(0.0), domain.at(1.0))


def _check_metric(metric: str, experiment: Experiment) -> None:
    """Refuse unknown metrics, and those that the experiment does not measure."""
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    if silent := [workload.label for workload in experiment.workloads if not workload.run_networks]:
        raise RequestError(
            f"'{metric}' is not measured on {', '.join(silent)}: no network runs there (run_networks: false)"
        )
    watched = [workload.seen_by(app) for workload in experiment.workloads for app in experiment.apps_of(workload)]
    blind = [one.label for one in watched if METRICS[metric].needs_truth and not open_workload(one).has_truth]
    if blind:
        raise RequestError(f"'{metric}' is not measured on {', '.join(sorted(set(blind)))}: the stream has no truth")


def _check_constraint(text: str, experiment: Experiment) -> None:
    _check_metric(constraint_of(text).metric, experiment)


def _check_bounds(document: SpaceDocument) -> None:
    """Refuse contradictory bounds of one metric."""
    sides: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"<=": [], ">=": []})
    for text in document.constraints:
        try:
            found = constraint_of(text)
        except RequestError:
            continue  # it is refused in its own place
        sides[found.metric][found.relation].append(found.bound)
    for metric, bounds in sides.items():
        if bounds["<="] and bounds[">="] and min(bounds["<="]) < max(bounds[">="]):
            raise RequestError(f"'{metric}' is to be at most {min(bounds['<=']):g} and at least {max(bounds['>=']):g}")


def _check_searcher(document: SpaceDocument) -> None:
    from driftlab.platform.tune.samplers import sampler_faults  # Optuna: 0.2 s that `list` does without

    if faults := sampler_faults(document.searcher, document.problem):
        raise RequestError(f"{document.searcher}: {'; '.join(faults)}")


def _check_action(document: SpaceDocument) -> None:
    """Refuse a search in which no end of a domain lets the system act before the end of a session."""
    of_ends: list[dict[str, Any]] = [{path: end} for path, part in document.space.items() for end in _ends(part)]
    if all(is_idle(experiment_of(document.experiment, one, document.seeds)) for one in ({}, *of_ends)):
        lengths = ", ".join(str(part["duration_s"]) for part in document.experiment["workloads"])
        raise RequestError(
            f"'{document.system}' acts in no session of {lengths} s: it would send its first samples, or fill its "
            "first batch, after the end. Lengthen duration_s, or search a shorter time"
        )


def _check_stopping(document: SpaceDocument) -> None:
    """Refuse early stopping if a shorter session is not the start of a longer one."""
    first = next(iter(document.objectives))
    if METRICS[first].at_end:
        raise RequestError(f"'{first}' is known at the end of a trial alone; put another objective first")
    of_ends: list[dict[str, Any]] = [{path: end} for path, part in document.space.items() for end in _ends(part)]
    for settings in ({}, *of_ends):
        if reason := reads_end(experiment_of(document.experiment, settings, document.seeds)):
            raise RequestError(f"{reason}; run full trials")


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as `--set` takes them."""
    return [f"{path}={json.dumps(value)}" for path, value in settings.items()]


def experiment_of(document: Mapping[str, Any], settings: Mapping[str, Any], seeds: Sequence[int]) -> Experiment:
    """Apply settings and seeds to an experiment; RequestError if it refuses them."""
    return experiments.parse({**document, "seeds": list(seeds)}, overrides_of(settings), source="settings")


def _sessions(experiment: Experiment) -> Iterator[tuple[System, StreamFacts]]:
    for cell in cells_of(experiment):
        for device in cell.devices:
            yield from ((cell.system, StreamFacts(app.stream.fps, app.stream.duration_s)) for app in device.apps)


def reads_end(experiment: Experiment) -> str:
    """Name the first system whose plan depends on the end of the session; empty if none does.

    For other systems a short session equals the start of a longer one, so trials may stop at any window.
    """
    for system, facts in _sessions(experiment):
        if system.streaming.make().reads_end(facts):
            return f"streaming={system.streaming} plans by the end of the session"
    return ""


def is_idle(experiment: Experiment) -> bool:
    """Return whether no session is long enough for the first action of its system."""
    return not any(can_act(system, facts) for system, facts in _sessions(experiment))


def _seed_faults(document: SpaceDocument) -> Iterator[str]:
    evaluated = set(document.experiment["seeds"])
    for key, seeds in (("seeds", document.seeds), ("held_out", document.held_out)):
        if used := sorted(seed for seed in seeds if seed < FIRST_SEED or seed in evaluated):
            yield f"{key} holds {quoted(used)}, which evaluations use; take seeds from {FIRST_SEED} on"
        if len(set(seeds)) < len(seeds):
            yield f"{key} holds a seed twice"
    if both := sorted(set(document.seeds) & set(document.held_out)):
        yield f"seeds and held_out both hold {quoted(both)}; held-out seeds must not be searched on"
