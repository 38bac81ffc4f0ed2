"""Tasks: decoding, counts, scores and losses; boxes against results by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from driftlab.datasets.frames import NO_CLASS, Frames
from driftlab.errors import RequestError, WireError
from driftlab.platform.core.metrics import f1_boxes
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks import boxes, flow, tasks
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, TASKS

HEIGHT, WIDTH, CLASSES = 48, 64, 8
EVERY = list(TASKS.values())


def random_labels(task, seed=0, n=4):
    """Return random predictions."""
    rng = np.random.default_rng(seed)
    if task is SEGMENTATION:
        return rng.integers(0, CLASSES, (n, HEIGHT, WIDTH), dtype=np.uint8)
    if task is CLASSIFICATION:
        return rng.integers(0, CLASSES, n)
    return boxes.stack([draw_boxes(rng, int(rng.integers(0, 5))) for _ in range(n)])


def draw_boxes(rng, count):
    """Return random boxes with a minimum distance, so that their centres differ."""
    cells = rng.permutation(12)[:count]
    sizes = rng.uniform(5, 15, (count, 2))
    low = np.stack([cells % 4 * 16, cells // 4 * 16], axis=1) + rng.uniform(0, 16 - sizes)
    return np.concatenate([rng.integers(0, CLASSES, (count, 1)), low, low + sizes], axis=1).astype(np.float32)


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def shown(labels_of, task):
    """Return frames with these labels as ground truth."""
    n = len(labels_of)
    truths = {"labels": None, "classes": None, "boxes": None}
    truths[{"segmentation": "labels", "classification": "classes", "detection": "boxes"}[task.name]] = (
        tuple(labels_of) if task is DETECTION else labels_of
    )
    return Frames(np.arange(n) / 2, np.zeros((n, HEIGHT, WIDTH, 3), np.uint8), np.zeros(n, np.int32), **truths)


@pytest.mark.parametrize("task", EVERY, ids=lambda task: task.name)
class TestEveryTask:
    def test_takes_its_truth_and_no_other(self, task):
        given_ = random_labels(task)
        assert equal(task.truth(shown(given_, task)), given_)
        assert [other.truth(shown(given_, task)) is None for other in EVERY] == [other is not task for other in EVERY]

    def test_equal_labels_score_1_and_have_phi_0(self, task):
        right = random_labels(task)
        counts = task.counts(right, right, CLASSES)
        assert task.score(counts).tolist() == [1.0] * 4 and float(task.score(counts.sum(axis=0))) == 1.0
        assert [task.phi(answer, answer, CLASSES) for answer in right] == [0.0] * 4

    def test_different_labels_score_below_1_and_have_phi_above_0(self, task):
        right, wrong = random_labels(task, n=20), random_labels(task, seed=1, n=20)
        counts = task.counts(wrong, right, CLASSES)
        assert float(task.score(counts.sum(axis=0))) < 0.5
        phis = [task.phi(a, b, CLASSES) for a, b in zip(right, wrong, strict=True)]
        assert min(phis) >= 0 and max(phis) == pytest.approx(1.0, abs=0.1) and np.mean(phis) > 0.5

    def test_unpack_returns_the_packed_label(self, task):
        for answer in random_labels(task):
            packed = task.pack(answer)
            assert np.array_equal(task.unpack(packed, HEIGHT, WIDTH), answer)
            with pytest.raises(WireError):
                task.unpack(packed[:-3], HEIGHT, WIDTH)

    def test_mirroring_twice_is_the_identity(self, task):
        given_ = random_labels(task)
        twice = task.mirror(task.mirror(given_, WIDTH), WIDTH)
        assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(twice, given_, strict=True))

    def test_warp_without_motion_is_the_identity(self, task):
        for answer, other in zip(random_labels(task), random_labels(task, seed=1), strict=True):
            whole = np.round(answer)  # pixels are whole numbers
            assert np.array_equal(task.warp(whole, flow.identity(HEIGHT, WIDTH), other), whole)

    def test_draw_returns_an_image_of_the_frame_size(self, task):
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        pictures = [task.draw(answer, image) for answer in random_labels(task)]
        assert {(picture.shape, picture.dtype) for picture in pictures} == {(image.shape, image.dtype)}
        assert not equal(pictures[:1], pictures[1:2])

    @pytest.mark.slow
    def test_a_network_fits_the_labels_of_the_task(self, task):
        """Steps on the same frames halve the loss."""
        name = {"segmentation": "tiny", "classification": "tiny_classifier", "detection": "tiny_detector"}[task.name]
        assert task_of(name) is task
        truth = random_labels(task, seed=3)
        if task is SEGMENTATION:
            truth[:] = truth[:, :1, :1]  # noise cannot be learned
        images = np.random.default_rng(0).integers(0, 255, (4, HEIGHT, WIDTH, 3), dtype=np.uint8)
        model, losses = build(name, CLASSES, seed=0), []
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(25):
            optimiser.zero_grad()
            loss = task.loss(model(to_input(images)), truth)
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.5 * losses[0]


def test_an_unknown_task_is_refused_with_a_suggestion():
    with pytest.raises(RequestError, match="Did you mean 'detection'"):
        tasks.find("detektion")


def test_the_driver_needs_no_torch_for_them():
    code = "import sys, driftlab.platform.networks.tasks.tasks; print({'torch', 'cv2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("task", [SEGMENTATION, CLASSIFICATION], ids=lambda task: task.name)
def test_labels_outside_the_list_count_neither_in_the_loss_nor_in_the_score(task):
    truth = random_labels(task, n=6)
    output = torch.randn(6, CLASSES, *truth.shape[1:], generator=torch.Generator().manual_seed(0))
    before = float(task.loss(output[:3], truth[:3]))
    truth[3:5], truth[5:] = CLASSES, task.ignored
    assert float(task.loss(output, truth)) == pytest.approx(before)
    assert task.counts(truth % CLASSES, truth, CLASSES)[3:].sum() == 0
    assert task.usable(truth, CLASSES).tolist() == [True] * 3 + [False] * 3
    assert task.loss(output[3:], truth[3:]) is None


def test_unlisted_boxes_count_in_no_loss_score_or_change():
    seen = np.array([[1, 4, 4, 20, 20], [0, 30, 8, 44, 24]], np.float32)
    strange = np.array([[CLASSES, 8, 8, 30, 30]], np.float32)
    mixed, plain = boxes.stack([np.vstack([strange, seen])]), boxes.stack([seen])
    output = torch.randn(1, CLASSES + boxes.SIDES, 16, 24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(DETECTION.loss(output, mixed), DETECTION.loss(output, plain))
    assert DETECTION.counts(plain, mixed, CLASSES).tolist() == [[2, 2, 2]]
    assert DETECTION.phi(mixed[0], plain[0], CLASSES) == 0
    assert (DETECTION.count_unlisted(mixed, CLASSES), DETECTION.count_unlisted(plain, CLASSES)) == (1, 0)


def test_warping_keeps_a_class_and_fills_an_unknown_one():
    assert CLASSIFICATION.warp(np.int64(3), flow.identity(4, 4), np.int64(5)) == 3
    assert CLASSIFICATION.warp(np.int64(NO_CLASS), flow.identity(4, 4), np.int64(5)) == 5


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 9999))
def test_f1_of_counts_is_that_of_the_frames(seed):
    rng = np.random.default_rng(seed)
    truth, predicted = (boxes.stack([draw_boxes(rng, int(rng.integers(0, 5)))]) for _ in range(2))
    both = boxes.stack([np.concatenate([truth[0], predicted[0]])])
    for given_ in (predicted, both):
        assert float(DETECTION.score(DETECTION.counts(given_, truth, CLASSES))[0]) == f1_boxes(given_[0], truth[0])


def ideal(found, classes=CLASSES):
    """Return the output for perfect predictions."""
    heat, sides, _ = boxes._draw_targets(found, classes, HEIGHT // 2, WIDTH // 2)
    logits = np.where(heat == 1, 6.0, np.log(np.clip(heat, 1e-4, 0.9) / (1 - np.clip(heat, 1e-4, 0.9))))
    return torch.from_numpy(np.concatenate([logits, sides])[None].astype(np.float32))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 9999))
def test_decode_returns_the_boxes_of_the_targets(seed):
    rng = np.random.default_rng(seed)
    found = draw_boxes(rng, int(rng.integers(0, 8)))
    (back,) = boxes.decode(ideal(found), HEIGHT, WIDTH)
    assert len(back) == len(found)
    order = np.lexsort(back[:, :3].round(2).T), np.lexsort(found[:, :3].round(2).T)
    assert np.allclose(back[order[0], :5], found[order[1]], atol=0.02)
    assert np.all(np.diff(back[:, 5]) <= 0)  # the most likely first


def test_the_loss_is_near_zero_for_ideal_outputs_and_large_for_empty_ones():
    found = boxes.stack([draw_boxes(np.random.default_rng(0), 4)])
    empty = boxes.stack([found[0][:0]])
    blank = torch.full((1, CLASSES + boxes.SIDES, HEIGHT // 2, WIDTH // 2), -6.0)
    assert float(boxes.loss(ideal(found[0]), found)) < 0.1
    assert float(boxes.loss(blank, empty)) < 0.1 < 1 < float(boxes.loss(blank, found))
    assert boxes.loss(blank[:0], boxes.stack([])) is None


def test_the_centre_loss_is_the_focal_loss():
    found = boxes.stack([np.array([[2, 10, 10, 20, 20]], np.float32)])
    output = torch.randn(1, CLASSES + boxes.SIDES, HEIGHT // 2, WIDTH // 2, generator=torch.Generator().manual_seed(1))
    heat, sides, weight = boxes._draw_targets(found[0], CLASSES, HEIGHT // 2, WIDTH // 2)
    assert (heat == 1).sum() == 1 and heat[2, 7, 7] == 1 and heat[[0, 1, 3]].max() == 0
    p = torch.sigmoid(output[0, :-4]).double().numpy()
    middles = np.where(heat == 1, -((1 - p) ** 2) * np.log(p), -((1 - heat) ** 4) * p**2 * np.log(1 - p)).sum()
    off = F.smooth_l1_loss(output[0, -4:], torch.from_numpy(sides), reduction="none", beta=0.1).sum(0).numpy()
    wanted = middles + (off * weight).sum() / max(1, weight.sum())
    assert float(boxes.loss(output, found)) == pytest.approx(wanted, rel=1e-4)
    here = sides[:, 7, 7]  # centre of the cell: 15, 15
    assert np.exp(here) * boxes.UNIT_PX == pytest.approx([5, 5, 5, 5])


def test_warp_moves_boxes_and_drops_those_outside_the_frame():
    found = np.array([[1, 4, 10, 14, 20], [2, 40, 0, 48, 8]], np.float32)
    right = flow.identity(HEIGHT, WIDTH) - np.array([10, 2], np.float32)  # the source is further left and up
    assert boxes.warp(found, right).tolist() == [[1, 14, 12, 24, 22], [2, 50, 2, 58, 10]]
    away = flow.identity(HEIGHT, WIDTH) + np.array([20, 0], np.float32)
    assert boxes.warp(found, away).tolist() == [[2, 20, 0, 28, 8]]


def test_a_mirrored_box_is_where_its_pixels_are():
    found = np.array([[1, 4, 10, 14, 20]], np.float32)
    image = np.zeros((HEIGHT, WIDTH), np.uint8)
    image[10:20, 4:14] = 1
    rows, columns = np.nonzero(image[:, ::-1])
    assert boxes.mirror(found, WIDTH)[0].tolist() == [1, columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_unscored_boxes_and_frames_are_left_out():
    two = np.array([[0, 0, 0, 9, 9], [1, 0, 0, 9, 9]], np.float32)
    ours, theirs = DETECTION.restrict(boxes.stack([two]), boxes.stack([two[:1]]), (1,))
    assert [one[:, 0].tolist() for one in (ours[0], theirs[0])] == [[1], []]
    ours, theirs = CLASSIFICATION.restrict(np.array([0, 1]), np.array([1, 2]), (1,))
    assert (ours.tolist(), theirs.tolist()) == ([0, 1], [1, NO_CLASS])
