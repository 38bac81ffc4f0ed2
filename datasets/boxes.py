"""Boxes of the frames of a video: `FILE.boxes.jsonl`, and imports from COCO, MOT and Scalabel.

A line is one box, such as `{"frame": 0, "class": "car", "x0": 4, "y0": 8, "x1": 20, "y1": 16}`, in pixels of the video.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError, first_line

SUFFIX = ".boxes.jsonl"
MAX_BYTES = 2**30
SIDES = ("x0", "y0", "x1", "y1")
PEDESTRIANS = {"pedestrian": "person", "other person": "person"}  # names of Scalabel's data sets
MOT = {1: "person", 2: "person", 3: "car", 7: "person"}  # by number; the other classes of MOTChallenge are left out
FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError)


class Box(NamedTuple):
    """A box in pixels of a frame."""

    frame: int
    name: str
    sides: tuple[float, float, float, float]  # left, top, right, bottom


class VideoBoxes:
    """The boxes next to a video, by frame."""

    def __init__(self, file: Path, classes: tuple[str, ...] | None) -> None:
        boxes = read_boxes(file)
        known = classes or (CLASSES if {box.name for box in boxes} <= {*CLASSES} else ())
        self.classes = known or tuple(sorted({box.name for box in boxes}))
        if foreign := sorted({box.name for box in boxes} - {*self.classes}):
            raise DataError(
                f"'{file}' has boxes of {', '.join(foreign)}, which classes.txt does not name. Add them there."
            )
        self._by_frame: dict[int, list[tuple[float, ...]]] = {}
        for box in boxes:
            self._by_frame.setdefault(box.frame, []).append((self.classes.index(box.name), *box.sides))

    def at(self, number: int, video: tuple[int, int], size: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Return the boxes of a frame [m, 5] with sides scaled and clipped to another height and width."""
        (video_height, video_width), (height, width) = video, size
        found = np.array(self._by_frame.get(number, ()), np.float32).reshape(-1, 5)
        for columns, scale, most in (
            (slice(1, None, 2), width / video_width, width),
            (slice(2, None, 2), height / video_height, height),
        ):
            found[:, columns] = np.clip(found[:, columns] * scale, 0, most)
        return found


def boxes_of(video: Path, classes: tuple[str, ...] | None) -> VideoBoxes | None:
    """Return the boxes next to a video; None if there are none."""
    file = video.with_name(video.name + SUFFIX)
    return VideoBoxes(file, classes) if file.is_file() else None


def read_boxes(file: Path) -> list[Box]:
    """Read a file of boxes; DataError with the line of the first invalid one."""
    if (size := file.stat().st_size) > MAX_BYTES:
        raise DataError(f"'{file}' has {size:,} bytes, allowed are {MAX_BYTES:,}.")
    boxes = []
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                one = json.loads(line)
                boxes.append(_checked(Box(one["frame"], one["class"], _sides(one))))
            except FAULTS as error:
                raise DataError(
                    f"'{file}', line {number}: {first_line(error) or type(error).__name__}. Give frame, class, x0, y0, "
                    "x1 and y1 in pixels, with x0 below x1 and y0 below y1."
                ) from error
    return boxes


def _sides(one: Mapping[str, Any]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (float(one[side]) for side in SIDES)
    return x0, y0, x1, y1


def _checked(box: Box) -> Box:
    x0, y0, x1, y1 = box.sides
    if not (isinstance(box.frame, int) and box.frame >= 0 and isinstance(box.name, str)):
        raise ValueError(f"frame {box.frame!r} of class {box.name!r} is no frame number from 0 with a class name")
    if not (all(map(math.isfinite, box.sides)) and x0 < x1 and y0 < y1):
        raise ValueError(f"{list(box.sides)} is no box")
    return box


def import_boxes(source: Path, names: Mapping[str, str]) -> list[Box]:
    """Read the boxes of COCO or Scalabel (JSON) or of MOTChallenge (gt.txt), with some classes renamed."""
    try:
        if source.suffix == ".txt":
            found = list(_of_mot(source))
        else:
            document = json.loads(source.read_text(encoding="utf-8"))
            found = list(_of_coco(document) if "annotations" in document else of_scalabel(document))
        return [_checked(box._replace(name=names.get(box.name, box.name))) for box in found]
    except FAULTS as error:
        raise DataError(
            f"'{source}' cannot be read: {first_line(error) or type(error).__name__}. Give the JSON of COCO (images, "
            "annotations, categories) or of Scalabel and BDD100K (a list of frames), or gt.txt of MOTChallenge."
        ) from error


def _of_coco(document: Mapping[str, Any]) -> Iterator[Box]:
    """Yield boxes; frames are the images in the order of their file names."""
    names = {one["id"]: one["name"] for one in document["categories"]}
    images = sorted(document["images"], key=lambda image: image["file_name"])
    frames = {image["id"]: number for number, image in enumerate(images)}
    for one in document["annotations"]:
        x, y, width, height = one["bbox"]
        yield Box(frames[one["image_id"]], names[one["category_id"]], (x, y, x + width, y + height))


def _of_mot(source: Path) -> Iterator[Box]:
    """Yield boxes of persons and cars; rows whose flag is 0 are ignored, as in the benchmark."""
    for row in csv.reader(source.read_text().splitlines()):
        frame, _, x, y, width, height, flag, kind = (float(value) for value in row[:8])
        if flag and int(kind) in MOT:
            yield Box(int(frame) - 1, MOT[int(kind)], (x, y, x + width, y + height))


def of_scalabel(document: Any) -> Iterator[Box]:
    """Yield boxes; frames count by `frameIndex`, else in the order of the list."""
    for place, frame in enumerate(frames_of(document)):
        for label in frame.get("labels") or ():
            if box := label.get("box2d"):
                name = PEDESTRIANS.get(label["category"], label["category"])
                sides = (box["x1"], box["y1"], box["x2"], box["y2"])
                yield Box(frame.get("frameIndex", place), name, sides)


def frames_of(document: Any) -> list[dict[str, Any]]:
    """Return the frames of a Scalabel document: a list, or a mapping with `frames`."""
    frames: list[dict[str, Any]] = document["frames"] if isinstance(document, dict) else document
    return frames


def write_boxes(video: Path, boxes: list[Box]) -> Path:
    """Write the file of a video's boxes in the order of frames."""
    file = video.with_name(video.name + SUFFIX)
    lines = [
        json.dumps({"frame": one.frame, "class": one.name, **dict(zip(SIDES, one.sides, strict=True))})
        for one in sorted(boxes)
    ]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file
