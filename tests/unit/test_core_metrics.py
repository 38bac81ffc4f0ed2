"""Metrics against closed forms, brute force and torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driftlab.datasets.frames import IGNORE
from driftlab.platform.core import metrics

RNG = np.random.default_rng(5)


def random_labels(shape, classes=6, ignore=0.1):
    truth = RNG.integers(0, classes, shape).astype(np.uint8)
    truth[RNG.random(shape) < ignore] = IGNORE
    return RNG.integers(0, classes, shape).astype(np.uint8), truth


def test_a_batch_counts_each_frame_separately():
    prediction, truth = random_labels((4, 9, 7))
    batch = metrics.confusions(prediction, truth, 6)
    for frame in range(4):
        assert np.array_equal(batch[frame], metrics.confusion(prediction[frame], truth[frame], 6))
    assert batch.dtype == np.int64
    assert batch.sum() == (truth != IGNORE).sum()


@pytest.mark.parametrize(("prediction", "truth"), [([3], [0]), ([0], [3]), ([0, 0], [0])])
def test_a_class_that_does_not_exist_is_refused(prediction, truth):
    with pytest.raises(ValueError):
        metrics.confusion(np.array(prediction), np.array(truth), 3)


def test_miou_leaves_out_classes_that_do_not_occur():
    matrix = np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
    assert metrics.miou(matrix) == pytest.approx((3 / 4 + 4 / 5) / 2)
    assert np.isnan(metrics.miou(np.zeros((3, 3), np.int64)))


@pytest.mark.slow
def test_miou_agrees_with_torchmetrics(torchvision):  # which torchmetrics imports
    from torchmetrics.functional.classification import multiclass_jaccard_index

    for _ in range(20):
        prediction, truth = random_labels((12, 10), classes=5)
        theirs = multiclass_jaccard_index(
            torch.tensor(prediction.astype(int)),
            torch.tensor(truth.astype(int)),
            num_classes=5,
            ignore_index=IGNORE,
            average="none",
        )
        assert np.allclose(metrics.iou(metrics.confusion(prediction, truth, 5)), theirs.numpy(), atol=1e-6)


@pytest.mark.parametrize("window_s", [0.01, 0.5, 1.0, 100.0])
def test_windowed_agrees_with_brute_force(window_s):
    times = np.arange(40) / 10
    matrices = metrics.confusions(*random_labels((40, 5, 5)), 6)
    ours = metrics.windowed(matrices, times, window_s)
    frames = max(1, round(window_s * 10))
    for k in range(40):
        assert np.array_equal(ours[k], matrices[max(0, k - frames + 1) : k + 1].sum(axis=0))


def test_windowed_refuses_falling_times():
    with pytest.raises(ValueError):
        metrics.windowed(np.zeros((2, 2, 2), np.int64), np.array([1.0, 0.0]), 1.0)


def test_f1_matches_each_box_once_and_only_within_a_class():
    truth = np.array([[1, 0, 0, 10, 10], [2, 20, 0, 30, 10]], np.float32)
    twice = np.array([[1, 0, 0, 10, 10, 0.4], [1, 0, 0, 10, 9, 0.9]], np.float32)
    assert metrics.f1_boxes(truth, truth) == 1.0
    assert metrics.f1_boxes(twice, truth) == pytest.approx(0.5)
    assert metrics.f1_boxes(truth[:, [0, 1, 2, 3, 4]] + np.array([1, 0, 0, 0, 0]), truth) == 0.0
    assert metrics.f1_boxes(np.zeros((0, 5)), np.zeros((0, 5))) == 1.0
    assert metrics.f1_boxes(np.zeros((0, 5)), truth) == 0.0


def test_f1_takes_the_best_score_first():
    truth = np.array([[0, 0, 0, 10, 10], [0, 0, 0, 10, 16]], np.float32)
    greedy = np.array([[0, 0, 0, 10, 14, 0.9], [0, 0, 0, 10, 21, 0.5]], np.float32)
    assert metrics.f1_boxes(greedy, truth) == pytest.approx(0.5)  # the first takes the second truth (14/16 > 10/14)
    assert metrics.f1_boxes(np.array([[0, 0, 0, 10, 5, 1.0]]), truth) == pytest.approx(2 / 3)  # exactly .5 counts
