"""Runs of networks under a load, with every fixed exit as a baseline: hand-written tables as a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from domains_factory import filled
from spec_factory import stored
from tables_factory import Made, run_row, share_row

from driftlab.platform.results.tables.recorder import Recorder

EXITS = {"exit-1": 1, "exit-2": 2, "exit-3": 3}
# Of each system: accuracy of its frames, share of frames that are missed, latency in ms; by load.
SEEN: dict[str, dict[str, tuple[float, float, float]]] = {
    "adascale": {"user": (0.80, 0.1, 60.0), "random": (0.75, 0.2, 70.0)},
    "adascale-ar": {"user": (0.79, 0.2, 60.0), "random": (0.75, 0.4, 70.0)},
    "adascale-index": {"user": (0.79, 0.3, 60.0), "random": (0.75, 0.2, 70.0)},
    "clairvoyant": {"user": (0.84, 0.0, 60.0), "random": (0.77, 0.1, 70.0)},
    "light-shufflenet": {"user": (0.60, 0.1, 50.0), "random": (0.60, 0.2, 60.0)},
    "exit-1": {"user": (0.70, 0.0, 40.0), "random": (0.70, 0.0, 50.0)},
    "exit-2": {"user": (0.78, 0.1, 80.0), "random": (0.74, 0.3, 90.0)},
    "exit-3": {"user": (0.85, 0.5, 120.0), "random": (0.60, 0.6, 140.0)},
}
# The effect of a load on accuracy, missed frames and latency; other loads start from the load user.
Effect = tuple[float, float, float]
SAME: Effect = (0.0, 0.0, 0.0)
LOADS: Mapping[str, Effect] = {"user": SAME, "random": SAME}
KNOWN = {"base": (0.7, 10, 100, 10.0), "base.base": (0.75, 30, 300, 20.0), "base.base.base": (0.82, 60, 600, 40.0),
         "svd.base.base": (0.78, 50, 500, 30.0)}  # fmt: skip
LIGHT = {"shufflenet": (0.79, 20, 200, 28.0)}


OTHERS: dict[str, dict[str, Any]] = {
    "adascale": {"name": "adascale", "forecaster": "persistence", "load_measure": "cpu"},
    "adascale-ar": {"name": "adascale", "forecaster": "ar"},
    "adascale-index": {"name": "adascale", "forecaster": "persistence", "load_measure": "index"},
    "clairvoyant": {"name": "clairvoyant"},
    "light-shufflenet": {"name": "light", "network": "shufflenet"},
}


def system_of(name: str) -> dict[str, Any]:
    scaling = OTHERS.get(name) or {"name": "branches", "exit": EXITS[name]}
    return {"name": name, "base": "no_custom", "scaling": scaling}


def cell(
    name: str, fleet: str, seed: int, workload: str = "depot", load: Effect = SAME
) -> dict[str, list[dict[str, Any]]]:
    base = SEEN[name].get(fleet, SEEN[name]["user"])
    accuracy, missed, latency = (usual + more for usual, more in zip(base, load, strict=True))
    run = run_row(name, seed, workload, fleet) | {"frames": 10, "inference_j": 1.0}
    place = {"cell": run["cell"], "device": "d", "app": "a"}
    share = {**place, "variant": 3, "accuracy": 0.78, "latency_goal_ms": 150.0}
    shares = [share_row(**{**share, "window_s": 3.0}), share_row(**{**share, "accuracy": 0.82, "time_s": 3.0})]
    frames = []
    for number in range(10):
        late = number < round(10 * missed)
        dropped = late and number % 2 == 0
        row = {**place, "frame": number, "processed": not dropped, "score_frame": accuracy + 0.001 * seed}
        frames.append({**row, "latency_ms": None if dropped else 200.0 if late else latency})
    variants = [
        {
            **place,
            "variant": i,
            "network": network,
            "accuracy": good,
            "memory_bytes": size,
            "macs": macs,
            "latency_ms": ms,
        }
        for i, (network, (good, size, macs, ms)) in enumerate((LIGHT if "light" in name else KNOWN).items())
    ]
    return {"runs": [run], "frames": frames, "shares": shares, "variants": variants}


def tables(*names: str, loads: Mapping[str, Effect] = LOADS, workloads: Sequence[str] = ("depot",)) -> Made:
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(names or SEEN, reverse=True):  # cells come in any order
        for fleet, seed, workload in itertools.product(loads, range(3), workloads):
            for table, found in cell(name, fleet, seed, workload, loads[fleet]).items():
                rows.setdefault(table, []).extend(found)
    return Made({"systems": [system_of(name) for name in names or SEEN]}, **rows)


def make_run(folder: Path) -> Path:
    """Write all of it as a run folder."""
    folder.mkdir(parents=True)
    spec = {"name": "paths", "systems": [system_of(name) for name in SEEN]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(stored(spec), sort_keys=False))
    (folder / "run.json").write_text(json.dumps({"started": "2026-01-02T03:04:05Z"}))
    recorder = Recorder(str(folder))
    for name in SEEN:
        for fleet in LOADS:
            for seed in range(3):
                made = cell(name, fleet, seed)
                rows = {table: [filled(table, row) for row in own] for table, own in made.items()}
                recorder.write(made["runs"][0]["cell"], rows)
    return folder
