"""The φ-score: how much a teacher's answer changed from one sampled frame to the next, in [0, 1] for every task.

0 means the same answer, 1 means nothing in common. The paper asks for the task's loss with one answer as prediction and
the other as truth; with hard labels cross-entropy is then 0 or infinite, so each task has a bounded score in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import IGNORE
from driftlab.platform.core.metrics import confusion, f1_boxes, miou

Labels = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def segmentation(now: Labels, before: Labels, classes: int) -> float:
    """Compare label maps by 1 - mIoU over the pixels and classes that both know; 0 where nothing can be compared."""
    known = (now < classes) & (before < classes)
    score = float(miou(confusion(np.where(known, now, 0), np.where(known, before, IGNORE), classes)))
    return 0.0 if np.isnan(score) else 1.0 - score


def soft_segmentation(now: Floats, before: Floats) -> float:
    """Compare probabilities [classes, ...] by the Jensen-Shannon divergence per pixel over its largest value."""
    middle = (now + before) / 2
    divergence = (_relative_entropy(now, middle) + _relative_entropy(before, middle)) / 2
    return float(np.clip(np.mean(divergence) / np.log(2), 0, 1))


def classification(now: int, before: int) -> float:
    """Compare classes: the same or not."""
    return float(now != before)


def soft_classification(now: Floats, before: Floats) -> float:
    """Compare probabilities [classes] by total variation; cross-entropy would not be 0 for equal ones."""
    return float(np.abs(now - before).sum() / 2)


def detection(now: Floats, before: Floats) -> float:
    """Compare boxes (class, x0, y0, x1, y1) by 1 - F1 at an overlap of one half."""
    return 1.0 - f1_boxes(now, before)


def regression(now: Floats, before: Floats, scale: float) -> float:
    """Compare numbers by their mean difference, in units of one that counts as completely different."""
    return float(min(1.0, np.mean(np.abs(now - before)) / scale))


def _relative_entropy(p: Floats, q: Floats) -> Floats:
    """Return the relative entropy along the first axis; 0 log 0 is 0."""
    ratio = np.divide(p, q, out=np.ones(np.shape(p), dtype=np.float64), where=p > 0)
    return np.asarray(np.sum(p * np.log(ratio), axis=0))
