"""Driving pictures with label maps as streams: Cityscapes, ACDC and SHIFT in their layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from driftlab.datasets.boxes import FAULTS, frames_of, of_scalabel
from driftlab.datasets.frames import IGNORE, Frames, Times, frame_number
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError, first_line

Pixels = npt.NDArray[np.uint8]
Boxes = npt.NDArray[np.float32]
IMAGES, LABELS = ("leftImg8bit", "_leftImg8bit.png"), ("gtFine", "_gtFine_labelIds.png")
PARTS = ("train", "val")
CONDITIONS = ("fog", "night", "rain", "snow")  # of ACDC, in the order of CoTTA's protocol
SHOWN = 5  # missing files that are named
_CITYSCAPES = {  # numbers of each class of the streets; the other classes are ignored
    "road": (7,),
    "sidewalk": (8,),
    "building": (11, 12, 13),  # with wall and fence
    "vegetation": (21,),
    "terrain": (22,),
    "sky": (23,),
    "person": (24, 25),  # with rider
    "car": (26, 27, 28),  # with truck and bus
}
_SHIFT = {  # numbers of the CARLA simulator
    "road": (6, 7),  # with the lines on it
    "sidewalk": (8,),
    "building": (1, 2, 11),
    "vegetation": (9,),
    "terrain": (14, 22),
    "sky": (13,),
    "person": (4,),
    "car": (10,),
}
_SHIFT_BOXES = {"person": "person", "car": "car", "truck": "car", "bus": "car"}


class DrivingPicture(NamedTuple):
    """An image with its label map, the number of its scene, and its boxes in pixels of the image."""

    image: Path
    labels: Path
    scene: int
    boxes: Boxes | None = None


@dataclass(frozen=True)
class ArchiveLayout:
    """An archive's files: a function that lists its pictures, and the classes of its label maps."""

    name: str
    files: str  # for messages
    pictures: Callable[[Path], list[DrivingPicture]]
    classes: Mapping[str, tuple[int, ...]]

    @property
    def table(self) -> Pixels:
        """Return the class of the streets for each number of a label map."""
        table = np.full(256, IGNORE, np.uint8)
        for name, numbers in self.classes.items():
            table[list(numbers)] = CLASSES.index(name)
        return table


def _part_of(folder: Path) -> tuple[Path, str]:
    """Split FOLDER/train into the archive and its part; without a part, the validation pictures."""
    return (folder.parent, folder.name) if folder.name in PARTS else (folder, "val")


def _cityscapes(folder: Path) -> list[DrivingPicture]:
    """List the pictures city by city."""
    root, part = _part_of(folder)
    cities = sorted(one for one in (root / IMAGES[0] / part).glob("*") if one.is_dir())
    return [
        DrivingPicture(image, _label_file(image, root, (IMAGES, LABELS)), number)
        for number, city in enumerate(cities)
        for image in sorted(city.glob(f"*{IMAGES[1]}"))
    ]


def _acdc(folder: Path) -> list[DrivingPicture]:
    """List the pictures condition by condition."""
    root, part = _part_of(folder)
    images, labels = ("rgb_anon", "_rgb_anon.png"), ("gt", "_gt_labelIds.png")
    return [
        DrivingPicture(image, _label_file(image, root, (images, labels)), number)
        for number, condition in enumerate(CONDITIONS)
        for image in sorted((root / images[0] / condition / part).glob(f"*/*{images[1]}"))
    ]


def _label_file(image: Path, root: Path, names: tuple[tuple[str, str], tuple[str, str]]) -> Path:
    """Return the label map of an image: another folder below the root, and another end of the name."""
    (folder, end), (other, other_end) = names
    return root / other / image.relative_to(root / folder).with_name(image.name.removesuffix(end) + other_end)


def _shift(folder: Path) -> list[DrivingPicture]:
    """List the frames of a view, sequence after sequence; a scene is a weather at a time of day."""
    file = folder / "det_2d.json"
    frames = sorted(frames_of(json.loads(file.read_text())), key=lambda one: (one["videoName"], one["name"]))
    shifts = [
        tuple((one.get("attributes") or {}).get(key) for key in ("weather_coarse", "timeofday_coarse"))
        for one in frames
    ]
    scenes = {shift: number for number, shift in enumerate(dict.fromkeys(shifts))}
    listed = []
    for one, shift in zip(frames, shifts, strict=True):
        image = folder / "img" / one["videoName"] / one["name"]
        labels = folder / "semseg" / one["videoName"] / one["name"].replace("_img_", "_semseg_").replace(".jpg", ".png")
        found = [box for box in of_scalabel([one]) if box.name in _SHIFT_BOXES]
        rows = [(CLASSES.index(_SHIFT_BOXES[box.name]), *box.sides) for box in found]
        listed.append(DrivingPicture(image, labels, scenes[shift], np.array(rows, np.float32).reshape(-1, 5)))
    return listed


