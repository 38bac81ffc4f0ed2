"""Streams written as videos: frames with label maps at their times, and no files after a failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import Frames
from driftlab.datasets.video_writer import save_video
from driftlab.errors import RequestError

COUNT = 100  # frames, more than are rendered at a time


@dataclass(frozen=True)
class Counting:
    """A stream whose frame k is grey 10 + 2 k, and class k everywhere."""

    fps: float = 30.0
    size: tuple[int, int] = (32, 48)
    broken_s: float = 1e9  # later frames raise

    name = "counting"
    classes = tuple(f"class {number}" for number in range(COUNT))
    has_truth = True

    @property
    def duration_s(self) -> float:
        return COUNT / self.fps

    def at(self, times_s):
        times = np.asarray(times_s)
        if times.max() >= self.broken_s:
            raise KeyboardInterrupt
        numbers = np.rint(times * self.fps).astype(np.uint8)
        planes = np.ones((len(times), *self.size), np.uint8) * numbers[:, None, None]
        images = np.repeat((10 + 2 * planes)[..., None], 3, axis=3)
        return Frames(times_s=times, images=images, scenes=np.zeros(len(times), np.int32), labels=planes)

    def changes_s(self):
        return ()


@pytest.mark.parametrize("fps", [30.0, 30000 / 1001, 12.5])
@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi"])
def test_a_video_has_each_frame_with_its_label_map(tmp_path: Path, kind: str, fps: float):
    video = save_video(Counting(fps), tmp_path / f"video.{kind}")
    with av.open(str(video)) as container:
        assert container.streams.video[0].average_rate == Fraction(fps).limit_denominator(1001)
        assert container.streams.video[0].codec_context.has_b_frames == (kind != "avi")
    shown = open_stream(f"video:{video}", seed=0, height=32, width=48, fps=fps, duration_s=None)
    assert shown.duration_s == pytest.approx(COUNT / fps)
    frames = shown.at(np.arange(COUNT) / fps)
    assert frames.labels[:, 0, 0].tolist() == list(range(COUNT))
    greys = frames.images.mean(axis=(1, 2, 3))
    steps = greys - (10 + 2 * np.arange(COUNT))
    assert np.ptp(steps) < 4, "two frames apart it were 4"
    assert sorted(place.name for place in tmp_path.iterdir()) == [video.name, f"{video.name}.labels"]


def test_an_interrupted_video_leaves_no_files(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        save_video(Counting(broken_s=70 / 30), tmp_path / "video.mp4")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [(65, 97), (64, 97), (65, 96)])
def test_an_odd_size_is_an_invalid_request(tmp_path: Path, size: tuple[int, int]):
    with pytest.raises(RequestError, match=r"requires even numbers. Use height=6[46] and width=9[68]\."):
        save_video(replace(Counting(), size=size), tmp_path / "video.mp4")
    assert not list(tmp_path.iterdir())
