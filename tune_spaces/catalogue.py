"""Find search spaces by name: from files, or from parameter ranges of systems and members."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.core.parameters import Parameter, parameters_of
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameter_faults
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab import read as experiments
from driftlab.platform.lab.forecast import can_act
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.tune.document import SpaceDocument, parse

FOLDER = Path(__file__).parent / "spaces"
BOUND_VALUES = ("clairvoyant", "world")  # values that only a bound may have
FIRST = {family: next(iter(names)) for family, names in FAMILIES.items()}  # the null members
AROUND = 4.0  # a range spans default / AROUND to default x AROUND
REASON = "a quarter of the default to four times it, within the parameter's range"
BOUND_PARAMETERS = ("costs_time", "gains", "plans")  # parameters that make a member a bound
STREAM = StreamFacts(fps=2.0, duration_s=60.0)  # the shortest of those that members are tuned on
STREETS, SIGNS, APPS = "ams", "tent", "nestdnn"  # spaces with files, whose experiments the others share


def files() -> list[str]:
    """List the spaces that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def names() -> list[str]:
    """List every space: files, systems, and members as FAMILY/NAME, as far as they have parameters."""
    own = files()
    return [*own, *(name for name in _by_parameters() if name not in own)]


@cache
def _by_parameters() -> tuple[str, ...]:
    """List the systems and members that have parameters to search."""
    members = {f"{family}/{name}": [Member(family, name)] for family, known in FAMILIES.items() for name in known}
    systems = {name: system.members for name, system in SYSTEMS.items()}
    return tuple(name for name, parts in {**systems, **members}.items() if any(map(space_of, parts)))


def summary_of(name: str) -> str:
    """Return the summary of a space."""
    return str(raw(name)["summary"]) if name in files() else _summary_by_ranges(name)


def _summary_by_ranges(name: str) -> str:
    return f"Every parameter of {name}, by its range."


def load(request: str, overrides: Sequence[str] = ()) -> SpaceDocument:
    """Read a space by name or file, apply its size and the overrides, and validate it."""
    return parse(raw(request), overrides, source=request)


def load_equal(
    systems: Sequence[str], streams: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, SpaceDocument | None]:
    """Read a search per system, equal but for system and space; None if there is nothing to tune.

    `streams` is a space or an experiment. Its streams, seeds, objectives, trials and searcher are those of all systems.
    """
    for override in overrides:
        if override.startswith(("system=", "space", "early_stopping=")):
            raise RequestError(
                f"--set {override}: with --equal, only the systems and their spaces differ; leave it out."
            )
    for name in systems:
        if name not in SYSTEMS:
            raise unknown_name("system", name, SYSTEMS)
    source = streams or _shared_streams([SYSTEMS[name] for name in systems])
    sizes = [override.removeprefix("size=") for override in overrides if override.startswith("size=")]
    frame = dict(raw(source, streams_only=True))
    if frame.get("sizes"):
        frame = experiments.sized(frame, sizes, source)
        overrides = [override for override in overrides if not override.startswith("size=")]
    tunable = names()
    return {
        name: parse(_framed(frame, name, sizes), overrides, source=name) if name in tunable else None
        for name in systems
    }


def _shared_streams(systems: Sequence[System]) -> str:
    """Choose the streams that all of the systems are tuned on, or signs, on which every system runs."""
    likely = set(map(_like, systems))
    return likely.pop() if len(likely) == 1 else SIGNS


def _framed(frame: Mapping[str, Any], name: str, sizes: Sequence[str]) -> dict[str, Any]:
    """Put the space of a system, and its row if the frame has none, into the search of all systems."""
    own = dict(raw(name))
    if own.get("sizes"):
        own = experiments.sized(own, [size for size in sizes if size in own["sizes"]], name)
    given = frame["experiment"]
    if isinstance(given, str):
        given = experiments.document_of(experiments.find(given))
    rows = list(given.get("systems", ()))
    if name not in [_name(row) for row in rows]:
        rows += [row for row in own["experiment"].get("systems", ()) if _name(row) == name]
    return {
        **frame,
        "name": f"equal-{name}".replace("+", "-"),
        "summary": f"{name} with as many trials as the other systems.",
        "system": name,
        "space": own["space"],
        "early_stopping": False,
        "experiment": {**given, "systems": rows or [name]},
    }


def _name(row: Any) -> Any:
    """Return the name of a system of an experiment, which is a text or a mapping with `name`."""
    return row.get("name") if isinstance(row, Mapping) else row


def raw(request: str, *, streams_only: bool = False) -> Mapping[str, Any]:
    """Read a space as it is written; in a file it may be the `tune` section of an experiment."""
    if request.endswith((".yaml", ".yml")):
        if not Path(request).is_file():
            raise RequestError(f"There is no file '{request}'. Spaces: {', '.join(names())}.")
        return _sectioned(experiments.document_of(Path(request)), request, streams_only)
    if request in files():
        return experiments.document_of(FOLDER / f"{request}.yaml")
    if request in experiments.names():
        return _sectioned(experiments.document_of(experiments.find(request)), request, streams_only)
    if request not in names():
        raise unknown_name("space (with anything to choose)", request, names())
    return _by_ranges(request)


