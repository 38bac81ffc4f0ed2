"""Name the search spaces, and derive domains from the ranges of parameters.

It imports no experiment, since `driftlab list` counts names.
"""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

from driftlab.platform.core.parameters import Parameter, parameters_of
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameter_faults
from driftlab.platform.core.system_table import SYSTEMS

FOLDER = Path(__file__).parent / "spaces"
BOUND_VALUES = ("clairvoyant", "world")  # values that only a bound may have
AROUND = 4.0  # a range spans default / AROUND to default x AROUND
REASON = "a quarter of the default to four times it, within the parameter's range"
NO_SPACE = frozenset(  # members with nothing to search, listed because to import all members takes 0.3 s
    (
        "streaming/local",
        "adaptation/frozen",
        "scaling/fixed",
        "scheduling/uniform",
        "scheduling/status_quo",
        "scheduling/mcdnn",
    )
)
BOUND_PARAMETERS = ("costs_time", "gains", "plans")  # parameters that make a member a bound


def files() -> list[str]:
    """List the spaces that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def names() -> list[str]:
    """List every space: files, systems, and members as FAMILY/NAME, as far as they have parameters."""
    own = files()
    members = [f"{family}/{name}" for family, known in FAMILIES.items() for name in known]
    systems = [name for name, system in SYSTEMS.items() if {f"{m.family}/{m.name}" for m in system.members} - NO_SPACE]
    return [*own, *(name for name in (*systems, *members) if name not in {*own, *NO_SPACE})]


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
