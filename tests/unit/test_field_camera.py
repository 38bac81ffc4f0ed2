"""Streams of a device's own: a folder of pictures, and a camera whose newest picture every frame shows."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.errors import DataError, RequestError
from driftlab.platform.field import camera
from driftlab.platform.field.camera import CameraDevice, LiveCamera
from driftlab.platform.field.request import own_stream
from driftlab.platform.sim.setting import StreamSpec
from driftlab.platform.streaming.base import Sampling

SHAPE = {"seed": 0, "height": 16, "width": 24, "fps": 4.0, "duration_s": 3.0}


@pytest.fixture
def shown(monkeypatch):
    """A camera that shows the levels 0, 1, 2, ... every 50 ms, and ends after the ninth."""
    stamps = []

    def pictures(source, size):
        for level in range(9):
            time.sleep(0.05)
            stamps.append(time.monotonic())
            yield np.full((*size, 3), level, np.uint8)

    monkeypatch.setattr(camera, "_pictures", pictures)
    monkeypatch.setattr(camera, "AGAIN_S", 60.0)
    one = LiveCamera("0", (32, 48), fps=10.0)
    one.zero_s = time.monotonic()
    yield one, stamps
    one.close()


def test_a_frame_shows_the_newest_picture_of_its_time(shown):
    one, stamps = shown
    while len(stamps) < 9 or not one.fault:
        time.sleep(0.01)
    for frame in range(1, 5):
        expected = max(np.searchsorted(stamps, one.zero_s + frame / 10, side="right") - 1, 0)
        assert one.at(frame / 10)[0, 0, 0] == expected
    assert one.at(60.0)[0, 0, 0] == 8  # it ended: the last picture stands
    device = CameraDevice(StreamSpec("camera:0", 0, 16, 24, 10.0, 1.0), one)
    sent = device.sample(Sampling((0.1, 0.4), 0.5)).payload
    assert (sent.images.shape, sent.labels) == ((2, 16, 24, 3), None)
    assert device.upload(Sampling((0.1,), 0.5, codec="png", scale=2)).facts.frames == 1


def test_pictures_that_no_frame_shows_are_not_kept(shown):
    one, stamps = shown
    while len(stamps) < 9:
        time.sleep(0.01)
    assert len(one._kept) <= 7  # nine pictures in 0.45 s, for frames of 0.1 s


def test_a_camera_that_shows_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(camera, "FIRST_S", 0.1)
    with pytest.raises(DataError):
        LiveCamera("lavfi:nothing", (16, 24), 4.0)
    (tmp_path / "film.mp4").touch()
    with pytest.raises(RequestError):
        LiveCamera(str(tmp_path / "film.mp4"), (16, 24), 4.0)


def test_a_folder_shows_its_pictures_in_the_order_of_their_names(tmp_path):
    for name, level in (("b.png", 50), ("a.JPG", 20), ("c.jpeg", 90)):
        cv2.imwrite(str(tmp_path / name.lower()), np.full((30, 30, 3), level, np.uint8))
    (tmp_path / "notes.txt").touch()
    stream = open_stream(f"folder:{tmp_path}", **SHAPE)
    levels = stream.at(np.arange(4) / 4).images.mean(axis=(1, 2, 3))
    assert levels == pytest.approx([20, 50, 90, 20], abs=1)
    stream.check()
    (tmp_path / "b.png").write_bytes(b"torn")
    with pytest.raises(DataError):
        stream.check()
    with pytest.raises(DataError):
        open_stream(f"folder:{tmp_path / 'none'}", **SHAPE)


def test_a_camera_has_no_frames_outside_its_device():
    stream = open_stream("camera:/dev/video0", **SHAPE)
    assert len(stream.at([])) == 0
    with pytest.raises(RequestError):
        stream.at([0.0])


@pytest.mark.parametrize(
    ("name", "own"), [("video:a.mp4", True), ("camera:0", True), ("streets/running", False), ("set:digits", False)]
)
def test_streams_of_the_device_are_told_from_built_in_ones(name, own):
    assert own_stream(name) == own
