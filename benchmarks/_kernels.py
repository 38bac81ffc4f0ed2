"""Predict the latency of a network from the measured times of its kernels, as nn-Meter does.

Kernels are the operators that the dispatcher runs, including those without a module: additions, gates and joined
channels. The logarithm of a kernel's time is a quadratic form of the logarithms of its shape, one form for each kind,
fitted by ridge regression. The time of a network is the sum of its convolutions and the sum of its other kernels, each
times a factor, plus a constant per kernel for the time between kernels. These three are fitted to whole networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Floats = npt.NDArray[np.float64]
RIDGE = 1e-3
FREE = ("empty", "alias", "view", "t.", "detach", "expand", "unsqueeze", "_unsafe_view", "slice", "permute")


@dataclass(frozen=True)
class Kernel:
    """One operator with the sizes that its time depends on."""

    kind: str
    sizes: tuple[float, ...]

    @property
    def convolves(self) -> bool:
        return self.kind.startswith("convolution")

    @property
    def features(self) -> Floats:
        """Return the terms of the quadratic form."""
        logs = np.log1p(self.sizes) / 10
        return np.concatenate([[1.0], logs, [a * b for i, a in enumerate(logs) for b in logs[i:]]])


class _Trace(TorchDispatchMode):
    """Record each operator that runs, except those that only create a view of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not name.startswith(FREE):
            self.found.append(_kernel(name.partition(".")[0], args, made[0] if isinstance(made, tuple) else made))
        return made


def _kernel(name: str, args: tuple[Any, ...], made: torch.Tensor) -> Kernel:
    if name == "convolution":
        weight = args[1]
        outputs, inputs, height, width = weight.shape
        kind = "depthwise" if inputs == 1 and outputs > 1 and args[8] > 1 else f"{height}x{width}"
        kind += "/grouped" if args[8] > 1 and inputs > 1 else ""
        places = made.shape[-2] * made.shape[-1]
        macs = places * weight.numel()
        return Kernel(f"convolution {kind}", (macs, places, inputs, outputs, max(args[3])))
    given = args[0][0] if isinstance(args[0], list | tuple) else args[0]
    return Kernel(name, (given.numel(), made.numel(), made.shape[1]))


def kernels_of(module: nn.Module, *given: torch.Tensor) -> list[Kernel]:
    """Return the kernels that a module runs on an input."""
    with torch.no_grad(), _Trace() as trace:
        module.eval()(*given)
    return trace.found


@dataclass(frozen=True)
class KernelModel:
    """Fitted forms by kind, and how whole networks differ from the sum of their kernels."""

    forms: Mapping[str, Floats]
    factors: tuple[float, float] = (1.0, 1.0)  # of convolutions, and of all other kernels
    between_s: float = 0.0  # for each kernel

    @classmethod
    def fit(cls, measured: Sequence[tuple[Kernel, float]]) -> KernelModel:
        """Fit a form for each kind of kernel to its times in seconds."""
        forms = {}
        for kind in {kernel.kind for kernel, _ in measured}:
            rows = [(kernel.features, np.log(time_s)) for kernel, time_s in measured if kernel.kind == kind]
            x, y = np.array([row for row, _ in rows]), np.array([time for _, time in rows])
            forms[kind] = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
        return cls(forms)

    def kernel_s(self, kernel: Kernel) -> float:
        """Predict the time of one kernel; a kind that was not measured takes no time."""
        form = self.forms.get(kernel.kind)
        return 0.0 if form is None else float(np.exp(kernel.features @ form))

    def sums(self, kernels: Sequence[Kernel]) -> tuple[float, float, float]:
        """Return the times of the convolutions and of the other kernels, and the number of kernels."""
        parts = [
            sum(self.kernel_s(one) for one in kernels if one.convolves is convolves) for convolves in (True, False)
        ]
        return parts[0], parts[1], float(len(kernels))

    def fitted_to(self, networks: Sequence[tuple[Sequence[Kernel], float]]) -> KernelModel:
        """Return a model whose factors and constant fit whole networks by relative errors."""
        x, times = np.array([self.sums(kernels) for kernels, _ in networks]), np.array([time for _, time in networks])
        found = nnls(x / times[:, None], np.ones(len(times)))[0]
        return KernelModel(self.forms, (float(found[0]), float(found[1])), float(found[2]))

    def predict(self, kernels: Sequence[Kernel]) -> float:
        """Return the predicted seconds of a network on one image."""
        return float(np.dot(self.sums(kernels), (*self.factors, self.between_s)))
