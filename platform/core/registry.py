"""The catalogue of names: the module of each member, and the construction of a member from a request.

A new method is one line here. A method outside driftlab needs none: its name gives its file and class
(`core/plugins.py`). Members are frozen dataclasses, so their parameters, types and defaults are data.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.core import plugins
from driftlab.platform.core.parameters import CHOOSING, checker_of, parameters_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

BASES: Mapping[str, str] = {
    "streaming": "driftlab.platform.streaming.base:Streaming",
    "adaptation": "driftlab.platform.adaptation.base:Adaptation",
    "scaling": "driftlab.platform.scaling.base:Scaling",
    "scheduling": "driftlab.platform.scheduling.base:Scheduling",
}
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "streaming": {
        "local": "driftlab.platform.streaming.local:Local",
        "ams": "driftlab.platform.streaming.ams:Ams",
        "just_in_time": "driftlab.platform.streaming.just_in_time:JustInTime",
        "one_time": "driftlab.platform.streaming.one_time:OneTime",
        "remote_tracking": "driftlab.platform.streaming.remote_tracking:RemoteTracking",
        "foresight": "driftlab.platform.streaming.foresight:Foresight",
        "on_device": "driftlab.platform.streaming.on_device:OnDevice",
    },
    "adaptation": {
        "frozen": "driftlab.platform.adaptation.frozen:Frozen",
        "distill": "driftlab.platform.adaptation.distill:Distill",
        "adabn": "driftlab.platform.adaptation.adabn:AdaBn",
        "onda": "driftlab.platform.adaptation.onda:Onda",
        "tent": "driftlab.platform.adaptation.tent:Tent",
        "shot": "driftlab.platform.adaptation.shot:Shot",
        "elasticdnn": "driftlab.platform.adaptation.elasticdnn:ElasticDnn",
        "elasticdnn_cua": "driftlab.platform.adaptation.elasticdnn_cua:ElasticCua",
        "elasticdnn_taught": "driftlab.platform.adaptation.elasticdnn_taught:ElasticTaught",
        "cotta": "driftlab.platform.adaptation.cotta:CoTta",
        "eata": "driftlab.platform.adaptation.eata:Eata",
        "sar": "driftlab.platform.adaptation.sar:Sar",
        "rotta": "driftlab.platform.adaptation.rotta:RoTta",
        "lame": "driftlab.platform.adaptation.lame:Lame",
        "t3a": "driftlab.platform.adaptation.t3a:T3a",
        "neo": "driftlab.platform.adaptation.neo:Neo",
        "note": "driftlab.platform.adaptation.note:Note",
        "rdumb": "driftlab.platform.adaptation.rdumb:RDumb",
        "asr": "driftlab.platform.adaptation.asr:Asr",
        "sparing": "driftlab.platform.adaptation.sparing:Sparing",
        "snap": "driftlab.platform.adaptation.snap:Snap",
        "conda": "driftlab.platform.adaptation.conda:ConDa",
        "ace": "driftlab.platform.adaptation.ace:Ace",
        "cua": "driftlab.platform.adaptation.cua:Cua",
        "iada": "driftlab.platform.adaptation.iada:Iada",
        "bufr": "driftlab.platform.adaptation.bufr:Bufr",
    },
    "scaling": {
        "fixed": "driftlab.platform.scaling.fixed:Fixed",
        "nested": "driftlab.platform.scaling.nested:Nested",
        "independent": "driftlab.platform.scaling.independent:Independent",
        "usnet": "driftlab.platform.scaling.usnet:UsNet",
        "once_for_all": "driftlab.platform.scaling.once_for_all:OnceForAll",
        "surrogate": "driftlab.platform.scaling.surrogate:Surrogate",
        "branches": "driftlab.platform.scaling.branches:Branches",
        "adascale": "driftlab.platform.scaling.adascale:AdaScale",
        "legodnn": "driftlab.platform.scaling.legodnn:LegoDnn",
        "adaptivenet": "driftlab.platform.scaling.adaptivenet:AdaptiveNet",
        "adaspring": "driftlab.platform.scaling.adaspring:AdaSpring",
        "adadeep": "driftlab.platform.scaling.adadeep:AdaDeep",
        "nas": "driftlab.platform.scaling.nas:Nas",
        "darts": "driftlab.platform.scaling.darts:Darts",
        "enas": "driftlab.platform.scaling.enas:Enas",
        "early_exit": "driftlab.platform.scaling.early_exit:EarlyExit",
        "clairvoyant": "driftlab.platform.scaling.clairvoyant:Clairvoyant",
        "light": "driftlab.platform.scaling.light:Substitute",
    },
    "scheduling": {
        "uniform": "driftlab.platform.scheduling.uniform:Uniform",
        "nestdnn": "driftlab.platform.scheduling.nestdnn:NestDnn",
        "status_quo": "driftlab.platform.scheduling.status_quo:StatusQuo",
        "mcdnn": "driftlab.platform.scheduling.mcdnn:Mcdnn",
        "exact": "driftlab.platform.scheduling.exact:Exact",
        "uniform_learning": "driftlab.platform.scheduling.uniform_learning:UniformLearning",
        "ekya": "driftlab.platform.scheduling.ekya:Ekya",
        "recl": "driftlab.platform.scheduling.recl:Recl",
        "afs": "driftlab.platform.scheduling.afs:Afs",
        "synergy": "driftlab.platform.scheduling.synergy:Synergy",
        "muri": "driftlab.platform.scheduling.muri:Muri",
        "elasticdnn": "driftlab.platform.scheduling.elasticdnn:FilterGrained",
        "joint": "driftlab.platform.scheduling.joint:Joint",
    },
}
MAX_COUNT = 10_000_000  # limit of integer parameters: iterations, frames of a batch, epochs


@dataclasses.dataclass(frozen=True)
class Member:
    """A family member by name, with the parameters that differ from its defaults; their order does not matter."""

    family: str
    name: str
    params: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Make the path of a user's file absolute where the request is read: workers run in other folders."""
        object.__setattr__(self, "name", plugins.make_absolute(self.name))
        object.__setattr__(self, "params", tuple(sorted(self.params, key=lambda param: str(param[0]))))

    def __str__(self) -> str:
        """Return the name, followed in brackets by the parameters that differ from the defaults."""
        name, params = plugins.drop_folder(self.name), ", ".join(f"{key}={value}" for key, value in self.params)
        return f"{name}({params})" if params else name

    @property
    def version(self) -> int:
        """The version of the member's code: what stands on another one is not kept."""
        return int(member_class(self.family, self.name).version)

    def make(self) -> Any:
        """Construct the member; all faults of its parameters are reported at once."""
        cls = member_class(self.family, self.name)
        faults = parameter_faults(cls, dict(self.params))
        if faults:
            raise RequestError(f"{self.family}/{self.name}: " + "; ".join(faults))
        known = parameters(cls)
        return cls(**{key: _fitted(value, known[key][0]) for key, value in self.params})

    def defaults(self) -> dict[str, Any]:
        """List the parameters that were not given, with their values as plain data."""
        made, given = self.make(), dict(self.params)
        values = {key: getattr(made, key) for key in parameters(type(made)) if key not in given}
        return {key: _plain().dump_python(value, mode="json", fallback=str) for key, value in values.items()}


