"""A space for any member: ranges around the defaults of its parameters, within the bounds that they are given."""

from __future__ import annotations

import math
import typing
from typing import Any

from driftlab.platform.core.parameters import Parameter, parameters_of
from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.core.system_table import SYSTEMS

AROUND = 4.0  # a range goes from so small a part of the default to so many times it
REASON = "a quarter of the default to four times it, within what the parameter allows"


def space_of(member: Member, system: int = 0) -> dict[str, dict[str, Any]]:
    """List a domain for every parameter of a member that is a number, a choice or a switch, by its dotted path."""
    given, found = dict(member.params), {}
    for name, one in parameters_of(member_class(member.family, member.name)).items():
        domain = _domain(one, given.get(name, one.default))
        if domain is not None:
            found[f"systems.{system}.{member.family}.{name}"] = {**domain, "why": f"{one.meaning}; {domain['why']}"}
    return found


def host_of(family: str, name: str) -> dict[str, Any]:
    """Describe a system that a member works in: a row of the table that has it, or one like nestdnn with it."""
    row = next((one for one in SYSTEMS.values() if getattr(one, family).name == name), None)
    if row is not None:
        return {"name": row.name}
    base = next(one for one in SYSTEMS.values() if getattr(one, family).name != FIRST[family])
    return {"name": name, "base": base.name, family: name}


FIRST = {family: next(iter(names)) for family, names in FAMILIES.items()}  # the null members


def _domain(one: Parameter, default: Any) -> dict[str, Any] | None:
    """Choose a domain; none for texts, lists, and what is left open."""
    if typing.get_origin(one.hint) is typing.Literal:
        return {"values": list(typing.get_args(one.hint)), "why": "every choice"}
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
    """Go from a part of the default to a multiple; a bound that is not allowed itself is approached half-way."""
    bounds = one.interval
    low, high = default / AROUND, default * AROUND or math.inf
    if bounds.low is not None and low <= bounds.low:
        low = bounds.low if not bounds.low_open else (bounds.low + default) / 2
    if bounds.high is not None and high >= bounds.high:
        high = bounds.high if not bounds.high_open else (bounds.high + default) / 2
    return low, high if math.isfinite(high) else low
