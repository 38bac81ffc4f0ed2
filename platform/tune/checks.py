"""What makes a search wrong although its shape is right: paths, ends of ranges, metrics, bounds, seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.lab.cells import open_workload
from driftlab.platform.lab.check import fault_of
from driftlab.platform.lab.read import Experiment
from driftlab.platform.results.tables.search import METRICS
from driftlab.platform.tune.document import DomainPart, SpaceDocument
from driftlab.platform.tune.evaluation import experiment_of
from driftlab.platform.tune.prefix import reads_end
from driftlab.platform.tune.samplers import searcher_of
from driftlab.platform.tune.study import constraint_of

FIRST_SEED = 100  # seeds below are those of evaluations
TRIED = 12  # values of a choice that are tried on the experiment, each of the first ones
FIXED = ("name", "summary", "size", "seeds", "bounds", "bound_rows", "clock", "tune")  # no setting of a system


def faults_of(document: SpaceDocument) -> list[str]:
    """Name everything that is wrong."""
    faults = [fault for place, check in _checks(document) for fault in fault_of(place, check)]
    faults += _seed_faults(document)
    if not faults:
        faults += fault_of("searcher", partial(_check_searcher, document))
    if not faults and document.early_stopping:
        faults += fault_of("early_stopping", partial(_check_stopping, document))
    return faults


def _checks(document: SpaceDocument) -> Iterator[tuple[str, Callable[[], Any]]]:
    experiment = experiment_of(document.experiment, {}, document.seeds)
    for path, part in document.space.items():
        yield f"space.{path}", partial(_check_domain, document, path, part)
    for metric in document.objectives:
        yield "objectives", partial(_check_metric, metric, experiment)
    for text in document.constraints:
        yield "constraints", partial(_check_constraint, text, experiment)
    yield "constraints", partial(_check_bounds, document)


def _check_domain(document: SpaceDocument, path: str, part: DomainPart) -> None:
    """Refuse a contradictory domain, a path that leads nowhere, and ends that the experiment does not take."""
    if path.split(".")[0] in FIXED or path == "systems.0.name":
        raise RequestError("it is no setting of a system; leave it out")
    for value in _ends(part):
        try:
            experiment_of(document.experiment, {path: value}, document.seeds)
        except RequestError as error:
            said = str(error).split("\n  - ")
            raise RequestError(f"{quoted(value)} is refused: {'; '.join(said[1:] or said)}") from None


def _ends(part: DomainPart) -> tuple[Any, ...]:
    """Give the ends of a range, or the first values of a choice."""
    domain = part.domain()
    return part.values[:TRIED] if part.values is not None else (domain.at(0.0), domain.at(1.0))


def _check_metric(metric: str, experiment: Experiment) -> None:
    """Refuse a metric that is not known, and one that this experiment does not measure."""
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    if silent := [workload.label for workload in experiment.workloads if not workload.live]:
        raise RequestError(f"'{metric}' is not measured on {', '.join(silent)}: no network runs there (live: false)")
    watched = [workload.seen_by(app) for workload in experiment.workloads for app in experiment.apps_of(workload)]
    blind = [one.label for one in watched if METRICS[metric].needs_truth and not open_workload(one).has_truth]
    if blind:
        raise RequestError(f"'{metric}' is not measured on {', '.join(sorted(set(blind)))}: the stream has no truth")


def _check_constraint(text: str, experiment: Experiment) -> None:
    _check_metric(constraint_of(text).metric, experiment)


def _check_bounds(document: SpaceDocument) -> None:
    """Refuse bounds that no number keeps."""
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
    if faults := searcher_of(document.searcher).faults(document.problem):
        raise RequestError(f"{document.searcher}: {'; '.join(faults)}")


def _check_stopping(document: SpaceDocument) -> None:
    """Refuse to stop trials early where a shorter run is not the beginning of a longer one."""
    first = next(iter(document.objectives))
    if METRICS[first].at_end:
        raise RequestError(f"'{first}' is known at the end of a trial alone; put another objective first")
    of_ends: list[dict[str, Any]] = [{path: end} for path, part in document.space.items() for end in _ends(part)]
    for settings in ({}, *of_ends):
        if reason := reads_end(experiment_of(document.experiment, settings, document.seeds)):
            raise RequestError(f"{reason}; run full trials")


def _seed_faults(document: SpaceDocument) -> Iterator[str]:
    evaluated = set(document.experiment["seeds"])
    for key, seeds in (("seeds", document.seeds), ("held_out", document.held_out)):
        if used := sorted(seed for seed in seeds if seed < FIRST_SEED or seed in evaluated):
            yield f"{key} holds {quoted(used)}, which evaluations use; take seeds from {FIRST_SEED} on"
        if len(set(seeds)) < len(seeds):
            yield f"{key} holds a seed twice"
    if both := sorted(set(document.seeds) & set(document.held_out)):
        yield f"seeds and held_out both hold {quoted(both)}; what is held out must not be searched on"
