"""Labelled sets: sizes of the parts, determinism, and errors with all faults."""

from __future__ import annotations

import numpy as np
import pytest
from imports_factory import loaded_by

from driftlab.datasets.labelled import SETS, open_set, open_test
from driftlab.datasets.signs.alphabet import PATTERNS, kinds_of
from driftlab.errors import RequestError

SIGNS = [name for name in SETS if name.startswith("signs/")]
SMALL = (60, 20, 20)


@pytest.mark.parametrize("name", SIGNS)
def test_parts_have_the_requested_sizes_and_balanced_classes(name):
    found = open_set(name, counts=(120, 40, 40), size=16)
    assert found.name == name
    for part, count in zip((found.train, found.val, found.test), (120, 40, 40), strict=True):
        assert part.images.shape == (count, 16, 16, 3) and part.images.dtype == np.uint8
        assert part.classes.shape == (count,) and part.classes.dtype == np.int64
        share = np.bincount(part.classes, minlength=len(found.classes))
        assert len(share) == len(found.classes) and share.max() - share.min() <= 1


@pytest.mark.slow
def test_signs_have_4000_1000_and_1000_images_of_32_pixels_by_default():
    found = open_set("signs/vg")
    assert [len(part.images) for part in (found.train, found.val, found.test)] == [4000, 1000, 1000]
    assert found.train.images.shape[1:] == (32, 32, 3)


@pytest.mark.slow
def test_the_same_request_gives_the_same_bytes_and_another_seed_others():
    first, same, other = (open_set("signs/vc", counts=SMALL, seed=seed) for seed in (3, 3, 4))
    for part in ("train", "val", "test"):
        assert np.array_equal(getattr(first, part).images, getattr(same, part).images)
        assert not np.array_equal(getattr(first, part).images, getattr(other, part).images)


@pytest.mark.slow
def test_parts_are_disjoint():
    found = open_set("signs/vg", counts=(300, 300, 300))
    pictures = [image.tobytes() for part in (found.train, found.val, found.test) for image in part.images]
    assert len(set(pictures)) == 900


@pytest.mark.slow
def test_a_larger_part_begins_like_a_smaller_one():
    few, many = (open_set("signs/rp", counts=(count, 5, 5)).train for count in (40, 300))
    assert np.array_equal(many.images[:40], few.images)


def test_open_test_returns_the_cached_test_part():
    part, whole = open_test("signs/vc", size=16, at_most=40), open_set("signs/vc", size=16, counts=40).test
    assert np.array_equal(part.images, whole.images) and np.array_equal(part.classes, whole.classes)
    assert open_test("signs/vc", size=16, at_most=40).images is part.images


@pytest.mark.slow
def test_images_of_every_chunk_have_their_class():
    """Without noise the margin shows whether the background has bars or rows."""
    found = open_set("signs/vc", counts=(600, 5, 5), classes=5, difficulty=0, size=48).train
    grey = found.images.astype(int).mean(-1)
    upright = np.abs(np.diff(grey[:, :, :4], axis=1)).mean((1, 2)) < np.abs(np.diff(grey[:, :4], axis=2)).mean((1, 2))
    ground = np.array([kinds_of(5)[number].ground for number in found.classes])
    late = np.arange(600) >= 256
    assert (upright == (ground == list(PATTERNS).index("bars")))[late].mean() > 0.95


@pytest.mark.slow
def test_classes_and_difficulty_are_configurable():
    found = open_set("signs/vc", counts=SMALL, classes=5, difficulty=0)
    assert len(found.classes) == 5 and found.train.classes.max() == 4
    noisy = open_set("signs/vc", counts=SMALL, classes=5, difficulty=3.0)
    rough = [np.abs(np.diff(one.train.images.astype(int), axis=1)).mean() for one in (found, noisy)]
    assert rough[1] > 1.5 * rough[0]


def test_an_invalid_request_lists_all_faults():
    with pytest.raises(RequestError) as caught:
        open_set("signs/vc", seed=-1, size=4, counts=(1, 0, 2), classes=1, difficulty=float("nan"))
    for part in ("seed is -1", "size is 4", "a count is 0", "classes is 1", "difficulty is nan"):
        assert part in str(caught.value)
    with pytest.raises(RequestError, match="three numbers"):
        open_set("signs/vc", counts=(1, 2))
    with pytest.raises(RequestError, match="Did you mean 'signs/vc'"):
        open_set("sings/vc")


@pytest.mark.slow
def test_class_names_import_no_heavy_modules():
    heavy = {"cv2", "torch", "torchvision", "sklearn", "PIL"}
    assert loaded_by("import driftlab.datasets.labelled", heavy) == set()
