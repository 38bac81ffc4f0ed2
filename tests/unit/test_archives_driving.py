"""ACDC and SHIFT in their layouts: label maps, boxes, scenes, and missing files by name."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import IGNORE
from driftlab.errors import DataError

SIZE = {"seed": 0, "height": 32, "width": 64, "fps": 1, "duration_s": 20}
TIMES = np.arange(20.0)


def write(path, pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels)


@pytest.fixture
def acdc(tmp_path):
    """Write five validation pictures and one training picture of each condition: road below sky."""
    labels = np.full((64, 128), 7, np.uint8)
    labels[:32] = 23
    for condition in ("snow", "fog", "rain", "night"):
        for part, count in (("val", 5), ("train", 1)):
            for k in range(count):
                name = f"GOPR0122/GOPR0122_frame_00{k:04d}"
                write(
                    tmp_path / f"rgb_anon/{condition}/{part}/{name}_rgb_anon.png", np.full((64, 128, 3), 40, np.uint8)
                )
                write(tmp_path / f"gt/{condition}/{part}/{name}_gt_labelIds.png", labels)
    return tmp_path


def test_acdc_is_read_condition_by_condition(acdc):
    stream = open_stream(f"acdc:{acdc}", **SIZE)
    frames = stream.at(TIMES)
    assert frames.scenes.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert stream.changes_s() == (5.0, 10.0, 15.0)
    assert stream.pictures[0].image.parts[-4] == "fog"
    road, sky = stream.classes.index("road"), stream.classes.index("sky")
    assert (frames.labels[:, :16] == sky).all()
    assert (frames.labels[:, 16:] == road).all()
    assert open_stream(f"acdc:{acdc}/train", **SIZE).at(TIMES).scenes.tolist() == [0, 1, 2, 3] * 5


def test_missing_label_maps_of_acdc_are_named(acdc):
    for k in range(2):
        (acdc / f"gt/rain/val/GOPR0122/GOPR0122_frame_00{k:04d}_gt_labelIds.png").unlink()
    with pytest.raises(DataError) as caught:
        open_stream(f"acdc:{acdc}", **SIZE)
    for k in range(2):
        assert f"gt/rain/val/GOPR0122/GOPR0122_frame_00{k:04d}_gt_labelIds.png" in str(caught.value)
    with pytest.raises(DataError, match="rgb_anon/CONDITION/val/SEQUENCE"):
        open_stream(f"acdc:{acdc}/rgb_anon", **SIZE)


@pytest.fixture
def shift(tmp_path):
    """Write two sequences of ten frames, of which the second turns from day to night."""
    frames = []
    labels = np.zeros((40, 80, 4), np.uint8)
    labels[..., 3] = 255
    labels[:20, :, 2] = 13  # red channel: sky above road
    labels[20:, :, 2] = 7
    for sequence, hours in (("0a", ["daytime"] * 10), ("0b", ["daytime"] * 5 + ["night"] * 5)):
        for k, hour in enumerate(hours):
            write(tmp_path / f"img/{sequence}/{k:08d}_img_front.jpg", np.full((40, 80, 3), 90, np.uint8))
            write(tmp_path / f"semseg/{sequence}/{k:08d}_semseg_front.png", labels)
            boxes = [("car", 8), ("pedestrian", 40), ("bicycle", 0)]
            frames.append(
                {
                    "name": f"{k:08d}_img_front.jpg",
                    "videoName": sequence,
                    "frameIndex": k,
                    "attributes": {"weather_coarse": "clear", "timeofday_coarse": hour},
                    "labels": [
                        {"category": name, "box2d": {"x1": x, "y1": 10, "x2": x + 16, "y2": 30}} for name, x in boxes
                    ],
                }
            )
    (tmp_path / "det_2d.json").write_text(json.dumps({"frames": frames[::-1]}))
    return tmp_path


def test_shift_has_label_maps_boxes_and_scenes(shift):
    stream = open_stream(f"shift:{shift}", **SIZE)
    frames = stream.at(TIMES)
    assert frames.scenes.tolist() == [0] * 15 + [1] * 5
    assert stream.changes_s() == (15.0,)
    road, sky, car, person = map(stream.classes.index, ("road", "sky", "car", "person"))
    assert (frames.labels[:, :16] == sky).all()
    assert (frames.labels[:, 16:] == road).all()
    assert not (frames.labels == IGNORE).any()
    for boxes in frames.boxes:
        np.testing.assert_allclose(boxes, [[car, 6.4, 8, 19.2, 24], [person, 32, 8, 44.8, 24]], rtol=1e-6)


def test_missing_files_of_shift_are_named(shift):
    (shift / "semseg/0b/00000003_semseg_front.png").unlink()
    with pytest.raises(DataError, match=r"semseg/0b/00000003_semseg_front.png"):
        open_stream(f"shift:{shift}", **SIZE)
    (shift / "det_2d.json").unlink()
    with pytest.raises(DataError, match=r"det_2d.json"):
        open_stream(f"shift:{shift}", **SIZE)
