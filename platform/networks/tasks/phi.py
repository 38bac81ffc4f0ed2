"""The φ-score: how much the teacher's answer changed between consecutive samples, in [0, 1] for every task.

0 means equal answers, 1 means disjoint ones. The paper takes the task's loss with one answer as prediction and
the other as truth; with hard labels cross-entropy is then 0 or infinite, so each task uses a bounded score instead.
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
    """Return 1 - mIoU over the pixels and classes that both maps know; 0 where nothing can be compared."""
    known = (now < classes) & (before < classes)
    score = float(miou(confusion(np.where(known, now, 0), np.where(known, before, IGNORE), classes)))
    return 0.0 if np.isnan(score) else 1.0 - score


def classification(now: int, before: int, classes: int) -> float:
    """Return 1 for different classes, else 0; 0 where a class is unknown."""
    return float(now != before and min(now, before) >= 0 and max(now, before) < classes)


def detection(now: Floats, before: Floats) -> float:
    """Return 1 - F1 of two sets of boxes (class, x0, y0, x1, y1) at an overlap of one half."""
    return 1.0 - f1_boxes(now, before)
