"""The built-in experiments as grids of a few seconds: few systems, short streams, hardly any training."""

from __future__ import annotations

import random
from typing import Any

from driftlab.platform.lab.read import Experiment, load, names, parse

MAX_VALUES = {
    **dict.fromkeys(("iterations", "epochs", "batch", "prune_epochs", "grow_epochs", "steps"), 2),
    **dict.fromkeys(("interval_s", "sample_s", "period_s", "every_s"), 2.0),
}
SYSTEMS, DURATION_S, FPS, APPS = 2, 6.0, 2.0, 2


def small(name: str, dice: random.Random) -> Experiment:
    """Shrink a built-in experiment to a few cells, with random systems and a random workload."""
    document = load(name).model_dump(mode="json")
    systems, workloads = document["systems"], document["workloads"]
    document["systems"] = [_reduced(part) for part in dice.sample(systems, min(SYSTEMS, len(systems)))]
    document["workloads"] = [_short(dict(dice.choice(workloads)))]
    document["fleets"] = [_few(dict(dice.choice(document["fleets"])))]
    document["student"] |= {"network": _smallest(document["student"]["network"]), "pretrain_steps": 1}
    document["teacher"] |= {"pretrain_steps": 1}
    return parse(
        {**document, "name": f"small-{name}", "seeds": [0, 1], "snapshots": 1, "bounds": False, "window_s": 2.0}
    )


def any_grid(dice: random.Random) -> str:
    return dice.choice(names())


def _reduced(part: Any) -> Any:
    """Reduce the numbers that cost time, at any depth of a system."""
    if isinstance(part, dict):
        return {
            key: min(value, MAX_VALUES[key])
            if key in MAX_VALUES and isinstance(value, int | float)
            else _reduced(value)
            for key, value in part.items()
        }
    return part


def _short(workload: dict[str, Any]) -> dict[str, Any]:
    size = {side: min(workload[side], 32) for side in ("height", "width")}
    lasting = {"duration_s": min(workload["duration_s"] or DURATION_S, DURATION_S), "fps": min(workload["fps"], FPS)}
    apps = [{**app, "network": app["network"] and _smallest(app["network"])} for app in workload.get("apps", ())[:APPS]]
    return {**workload, **size, **lasting, "apps": apps}


def _few(fleet: dict[str, Any]) -> dict[str, Any]:
    return {**fleet, "devices": [{**part, "count": min(part["count"], 2)} for part in fleet["devices"][:2]]}


def _smallest(network: str) -> str:
    return {"tiny": "half", "small": "half", "teacher": "half"}.get(network, network.replace("wide_", "tiny_"))
