"""What the systems of a run were: no member is imported, since its parameters may change later.

Runs say it in their table `systems`; of systems without a cell the spec tells the same. A slot of a spec holds the
parameters that were given and, under `defaults`, all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftlab.platform.core.registry import FAMILIES

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
    """Return the members of systems by family; systems that the spec does not list are left out."""
    parts = {part["name"]: part for part in every_system(spec)}
    return {name: {family: _slot(parts[name][family]) for family in FAMILIES} for name in systems if name in parts}


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
    """List the systems of a spec, the bounds that run beside them included."""
    return [*spec.get("systems", ()), *(spec.get("bound_rows") or ())]


def all_params(slot: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the defaults of a slot with what was given."""
    given = {key: value for key, value in slot.items() if key not in ("name", "defaults")}
    return {**slot.get("defaults", {}), **given}


def _slot(given: Mapping[str, Any]) -> Slot:
    return Slot(given["name"], tuple(sorted((key, _hashable(value)) for key, value in all_params(given).items())))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
