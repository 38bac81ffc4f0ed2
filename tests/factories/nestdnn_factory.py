"""Tables of shares and the claims that read them."""

from __future__ import annotations

from typing import Any

from tables_factory import Made

from driftlab.platform.results.claims import nestdnn, nestdnn_sharing
from driftlab.platform.results.claims.base import Measured, judge

KEEP = (0.8, 0.6, 0.45, 0.3)


SYSTEMS: list[dict[str, Any]] = [
    {"name": "ours", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "fast", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 1.0}},
    {"name": "good", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "nestdnn", "alpha": 0.01}},
    {"name": "base", "scaling": {"name": "independent"}, "scheduling": {"name": "status_quo"}},
    {"name": "base-picked", "scaling": {"name": "independent"}, "scheduling": {"name": "nestdnn", "alpha": 0.1}},
    {"name": "best", "scaling": {"name": "nested", "keep": KEEP}, "scheduling": {"name": "exact", "alpha": 0.1}},
    {"name": "whole", "scaling": {"name": "fixed"}, "scheduling": {"name": "status_quo"}},
    *(
        {"name": f"{name}-{alpha}", "scaling": {"name": "nested", "keep": KEEP},
         "scheduling": {"name": "nestdnn", "alpha": alpha, **more}}
        for name, more in {"max": {"objective": "max"}, "literal": {"method": "literal"}}.items()
        for alpha in (0.01, 0.1, 0.3, 1.0)
    ),
    *(
        {"name": name, "scaling": {"name": "nested", "keep": KEEP},
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
         "scaling": {"name": "nested", "keep": (1.0, 0.5, 0.25), "only": layer, "ranking": ranking, "prune_epochs": 0,
                     "grow_epochs": epochs}}
        for ranking in ("trr", "l1", "random")
        for layer, epochs in ((0, 0), (1, 0), (2, 1))
    ),
]  # fmt: skip


SPEC = {"systems": SYSTEMS}


def run_row(system: str, seed: int = 0, workload: str = "w") -> dict[str, Any]:
    cell = f"{system}/{workload}/one/seed-{seed}"
    return {"cell": cell, "system": system, "workload": workload, "fleet": "one", "seed": seed, "status": "done"}


def share(system: str, seed: int, time_s: float, workload: str = "w", **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "app": "a",
        "share": 0.5,
        "variant": 0,
        "accuracy": 0.5,
        "latency_ms": 100.0,
        "fps": 30.0,
        "window_s": 1.0,
        "priority": 1.0,
    }
    usual |= {"latency_goal_ms": 50.0, "paged_in_bytes": 0, "paged_out_bytes": 0, "energy_j": 1.0, "paging_j": 0.0}
    usual["known_accuracy"] = more.get("accuracy", usual["accuracy"])
    return {"cell": run_row(system, seed, workload)["cell"], "device": "d", "time_s": time_s, **usual, **more}


CLAIMS = {claim.id: claim for claim in (*nestdnn.CLAIMS, *nestdnn_sharing.CLAIMS)}


def claim(name: str, tables: Made) -> Measured:
    found = CLAIMS[name].measure(tables)
    assert isinstance(found, Measured), found
    return found


def value(name: str, tables: Made) -> float:
    return claim(name, tables).value


def word(name: str, tables: Made) -> str:
    return judge(CLAIMS[name], CLAIMS[name].measure(tables)).word