def _sectioned(document: Mapping[str, Any], request: str, streams_only: bool = False) -> Mapping[str, Any]:
    """Convert an experiment with a `tune` section to a search, or without one to its streams only."""
    section = document.get("tune", {} if streams_only and "space" not in document else None)
    if section is None and "space" not in document:
        raise RequestError(f"'{request}' has neither a space nor a section 'tune' with one: it says nothing to search.")
    if section is None:
        return document
    if not isinstance(section, Mapping):
        raise RequestError("'tune' of the experiment is no mapping; give it a system and a space")
    rest = {key: value for key, value in document.items() if key != "tune"}
    return {"name": rest.get("name"), "summary": rest.get("summary", ""), **section, "experiment": rest}


def _by_ranges(name: str) -> Mapping[str, Any]:
    """Search all parameters of a system, or of one member in a system that it works in."""
    family, _, member = name.rpartition("/")
    row = host_of(family, member) if family else {"name": name}
    system = SYSTEMS[str(row.get("base", row["name"]))]
    searched = [Member(family, member)] if family else list(system.members)
    if family and getattr(system, family).name == member:
        searched = [getattr(system, family)]
    like = experiments.document_of(FOLDER / f"{_like(system)}.yaml")
    like["experiment"] = {**like["experiment"], "systems": [row]}
    space = {path: domain for one in searched for path, domain in space_of(one).items()}
    own = {"name": name.replace("/", "-").replace("+", "-"), "summary": _summary_by_ranges(name)}
    return {**like, **own, "system": row["name"], "space": space, "constraints": []}


def _like(system: System) -> str:
    """Choose the streams that a system is tuned on: streets where a server learns or labels."""
    if system.needs_server:
        return STREETS
    return SIGNS if system.scheduling.name == "uniform" else APPS


def space_of(member: Member, system: int = 0) -> dict[str, dict[str, Any]]:
    """Return a domain per numeric, choice or boolean parameter of a member, by dotted path."""
    given, found, cls = dict(member.params), {}, member_class(member.family, member.name)
    for name, one in parameters_of(cls).items():
        default = given.get(name, one.default)
        domain = _domain(one, default)
        if domain is None or name in BOUND_PARAMETERS:
            continue
        if "values" in domain:  # without choices that need another setting
            domain["values"] = [each for each in domain["values"] if not parameter_faults(cls, {**given, name: each})]
        for end in {"from", "to"} & domain.keys():
            if parameter_faults(cls, {**given, name: domain[end]}):
                domain[end] = default
        if len(domain.get("values", "ab")) > 1 and domain.get("from", 0) != domain.get("to", 1):
            found[f"systems.{system}.{member.family}.{name}"] = {**domain, "why": f"{one.meaning}; {domain['why']}"}
    return found


def host_of(family: str, name: str) -> dict[str, Any]:
    """Return a system with the member: one of the table, or one based on nestdnn."""
    rows = [one for one in SYSTEMS.values() if getattr(one, family).name == name]
    if rows:
        return {"name": next((one for one in rows if can_act(one, STREAM)), rows[0]).name}
    base = next(one for one in SYSTEMS.values() if getattr(one, family).name != FIRST[family])
    return {"name": name, "base": base.name, family: name}


def _domain(one: Parameter, default: Any) -> dict[str, Any] | None:
    """Return the domain of a parameter; None for texts, lists and unset values."""
    if typing.get_origin(one.hint) is typing.Literal:
        return {
            "values": [each for each in typing.get_args(one.hint) if each not in BOUND_VALUES],
            "why": "every choice",
        }
    if one.names:
        return {"values": list(one.names), "why": "every choice with a name"}
    if isinstance(default, bool):
        return {"values": [False, True], "why": "on and off"}
    if not isinstance(default, int | float) or not math.isfinite(default):
        return None
    whole = float not in (one.hint, *typing.get_args(one.hint))
    low, high = _ends(one, float(default))
    if whole:
        low, high = math.floor(low), math.ceil(high)
    if not low < high:
        return None
    scale = {"scale": "log"} if low > 0 and high / low >= AROUND else {}
    return {"from": low, "to": high, **scale, **({"integer": True} if whole else {}), "why": REASON}


def _ends(one: Parameter, default: float) -> tuple[float, float]:
    """Return the range around a default; an open bound is replaced by its midpoint with the default."""
    bounds = one.interval
    low, high = default / AROUND, default * AROUND or math.inf
    if bounds.low is not None and low <= bounds.low:
        low = bounds.low if not bounds.low_open else (bounds.low + default) / 2
    if bounds.high is not None and high >= bounds.high:
        high = bounds.high if not bounds.high_open else (bounds.high + default) / 2
    return low, high if math.isfinite(high) else low
