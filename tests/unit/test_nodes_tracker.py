"""The tracker: labels are carried from the frame they tell of, from the moment they arrive."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.datasets.frames import IGNORE, Frames
from driftlab.platform.sim.nodes.tracker import Keyframe, Tracker

HEIGHT, WIDTH, FPS = 48, 64, 2.0


def world() -> tuple[np.ndarray, np.ndarray]:
    """Draw a wide texture and its labels; a camera shows a part of it."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(30, 226, (12, 60, 3)).astype(np.float32)
    y, x = np.linspace(0, 11, HEIGHT), np.linspace(0, 59, 4 * WIDTH)
    below, right = (np.minimum(np.floor(axis).astype(int), limit) for axis, limit in ((y, 10), (x, 58)))
    v, u = (y - below)[:, None, None], (x - right)[None, :, None]
    rows = coarse[below] * (1 - v) + coarse[below + 1] * v
    texture = rows[:, right] * (1 - u) + rows[:, right + 1] * u
    labels = np.tile((np.arange(4 * WIDTH) // 16 % 4).astype(np.uint8), (HEIGHT, 1))
    return texture.astype(np.uint8), labels


def frames(start: int, stop: int, step_px: int = 3) -> Frames:
    """Show a world that moves so far to the right from frame to frame."""
    texture, labels = world()
    lefts = [WIDTH * 2 - step_px * number for number in range(start, stop)]
    return Frames(
        times_s=np.arange(start, stop) / FPS,
        images=np.stack([texture[:, left : left + WIDTH] for left in lefts]),
        scenes=np.zeros(stop - start, np.int32),
        labels=np.stack([labels[:, left : left + WIDTH] for left in lefts]),
    )


def followed(tracker: Tracker, seen: Frames) -> np.ndarray:
    """Run a tracker on frames and track each of them; every prediction is class 7."""
    found = []
    for time_s, image in zip(seen.times_s.tolist(), seen.images, strict=True):
        tracker.add_frame(time_s, image)
        found.append(tracker.follow(time_s, np.full((HEIGHT, WIDTH), 7, np.uint8))[0])
    return np.stack(found)


def keyframe(seen: Frames, index: int, arrive_s: float) -> Keyframe:
    return Keyframe(float(seen.times_s[index]), arrive_s, seen.labels[index])


def test_until_labels_arrive_predictions_stand():
    seen = frames(0, 6)
    tracker = Tracker()
    tracker.add(keyframe(seen, 0, arrive_s=1.2))
    found = followed(tracker, seen)
    assert [set(np.unique(labels)) == {7} for labels in found] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(("chained", "step_px"), [(True, 3), (False, 1)])  # one flow over a long way is not found
def test_labels_follow_the_motion_since_their_frame(chained, step_px):
    seen = frames(0, 5, step_px)
    tracker = Tracker(chained=chained)
    tracker.add(keyframe(seen, 0, arrive_s=0.0))
    found = followed(tracker, seen)
    assert np.array_equal(found[0], seen.labels[0])
    for index in range(1, 5):
        inside = slice(step_px * index + 2, -2)  # parts that came into view later are in no keyframe
        standing = (seen.labels[0] == seen.labels[index])[:, inside].mean()
        assert (found[index] == seen.labels[index])[:, inside].mean() > max(0.9, standing)


def test_the_newest_labels_that_have_arrived_are_used():
    seen = frames(0, 6, step_px=0)
    tracker = Tracker()
    ones, twos = (np.full((HEIGHT, WIDTH), value, np.uint8) for value in (1, 2))
    tracker.add(Keyframe(0.0, 0.6, ones))
    tracker.add(Keyframe(1.0, 2.0, twos))
    found = followed(tracker, seen)
    assert [int(labels[0, 0]) for labels in found] == [7, 7, 1, 1, 2, 2]


def test_where_a_label_is_unknown_the_prediction_is_kept():
    """A class that is none would be counted as one."""
    seen = frames(0, 2, step_px=0)
    labels = seen.labels[0].copy()
    labels[:10] = IGNORE
    tracker = Tracker()
    tracker.add(Keyframe(0.0, 0.0, labels))
    found = followed(tracker, seen)
    assert (found[:, :10] == 7).all()
    assert np.array_equal(found[:, 10:], seen.labels[:, 10:])
