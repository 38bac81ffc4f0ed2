"""What makes a request wrong, said in full: names, parameters, combinations, machines that are not there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from driftlab.errors import RequestError
from driftlab.platform.lab.cells import cells_of, fleet_of, stream_of, system_of
from driftlab.platform.models import zoo
from driftlab.platform.world import hardware

if TYPE_CHECKING:
    from driftlab.platform.lab.experiment import Experiment


def report(source: str, faults: Sequence[str]) -> str:
    """Put all faults of one request into one message."""
    lines = "\n".join(f"  - {fault}" for fault in faults)
    return f"{source}: {len(faults)} fault{'s' if len(faults) > 1 else ''}\n{lines}"


def shape_faults(error: ValidationError, schema: type[BaseModel]) -> list[str]:
    """Put pydantic's findings in plain words, with what was probably meant."""
    return [_shape_fault(detail, schema) for detail in error.errors()]


def _shape_fault(detail: Any, schema: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in detail["loc"] if not _is_union_tag(part))
    if detail["type"] != "extra_forbidden":
        return (
            f"{place} is {detail['input']!r}: {detail['msg'].lower()}"
            if detail["type"] != "missing"
            else f"{place} is missing"
        )
    known = _fields(schema, detail["loc"][:-1])
    close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{place} is not known here.{hint} Known: {', '.join(known)}"


def _is_union_tag(part: Any) -> bool:
    return isinstance(part, str) and (part in {"str", "float", "int"} or part.endswith("Part") or "[" in part)


def _fields(schema: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """List what may stand at a place of the schema."""
    here = schema
    for part in path:
        if part in here.model_fields:
            here = next(_models(here.model_fields[part].annotation), here)
    return list(here.model_fields)


def _models(hint: Any) -> Iterator[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for inner in getattr(hint, "__args__", ()):
        yield from _models(inner)


def faults_of(experiment: Experiment) -> list[str]:
    """Name everything that is wrong although the shape is right."""
    faults: list[str] = []
    faults += _each(experiment.systems, system_of)
    faults += _each(experiment.workloads, stream_of)
    faults += _each(experiment.fleets, fleet_of)
    faults += _each([experiment.server.hardware], hardware.find)
    faults += _each([experiment.student.network, experiment.teacher.network], zoo.check)
    faults += _gpu_faults(experiment.compute.torch_device)
    if not faults:
        faults += _twins([cell.id for cell in cells_of(experiment)])
    return faults


def _each(parts: Sequence[Any], check: Callable[[Any], Any]) -> list[str]:
    faults = []
    for part in parts:
        try:
            check(part)
        except RequestError as error:
            faults.append(str(error))
    return faults


def _gpu_faults(torch_device: str) -> list[str]:
    if torch_device == "cpu":
        return []
    kind, _, index = torch_device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        return [f"compute.torch_device is '{torch_device}'; allowed: cpu, cuda, cuda:N"]
    return []


def _twins(ids: Sequence[str]) -> list[str]:
    twice = sorted({cell for cell in ids if ids.count(cell) > 1})
    return (
        [f"these cells would run twice: {', '.join(twice)}; give systems, workloads or fleets other names"]
        if twice
        else []
    )
