"""Boxes of videos: read next to the file, and imported from COCO, MOTChallenge and Scalabel."""

from __future__ import annotations

import json

import numpy as np
import pytest
import video_factory
from command_factory import run_command

from driftlab.datasets.boxes import read_boxes
from driftlab.datasets.catalogue import open_stream
from driftlab.errors import DataError, RequestError
from driftlab.platform.networks.named import task_of

HEIGHT, WIDTH, FRAMES = video_factory.HEIGHT, video_factory.WIDTH, 20


@pytest.fixture
def video(tmp_path):
    return video_factory.write_video(tmp_path / "video.mp4")


def imported(source, video, *options: str):
    return run_command(["boxes", str(source), str(video), *options])


def frames_of(video, size=(HEIGHT, WIDTH)):
    stream = open_stream(
        f"video:{video}", seed=0, height=size[0], width=size[1], fps=video_factory.FPS, duration_s=None
    )
    return stream, stream.at(np.arange(FRAMES) / video_factory.FPS)


def coco() -> str:
    """Number the images against the order of their names, as COCO may."""
    images = [{"id": 100 - k, "file_name": f"{k:06d}.jpg", "width": WIDTH, "height": HEIGHT} for k in range(FRAMES)]
    boxes = [{"id": k, "image_id": 100 - k, "category_id": 3, "bbox": [k, 10, 16, 8]} for k in range(FRAMES)]
    return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "car"}]})


def mot() -> str:
    """Add a row that the benchmark ignores, and one of a class that is left out."""
    rows = [f"{k + 1},1,{k},10,16,8,1,3,1" for k in range(FRAMES)]
    return "\n".join([*rows, "1,2,0,0,9,9,0,1,1", "1,3,0,0,9,9,1,12,1"])


def scalabel() -> str:
    box = {"category": "car", "id": "0"}
    frames = [
        {"name": f"{k}.jpg", "frameIndex": k, "labels": [{**box, "box2d": {"x1": k, "y1": 10, "x2": k + 16, "y2": 18}}]}
        for k in range(FRAMES)
    ]
    return json.dumps(frames[::-1])


@pytest.mark.parametrize(("name", "make"), [("gt.json", coco), ("gt.txt", mot), ("det.json", scalabel)])
def test_boxes_of_three_formats_are_those_of_each_frame(name, make, video):
    source = video.with_name(name)
    source.write_text(make())
    printed = imported(source, video)
    assert "20 boxes in 20 frames (20 car)" in printed.output, printed.exception
    stream, frames = frames_of(video)
    assert stream.has_truth
    car = stream.classes.index("car")
    assert [one.tolist() for one in frames.boxes] == [[[car, k, 10, k + 16, 18]] for k in range(FRAMES)]
    _, halves = frames_of(video, (HEIGHT // 2, WIDTH * 2))
    assert halves.boxes[3].tolist() == [[car, 6, 5, 38, 9]]
    assert task_of("tiny_detector").truth(frames) is not None
    assert "is there already" in str(imported(source, video).exception)


def test_classes_may_be_renamed_and_others_name_themselves(video):
    source = video.with_name("gt.json")
    source.write_text(coco())
    imported(source, video, "--class", "car=boat")
    stream, frames = frames_of(video)
    assert stream.classes == ("boat",)
    assert frames.boxes[0][0, 0] == 0
    assert isinstance(imported(source, video, "--class", "car").exception, RequestError)


def test_frames_without_a_line_have_no_boxes(video):
    video.with_name("video.mp4.boxes.jsonl").write_text(
        '{"frame": 2, "class": "car", "x0": 1, "y0": 2, "x1": 9, "y1": 8}\n'
    )
    assert [len(one) for one in frames_of(video)[1].boxes] == [0, 0, 1] + [0] * 17


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"frame": 0, "class": "car", "x0": 1, "y0": 2, "x1": 9}',
        '{"frame": 0, "class": "car", "x0": 9, "y0": 2, "x1": 1, "y1": 8}',
        '{"frame": -1, "class": "car", "x0": 1, "y0": 2, "x1": 9, "y1": 8}',
        '{"frame": 0, "class": "car", "x0": NaN, "y0": 2, "x1": 9, "y1": 8}',
        "[]",
    ],
)
def test_an_invalid_line_is_named(line, tmp_path):
    file = tmp_path / "a.boxes.jsonl"
    file.write_text('{"frame": 0, "class": "car", "x0": 1, "y0": 2, "x1": 9, "y1": 8}\n' + line + "\n")
    with pytest.raises(DataError, match="line 2: "):
        read_boxes(file)


@pytest.mark.parametrize("text", ["{}", "[1]", '{"annotations": [{}], "images": [], "categories": []}', "x"])
def test_other_documents_are_refused(text, video):
    source = video.with_name("gt.json")
    source.write_text(text)
    assert "cannot be read" in str(imported(source, video).exception)
