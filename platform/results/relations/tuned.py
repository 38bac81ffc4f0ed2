"""The searches behind tuned settings of a run, and a warning if their budgets differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftlab.platform.results.tables.read import Run

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


def unequal_budgets(run: Run) -> list[str]:
    """Return a warning if the settings of one system were searched for longer than those of another one.

    Bounds and systems that run inference only are not compared.
    """
    found = origins(run)
    if not found:
        return []
    rows = run.frame("runs")
    methods = sorted(set(rows[rows["bound"].isna()]["system"]) - _inference_only(run))
    spent = {name: found[name].streamed_s if name in found else 0.0 for name in methods}
    if len(spent) < 2 or max(spent.values()) <= LIKE * min(spent.values()):
        return []
    trials = ", ".join(f"{name} {found[name].trials if name in found else 0} trials" for name in methods)
    return [f"Warning: settings of the systems got unequal budgets of search: {trials}. Tune all of them, or none."]


def _inference_only(run: Run) -> set[str]:
    """List the variants of `no_custom` without training: other networks that run inference only."""
    parts = [part for part in run.spec.get("systems", ()) if isinstance(part, Mapping)]
    slots = {part["name"]: part.get("adaptation") or "frozen" for part in parts if part.get("base") == "no_custom"}
    return {name for name, slot in slots.items() if (slot["name"] if isinstance(slot, Mapping) else slot) == "frozen"}