def member_class(family: str, name: str) -> type[Any]:
    """Import the class behind a name."""
    if family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    if plugins.is_outside(name):
        return plugins.load_class(family, name, import_class(BASES[family]))
    if name not in FAMILIES[family]:
        raise unknown_name(f"{family} member", name, FAMILIES[family])
    return import_class(FAMILIES[family][name])


def builder_of(scaling: Member) -> Member:
    """Return the member that builds the same networks: systems that only choose differently share them."""
    name = member_class("scaling", scaling.name).built_as or scaling.name
    fields = dataclasses.fields(member_class("scaling", name))
    building = {field.name for field in fields if not field.metadata.get(CHOOSING)}
    if name == scaling.name and len(building) == len(fields):
        return scaling
    return Member("scaling", name, tuple(pair for pair in scaling.params if pair[0] in building))


def import_class(target: str) -> type[Any]:
    """Import `module:Class`."""
    module, _, cls = target.partition(":")
    return typing.cast("type[Any]", getattr(importlib.import_module(module), cls))


def parameters(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """List a member's parameters as name -> (type, default)."""
    return {name: (one.hint, one.default) for name, one in parameters_of(cls).items()}


def parameter_faults(cls: type[Any], given: Mapping[str, Any]) -> list[str]:
    """List every parameter that is unknown, of the wrong type, or outside its range."""
    known = parameters(cls)
    faults, values = [], {}
    for key, value in given.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            faults.append(f"unknown parameter '{key}'{hint}; allowed: {', '.join(known) or 'none'}")
            continue
        try:
            values[key] = _fitted(value, known[key][0])
        except ValueError:
            faults.append(f"'{key}' is {quoted(value)}, expected {_type_name(known[key][0])}")
            continue
        if isinstance(value, float) and not math.isfinite(value):
            faults.append(f"'{key}' is {value}, must be finite")
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            faults.append(f"'{key}' is {quoted(value)}, must be at most {MAX_COUNT:,}")
    if not faults:
        described = [one for key, one in parameters_of(cls).items() if key in values]
        faults += [fault for one in described for fault in one.faults(values[one.name])]
        faults += cls(**values).faults() if hasattr(cls, "faults") else []
    return faults


def _fitted(value: Any, hint: Any) -> Any:
    """Return the value as its type has it: a whole number may stand for a float, a list for a tuple, nothing else."""
    fitted = tuple(value) if isinstance(value, list) and typing.get_origin(hint) is tuple else value
    return checker_of(hint).validate_python(fitted, strict=True)


@functools.cache
def _plain() -> TypeAdapter[Any]:
    """Make what turns values into plain data, in which an infinite one stays infinite."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"a list of {_type_name(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))


plugins.install_finder()  # at import: a worker may unpickle a user's class before any code asks for it
