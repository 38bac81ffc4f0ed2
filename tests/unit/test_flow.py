"""Optical flow: labels warped along a known motion have the expected positions."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from driftlab.platform.networks.tasks import flow

HEIGHT, WIDTH, MARGIN = 64, 96, 16


def view(left: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a view of a wide, smooth texture with a separate label for each patch."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (HEIGHT * 3, WIDTH * 3)).astype(np.uint8)
    texture = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)
    y, x = np.mgrid[0 : HEIGHT * 3, 0 : WIDTH * 3]
    labels = ((x // 16 + 3 * (y // 16)) % 7).astype(np.uint8)
    here = np.s_[HEIGHT + top : 2 * HEIGHT + top, WIDTH + left : 2 * WIDTH + left]
    return np.ascontiguousarray(texture[here]), np.ascontiguousarray(labels[here])


def inside(labels: np.ndarray) -> np.ndarray:
    return labels[MARGIN:-MARGIN, MARGIN:-MARGIN]


@pytest.mark.parametrize("left", [-4, 1, 3])
@pytest.mark.parametrize("top", [0, 2])
def test_a_translation_moves_labels_without_an_error(left, top):
    (before, labels), (now, wanted) = view(0, 0), view(left, top)
    carried = flow.warp(labels, flow.identity(HEIGHT, WIDTH) + flow.flow(now, before))
    assert np.array_equal(inside(carried), inside(wanted))


def test_a_still_image_keeps_its_labels_to_the_last_pixel():
    image, labels = view(0, 0)
    source = flow.identity(HEIGHT, WIDTH)
    for _ in range(8):
        source = flow.compose(flow.flow(image, image), source)
    assert np.array_equal(flow.warp(labels, source), labels)


def test_labels_are_taken_and_never_mixed():
    labels = np.where(np.arange(WIDTH) < 48, 1, 6).astype(np.uint8) * np.ones((HEIGHT, 1), np.uint8)
    half_a_pixel = flow.identity(HEIGHT, WIDTH) + np.float32(0.5)
    assert set(np.unique(flow.warp(labels, half_a_pixel))) == {1, 6}


def test_newly_visible_pixels_take_the_nearest_label():
    labels = view(0, 0)[1]
    source = flow.identity(HEIGHT, WIDTH) + np.array([5, 0], np.float32)
    assert np.array_equal(flow.warp(labels, source)[:, -5:], np.repeat(labels[:, -1:], 5, axis=1))
