"""Learning curves: the accuracy after more epochs, from a few epochs of a trial (the micro-profiler of Ekya).

The curve is a(x) = 1 - (1 / (b0 x + b1) + b2). A seed through the start and a usual end is bent by the measured points.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
END = 0.95  # accuracy of the seed at its end
SEEDS = 4  # equally spaced points of the seed in the last fit


def curve(epochs: npt.ArrayLike, b0: float, b1: float, b2: float) -> Floats:
    """Return the accuracy after so many epochs."""
    found: Floats = 1 - (1 / (b0 * np.asarray(epochs, np.float64) + b1) + b2)
    return found


def predict_accuracy(
    start: float, measured: Sequence[tuple[float, float]], at: Sequence[float], end: float = END, epochs: float = 30
) -> Floats:
    """Predict the accuracy after each of `at` epochs from measured (epochs, accuracy).

    Three parameters on two points leave the seed open, so the method and the start of its fit are part of the result. A
    fit that fails, as it usually does where the measured points lie below the start, predicts the start.
    """
    constant: Floats = np.full(len(at), start, np.float64)
    points, values = np.array(measured, np.float64).reshape(-1, 2).T
    seed = _fit([0.0, epochs], [start, end])
    if seed is None or not len(points) or not np.isfinite(values).all():
        return constant
    factor = min(1.0, float(np.mean(values / (curve(points, *seed) * end))))
    bent = _fit([0.0, epochs], [start, factor * end])
    if bent is None:
        return constant
    seeds = np.linspace(0, epochs, SEEDS)  # its ends count twice
    x = np.concatenate([seeds, [0.0, epochs], points])
    last = _fit(x, np.concatenate([curve(seeds, *bent), [start, factor * end], values]))
    found = constant if last is None else curve(at, *last)
    return found if np.isfinite(found).all() else constant


def _fit(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats | None:
    from scipy.optimize import OptimizeWarning, curve_fit

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            found: Floats = curve_fit(curve, np.asarray(x), np.asarray(y), p0=(1.0, 1.0, 1.0), method="dogbox")[0]
        except (RuntimeError, ValueError, TypeError):
            return None
    return found
