"""The registry of methods by name, with the systems named after them, and the making of members.

A new method is one line here. A method outside driftlab needs none: its name gives its file and class
(`core/plugins.py`). Members are frozen dataclasses, so their parameters, types and defaults are data.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import math
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.errors import RequestError, quoted, unknown_name
from driftlab.platform.core import plugins
from driftlab.platform.core.parameters import CHOOSING, checker_of, parameters_of
from driftlab.renamed import name_note

if TYPE_CHECKING:
    from pydantic import TypeAdapter

BASES: Mapping[str, str] = {
    "streaming": "driftlab.platform.streaming.base:Streaming",
    "adaptation": "driftlab.platform.adaptation.base:Adaptation",
    "scaling": "driftlab.platform.scaling.base:Scaling",
    "scheduling": "driftlab.platform.scheduling.base:Scheduling",
}
ADOPTS: Mapping[str, str] = {  # by family: module:function that makes a member's class of a plain class from outside
    "adaptation": "driftlab.platform.adaptation.plain:adopt",
}
Slot = str | Mapping[str, Any]  # a member by its name, or `name` and the parameters that differ from its defaults
Slots = Mapping[str, Slot]  # by family; a slot that is not named holds its family's null member


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the registry: a method's class, and the other slots of the system named after it."""

    place: str  # module:Class in the room of its family
    others: Slots | None = None  # none: no system is named after it
    system: str = ""  # the name of that system where it is not the method's own


# The other slots of a system that is named after a method.
ALONE: Slots = {}
IN_PHASES: Slots = {"streaming": "on_device"}
TAUGHT: Slots = {"adaptation": "distill"}
TAUGHT_ALL: Slots = {"adaptation": {"name": "distill", "fraction": 1.0}}  # all weights learn
BY_MOMENTUM: Slots = {"adaptation": {"name": "distill", "optimiser": "momentum", "learning_rate": 0.003}}
ELASTIC: Slots = {"streaming": {"name": "on_device", "rate_fps": 10.0}, "scaling": "surrogate"}
SEPARATE: Slots = {"scaling": "independent"}
TWO_LENGTHS: Slots = {**IN_PHASES, "adaptation": {"name": "distill", "fraction": 1.0, "step_choices": (10, 40)}}

METHODS: Mapping[str, Mapping[str, Method]] = {  # by family; the first of each is the null member
    "streaming": {
        "local": Method("local:Local"),
        "ams": Method("ams:Ams", TAUGHT),
        "just_in_time": Method("just_in_time:JustInTime", BY_MOMENTUM),
        "one_time": Method("one_time:OneTime", TAUGHT_ALL),
        "remote_tracking": Method("remote_tracking:RemoteTracking", ALONE),
        "foresight": Method("foresight:Foresight"),
        "on_device": Method("on_device:OnDevice", TAUGHT),
    },
    "adaptation": {
        "frozen": Method("frozen:Frozen"),
        "distill": Method("distill:Distill"),
        "adabn": Method("adabn:AdaBn", ALONE),
        "onda": Method("onda:Onda", ALONE),
        "tent": Method("tent:Tent", ALONE),
        "shot": Method("shot:Shot", IN_PHASES),
        "elasticdnn": Method("elasticdnn:ElasticDnn", ELASTIC),
        "elasticdnn_cua": Method("elasticdnn_cua:ElasticCua"),
        "elasticdnn_teacher": Method("elasticdnn_teacher:ElasticTeacher"),
        "cotta": Method("cotta:CoTta", ALONE),
        "eata": Method("eata:Eata", ALONE),
        "sar": Method("sar:Sar", ALONE),
        "rotta": Method("rotta:RoTta", ALONE),
        "lame": Method("lame:Lame", ALONE),
        "t3a": Method("t3a:T3a", ALONE),
        "neo": Method("neo:Neo", ALONE),
        "note": Method("note:Note", ALONE),
        "rdumb": Method("rdumb:RDumb"),
        "asr": Method("asr:Asr", ALONE),
        "sparse": Method("sparse:SparseUpdates", ALONE),
        "snap": Method("snap:Snap", ALONE),
        "conda": Method("conda:ConDa", IN_PHASES),
        "ace": Method("ace:Ace", IN_PHASES),
        "cua": Method("cua:Cua", IN_PHASES),
        "iada": Method("iada:Iada", IN_PHASES),
        "bufr": Method("bufr:Bufr", IN_PHASES),
    },
    "scaling": {
        "fixed": Method("fixed:Fixed"),
        "nested": Method("nested:Nested"),
        "independent": Method("independent:Independent"),
        "usnet": Method("usnet:UsNet", {"scheduling": "nestdnn"}),
        "once_for_all": Method("once_for_all:OnceForAll", ALONE),
        "surrogate": Method("surrogate:Surrogate"),
        "branches": Method("branches:Branches", ALONE),
        "adascale": Method("adascale:AdaScale", ALONE),
        "legodnn": Method("legodnn:LegoDnn", ALONE),
        "adaptivenet": Method("adaptivenet:AdaptiveNet", ALONE),
        "adaspring": Method("adaspring:AdaSpring", ALONE),
        "adadeep": Method("adadeep:AdaDeep", ALONE),
        "nas": Method("nas:Nas", ALONE),
        "darts": Method("darts:Darts", ALONE),
        "enas": Method("enas:Enas", ALONE),
        "early_exit": Method("early_exit:EarlyExit", ALONE),
        "clairvoyant": Method("clairvoyant:Clairvoyant"),
        "light": Method("light:Substitute", ALONE),
    },
    "scheduling": {
        "uniform": Method("uniform:Uniform"),
        "nestdnn": Method("nestdnn:NestDnn", {"scaling": "nested"}),
        "status_quo": Method("status_quo:StatusQuo", SEPARATE),
        "mcdnn": Method("mcdnn:Mcdnn", SEPARATE),
        "exact": Method("exact:Exact"),
        "uniform_learning": Method("uniform_learning:UniformLearning", TWO_LENGTHS, "uniform-learning"),
        "ekya": Method("ekya:Ekya", TWO_LENGTHS),
        "recl": Method("recl:Recl", TWO_LENGTHS),
        "afs": Method("afs:Afs", TWO_LENGTHS),
        "synergy": Method("synergy:Synergy", TWO_LENGTHS),
        "muri": Method("muri:Muri", TWO_LENGTHS),
        "elasticdnn": Method("elasticdnn:FilterGrained", TWO_LENGTHS, "elasticdnn-many"),
        "joint": Method("joint:Joint", TWO_LENGTHS),
    },
}
FAMILIES: Mapping[str, Mapping[str, str]] = {  # the module:Class behind each name
    family: {name: f"driftlab.platform.{family}.{method.place}" for name, method in methods.items()}
    for family, methods in METHODS.items()
}
MAX_COUNT = 10_000_000  # limit of integer parameters: iterations, frames of a batch, epochs


