"""Runs with made-up scores, and the verdicts of claims on them."""

from __future__ import annotations

from typing import Any

import tables_factory
from tables_factory import Made

from driftlab.platform.results.claims.base import Claim, every_claim, judge
from driftlab.platform.results.claims.statistics import Measured
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.tables.read import Tables

SEEDS = (0, 1, 2)
WOBBLE = (-0.001, 0.0, 0.001)  # from seed to seed; without any an interval would have no width


def run_row(system: str, seed: int, workload: str = "dance", score: float = 0.5, **more: Any) -> dict[str, Any]:
    usual = {"score_live": score, "score": score, "student": "tiny", "parameters": 20_000, "duration_s": 600.0}
    return tables_factory.run_row(system, seed, workload, **{**usual, **more})


def scored(**scores: dict[str, float] | float) -> Made:
    """Give systems a score, the same on every workload or by workload, with a little chance."""
    rows = []
    for system, found in scores.items():
        by_workload = found if isinstance(found, dict) else {"dance": found}
        for workload, score in by_workload.items():
            rows += [run_row(system, seed, workload, score + WOBBLE[seed] * len(system)) for seed in SEEDS]
    return Made(runs=rows)


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


def ask_of(tables: Tables, statistic: Any, relation: str, *systems: Any, **where: Any) -> Measured | Untestable:
    """Ask a claim that no file has."""
    of = {"relation": relation, "systems": systems, "where": where}
    return Claim("X-1", "x", "here", "it holds", None, "s", "info", of, statistic).measure(tables)


def ask(name: str, tables: Tables) -> Measured | Untestable:
    return every_claim()[name].measure(tables)


def word(name: str, tables: Tables) -> str:
    return judge(every_claim()[name], ask(name, tables)).result
