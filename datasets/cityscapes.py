"""Folders in the layout of Cityscapes as streams: validation images with label maps, city by city."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import IGNORE, Frames, Times, frame_number
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError

Pixels = npt.NDArray[np.uint8]
IMAGES, LABELS = ("leftImg8bit", "_leftImg8bit.png"), ("gtFine", "_gtFine_labelIds.png")
_PART = "val"
_CLASS_OF = {  # by the number in Cityscapes; its other classes are ignored
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "building",  # wall
    13: "building",  # fence
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "person",  # rider
    26: "car",
    27: "car",  # truck
    28: "car",  # bus
}


def _table() -> Pixels:
    """Return the class in the street workloads for each number in Cityscapes."""
    table = np.full(256, IGNORE, np.uint8)
    for number, name in _CLASS_OF.items():
        table[number] = CLASSES.index(name)
    return table


@dataclass(frozen=True)
class CityscapesStream:
    """The images of a folder at a given size and rate, repeated from the first after the last."""

    name: str
    folder: Path
    size: tuple[int, int]
    fps: float
    duration_s: float

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes of the street workloads, so that their networks can be used."""
        return CLASSES

    @property
    def has_truth(self) -> bool:
        return True

    @cached_property
    def pictures(self) -> tuple[tuple[Path, Path, int], ...]:
        """Return each image with its label map and the number of its city."""
        root = self.folder / IMAGES[0] / _PART
        cities = sorted(part for part in root.iterdir() if part.is_dir()) if root.is_dir() else []
        listed = []
        for number, city in enumerate(cities):
            for image in sorted(city.glob(f"*{IMAGES[1]}")):
                stem = image.name.removesuffix(IMAGES[1])
                listed.append((image, self.folder / LABELS[0] / _PART / city.name / f"{stem}{LABELS[1]}", number))
        missing = [labels for _, labels, _ in listed if not labels.is_file()]
        if missing or not listed:
            raise DataError(
                f"Workload '{self.name}' cannot be read: there is no {missing[0] if missing else root / 'CITY'}. In "
                f"'cityscapes:FOLDER' FOLDER holds {IMAGES[0]}/{_PART}/CITY/NAME{IMAGES[1]} and "
                f"{LABELS[0]}/{_PART}/CITY/NAME{LABELS[1]}."
            )
        return tuple(listed)

    def changes_s(self) -> tuple[float, ...]:
        """Return the times at which the city changes."""
        cities = [city for _, _, city in self.pictures]
        frames = int(np.ceil(self.duration_s * self.fps - 1e-9))
        starts = (k for k in range(1, frames) if cities[k % len(cities)] != cities[(k - 1) % len(cities)])
        return tuple(start / self.fps for start in starts)

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Read the frames shown at these times."""
        times = np.asarray(times_s, np.float64)
        shown = [self.pictures[frame_number(self, float(time_s)) % len(self.pictures)] for time_s in times]
        images = np.empty((len(times), *self.size, 3), np.uint8)
        labels = np.empty((len(times), *self.size), np.uint8)
        for row, (image, truth, _) in enumerate(shown):
            images[row] = self._read(image, cv2.IMREAD_COLOR_RGB, cv2.INTER_AREA)
            labels[row] = _table()[self._read(truth, cv2.IMREAD_GRAYSCALE, cv2.INTER_NEAREST)]
        return Frames(times, images, np.array([city for _, _, city in shown], np.int32), labels)

    def _read(self, path: Path, mode: int, interpolation: int) -> Pixels:
        image = cv2.imdecode(np.fromfile(path, np.uint8), mode) if path.stat().st_size else None
        if image is None:
            raise DataError(f"Workload '{self.name}': picture {path} cannot be read. Write it again, or take it out.")
        return np.asarray(cv2.resize(image, self.size[::-1], interpolation=interpolation), np.uint8)
