"""The predictor of latencies, on times that follow a law."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._kernels import Kernel, KernelModel

LAWS = {"convolution 3x3": (2e-9, 5e-6), "add": (1e-9, 2e-6)}  # seconds for each unit of the first size, and of a call


def kernels(count: int, seed: int) -> list[Kernel]:
    """Draw convolutions and additions."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        elements, reads = int(2 ** rng.uniform(6, 16)), int(2 ** rng.uniform(4, 10))
        adds = rng.random() < 0.3
        kind, size = ("add", elements) if adds else ("convolution 3x3", elements * reads / 10)
        found.append(Kernel(kind, (size, elements, reads)))
    return found


def law_s(kernel: Kernel) -> float:
    each, call = LAWS[kernel.kind]
    return each * kernel.sizes[0] + call


def test_networks_of_kernels_that_were_never_measured_are_predicted():
    model = KernelModel.fit([(kernel, law_s(kernel)) for kernel in kernels(400, 0)])
    network_s = {seed: 1.3 * sum(map(law_s, kernels(20, seed))) + 20 * 3e-6 for seed in range(1, 31)}
    model = model.fitted_to([(kernels(20, seed), network_s[seed]) for seed in range(1, 16)])
    errors = [abs(model.predict(kernels(20, seed)) / network_s[seed] - 1) for seed in range(16, 31)]
    assert np.median(errors) < 0.1
    assert model.predict([Kernel("unheard of", (1.0, 1.0, 1.0))]) == pytest.approx(model.between_s)
