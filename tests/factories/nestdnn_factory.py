"""Runs of networks and shares with numbers computed by hand, and the verdicts of claims on them."""

from __future__ import annotations

from typing import Any

import claims_factory
from tables_factory import Made, run_row, share_row

from driftlab.platform.results.claims.base import every_claim
from driftlab.platform.results.claims.statistics import Measured

NESTED = {"name": "nested", "keep_ratios": (0.8, 0.6, 0.45, 0.3)}
SYSTEMS: list[dict[str, Any]] = [
    {"name": "ours", "scaling": NESTED, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "fast", "scaling": NESTED, "scheduling": {"name": "nestdnn", "alpha": 1.0}},
    {"name": "good", "scaling": NESTED, "scheduling": {"name": "nestdnn", "alpha": 0.01}},
    {"name": "base", "scaling": {"name": "independent"}, "scheduling": {"name": "status_quo"}},
    {"name": "base-picked", "scaling": {"name": "independent"}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "best", "scaling": NESTED, "scheduling": {"name": "exact", "alpha": 0.1}},
    {"name": "whole", "scaling": {"name": "fixed"}, "scheduling": {"name": "status_quo"}},
    *(
        {"name": f"{name}-{alpha}", "scaling": NESTED,
         "scheduling": {"name": "nestdnn", "alpha": alpha, **more}}
        for name, more in {"max": {"objective": "max"}, "literal": {"method": "literal"}}.items()
        for alpha in (0.01, 0.1, 0.3, 1.0)
    ),
    *(
        {"name": name, "scaling": NESTED,
         "scheduling": {"name": "nestdnn", "alpha": 0.1, "method": name.partition("-")[0], **more}}
        for name, more in {
            "lookahead-anew": {"cached": False},
            "steepest": {},
            "steepest-anew": {"cached": False},
            "steepest-fine": {"cached": False, "units": 200},
        }.items()
    ),
    *(
        {"name": f"{ranking}-{layer}",
         "scaling": {"name": "nested", "keep_ratios": (1.0, 0.5, 0.25), "only": layer, "ranking": ranking,
                     "prune_epochs": 0,
                     "grow_epochs": epochs}}
        for ranking in ("trr", "l1", "random")
        for layer, epochs in ((0, 0), (1, 0), (2, 1))
    ),
]  # fmt: skip

SPEC = {"systems": SYSTEMS}


def built(accuracies: dict[str, dict[str, list[float]]], **change: Any) -> Made:
    """Give systems a family for each application; sizes and work grow by one from network to network."""
    rows = [
        {"cell": run_row(system)["cell"], "device": "d", "app": app, "variant": k, "network": str(k), "accuracy": a,
         "val_accuracy": a, "memory_bytes": 10 * (k + 1), "kernel_bytes": 10 * (k + 1), "latency_ms": 1.0,
         "macs": 100 * (k + 1)}
        for system, apps in accuracies.items()
        for app, found in apps.items()
        for k, a in enumerate(found)
    ]  # fmt: skip
    rows = [row | change.get(row["cell"].partition("/")[0], dict)(row) for row in rows]
    return Made(SPEC, runs=[run_row(system) for system in accuracies], variants=rows)


def share(system: str, seed: int, time_s: float, workload: str = "w", **more: Any) -> dict[str, Any]:
    """Give an application of a cell half of its device, late for its goal."""
    row = share_row(time_s=time_s, cell=run_row(system, seed, workload)["cell"], latency_goal_ms=50.0, **more)
    return {"val_accuracy": row["accuracy"], **row}


def shared(rows: list[dict[str, Any]], **tables: list[dict[str, Any]]) -> Made:
    """Make a run of shares, with the cells that they are of."""
    cells = {row["cell"]: row["cell"].split("/") for row in rows}
    runs = [run_row(system, int(seed[5:]), workload) for system, workload, _, seed in cells.values()]
    return Made(SPEC, runs=runs, shares=rows, **tables)


CLAIMS = {name: claim for name, claim in every_claim().items() if name.startswith("N")}


def claim(name: str, tables: Made) -> Measured:
    return claims_factory.measured(claims_factory.ask(name, tables))


def value(name: str, tables: Made) -> float:
    return claim(name, tables).value
