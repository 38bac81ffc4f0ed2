"""Live scores of a few frames by hand; they do not depend on the cuts of calls."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from driftlab.datasets.frames import Frames
from driftlab.platform.core.records import ModelCost
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task
from driftlab.platform.sim.nodes.frame_results import FrameResults, Scorer
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.world import hardware

FPS, CLASSES = 4.0, 5
NEVER = None
STUDENT = StudentSpec("tiny", CLASSES, 16, 16, Member("adaptation", "frozen"), Member("scaling", "fixed"), 0)


def results(task: Task = CLASSIFICATION, grace_s: float = 1 / FPS) -> FrameResults:
    cost = ModelCost(1, 1, 1, 1, ())
    spec = AppNodeConfig("d", "app", STUDENT, hardware.find("jetson-nx"), cost, grace_s=grace_s)
    return FrameResults(spec, task, Scorer(CLASSES, task))


def scored(
    found: FrameResults,
    latencies_s: list[float | None],
    truth: Any = None,
    cuts: tuple[int, ...] = (),
    fps: float = FPS,
) -> Any:
    """Predict every frame rightly after a time; return the columns and the sums of all calls."""
    count = len(latencies_s)
    truth = np.arange(count) % CLASSES if truth is None else truth
    predictions = (
        np.maximum(truth, 0) if found.task is CLASSIFICATION else truth
    )  # a frame without truth has a prediction
    times_s = np.arange(count) / fps
    frames = Frames(times_s, np.zeros((count, 16, 16, 3), np.uint8), np.zeros(count, np.int32), None)
    replies = []
    for start, stop in zip((0, *cuts), (*cuts, count), strict=True):
        for place, result in enumerate(found.add(frames[start:stop], truth[start:stop]), start):
            if latencies_s[place] is not NEVER:
                result.processed, result.latency_s, result.prediction = True, latencies_s[place], predictions[place]
        replies.append(found.collect_rows())
        found = pickle.loads(pickle.dumps(found))
    chunks = [chunk for reply in replies for chunk in reply.rows["frames"]]
    names = ("score_window", "score_live")
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]).tolist() for name in names}
    sums = [
        sum(getattr(reply.facts, name) for reply in replies) for name in ("live_scored", "live_score_sum", "scored")
    ]
    return columns, sums


class TestByHand:
    """Four frames, each of another class and predicted rightly; a prediction to another frame is wrong."""

    @pytest.mark.parametrize(
        ("latencies_s", "live"),
        [
            ([0.1] * 4, [1, 1, 1, 1]),  # before the next frame
            ([0.25] * 4, [1, 1, 1, 1]),  # at the next frame
            ([0.26] * 4, [0, 0, 0, 0]),  # after the next frame
            ([NEVER] * 4, [0, 0, 0, 0]),
            ([0.1, 0.25, 0.6, NEVER], [1, 1, 2 / 3, 2 / 4]),  # frames 2 and 3 show the prediction to frame 1
            ([NEVER, 0.6, 0.1, 0.1], [0, 0, 1 / 3, 2 / 4]),  # nothing is predicted before frame 2
            ([0.1, 0.8, 0.1, 0.1], [1, 1 / 2, 2 / 3, 3 / 4]),  # a newer prediction overtakes that to frame 1
        ],
    )
    def test_live_is_the_newest_ready_prediction(self, latencies_s, live):
        found, (count, total, _) = scored(results(), latencies_s)
        assert found["score_live"] == pytest.approx(live)
        assert (count, total) == (4, pytest.approx(sum(live)))

    @pytest.mark.parametrize(
        ("grace_s", "live"), [(0.0, [0, 0, 0, 0]), (0.25, [0, 0, 0, 0]), (0.3, [1] * 4), (9.0, [1] * 4)]
    )
    def test_the_grace_extends_the_wait(self, grace_s, live):
        assert scored(results(grace_s=grace_s), [0.3] * 4)[0]["score_live"] == live

    def test_rounding_makes_no_prediction_late(self):
        """At 10 frames/s each prediction is ready 0.2 s late to the rounding, so it is live two frames later."""
        found, _ = scored(results(grace_s=0.1), [0.3] * 9, truth=np.arange(9) % 2, fps=10.0)
        assert found["score_live"] == pytest.approx([0, 0, *(right / (right + 2) for right in range(1, 8))])

    def test_a_score_starts_with_the_first_prediction_and_a_live_score_with_the_first_frame(self):
        found, (live_count, _, count) = scored(results(), [NEVER, 0.1, 0.1, NEVER])
        assert found["score_window"] == pytest.approx([np.nan, 1, 1, 2 / 3], nan_ok=True)
        assert found["score_live"] == pytest.approx([0, 1 / 2, 2 / 3, 2 / 4])
        assert (live_count, count) == (4, 3)

    def test_frames_without_truth_have_no_part_in_it(self):
        found, (count, total, _) = scored(results(), [0.1, NEVER, 0.1, 0.1], truth=np.array([-1, 1, 2, 3]))
        assert found["score_live"] == pytest.approx([np.nan, 0, 1 / 2, 2 / 3], nan_ok=True)
        assert (count, total) == (3, pytest.approx(0 + 1 / 2 + 2 / 3))

    def test_pixels_without_a_prediction_belong_to_no_class(self):
        """Frame 0 has classes 0 and 1 in halves; frame 1 is the same and is predicted rightly."""
        halves = np.zeros((2, 16, 16), np.uint8)
        halves[:, 8:] = 1
        assert scored(results(SEGMENTATION), [NEVER, 0.1], halves)[0]["score_live"] == [0, 1 / 2]

    def test_boxes_without_a_prediction_are_missed(self):
        box = np.array([[0, 2.0, 2, 14, 12]])
        truth = np.empty(2, dtype=object)
        truth[:] = [box, box]
        found, _ = scored(results(DETECTION), [NEVER, 0.1], truth)
        assert found["score_live"] == pytest.approx([0, 2 * 1 / (1 + 2)])


LATENCIES_S = [NEVER, 0.9, 0.1, NEVER, 0.5, 0.25, 2.5, 0.1, NEVER, NEVER, 1.0, 0.2]


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4, 9), tuple(range(1, 12))])
def test_it_depends_neither_on_the_cuts_of_calls_nor_on_copies_of_the_state(cuts):
    whole, sums = scored(results(), LATENCIES_S)
    found, parts = scored(results(), LATENCIES_S, cuts=cuts)
    assert np.array_equal(found["score_live"], whole["score_live"])
    assert np.array_equal(found["score_window"], whole["score_window"], equal_nan=True)
    assert parts == pytest.approx(sums)


@pytest.mark.parametrize("task", [CLASSIFICATION, SEGMENTATION])
def test_it_equals_the_score_of_timely_predictions(task, monkeypatch):
    counted = []
    usual = type(task).counts
    monkeypatch.setattr(
        type(task), "counts", lambda self, *given: (counted.append(len(given[0])), usual(self, *given))[1]
    )
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLASSES, (9, 16, 16) if task is SEGMENTATION else 9)
    found, _ = scored(results(task), [0.0, 0.25, NEVER, 0.1, NEVER, NEVER, 0.2, 0.25, 0.1], truth, cuts=(3, 5))
    assert found["score_live"] == found["score_window"]
    assert sum(counted) == 9


def test_old_predictions_are_dropped():
    found = results()
    scored(found, [0.1] * 30)
    assert len(found.recent) == 1
