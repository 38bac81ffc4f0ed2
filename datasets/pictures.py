"""Folders of images as streams: one image per frame, in order of file names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames, Times, frame_number
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class PicturesStream:
    """The images of a folder at a given size and rate, repeated from the first after the last."""

    name: str
    folder: Path
    size: tuple[int, int]
    fps: float
    duration_s: float

    has_truth = False
    classes = CLASSES

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """Return the files of the images; raise DataError for a folder without images."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        images = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
        if not images:
            raise DataError(f"Workload '{self.name}' cannot be read: '{self.folder}' holds no PNG or JPEG pictures.")
        return tuple(images)

    def changes_s(self) -> tuple[float, ...]:
        """Return no times: a folder does not record its scene changes."""
        return ()

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Read the images at these times."""
        times = np.asarray(times_s, np.float64)
        images = np.empty((len(times), *self.size, 3), np.uint8)
        for row, time_s in enumerate(times):
            images[row] = self._read(self.paths[frame_number(self, float(time_s)) % len(self.paths)])
        return Frames(times, images, np.zeros(len(times), np.int32))

    def check(self) -> None:
        """Read every image of the stream; raise DataError at an unreadable one."""
        for path in self.paths[: int(np.ceil(self.duration_s * self.fps))]:
            self._read(path)

    def _read(self, path: Path) -> npt.NDArray[np.uint8]:
        image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR_RGB) if path.stat().st_size else None
        if image is None:
            raise DataError(f"Workload '{self.name}': picture {path} cannot be read. Write it again, or take it out.")
        return np.asarray(cv2.resize(image, self.size[::-1], interpolation=cv2.INTER_AREA), np.uint8)
