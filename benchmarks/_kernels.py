"""Predict the latency of a network from that of its kernels (as nn-Meter does): fitted to kernels measured one by one.

The logarithm of a kernel's time is a quadratic form of the logarithms of its operations and bytes, one form for each
kind of layer, fitted by ridge regression. A network takes the sum of its kernels, times a factor, and a constant for
each layer: what lies between layers. Factor and constant are fitted to whole networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from driftlab.platform.core.records import LayerCost, ModelCost

Floats = npt.NDArray[np.float64]
RIDGE = 1e-3
FEW_MACS = 10  # of an output: a convolution with fewer is depthwise


def kind_of(layer: LayerCost) -> str:
    """Name the kind of a kernel; depthwise convolutions are one of their own."""
    if layer.kind == "Conv2d" and layer.macs <= FEW_MACS * layer.output_bytes / 4:
        return "depthwise"
    return layer.kind


def features(layer: LayerCost) -> Floats:
    """Return the terms of the quadratic form."""
    logs = np.log1p([layer.macs, layer.input_bytes, layer.output_bytes, layer.weight_bytes]) / 10
    return np.concatenate([[1.0], logs, [a * b for i, a in enumerate(logs) for b in logs[i:]]])


@dataclass(frozen=True)
class KernelModel:
    """Fitted forms, by kind, and what whole networks add to the sum of their kernels."""

    forms: Mapping[str, Floats]
    factor: float = 1.0
    layer_s: float = 0.0

    @classmethod
    def fit(cls, measured: Sequence[tuple[LayerCost, float]]) -> KernelModel:
        """Fit a form for each kind of kernel to its times in seconds."""
        forms = {}
        for kind in {kind_of(layer) for layer, _ in measured}:
            rows = [(features(layer), np.log(time_s)) for layer, time_s in measured if kind_of(layer) == kind]
            x, y = np.array([row for row, _ in rows]), np.array([time for _, time in rows])
            forms[kind] = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
        return cls(forms)

    def kernel_s(self, layer: LayerCost) -> float:
        """Predict one kernel; kinds that were not measured take no time of their own."""
        form = self.forms.get(kind_of(layer))
        return 0.0 if form is None else float(np.exp(features(layer) @ form))

    def fitted_to(self, networks: Sequence[tuple[ModelCost, float]]) -> KernelModel:
        """Fit factor and constant to whole networks, by relative errors."""
        x = np.array([[sum(map(self.kernel_s, cost.layers)), len(cost.layers)] for cost, _ in networks])
        times = np.array([time_s for _, time_s in networks])
        found = nnls(x / times[:, None], np.ones(len(times)))[0]
        return KernelModel(self.forms, float(found[0]), float(found[1]))

    def predict(self, cost: ModelCost) -> float:
        """Predict a network for one picture, in seconds."""
        return self.factor * sum(map(self.kernel_s, cost.layers)) + self.layer_s * len(cost.layers)