@dataclasses.dataclass(frozen=True)
class Member:
    """A family member by name, with the parameters that differ from its defaults, in any order."""

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
        """Return the version of the member's code; results of other versions are computed again."""
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
        adopt = import_class(ADOPTS[family]) if family in ADOPTS else None
        return plugins.load_class(family, name, import_class(BASES[family]), adopt)
    if name not in FAMILIES[family]:
        raise unknown_name(f"{family} member", name, FAMILIES[family])
    return import_class(FAMILIES[family][name])


def docstring_of(family: str, name: str) -> str:
    """Read the docstring of a method's class from its source where its module is not imported.

    Importing all methods for a list of one family would triple the time of that list.
    """
    module, _, cls = FAMILIES[family][name].partition(":")
    if module in sys.modules:
        return getattr(sys.modules[module], cls).__doc__ or ""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls]
    return (ast.get_docstring(found[0]) or "") if found else ""


def builder_of(scaling: Member) -> Member:
    """Return the member that builds the same networks: systems that only choose differently share them."""
    name = member_class("scaling", scaling.name).built_as or scaling.name
    fields = dataclasses.fields(member_class("scaling", name))
    building = {field.name for field in fields if not field.metadata.get(CHOOSING)}
    if name == scaling.name and len(building) == len(fields):
        return scaling
    return Member("scaling", name, tuple(pair for pair in scaling.params if pair[0] in building))


def packer_of(adaptation: Member) -> Member:
    """Return the member that summarises the source alike, without choosing parameters."""
    fields = dataclasses.fields(member_class("adaptation", adaptation.name))
    chosen = {field.name for field in fields if field.metadata.get(CHOOSING)}
    return dataclasses.replace(adaptation, params=tuple(pair for pair in adaptation.params if pair[0] not in chosen))


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
            inherited = getattr(cls, key, None)
            note = name_note(key, known)
            if isinstance(inherited, int | float | str):
                example = f"{key}: {type(inherited).__name__} = {inherited!r}"
                note = f" (it is an attribute of {cls.__name__}; to set it, declare the field '{example}')"
            faults.append(f"unknown parameter '{key}'{note}; allowed: {', '.join(known) or 'none'}")
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
        described = parameters_of(cls).values()  # with the defaults, as a plug-in's may be outside too
        faults += [fault for one in described for fault in one.faults(values.get(one.name, one.default))]
        faults += cls(**values).faults() if hasattr(cls, "faults") else []
    return faults


def _fitted(value: Any, hint: Any) -> Any:
    """Convert a value to its type: an integer to a float, a list to a tuple, nothing else."""
    fitted = tuple(value) if isinstance(value, list) and typing.get_origin(hint) is tuple else value
    return checker_of(hint).validate_python(fitted, strict=True)


@functools.cache
def _plain() -> TypeAdapter[Any]:
    """Return the adapter that dumps values as plain data and keeps infinite numbers."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"a list of {_type_name(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))


plugins.install_finder()  # at import: a worker may unpickle a user's class before any code imports it
