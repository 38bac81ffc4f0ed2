"""Frames, labels and optical flow are computed once in a process, within a budget, and are the same."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from driftlab.datasets.frames import Frames
from driftlab.platform.core.kept import BUDGET_BYTES, Kept, bytes_of, content_key, kept
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.tasks import flow
from driftlab.platform.sim.kept_stream import FRAME_BYTES, KeptStream
from driftlab.platform.sim.nodes import camera
from driftlab.platform.sim.nodes.camera import CameraNode, stream_of
from driftlab.platform.sim.nodes.teacher import TeacherNode
from driftlab.platform.sim.nodes.tracker import Keyframe, Tracker
from driftlab.platform.sim.setting import StreamSpec, TeacherSpec

SPEC = StreamSpec("streets/running", 3, 32, 48, 2.5, 4.0)
ARRAYS = [one.name for one in fields(Frames) if one.name not in ("boxes", "classes")]


@pytest.fixture(autouse=True)
def nothing_kept():
    kept().clear()
    yield
    kept().clear()


def refuse(monkeypatch, place, name):
    monkeypatch.setattr(place, name, lambda *args, **named: pytest.fail("it was computed again"))


@pytest.mark.parametrize("budget_bytes", [BUDGET_BYTES, 0, 3 * (32 * 48 * 4 + FRAME_BYTES)])
def test_a_kept_stream_equals_its_stream(budget_bytes):
    stream = stream_of(SPEC)
    shared = KeptStream(stream_of(SPEC), "name", Kept(budget_bytes))
    assert (shared.name, shared.size, shared.has_truth) == (stream.name, stream.size, stream.has_truth)
    for times_s in ([0.0, 0.4, 0.8], [0.8, 1.2, 0.0, 1.2], [], [1.2], [1.2]):
        found, drawn = shared.at(times_s), stream.at(times_s)
        assert all(np.array_equal(getattr(found, name), getattr(drawn, name)) for name in ARRAYS)
        assert [box.tolist() for box in found.boxes] == [box.tolist() for box in drawn.boxes]
        found.images[:] = 0  # the caller's own


def test_cameras_of_one_stream_draw_its_frames_once(monkeypatch):
    first = CameraNode(SPEC).capture(0.0, 4.0).payload
    sampled = CameraNode(SPEC)
    with monkeypatch.context() as patched:
        patched.setattr(camera, "stream_of", lambda *args: _Empty())
        assert np.array_equal(sampled.sample_with_truth([0.4, 1.2]).payload.images, first.images[[1, 3]])
    other = CameraNode(StreamSpec("streets/running", 4, 32, 48, 2.5, 4.0)).capture(0.0, 4.0).payload
    assert not np.array_equal(first.images, other.images)


class _Empty:
    def at(self, times_s):
        pytest.fail("it was drawn again")


def test_teachers_with_equal_weights_label_a_batch_once(monkeypatch):
    spec = TeacherSpec("network", network="half", height=32, width=48)
    frames = stream_of(SPEC).at([0.0, 0.4])
    weights, others = (state_of(build("half", 8, seed=seed)) for seed in (1, 2))
    labels = TeacherNode(spec, weights).label(frames).payload
    different = TeacherNode(spec, others).label(frames).payload
    assert not np.array_equal(labels, different)
    refuse(monkeypatch, TeacherNode, "_predict")
    assert np.array_equal(TeacherNode(spec, weights).label(frames).payload, labels)


def test_trackers_compute_the_flow_between_two_images_once_and_charge_for_each(monkeypatch):
    frames = stream_of(SPEC).at([0.0, 0.4])

    def followed():
        tracker = Tracker()
        for time_s, image in zip((0.0, 0.4), frames.images, strict=True):
            tracker.add_frame(time_s, image)
        tracker.add(Keyframe(0.0, 0.1, frames.labels[0]))
        return tracker.follow(0.4, frames.labels[1])

    labels, flows = followed()
    assert flows == 1
    refuse(monkeypatch, flow, "flow")
    again, charged = followed()
    assert (np.array_equal(again, labels), charged) == (True, 1)


def test_the_least_recently_used_results_are_dropped_beyond_the_budget():
    results = Kept(300)
    for name in "abc":
        results.put(name, name, 100)
    assert results.get("a") == "a"
    results.put("d", "d", 100)
    results.put("large", "large", 301)
    assert [results.get(name) for name in ("a", "b", "c", "d", "large")] == ["a", None, "c", "d", None]


def test_keys_differ_by_content_type_shape_and_purpose():
    row = np.arange(6, dtype=np.uint8)
    arrays = [("a", row), ("b", row), ("a", row.reshape(2, 3)), ("a", row.view(np.int8)), ("a", row[::-1])]
    assert len({content_key(purpose, array) for purpose, array in arrays}) == len(arrays)
    assert bytes_of(np.array([row, row[:2]], dtype=object)) == 8
