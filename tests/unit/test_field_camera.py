"""Streams that only a device has: a folder of images, and a live camera."""

from __future__ import annotations

import time
from types import SimpleNamespace

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
def live(monkeypatch):
    """A camera of nine images with grey levels 0, 1, 2, ..., each 50 ms after the last by its own clock."""
    stamps = []

    def read_images(source, size):
        for level in range(9):
            stamps.append(0.06 + 0.05 * level)
            yield np.full((*size, 3), level, np.uint8)

    monkeypatch.setattr(camera, "_read_images", read_images)
    monkeypatch.setattr(camera, "REOPEN_INTERVAL_S", 60.0)
    monkeypatch.setattr(camera, "time", SimpleNamespace(monotonic=lambda: stamps[-1]))
    opened = LiveCamera("0", (32, 48), fps=10.0)
    yield opened, stamps
    opened.close()


def test_a_frame_has_the_newest_image_of_its_time(live):
    opened, stamps = live
    while len(stamps) < 9 or not opened.fault:
        time.sleep(0.01)
    for frame in range(1, 5):
        expected = max(np.searchsorted(stamps, opened.zero_s + frame / 10, side="right") - 1, 0)
        assert opened.at(frame / 10)[0, 0, 0] == expected
    assert opened.at(60.0)[0, 0, 0] == 8  # after the end: the last image
    device = CameraDevice(StreamSpec("camera:0", 0, 16, 24, 10.0, 1.0), opened)
    sent = device.sample(Sampling((0.1, 0.4), 0.5)).payload
    assert (sent.images.shape, sent.labels) == ((2, 16, 24, 3), None)
    assert device.upload(Sampling((0.1,), 0.5, codec="png", scale=2)).facts.frames == 1


def test_a_camera_drops_images_that_no_frame_uses(live):
    opened, _ = live
    while not opened.fault:
        time.sleep(0.01)
    assert len(opened._stored) == 5  # nine images in 0.45 s, for frames of 0.1 s


def test_a_camera_without_images_is_refused(monkeypatch):
    monkeypatch.setattr(camera, "FIRST_TIMEOUT_S", 0.1)
    with pytest.raises(DataError):
        LiveCamera("lavfi:nothing", (16, 24), 4.0)


def test_a_file_is_refused_as_a_camera(tmp_path):
    (tmp_path / "clip.mp4").touch()
    with pytest.raises(RequestError, match="Use --workload video:"):
        LiveCamera(str(tmp_path / "clip.mp4"), (16, 24), 4.0)


def test_a_folder_gives_its_images_in_order_of_names(tmp_path):
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
def test_own_stream_separates_files_and_cameras_from_built_in_streams(name, own):
    assert own_stream(name) == own
