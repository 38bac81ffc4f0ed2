"""ElasticDNN's estimator of a surrogate's accuracy before and after retraining, with calibration.

A small network predicts both accuracies O = (A, A~) from I: the remodelling ratio s, the domain distance dis_0,k, and
the mean features of both domains. It is trained on domains made of labelled source data. On the device, the average
with accuracies observed in similar earlier domains calibrates each prediction (Equations 5 to 7).

Differs from the paper, which defines neither the distance nor the network nor the missing observations: distances are
divided by their median before they are inverted, and an accuracy that was observed at one size corrects every size by
the same difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]
Distance = Literal["l2mean", "gauss_w2", "sym_kl"]
COMPONENTS = 16  # of the features
HIDDEN = (64, 32)
EPSILON = 0.05  # smallest distance, in units of the median
RATE, DECAY = 1e-3, 1e-4  # of Adam
FLOOR = 1e-4  # of the median variance, below which no variance counts


@dataclass(frozen=True, eq=False)
class DomainSummary:
    """The features of a domain's samples by the source network: their mean and biased variance."""

    mean: Floats
    variance: Floats


def summarise(features: npt.NDArray[np.floating]) -> DomainSummary:
    """Summarise features [samples, d]."""
    found = np.asarray(features, dtype=np.float64)
    return DomainSummary(found.mean(axis=0), found.var(axis=0))


def distance(one: DomainSummary, other: DomainSummary, source: DomainSummary, kind: Distance = "l2mean") -> float:
    """Return the distance between two domains; `source` scales l2mean."""
    apart = np.linalg.norm(one.mean - other.mean)
    if kind == "l2mean":
        return float(apart / np.sqrt(source.variance.mean()))
    if kind == "gauss_w2":
        return float(np.hypot(apart, np.linalg.norm(np.sqrt(one.variance) - np.sqrt(other.variance))))
    floor = FLOOR * np.median(source.variance)
    a, b = np.maximum(one.variance, floor), np.maximum(other.variance, floor)
    squared = (one.mean - other.mean) ** 2
    return float(np.mean((a + squared) / (2 * b) + (b + squared) / (2 * a) - 1))


@dataclass(frozen=True, eq=False)
class Projection:
    """The principal components of the source's features; the largest entry of each is positive."""

    mean: Floats
    axes: Floats  # [components, d]

    def __call__(self, features: Floats) -> Floats:
        """Project one mean; components that the source does not have are 0."""
        found = np.zeros(COMPONENTS)
        found[: len(self.axes)] = self.axes @ (features - self.mean)
        return found


def fit_projection(features: npt.NDArray[np.floating]) -> Projection:
    """Fit the components to features of the source."""
    found = np.asarray(features, dtype=np.float64)
    mean = found.mean(axis=0)
    axes = np.linalg.svd(found - mean, full_matrices=False)[2][:COMPONENTS]
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    return Projection(mean, axes * signs[:, None])


def describe(size: float, here: DomainSummary, source: DomainSummary, projection: Projection) -> Floats:
    """Return the estimator's input I: size s, distance dis_0,k to the source, and both means."""
    facts = [size, distance(source, here, source)]
    return np.concatenate([facts, projection(source.mean), projection(here.mean)])


@dataclass(frozen=True, eq=False)
class Estimator:
    """Predicts the accuracy before and after retraining."""

    weights: tuple[Floats, ...]  # a matrix and a shift per layer
    mean: Floats
    deviation: Floats
    errors: tuple[float, float] = (float("nan"), float("nan"))  # mean absolute, on domains apart: before and after

    def __call__(self, inputs: Floats) -> Floats:
        """Return both accuracies for each row of inputs."""
        made = (np.atleast_2d(inputs) - self.mean) / self.deviation
        for place in range(0, len(self.weights), 2):
            made = made @ self.weights[place].T + self.weights[place + 1]
            made = np.maximum(made, 0) if place + 2 < len(self.weights) else 1 / (1 + np.exp(-made))
        return np.asarray(made, dtype=np.float64)


