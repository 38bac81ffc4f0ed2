"""A made-up run in which two applications share a device; all numbers can be computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from spec_factory import stored
from tables_factory import Made

from driftlab.platform.core.records import Variant
from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.results.tables.schema import TABLES
from driftlab.platform.world.measured import paged_bytes

NESTED = {"name": "nested", "keep_ratios": [0.8, 0.6, 0.3]}
ALPHAS = (0.01, 0.1, 1.0)
SYSTEMS: list[dict[str, Any]] = [
    {"name": "status_quo", "scaling": "independent", "scheduling": "status_quo"},
    *(
        {"name": f"{name}-{alpha}", "scaling": NESTED, "scheduling": {"name": scheduler, "alpha": alpha}}
        for name, scheduler in (("total", "nestdnn"), ("exact", "exact"))
        for alpha in ALPHAS
    ),
]
PRUNED: list[dict[str, Any]] = [  # in one layer, only to look at its networks
    {
        "name": f"{ranking}-first",
        "scaling": {**NESTED, "only": 0, "ranking": ranking, "prune_epochs": 0, "grow_epochs": 0},
        "scheduling": "uniform",
    }
    for ranking in ("trr", "l1")
]
WORKLOAD, FLEET, DEVICE, WINDOWS = "two", "one", "device-0000", 6
MEMORY_BYTES, MACS = (10_000, 20_000, 40_000), (100, 300, 900)
LATENCY_MS, ENERGY_J = (10.0, 20.0, 40.0), (0.1, 0.2, 0.4)
ACCURACY = {"nested": (0.6, 0.7, 0.8), "independent": (0.65, 0.75, 0.85)}


def made(*, only: tuple[str, ...] = (), seeds: tuple[int, ...] = (0, 1)) -> Made:
    """Make the tables, of some systems or of all."""
    systems = [system for system in SYSTEMS if not only or system["name"] in only]
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "variants": [], "shares": [], "devices": []}
    for system in systems:
        for seed in seeds:
            for table, rows in rows_of(system, seed).items():
                found[table] += rows
    return Made({"systems": systems}, **found)


def make_run(folder: Path, *, learns: bool = False) -> Path:
    """Write a run folder with networks of which one layer is pruned; half of a share may train."""
    folder.mkdir(parents=True)
    spec = {"name": "sharing", "systems": [*SYSTEMS, *PRUNED]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(stored(spec), sort_keys=False))
    (folder / "run.json").write_text(json.dumps({"started": "2026-01-02T03:04:05Z"}))
    recorder = Recorder(str(folder))
    for system in spec["systems"]:
        for seed in (0, 1):
            rows = {table: [_filled(table, row) for row in rows] for table, rows in rows_of(system, seed).items()}
            if learns:
                rows["shares"] = [{**row, **learning(row)} for row in rows["shares"]]
            if system in PRUNED:
                del rows["shares"]
            recorder.write(_cell(system["name"], seed), rows)
    return folder


def learning(row: dict[str, Any]) -> dict[str, Any]:
    """Make half of each share train; a decision takes 2 ms."""
    return {
        "inference_share": row["inference_share"] / 2,
        "training_share": row["inference_share"] / 2,
        "host_schedule_seconds": 0.002,
    }


def rows_of(system: dict[str, Any], seed: int) -> dict[str, list[dict[str, Any]]]:
    """Make one cell: `a` is there all the time, `b` from the third window to the fifth, or to the end."""
    name, scaling = system["name"], system["scaling"]
    kind = scaling if isinstance(scaling, str) else scaling["name"]
    known = [
        Variant(f"{k + 1}/3", ACCURACY[kind][k], MEMORY_BYTES[k], LATENCY_MS[k] / 1000, ENERGY_J[k], MACS[k])
        for k in range(3)
    ]
    place = {"cell": _cell(name, seed), "device": DEVICE}
    shares, held = [], dict[str, int]()
    for window in range(WINDOWS):
        apps = ("a", "b") if 2 <= window < 5 + seed else ("a",)
        held = {app: network for app, network in held.items() if app in apps}
        for app in apps:
            network = _choice(system, len(apps))
            moved = paged_bytes(known, held.get(app), network, nested=kind == "nested")
            held[app] = network
            shares.append({**place, "app": app, "time_s": float(window), **_share(known[network], len(apps), moved),
                           "variant": network})  # fmt: skip
    run = {"system": name, "scaling": kind, "workload": WORKLOAD, "fleet": FLEET, "seed": seed, "devices": 1}
    return {
        "runs": [{"cell": place["cell"], **run, "status": "done", "student": "tiny_classifier"}],
        "variants": [_variant(place, app, k, one) for app in ("a", "b") for k, one in enumerate(known)],
        "shares": shares,
        "devices": [{**place, "score": None}],
    }


def _cell(system: str, seed: int) -> str:
    return f"{system}/{WORKLOAD}/{FLEET}/seed-{seed}"


def _choice(system: dict[str, Any], apps: int) -> int:
    """Run the middle network, or the smaller one the more lateness weighs."""
    given = system["scheduling"]
    if isinstance(given, str):
        return 1
    return {0.01: 2, 0.1: 3 - apps, 1.0: 0}[given["alpha"]]


def _share(network: Variant, apps: int, moved: tuple[int, int]) -> dict[str, Any]:
    rate = 1 / (apps * network.latency_s)
    return {
        "window_s": 1.0,
        "inference_share": 1 / apps,
        "network": network.name,
        "accuracy": network.accuracy,
        "val_accuracy": network.accuracy,
        "latency_ms": 1000 / rate,
        "fps": 30.0,
        "latency_goal_ms": 50.0,
        "priority": 1.0,
        "memory_bytes": network.memory_bytes,
        "paged_in_bytes": moved[0],
        "paged_out_bytes": moved[1],
        "energy_j": min(30.0, rate) * (network.energy_j or 0.0),
        "paging_s": 0.0,
        "paging_j": 1e-6 * moved[0],
    }


def _variant(place: dict[str, Any], app: str, number: int, one: Variant) -> dict[str, Any]:
    known = {"accuracy": one.accuracy, "val_accuracy": one.accuracy, "memory_bytes": one.memory_bytes}
    cost = {"latency_ms": 1000 * one.latency_s, "energy_j": one.energy_j, "macs": one.macs}
    return {**place, "app": app, "variant": number, "network": one.name, **known, **cost}


def _filled(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Give a row something in every column that may not be empty."""
    kinds = {field.name: field.type for field in TABLES[table] if not field.nullable and field.name != "cell"}
    usual = {name: "" if pa.types.is_string(kind) else 0 for name, kind in kinds.items()}
    return {**usual, **{key: value for key, value in row.items() if key != "cell"}}
