"""Members and parameters of a run's systems, without importing members, which may have changed.

Their sources are the table `systems` and, for systems without a cell, the spec. A slot of a spec holds the given
parameters and, under `defaults`, all others.
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
    """A member of a family with the parameters that it had in a run, lists as tuples."""

    name: str
    params: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, parameter: str) -> Any:
        """Return the value of a parameter; None if the version that ran had no such parameter."""
        return dict(self.params).get(parameter)

    def without(self, *parameters: str) -> Slot:
        """Return the slot without these parameters, to compare the others."""
        return Slot(self.name, tuple(pair for pair in self.params if pair[0] not in parameters))

    @property
    def nested(self) -> bool:
        """Return whether a switch of this scaling member moves only the difference between two networks."""
        return self.name in NESTED


def slots_of(spec: Mapping[str, Any], systems: Iterable[str]) -> dict[str, dict[str, Slot]]:
    """Return the members of systems by family; omit systems that the spec does not list."""
    parts = {part["name"]: part for part in every_system(spec)}
    return {name: {family: _slot(parts[name][family]) for family in FAMILIES} for name in systems if name in parts}


def recorded_slots(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Slot]]:
    """Return the members of systems from rows of table `systems`, which may come from several cells."""
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
    """List the systems of a spec, bounds included."""
    return [*spec.get("systems", ()), *(spec.get("bound_rows") or ())]


def all_params(slot: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the defaults of a slot with its given parameters."""
    given = {key: value for key, value in slot.items() if key not in ("name", "defaults")}
    return {**slot.get("defaults", {}), **given}


def _slot(slot: Mapping[str, Any]) -> Slot:
    return Slot(slot["name"], tuple(sorted((key, _hashable(value)) for key, value in all_params(slot).items())))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
