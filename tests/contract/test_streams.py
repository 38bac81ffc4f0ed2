"""The contract of every workload, for all kinds of scenes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from driftlab.datasets.catalogue import WORKLOADS, open_stream
from driftlab.datasets.frames import IGNORE, Frames, Stream, frame_times
from driftlab.errors import DataError, RequestError

STREETS = [
    "any-street",
    "any-city",
    *(name for name in WORKLOADS if name.startswith(("streets/", "city/"))),
]
SIGNS = [name for name in WORKLOADS if name.startswith("signs/")]
SIZE = {"height": 48, "width": 80, "fps": 4.0, "duration_s": 60.0}


@pytest.fixture(params=[*STREETS, *SIGNS, "set:digits", "video"])
def opener(request, tmp_path):
    """Open the workload with a seed; a video is written first."""
    if request.param in WORKLOADS:
        return lambda seed=0: open_stream(request.param, seed=seed, **SIZE)
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        track = container.add_stream("libx264", rate=8, options={"g": "12", "threads": "1"})
        track.width, track.height, track.pix_fmt = 96, 64, "yuv420p"
        for frame in (
            open_stream("streets/running", seed=1, height=64, width=96, fps=8, duration_s=9)
            .at(np.arange(64) / 8)
            .images
        ):
            container.mux(track.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(track.encode())
    return lambda seed=0: open_stream(f"video:{path}", seed=seed, **{**SIZE, "duration_s": 0})


def same(first: Frames, second: Frames) -> bool:
    """Compare two batches byte by byte."""
    boxes = (first.boxes is None) == (second.boxes is None) and all(
        np.array_equal(a, b) for a, b in zip(first.boxes or (), second.boxes or (), strict=True)
    )
    return boxes and all(
        np.array_equal(getattr(first, part), getattr(second, part))
        for part in ("times_s", "images", "scenes", "labels", "classes")
        if getattr(first, part) is not None or getattr(second, part) is not None
    )


def test_shapes_types_and_names(opener):
    stream = opener()
    assert isinstance(stream, Stream)
    frames = stream.at([0.0, 1.0, 2.5])
    assert frames.images.shape == (3, 48, 80, 3) and frames.images.dtype == np.uint8
    assert frames.times_s.tolist() == [0.0, 1.0, 2.5]
    assert frames.scenes.shape == (3,) and frames.scenes.dtype == np.int32
    assert stream.size == (48, 80) and stream.fps == 4.0 and stream.duration_s > 0
    assert (frames.labels is not None or frames.classes is not None) == stream.has_truth
    assert len(set(stream.classes)) == len(stream.classes)
    if frames.labels is not None:
        assert frames.labels.shape == (3, 48, 80) and frames.labels.dtype == np.uint8
        assert set(np.unique(frames.labels)) <= {*range(len(stream.classes)), IGNORE}
    if frames.classes is not None:
        assert frames.classes.shape == (3,) and frames.classes.dtype == np.int64
        assert set(frames.classes) <= set(range(len(stream.classes)))


def test_a_frame_is_the_same_singly_in_a_batch_and_in_any_order(opener):
    times_s = np.array([6.0, 0.25, 3.5, 3.75, 0.25, 7.5, 1.0])
    batch = opener().at(times_s)
    assert same(opener().at(times_s), batch)
    again = opener()
    for row in np.random.default_rng(0).permutation(len(times_s)):
        assert same(again.at(times_s[row : row + 1]), batch[int(row)])


def test_a_frame_stays_until_the_next_one(opener):
    stream = opener()
    early, late, after = stream.at([2.0, 2.2, 2.25]).images
    assert np.array_equal(early, late)
    assert not np.array_equal(early, after)


def test_slices_and_pickles(opener):
    stream = opener()
    frames = stream.at(frame_times(stream, 1.0, 3.0))
    assert len(frames) == 8
    assert same(frames[2:5], stream.at([1.5, 1.75, 2.0]))
    assert same(frames[-1], stream.at([2.75]))
    assert same(pickle.loads(pickle.dumps(stream)).at([1.0]), frames[0])


def test_no_times_give_an_empty_batch(opener):
    frames = opener().at([])
    assert len(frames) == 0 and frames.images.shape == (0, 48, 80, 3)


@pytest.mark.parametrize("time_s", [-0.1, 1e6, float("nan")])
def test_times_outside_are_refused(opener, time_s):
    with pytest.raises(RequestError, match="has no frame at"):
        opener().at([time_s])


def test_changes_lie_inside_and_are_sorted(opener):
    stream = opener()
    changes_s = stream.changes_s()
    assert list(changes_s) == sorted(set(changes_s)) and all(0 < time_s < stream.duration_s for time_s in changes_s)


@pytest.mark.parametrize("name", [*STREETS, *SIGNS, "set:digits"])
def test_seeds_differ(name):
    first, second = (open_stream(name, seed=seed, **SIZE).at(np.arange(0, 60, 2.0)) for seed in (0, 1))
    assert np.abs(first.images.astype(int) - second.images.astype(int)).mean() > 10
    assert not np.array_equal(first.labels, second.labels) or first.labels is None
    assert not np.array_equal(first.classes, second.classes) or first.classes is None


@pytest.mark.parametrize("height, width", [(16, 16), (17, 33), (90, 31), (128, 256)])
@pytest.mark.parametrize("name", STREETS)
def test_any_size(name, height, width):
    frames = open_stream(name, seed=2, height=height, width=width, fps=0.7, duration_s=30).at([0.0, 20.0])
    assert frames.images.shape == (2, height, width, 3)
    assert len(np.unique(frames.labels)) >= 3


@pytest.mark.parametrize("height, width", [(16, 16), (17, 33), (90, 31)])
def test_signs_of_any_size(height, width):
    frames = open_stream("signs/town", seed=2, height=height, width=width, fps=0.7, duration_s=30).at([0.0, 20.0])
    assert frames.images.shape == (2, height, width, 3)


@pytest.mark.parametrize("name", STREETS)
def test_the_place_does_not_depend_on_the_size(name):
    small, large = (
        open_stream(name, seed=4, height=h, width=2 * h, fps=4, duration_s=9).at([3.0]).labels[0] for h in (60, 240)
    )
    assert (small == large[2::4, 2::4]).mean() > 0.9


def test_wrong_requests_name_every_fault():
    with pytest.raises(RequestError) as caught:
        open_stream("streets/dance", seed=-1, height=0, width=8.5, fps=-5, duration_s=float("nan"), pase=2, crowd=9)
    for part in ("seed is -1", "height is 0", "width is 8.5", "fps is -5", "duration_s is nan", "pace", "crowd is 9"):
        assert part in str(caught.value)


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(RequestError, match="Did you mean 'streets/driving_la'"):
        open_stream("streets/drivin_la", seed=0, **SIZE)
    with pytest.raises(DataError, match="no video file"):
        open_stream("video:/nowhere/clip.mp4", seed=0, **SIZE)
