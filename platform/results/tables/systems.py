"""What the systems of a run were: no member is imported, since its parameters may change later.

Runs say it in their table `systems`; of older ones, and of systems without a cell, the spec tells the same. A slot of a
spec holds the parameters that were given and, under `defaults`, all others. Specs of schema version 4 hold only what
was given; `defaults_schema4.json` keeps the defaults and the table of systems of that time and never changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_name("defaults_schema4.json")
# Scaling members whose larger networks hold the smaller ones.
NESTED = frozenset({"nested", "usnet", "once_for_all", "early_exit"})


@dataclass(frozen=True)
class Slot:
    """A family member as it was in a run: its name and all its parameters, lists as tuples."""

    name: str
    params: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, parameter: str) -> Any:
        """Return the value of a parameter; None where the version that ran had none of that name."""
        return dict(self.params).get(parameter)

    def without(self, *parameters: str) -> Slot:
        """Leave parameters out, to compare what else there is."""
        return Slot(self.name, tuple(pair for pair in self.params if pair[0] not in parameters))

    @property
    def nested(self) -> bool:
        """Tell of a scaling member whether a switch moves only the difference between two networks."""
        return self.name in NESTED


def slots_of(spec: Mapping[str, Any], systems: Iterable[str]) -> dict[str, dict[str, Slot]]:
    """Read what systems of a run have in their slots; one that the spec does not list is a row of the frozen table."""
    parts = {part["name"]: part for part in every_system(spec)}
    found = {name: parts.get(name) or _written_out(name) for name in systems}
    return {name: {family: _slot(part[family]) for family in _frozen()["defaults"]} for name, part in found.items()}


def recorded_slots(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Slot]]:
    """Read what systems have in their slots from rows of table `systems`, of which each cell has its own."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for row in rows:
        params = found.setdefault(row["system"], {}).setdefault(row["family"], {}).setdefault(row["member"], {})
        if isinstance(row["parameter"], str):
            params[row["parameter"]] = _hashable(json.loads(row["value"]))
    return {
        system: {
            family: Slot(name, tuple(sorted(params.items())))
            for family, members in families.items()
            for name, params in members.items()
        }
        for system, families in found.items()
    }


def every_system(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the systems of a spec, the bounds that run beside them included, each slot written out."""
    full = filled(spec)
    parts = [*full.get("systems", ()), *(full.get("bound_rows") or ())]
    return [_written_out(part) if isinstance(part, str) else part for part in parts]


def all_params(slot: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the defaults of a slot that is written out with what was given."""
    return {**slot["defaults"], **{key: value for key, value in slot.items() if key not in ("name", "defaults")}}


def _slot(given: Mapping[str, Any]) -> Slot:
    return Slot(given["name"], tuple(sorted((key, _hashable(value)) for key, value in all_params(given).items())))


def filled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Write out every slot of an older spec, and the bounds that it asks for; a newer spec stays as it is.

    A system that was in no table keeps its bare name: a run of the spec refuses it.
    """
    if "systems" not in spec:
        return dict(spec)
    known = _frozen()["systems"]
    systems = [part if isinstance(part, str) and part not in known else _written_out(part) for part in spec["systems"]]
    rows = spec.get("bound_rows")
    if rows is None and spec.get("bounds"):
        there = [[_members(part), part.get("base") or part["name"]] for part in systems if not isinstance(part, str)]
        rows = [name for name in _frozen()["bounds"] if [_members(known[name]), name] not in there]
    return {**spec, "systems": systems} | ({"bound_rows": [_written_out(row) for row in rows]} if rows else {})


def _written_out(part: str | Mapping[str, Any]) -> dict[str, Any]:
    """Complete the slots of one system with those of the row that it starts from, and slots with their defaults."""
    given = {"name": part} if isinstance(part, str) else part
    table = _frozen()["systems"]
    row = table.get(given.get("base") or given["name"], table["no_custom"])
    slots = {family: row[family] if given.get(family) is None else given[family] for family in _frozen()["defaults"]}
    return {**given, **{family: _with_defaults(family, slot) for family, slot in slots.items()}}


def _with_defaults(family: str, slot: str | Mapping[str, Any]) -> dict[str, Any]:
    given = {"name": slot} if isinstance(slot, str) else dict(slot)
    if "defaults" in given:
        return given
    known = _frozen()["defaults"][family].get(given["name"], {})  # of a member from outside only the given is known
    return {**given, "defaults": {key: value for key, value in known.items() if key not in given}}


def _members(part: Mapping[str, Any]) -> list[str]:
    return [part[family]["name"] for family in _frozen()["defaults"]]


@cache
def _frozen() -> Any:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
