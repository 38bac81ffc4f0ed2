"""The teacher: the same frames get the same labels, and an oracle errs at borders only."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.datasets.frames import IGNORE, Frames
from driftlab.errors import RequestError
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import predict, state_of
from driftlab.platform.sim.nodes.teacher import TeacherNode, blur_borders, wobble
from driftlab.platform.sim.setting import TeacherSpec

HEIGHT, WIDTH = 32, 48


def frames(n: int = 4, *, truth: bool = True) -> Frames:
    rng = np.random.default_rng(n)
    labels = np.repeat(np.repeat(rng.integers(0, 8, (n, 4, 6), dtype=np.uint8), 8, axis=1), 8, axis=2)
    images = rng.integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Frames(np.arange(n) / 2, images, np.zeros(n, np.int32), labels if truth else None)


def at_border(labels: np.ndarray) -> np.ndarray:
    """Find the pixels that touch another class above, below, left or right of them, inside the picture."""
    found = np.zeros(labels.shape, bool)
    for axis in (0, 1):
        differs = np.diff(labels.astype(int), axis=axis) != 0
        rows, columns = np.nonzero(differs)
        found[rows, columns] = True
        found[rows + (axis == 0), columns + (axis == 1)] = True
    return found


def test_an_oracle_returns_the_ground_truth():
    seen = frames()
    reply = TeacherNode(TeacherSpec()).label(seen)
    assert np.array_equal(reply.payload, seen.labels)
    assert reply.facts.frames == 4


def test_labels_do_not_depend_on_the_order_of_calls():
    seen, spec = frames(), TeacherSpec(border_noise=0.5)
    whole = TeacherNode(spec).label(seen).payload
    other = TeacherNode(spec)
    parts = [other.label(seen[index]).payload for index in ([2, 3], [0], [1])]
    assert np.array_equal(whole[[2, 3, 0, 1]], np.concatenate(parts))


def test_noise_is_at_borders_and_takes_a_neighbour_s_label():
    for seed in range(20):
        labels = frames(20).labels[seed]
        noisy = blur_borders(labels, 1.0, seed=seed)
        wrong = noisy != labels
        assert wrong.any()
        assert not (wrong & ~at_border(labels)).any()
        padded = np.pad(labels, 1, mode="edge")
        around = np.stack([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]])
        assert (around == noisy)[:, wrong].any(axis=0).all()


def test_unknown_labels_stay_unknown_and_do_not_spread():
    labels = np.indices((40, 40)).sum(axis=0).astype(np.uint8) % 3
    labels[10:20] = IGNORE
    for seed in range(20):
        assert np.array_equal(blur_borders(labels, 1.0, seed=seed) == IGNORE, labels == IGNORE)


def test_an_oracle_requires_ground_truth():
    with pytest.raises(RequestError, match=r"frames without truth for segmentation; set teacher\.kind=network"):
        TeacherNode(TeacherSpec()).label(frames(truth=False))


def test_a_network_returns_its_predictions():
    model = build("tiny", 8, seed=3)
    seen = frames(truth=False)
    labels = TeacherNode(TeacherSpec(kind="network", network="tiny"), state_of(model)).label(seen).payload
    assert np.array_equal(labels, predict(model, seen.images))


@pytest.mark.parametrize("reach_px", [1.0, 3.0])
def test_outlines_that_flicker_move_by_some_pixels_and_surfaces_stay(reach_px):
    labels = np.zeros((60, 90), np.uint8)
    labels[:, 45:] = 1
    shifts = []
    for seed in range(30):
        edges = (wobble(labels, reach_px, seed=seed) == 0).sum(axis=1) - 45
        assert np.abs(np.diff(edges)).max() <= 1 + reach_px
        shifts.append(edges[30])
    assert 0.4 * reach_px < np.std(shifts) < 1.4 * reach_px
    assert np.array_equal(wobble(labels, reach_px, seed=1), wobble(labels, reach_px, seed=1))


def test_jittered_labels_are_the_same_in_each_call():
    seen, spec = frames(), TeacherSpec(label_jitter_px=2.0)
    whole = TeacherNode(spec).label(seen).payload
    parts = [TeacherNode(spec).label(seen[index]).payload for index in ([2, 3], [0], [1])]
    assert np.array_equal(whole[[2, 3, 0, 1]], np.concatenate(parts))
    assert 0 < (whole != seen.labels).mean() < 0.5
