"""Write videos with label maps from the archives LVS, Cityscapes and A2D2, as `video:FILE` reads them.

python docs/examples/label_maps.py lvs video.mp4 detections.npy person=1 two-wheeler=2,4 vehicle=3,6,7,8
python docs/examples/label_maps.py cityscapes ARCHIVE frankfurt video.mp4
python docs/examples/label_maps.py a2d2 ARCHIVE/20181107_132300 video.mp4
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
from PIL import Image

from driftlab.datasets.frames import IGNORE, Frames, frame_number
from driftlab.datasets.video_writer import save_video

CITYSCAPES = {  # the nineteen classes that its benchmark scores, by their number in *_labelIds.png
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck",
    28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
CITYSCAPES_FPS, A2D2_FPS = 17.0, 10.0  # of their sequences
LIKELY = 0.5  # least score of an object of LVS, and of a pixel of its mask


@dataclass(frozen=True)
class Pictures:
    """A stream of picture files; `label` returns the label map of one, or None."""

    name: str
    paths: Sequence[Path]
    label: Callable[[Path], np.ndarray | None]
    classes: tuple[str, ...]
    fps: float
    has_truth: bool = True

    @property
    def size(self) -> tuple[int, int]:
        with Image.open(self.paths[0]) as image:
            return image.height, image.width

    @property
    def duration_s(self) -> float:
        return len(self.paths) / self.fps

    def changes_s(self) -> tuple[float, ...]:
        return ()

    def at(self, times_s: Sequence[float]) -> Frames:
        paths = [self.paths[frame_number(self, float(time_s))] for time_s in times_s]
        images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
        maps = [self.label(path) for path in paths]
        labels = [np.full(self.size, IGNORE, np.uint8) if one is None else one for one in maps]
        return Frames(np.asarray(times_s, np.float64), images, np.zeros(len(paths), np.int32), np.stack(labels))


def cityscapes(archive: Path, city: str, video: Path) -> None:
    """Join the pictures of a city; those that `gtFine` has no labels for stay unlabelled."""
    table = np.full(256, IGNORE, np.uint8)
    table[list(CITYSCAPES)] = range(len(CITYSCAPES))
    paths = sorted(archive.glob(f"leftImg8bit*/*/{city}/*_leftImg8bit.png"))

    def label(path: Path) -> np.ndarray | None:
        name = path.name.replace("_leftImg8bit", "_gtFine_labelIds")
        file = archive / "gtFine" / path.parent.parent.name / city / name
        return table[np.asarray(Image.open(file))] if file.is_file() else None

    names = tuple(CITYSCAPES.values())
    save_video(
        _found(Pictures(city, paths, label, names, CITYSCAPES_FPS), archive / f"leftImg8bit_sequence/*/{city}"), video
    )


def a2d2(scene: Path, video: Path) -> None:
    """Join the front pictures of a scene; colours with one name and different numbers are one class."""
    colours: dict[str, str] = json.loads(_file(scene, scene.parent, "class_list.json").read_text(encoding="utf-8"))
    names = tuple(dict.fromkeys(name.rstrip(" 0123456789") for name in colours.values()))
    numbers = {int(colour.lstrip("#"), 16): names.index(name.rstrip(" 0123456789")) for colour, name in colours.items()}
    paths = sorted((scene / "camera" / "cam_front_center").glob("*.png"))

    def label(path: Path) -> np.ndarray | None:
        file = scene / "label" / "cam_front_center" / path.name.replace("_camera_", "_label_")
        if not file.is_file():
            return None
        rgb = np.asarray(Image.open(file).convert("RGB")).astype(np.int64)
        found, inverse = np.unique(rgb @ [65536, 256, 1], return_inverse=True)
        return np.array([numbers.get(int(one), IGNORE) for one in found], np.uint8)[inverse.reshape(rgb.shape[:2])]

    save_video(_found(Pictures(scene.name, paths, label, names, A2D2_FPS), scene / "camera/cam_front_center"), video)


def lvs(video: Path, detections: Path, *groups: str) -> None:
    """Draw the objects of Mask R-CNN, by class numbers of COCO; other frames stay unlabelled.

    `detections` is a pickled dictionary of frame -> boxes (y, x, y, x from 0 to 1), classes, scores, masks. Unpickling
    runs code of the file: use files of the archive only.
    """
    named = {
        name: [int(part) for part in numbers.split(",")] for name, _, numbers in (one.partition("=") for one in groups)
    }
    number_of = {coco: number for number, cocos in enumerate(named.values(), start=1) for coco in cocos}
    with av.open(str(video)) as container:
        height, width = container.streams.video[0].height, container.streams.video[0].width
    folder = video.with_name(f"{video.name}.labels")
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(["background", *named]), encoding="utf-8")
    for frame, (boxes, classes, scores, masks) in np.load(detections, allow_pickle=True)[()].items():
        labels = np.zeros((height, width), np.uint8)
        for place in np.argsort(scores):  # the most certain object is drawn last
            if scores[place] < LIKELY or int(classes[place]) not in number_of:
                continue
            top, left, bottom, right = np.round(boxes[place] * [height, width, height, width]).astype(int)
            if bottom > top and right > left:
                mask = cv2.resize(masks[place].astype(np.float32), (int(right - left), int(bottom - top))) > LIKELY
                mask = mask[: height - top, : width - left]
                labels[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = number_of[int(classes[place])]
        Image.fromarray(labels).save(folder / f"gt_{int(frame):06d}.png")


def _found(pictures: Pictures, place: Path) -> Pictures:
    if not pictures.paths:
        raise SystemExit(f"There are no pictures in {place}.")
    return pictures


def _file(*parts: Path | str) -> Path:
    *folders, name = parts
    found = next((Path(folder) / name for folder in folders if (Path(folder) / name).is_file()), None)
    if found is None:
        raise SystemExit(f"There is no {name} in {' or '.join(map(str, folders))}.")
    return found


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if kind == "cityscapes":
        cityscapes(Path(words[0]), words[1], Path(words[2]))
    elif kind == "a2d2":
        a2d2(Path(words[0]), Path(words[1]))
    else:
        lvs(Path(words[0]), Path(words[1]), *words[2:])
