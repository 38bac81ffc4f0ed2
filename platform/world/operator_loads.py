"""Sensitivity of networks to the load of other programs, by their operators.

`operator_loads.json` has the sensitivities that `benchmarks/operator_loads.py` measured, with its machine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from driftlab.platform.core.records import LayerCost, ModelCost, Sensitivity
from driftlab.platform.world.cost import layer_s
from driftlab.platform.world.hardware import Hardware

MEASURED = Path(__file__).with_suffix(".json")
PLAIN = "base"  # layers of no operator


@functools.cache
def sensitivities() -> Mapping[str, Sensitivity]:
    """Return the measured sensitivity of each operator."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))["operators"]
    return {name: Sensitivity(**own) for name, own in found.items()}


def sensitivity_of(cost: ModelCost, operators: Mapping[str, str], hardware: Hardware) -> Sensitivity:
    """Return the sensitivity of a network.

    It is the mean of its layers' sensitivities, weighted by their time on the idle hardware.
    """
    measured = sensitivities()
    if not operators or not cost.layers:
        return measured[PLAIN]
    layers = [
        (layer_s(layer, hardware), measured.get(_operator(layer, operators), measured[PLAIN])) for layer in cost.layers
    ]
    whole_s = sum(seconds for seconds, _ in layers)
    cpu, memory = (sum(s * getattr(one, load) for s, one in layers) / whole_s for load in ("cpu", "memory"))
    return Sensitivity(cpu, memory)


def _operator(layer: LayerCost, operators: Mapping[str, str]) -> str:
    """Return the operator of a layer."""
    return next((name for start, name in operators.items() if layer.name.startswith(start)), PLAIN)
