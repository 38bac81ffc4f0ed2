"""The predictor of latencies, on times that follow a law."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._kernels import KernelModel
from driftlab.platform.core.records import LayerCost, ModelCost

LAWS = {"Conv2d": (2e-9, 5e-6), "BatchNorm2d": (1e-9, 2e-6)}  # seconds per operation and byte, and of a call


def layers(count: int, seed: int) -> list[LayerCost]:
    """Draw convolutions and batch norms."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        outputs, reads = int(2 ** rng.uniform(6, 16)), int(2 ** rng.uniform(4, 10))
        if rng.random() < 0.3:
            found.append(LayerCost("n", "BatchNorm2d", 0, 8, 4 * outputs, 4 * outputs, 32))
        else:
            found.append(LayerCost("c", "Conv2d", outputs * reads, reads, 4 * outputs, 4 * outputs, 4 * reads))
    return found


def law_s(layer: LayerCost) -> float:
    per, call = LAWS[layer.kind]
    return per * (layer.macs / 10 + layer.output_bytes) + call


def cost(parts: list[LayerCost]) -> ModelCost:
    return ModelCost(0, 0, 0, 0, tuple(parts))


def test_networks_of_kernels_that_were_never_measured_are_predicted():
    model = KernelModel.fit([(layer, law_s(layer)) for layer in layers(400, 0)])
    network_s = {seed: 1.3 * sum(map(law_s, layers(20, seed))) + 20 * 3e-6 for seed in range(1, 31)}
    model = model.fitted_to([(cost(layers(20, seed)), network_s[seed]) for seed in range(1, 16)])
    errors = [abs(model.predict(cost(layers(20, seed))) / network_s[seed] - 1) for seed in range(16, 31)]
    assert np.median(errors) < 0.1
    assert model.predict(cost([LayerCost("x", "Unknown", 1, 1, 1, 1, 1)])) == pytest.approx(model.layer_s)
