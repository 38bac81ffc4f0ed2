"""Tables of runs whose scores are known."""

from __future__ import annotations

from typing import Any

from driftlab.platform.results.claims.base import Measured, Untestable, every_claim, judge
from driftlab.platform.results.tables.read import Tables

SEEDS = (0, 1, 2)


WOBBLE = (-0.001, 0.0, 0.001)  # from seed to seed; without any an interval would have no width


def run_row(system: str, seed: int, workload: str = "dance", score: float = 0.5, **more: Any) -> dict[str, Any]:
    cell = f"{system}/{workload}/{more.get('fleet', 'one')}/seed-{seed}"
    usual = {"fleet": "one", "devices": 1, "status": "done", "student": "tiny", "parameters": 20_000}
    return {"cell": cell, "system": system, "seed": seed, "workload": workload, "score": score, **usual, **more}


def part(name: str, base: str, **slots: Any) -> dict[str, Any]:
    made = {
        family: {"name": {"ams": "ams", "just_in_time": "just_in_time"}[base], **slots[family]}
        for family in slots
        if family == "streaming"
    }
    if "adaptation" in slots:
        made["adaptation"] = {"name": "distill", **slots["adaptation"]}
    return {"name": name, "base": base, **made}


def measured(found: Measured | Untestable) -> Measured:
    assert isinstance(found, Measured), found
    return found


def word(name: str, tables: Tables) -> str:
    claim = every_claim()[name]
    return judge(claim, claim.measure(tables)).word