def fit_estimator(
    inputs: Floats, accuracies: Floats, domains: Sequence[int], seed: int = 0, epochs: int = 500
) -> Estimator:
    """Fit an estimator; a held-out fifth of several domains ends the fit and gives its errors."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(np.unique(domains))
    apart = np.isin(domains, numbers[: max(1, round(len(numbers) / 5))])
    fitted = ~apart if len(numbers) > 1 else apart
    mean, deviation = inputs[fitted].mean(axis=0), inputs[fitted].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    rows = (inputs - mean) / deviation
    best = _descend(rows, accuracies, (apart, fitted), seed, epochs)
    made = Estimator(best, mean, deviation)
    errors = np.abs(made(inputs[apart]) - accuracies[apart]).mean(axis=0)
    return Estimator(best, mean, deviation, (float(errors[0]), float(errors[1])))


def _descend(rows: Floats, wanted: Floats, parts: tuple[Marks, Marks], seed: int, epochs: int) -> tuple[Floats, ...]:
    """Train the network by Adam on the second part of the rows, to the smallest error on the first."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from driftlab.platform.networks.training.descent import Adam, Descent
    from driftlab.platform.networks.vector import bind_vector, read

    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise((rows.shape[1], *HIDDEN, 2))]
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.Sigmoid())
    data, goal = (torch.from_numpy(given.astype(np.float32)) for given in (rows, wanted))
    out, use = map(torch.from_numpy, parts)
    best, kept = float("inf"), read(network)
    with bind_vector(network) as flat:
        still = np.zeros(flat.layout.size, dtype=np.float32)
        walk = Descent(Adam(RATE), flat.weights, (still, still.copy()), 0)
        for _ in range(epochs):
            made: Tensor = network(data)
            error = float(F.mse_loss(made.detach()[out], goal[out]))
            if error < best:
                best, kept = error, flat.weights.numpy().copy()
            flat.gradients.zero_()
            torch.autograd.backward(F.mse_loss(made[use], goal[use]))
            walk.step(flat.gradients.add_(flat.weights, alpha=DECAY))
        layout = flat.layout
    named = zip(layout.names, layout.shapes, strict=True)
    return tuple(kept[layout.spans[name]].reshape(shape).astype(np.float64) for name, shape in named)


@dataclass(frozen=True)
class Observation:
    """Observations of an earlier domain: distance to the present one, accuracies at the size that ran."""

    distance: float
    before: float
    after: float
    predicted: tuple[float, float] | None = None  # for that size, without calibration; None: taken as they are


def similarity(distances: Sequence[float], *, scaled: bool = True) -> Floats:
    """Return the weights sigma of earlier domains: softmax of inverse distances (Equation 5)."""
    found = np.asarray(distances, dtype=np.float64)
    unit = float(np.median(found)) if scaled else 1.0
    inverse = 1 / np.maximum(found / (unit or 1.0), EPSILON)
    weights = np.exp(inverse - inverse.max())
    return np.asarray(weights / weights.sum())


def calibrate(predicted: Floats, seen: Sequence[Observation], *, scaled: bool = True) -> Floats:
    """Average predictions [sizes, 2] with observations of earlier domains (Equations 6 and 7).

    An observation with a prediction moves every size by half of the difference between the two.
    """
    if not seen:
        return predicted
    weights = similarity([one.distance for one in seen], scaled=scaled)
    moved = np.zeros_like(predicted)
    for weight, one in zip(weights, seen, strict=True):
        observed = np.array([one.before, one.after])
        moved += weight * (observed - (predicted if one.predicted is None else np.array(one.predicted)))
    return np.clip(predicted + moved / 2, 0.0, 1.0)


def confident_share(outputs: npt.NDArray[np.floating], threshold: float) -> float:
    """Return the share of predictions above a confidence: the accuracy that is monitored without labels."""
    return float((np.asarray(outputs).max(axis=1) > threshold).mean())


def fit_threshold(confidences: npt.NDArray[np.floating], accuracy: float) -> float:
    """Return the confidence that as large a share of the source exceeds as is correct."""
    return float(np.quantile(confidences, 1 - accuracy))
