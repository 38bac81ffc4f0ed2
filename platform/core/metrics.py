"""Scores of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import IGNORE

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]  # any integer type
EDGE_S = 1e-9  # a frame shown exactly window_s ago lies outside the window, whatever the rounding of k / fps


def confusions(predictions: Labels, truths: Labels, classes: int) -> Counts:
    """Count per frame how often truth [row] was predicted as [column]: [n, classes, classes + 1].

    The last column counts the pixels whose prediction is `IGNORE`: nothing was predicted there.
    """
    if predictions.shape != truths.shape:
        raise ValueError(f"predictions are {predictions.shape}, truths are {truths.shape}")
    if classes > IGNORE:
        raise ValueError(f"{classes} classes do not go with the label {IGNORE} for unknown pixels")
    frames = len(truths)
    predicted = predictions.reshape(frames, -1).astype(np.int64)
    true = truths.reshape(frames, -1).astype(np.int64)
    counted = true != IGNORE
    if np.any((true[counted] < 0) | (true[counted] >= classes)):
        raise ValueError(f"truth holds a class outside 0..{classes - 1} that is not {IGNORE}")
    named = counted & (predicted != IGNORE)
    if np.any((predicted[named] < 0) | (predicted[named] >= classes)):
        raise ValueError(f"prediction holds a class outside 0..{classes - 1} that is not {IGNORE}")
    columns = classes + 1
    predicted[counted & ~named] = classes
    cell = (np.arange(frames)[:, None] * classes + true) * columns + predicted
    counts = np.bincount(cell[counted], minlength=frames * classes * columns)
    return np.asarray(counts, dtype=np.int64).reshape(frames, classes, columns)


def confusion(prediction: Labels, truth: Labels, classes: int) -> Counts:
    """Count over all pixels given how often truth [row] was taken for prediction [column]."""
    matrix: Counts = confusions(prediction[None], truth[None], classes)[0]
    return matrix


def iou(matrices: Counts) -> Floats:
    """Return IoU per class [row], NaN for a class in neither truth nor prediction: [..., classes]."""
    hit = np.diagonal(matrices, axis1=-2, axis2=-1).astype(np.float64)
    union = matrices.sum(axis=-1) + matrices.sum(axis=-2)[..., : matrices.shape[-2]] - hit
    return ratio(hit, union)


def miou(matrices: Counts) -> Floats:
    """Average IoU over the classes that occur, NaN if none does; one number per matrix: [...]."""
    values = iou(matrices)
    occurring = np.isfinite(values).sum(axis=-1)
    total = np.nansum(values, axis=-1)
    return ratio(total, occurring)


def pixel_accuracy(matrices: Counts) -> Floats:
    """Return the share of counted pixels that were right; NaN where nothing was counted."""
    right = np.trace(matrices, axis1=-2, axis2=-1).astype(np.float64)
    counted = matrices.sum(axis=(-2, -1))
    return ratio(right, counted)


def ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> Floats:
    """Divide, and say NaN where there is nothing to divide by."""
    empty: Floats = np.full(np.shape(part), np.nan)
    return np.asarray(np.divide(part, whole, out=empty, where=whole > 0))


def windowed(counts: Counts, times_s: Floats, window_s: float) -> Counts:
    """Sum for each frame the counts of the frames shown in the window_s that end with it; times must rise."""
    times = np.asarray(times_s, dtype=np.float64)
    if np.any(np.diff(times) < 0):
        raise ValueError("frame times must rise")
    running = np.concatenate([np.zeros_like(counts[:1]), np.cumsum(counts, axis=0)])
    first = np.searchsorted(times, times - window_s + EDGE_S, side="right")
    first = np.minimum(first, np.arange(len(times)))  # a window shorter than a frame still holds the frame itself
    summed: Counts = running[1:] - running[first]
    return summed


def f1_boxes(predicted: npt.NDArray[Any], truth: npt.NDArray[Any], threshold: float = 0.5) -> float:
    """Match boxes of the same class one to one, best score first; return F1, 1 without any boxes.

    A box is (class, x0, y0, x1, y1) and, for a prediction, optionally its score; without scores the order given counts.
    """
    if len(predicted) == 0 and len(truth) == 0:
        return 1.0
    return 2 * hits(predicted, truth, threshold) / (len(predicted) + len(truth))


def hits(predicted: npt.NDArray[Any], truth: npt.NDArray[Any], threshold: float = 0.5) -> int:
    """Count the boxes that find one of their class in the same matching."""
    if len(predicted) == 0 or len(truth) == 0:
        return 0
    order = np.argsort(-predicted[:, 5], kind="stable") if predicted.shape[1] > 5 else np.arange(len(predicted))
    overlap = _box_iou(predicted[order, 1:5], truth[:, 1:5])
    overlap[predicted[order, 0][:, None] != truth[None, :, 0]] = -1.0
    matched = 0
    for row in overlap:
        best = int(np.argmax(row))
        if row[best] >= threshold:
            matched += 1
            overlap[:, best] = -1.0  # taken
    return matched


def _box_iou(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Floats:
    corner_low = np.maximum(a[:, None, :2], b[None, :, :2])
    corner_high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.clip(corner_high - corner_low, 0, None), axis=-1, dtype=np.float64)
    area_a = np.prod(a[:, 2:] - a[:, :2], axis=-1, dtype=np.float64)
    area_b = np.prod(b[:, 2:] - b[:, :2], axis=-1, dtype=np.float64)
    union = area_a[:, None] + area_b[None, :] - shared
    return np.nan_to_num(ratio(shared, union))  # a box without area overlaps nothing


def kbps(size_bytes: float, seconds: float) -> float:
    """Return kilobits of 1 000 bits per second of video."""
    return size_bytes * 8 / 1000 / seconds
