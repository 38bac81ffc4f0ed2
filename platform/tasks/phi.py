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


def classification(now: int, before: int, classes: int) -> float:
    """Compare classes: the same or not; 0 where one is not known."""
    return float(now != before and min(now, before) >= 0 and max(now, before) < classes)


def detection(now: Floats, before: Floats) -> float:
    """Compare boxes (class, x0, y0, x1, y1) by 1 - F1 at an overlap of one half."""
    return 1.0 - f1_boxes(now, before)
