"""The shape of spec.yaml and run.json as far as readers of a run rely on it; more may stand in both."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from driftlab.errors import quoted, shortened
from driftlab.platform.core.documents import describe_fault

Scalar = str | int | float | bool | None
FAULTS_SHOWN = 3


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Slot(_Open):
    name: str
    defaults: dict[str, Any] = {}


class _System(_Open):
    name: str
    base: str | None = None
    streaming: str | _Slot | None = None
    adaptation: str | _Slot | None = None
    scaling: str | _Slot | None = None
    scheduling: str | _Slot | None = None


class _App(_Open):
    name: str
    watches: str | None = None


class _Workload(_Open):
    name: str
    alias: str | None = None
    apps: list[_App] = []


class _Devices(_Open):
    count: int = 1


class _Fleet(_Open):
    name: str
    gpus: int | None = None
    devices: list[_Devices] = []


class _Server(_Open):
    gpus: int = 1


class _Budget(_Open):
    trials: int
    streamed_s: float


class _Tuned(_Open):
    system: str
    space: str
    trial: int
    settings: dict[str, Any]
    budget: _Budget


class Spec(_Open):
    """What a run was asked for."""

    name: str = ""
    summary: str = ""
    systems: list[str | _System] = []
    bound_rows: list[_System] | None = None
    workloads: list[_Workload] = []
    fleets: list[_Fleet] = []
    seeds: list[int] = []
    server: _Server = _Server()
    student: dict[str, Any] = {}
    tuned: list[_Tuned] | None = None


class _Known(_Open):
    command: str | list[str] | None = None
    packages: dict[str, str | None] = {}
    git_commit: str | None = None


class Info(RootModel[dict[str, Scalar | list[Scalar] | dict[str, Scalar]]]):
    """What a run ran on: one level of lists and mappings at most."""

    def model_post_init(self, _: Any) -> None:
        """Check what has a name."""
        _Known.model_validate(self.root)


def shape_fault(shape: type[BaseModel], document: Any) -> str:
    """Say where a document has another shape than its readers rely on; empty if nowhere."""
    try:
        shape.model_validate(document)
    except ValidationError as error:
        found = [
            f"{shortened('.'.join(map(str, detail['loc'])))} is {quoted(detail['input'])}: {describe_fault(detail)}"
            for detail in error.errors()
        ]
        return "; ".join(found[:FAULTS_SHOWN])
    return ""
