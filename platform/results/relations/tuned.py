"""How the settings of systems were chosen, and a warning if the budgets of their searches differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from driftlab.platform.core.registry import FAMILIES
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.results.tables.read import Run, Tables

LIKE = 1.1  # budgets that differ by no more than this factor count as equal


@dataclass(frozen=True)
class SettingsOrigin:
    """The search that chose the settings of a system."""

    space: str
    trial: int
    trials: int
    streamed_s: float
    settings: Mapping[str, Any]


def origins(run: Run) -> dict[str, SettingsOrigin]:
    """Read the search behind each system that has one."""
    return {
        part["system"]: SettingsOrigin(
            part["space"],
            part["trial"],
            part["budget"]["trials"],
            part["budget"]["streamed_s"],
            part["settings"],
        )
        for part in run.spec.get("tuned") or ()
    }


def how_chosen(tables: Tables, systems: Collection[str] | None = None) -> list[str]:
    """State how many trials the settings of each method got; empty if no method has settings."""
    found = origins(tables.run)
    groups: dict[str, list[str]] = {}
    for name in _methods(tables, systems):
        groups.setdefault(_choice(tables.run, found, name), []).append(name)
    parts = [
        f"of {', '.join(group)}: {choice}{' each' if choice.endswith('trials') and len(group) > 1 else ''}"
        for choice, group in groups.items()
    ]
    return [f"Settings {'; '.join(parts)}."] if parts else []


def unequal_budgets(tables: Tables, systems: Collection[str] | None = None) -> list[str]:
    """Return a warning if the settings of one system were searched for longer than those of another one.

    Bounds and systems that run inference only are not compared.
    """
    found = origins(tables.run)
    spent = {
        name: (found[name].trials, found[name].streamed_s) if name in found else (0, 0.0)
        for name in _methods(tables, systems)
    }
    trials, streamed_s = {count for count, _ in spent.values()}, [seconds for _, seconds in spent.values()]
    if len(trials) < 2 and (not spent or max(streamed_s) <= LIKE * min(streamed_s)):
        return []
    listed = ", ".join(f"{name} {count} trials, {seconds:.0f} s" for name, (count, seconds) in spent.items())
    return [f"Warning: settings of the systems got unequal budgets of search: {listed}. Use `driftlab tune --equal`."]


def _methods(tables: Tables, systems: Collection[str] | None) -> list[str]:
    """List the systems with settings to choose: no bounds, and none that run inference only."""
    rows = tables.frame("runs")
    methods = set(rows[rows["bound"].isna()]["system"]) - _inference_only(tables.run)
    return sorted(methods if systems is None else methods & set(systems))


def _choice(run: Run, found: Mapping[str, SettingsOrigin], name: str) -> str:
    """State how the settings of a system were chosen."""
    if name in found:
        return "1 trial" if found[name].trials == 1 else f"{found[name].trials} trials"
    row: Mapping[str, Any] = next((part for part in _rows(run) if part["name"] == name), {})
    base = SYSTEMS.get(str(row.get("base") or name))
    return "those of the experiment" if any(_differs(row, family, base) for family in FAMILIES) else "defaults"


def _differs(row: Mapping[str, Any], family: str, base: System | None) -> bool:
    """Return whether a row gives parameters to a member that the table of systems does not give."""
    slot = row.get(family)
    if not isinstance(slot, Mapping):
        return False
    given = {key: value for key, value in slot.items() if key not in ("name", "defaults")}
    member = getattr(base, family, None)
    usual = dict(member.params) if member is not None and member.name == slot.get("name") else {}
    return json.dumps(given, sort_keys=True) != json.dumps(usual, sort_keys=True)


def _rows(run: Run) -> list[Mapping[str, Any]]:
    return [part for part in run.spec.get("systems", ()) if isinstance(part, Mapping)]


def _inference_only(run: Run) -> set[str]:
    """List the variants of `no_custom` without training: other networks that run inference only."""
    slots = {part["name"]: part.get("adaptation") or "frozen" for part in _rows(run) if part.get("base") == "no_custom"}
    return {name for name, slot in slots.items() if (slot["name"] if isinstance(slot, Mapping) else slot) == "frozen"}