LAYOUTS = {
    layout.name: layout
    for layout in (
        ArchiveLayout(
            "cityscapes",
            f"{IMAGES[0]}/val/CITY/NAME{IMAGES[1]} and {LABELS[0]}/val/CITY/NAME{LABELS[1]}",
            _cityscapes,
            _CITYSCAPES,
        ),
        ArchiveLayout(
            "acdc",
            f"rgb_anon/CONDITION/val/SEQUENCE/NAME_rgb_anon.png and gt/CONDITION/val/SEQUENCE/NAME_gt_labelIds.png for "
            f"{', '.join(CONDITIONS)}",
            _acdc,
            _CITYSCAPES,
        ),
        ArchiveLayout(
            "shift",
            "det_2d.json, img/SEQUENCE/FRAME_img_front.jpg and semseg/SEQUENCE/FRAME_semseg_front.png of one view",
            _shift,
            _SHIFT,
        ),
    )
}


@dataclass(frozen=True)
class DrivingPictures:
    """The pictures of an archive at a given size and rate, repeated from the first after the last."""

    name: str
    folder: Path
    size: tuple[int, int]
    fps: float
    duration_s: float
    layout: str

    has_truth = True
    classes = CLASSES  # so that the networks of the streets can be used

    @cached_property
    def pictures(self) -> tuple[DrivingPicture, ...]:
        """Return the pictures; DataError with the missing files."""
        layout = LAYOUTS[self.layout]
        try:
            listed = layout.pictures(self.folder)
        except FAULTS as error:
            raise self._unreadable(first_line(error) or type(error).__name__) from error
        files = [file for one in listed for file in (one.image, one.labels)]
        if missing := [str(file) for file in files if not file.is_file()]:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise self._unreadable(f"there is no {', '.join(missing[:SHOWN])}{more}")
        if not listed:
            raise self._unreadable(f"there is no picture in '{self.folder}'")
        return tuple(listed)

    def _unreadable(self, reason: str) -> DataError:
        place = f"'{self.layout}:FOLDER' FOLDER holds {LAYOUTS[self.layout].files}"
        return DataError(f"Workload '{self.name}' cannot be read: {reason}. In {place}.")

    def changes_s(self) -> tuple[float, ...]:
        """Return the times at which the city, condition or weather changes."""
        scenes = [one.scene for one in self.pictures]
        frames = int(np.ceil(self.duration_s * self.fps - 1e-9))
        starts = (k for k in range(1, frames) if scenes[k % len(scenes)] != scenes[(k - 1) % len(scenes)])
        return tuple(start / self.fps for start in starts)

    def at(self, times_s: Times | Sequence[float]) -> Frames:
        """Read the frames shown at these times."""
        times, table = np.asarray(times_s, np.float64), LAYOUTS[self.layout].table
        shown = [self.pictures[frame_number(self, float(time_s)) % len(self.pictures)] for time_s in times]
        images = np.empty((len(times), *self.size, 3), np.uint8)
        labels = np.empty((len(times), *self.size), np.uint8)
        boxes = []
        for row, one in enumerate(shown):
            image = self._read(one.image, cv2.IMREAD_COLOR_RGB)
            images[row] = cv2.resize(image, self.size[::-1], interpolation=cv2.INTER_AREA)
            truth = self._read(one.labels, cv2.IMREAD_UNCHANGED)
            truth = truth[..., 2] if truth.ndim == 3 else truth  # OpenCV reads colours as blue, green, red
            if truth.dtype != np.uint8:
                raise DataError(f"Workload '{self.name}': label map {one.labels} is not 8-bit. Store class numbers.")
            labels[row] = table[cv2.resize(truth, self.size[::-1], interpolation=cv2.INTER_NEAREST)]
            if one.boxes is not None:
                scale = np.array([1, *[self.size[1] / image.shape[1], self.size[0] / image.shape[0]] * 2], np.float32)
                boxes.append(one.boxes * scale)
        with_boxes = self.pictures[0].boxes is not None
        scenes = np.array([one.scene for one in shown], np.int32)
        return Frames(times, images, scenes, labels, tuple(boxes) if with_boxes else None)

    def _read(self, path: Path, mode: int) -> Any:
        image = cv2.imdecode(np.fromfile(path, np.uint8), mode) if path.stat().st_size else None
        if image is None:
            raise DataError(f"Workload '{self.name}': picture {path} cannot be read. Write it again, or take it out.")
        return image
