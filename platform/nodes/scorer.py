"""Scores predictions against the truth, frame by frame and over the last seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.metrics import confusions, miou, pixel_accuracy, windowed

Labels = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
WINDOW_S = 10.0  # the score of a frame is the mIoU of all pixels of the last ten seconds


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of one batch of frames."""

    miou_frame: Floats
    miou_window: Floats
    pixel_accuracy: Floats
    matrix: Counts  # over the whole batch


@dataclass
class Scorer:
    """Remembers the confusion matrices of the last seconds."""

    classes: int
    _times_s: Floats = field(default_factory=lambda: np.empty(0))
    _matrices: Counts | None = None

    def score(self, times_s: Floats, predicted: Labels, truth: Labels) -> Scores:
        """Score frames that follow those scored before."""
        matrices = confusions(predicted, truth, self.classes)
        before = self._remember(times_s, matrices)
        assert self._matrices is not None
        return Scores(
            miou_frame=miou(matrices),
            miou_window=windowed(self._matrices, self._times_s, WINDOW_S)[before:],
            pixel_accuracy=pixel_accuracy(matrices),
            matrix=matrices.sum(axis=0),
        )

    def _remember(self, times_s: Floats, matrices: Counts) -> int:
        """Add frames to the memory, drop those that no window will need again, and tell how many came before."""
        if self._matrices is None:
            self._times_s, self._matrices = times_s, matrices
            return 0
        kept = self._times_s > times_s[0] - WINDOW_S
        self._times_s = np.concatenate([self._times_s[kept], times_s])
        self._matrices = np.concatenate([self._matrices[kept], matrices])
        return int(kept.sum())
