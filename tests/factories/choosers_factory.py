"""Runs of rules that choose among the same networks under a load: hand-written tables."""

from __future__ import annotations

import itertools
from typing import Any

from tables_factory import Made, run_row, share_row

SYSTEMS: dict[str, dict[str, str]] = {
    "adascale": {"name": "adascale", "chooser": "own", "predictor": "law"},
    "adascale-expected": {"name": "adascale", "chooser": "expected", "predictor": "law"},
    "adascale-learned": {"name": "adascale", "chooser": "own", "predictor": "learned"},
}
LATE = {"adascale": 3, "adascale-expected": 1, "adascale-learned": 2}  # of ten frames
NETWORKS = {"base": (0.6, 40.0), "base.base": (0.8, 100.0)}
GOAL_MS, FPS = 150.0, 2.5
READINGS = 8


def cell(name: str, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Make a session: speed 1 for two seconds, then half; the fast network runs throughout."""
    run = run_row(name, seed, "depot", "user") | {"frames": 10}
    place = {"cell": run["cell"], "device": "d", "app": "a"}
    frames = [
        {**place, "frame": k, "time_s": k / FPS, "processed": True, "score_frame": 0.9,
         "latency_ms": 200.0 if k < LATE[name] else 50.0}
        for k in range(10)
    ]  # fmt: skip
    loads = [{**place, "time_s": k / 2, "cpu": 0.0, "sensed_cpu": 0.0, "speed": 1.0 if k < 4 else 0.5, "variant": 0}
             for k in range(READINGS)]  # fmt: skip
    variants = [
        {
            **place,
            "variant": k,
            "network": network,
            "accuracy": accuracy,
            "latency_ms": ms,
            "memory_bytes": 10,
            "macs": 1,
        }
        for k, (network, (accuracy, ms)) in enumerate(NETWORKS.items())
    ]
    learned = name == "adascale-learned"
    predictions = [
        {**place, "time_s": k / 2, "network": "base" if k % 2 else "base.base", "idle_ms": 40.0, "cpu": 0.5,
         "memory": 0.4, "clock": 1.0, "taken_ms": 80.0 + seed,
         "predicted_ms": (80.0 + seed) * (1 + (0.2 / k if learned else 0.1))}
        for k in range(1, READINGS)
    ]  # fmt: skip
    share = share_row(**{**place, "variant": 0, "accuracy": 0.6, "fps": FPS, "latency_goal_ms": GOAL_MS})
    found = {"runs": [run], "frames": frames, "loads": loads, "variants": variants, "shares": [share]}
    return {**found, "predictions": predictions}


def tables(*names: str) -> Made:
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, seed in itertools.product(names or SYSTEMS, range(3)):
        for table, found in cell(name, seed).items():
            rows.setdefault(table, []).extend(found)
    fleets = [{"name": "user", "devices": [{"load": "user"}]}]
    spec = [{"name": name, "base": "no_custom", "scaling": SYSTEMS[name]} for name in names or SYSTEMS]
    return Made({"systems": spec, "fleets": fleets}, **rows)
