"""Signs: the classes, their variation within a stream, and the properties that do not change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.sheet import contact_sheet
from driftlab.datasets.signs.alphabet import (
    ANGLES,
    MAX_CLASSES,
    PATTERNS,
    SHAPES,
    SignClass,
    kinds_of,
    names_of,
    outlines,
)
from driftlab.datasets.signs.draw import Views, draw
from driftlab.datasets.signs.presets import PRESETS
from driftlab.errors import RequestError

SIDE = 96
PLAIN = list(PATTERNS).index("plain")


def signs(name, seed=0, duration_s=120.0, side=32, **params):
    return open_stream(f"signs/{name}", seed=seed, height=side, width=side, fps=4, duration_s=duration_s, **params)


def view(kind, **changed):
    """One white sign on black in the middle of the picture, without anything else."""
    parts = {
        "kinds": [kind],
        "centres": [[0, 0]],
        "radii": [0.3],
        "turns": [0],
        "phases": [[0, 0]],
        "colours": [[[1, 1, 1], [0, 0, 0]]],
        "contrast": [[0, 0]],
        "gain": [1],
        "blobs": np.zeros((1, 0, 6)),
    } | changed
    return Views(parts.pop("kinds"), **{key: np.asarray(value, np.float32) for key, value in parts.items()})


def picture(kind, **changed):
    return draw(view(kind, **changed), SIDE, SIDE, np.zeros((1, SIDE, SIDE, 3), np.float32))[0]


@pytest.mark.parametrize("classes", [2, 3, 8, 10, 12, 16, 20, 40, 100, MAX_CLASSES])
def test_classes_are_different_and_use_shapes_and_patterns_evenly(classes):
    kinds = kinds_of(classes)
    assert len(set(kinds)) == len(set(names_of(classes))) == classes
    letters = [len({kind[place] for kind in kinds}) for place in range(3)]
    assert math.prod(letters) >= classes
    limits = (len(SHAPES), len(PATTERNS), len(PATTERNS))
    free = [count for count, limit in zip(letters, limits, strict=True) if count < limit]
    assert not free or max(letters) - min(free) <= 1 or min(letters) == min(free)


@pytest.mark.parametrize("classes", [-1, 0, 1, MAX_CLASSES + 1])
def test_invalid_class_counts_are_refused(classes):
    with pytest.raises(RequestError, match=f"2 to {MAX_CLASSES} classes, given {classes}"):
        kinds_of(classes)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_shape_covers_the_area_of_its_polygon(shape):
    corners = np.array(tuple(SHAPES.values())[shape])
    x, y = corners.T
    area = 0.5 * abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)))
    reach = outlines()[shape].astype(float)
    assert 0.5 * np.sum(reach**2) * 2 * np.pi / ANGLES == pytest.approx(area, rel=0.03)
    covered = picture(SignClass(shape, PLAIN, PLAIN)).mean() / 255 * SIDE**2 / (0.3 * SIDE) ** 2
    assert covered == pytest.approx(area, rel=0.05)


def test_a_view_rotates_and_moves_the_sign():
    square = list(SHAPES).index("square")
    diamond = list(SHAPES).index("diamond")
    turned = picture(SignClass(square, PLAIN, PLAIN), turns=[math.pi / 4]).astype(int)
    assert np.abs(turned - picture(SignClass(diamond, PLAIN, PLAIN))).mean() < 2  # of 255 steps
    moved = picture(SignClass(square, PLAIN, PLAIN), centres=[[0.125, 0]])
    assert np.array_equal(moved[:, 12:], picture(SignClass(square, PLAIN, PLAIN))[:, :-12])  # 0.125 of 96 pixels


@pytest.mark.parametrize("layer", [0, 1])
def test_patterns_of_sign_and_background_are_all_different(layer):
    middle, edge = (slice(40, 56), slice(40, 56)), (slice(0, 96), slice(0, 10))
    here, there = (middle, edge) if layer == 0 else (edge, middle)
    found = []
    for letter in range(len(PATTERNS)):
        kind = SignClass(0, letter, PLAIN) if layer == 0 else SignClass(0, PLAIN, letter)
        image = picture(kind, colours=[[[0.5] * 3] * 2], contrast=[[0.4, 0.4]])
        assert np.all(image[there] == 128) and (image[here].std() > 20) == (letter != PLAIN)
        found.append(image[here])
    assert all(not np.array_equal(a, b) for k, a in enumerate(found) for b in found[:k])


@pytest.mark.slow
def test_class_colours_differ_between_scenes():
    """Within a scene the nearest mean colour names the class; learnt there, it says little elsewhere."""
    stream = signs("motorway", duration_s=400, pace=0.1)
    frames = stream.at(np.arange(0, 400, 0.25))
    colours = frames.images.reshape(len(frames), -1, 3).mean(1)
    first, other = (np.flatnonzero(frames.scenes == number) for number in (0, 1))
    means = {kind: colours[first][frames.classes[first] == kind].mean(0) for kind in set(frames.classes[first])}
    known = np.array(list(means))

    def right(rows):
        rows = rows[np.isin(frames.classes[rows], known)]
        nearest = np.linalg.norm(colours[rows][:, None] - np.array(list(means.values())), axis=2).argmin(1)
        return (known[nearest] == frames.classes[rows]).mean()

    assert right(first) > 0.6 > 0.35 > right(other)


def test_scenes_change_at_the_times_of_the_preset():
    changes = {name: len(signs(name).changes_s()) for name in PRESETS}
    assert changes["depot"] == changes["seasons"] == 0 < changes["town"] < changes["motorway"]
    assert len(signs("town", pace=2.0).changes_s()) > changes["town"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_signs_are_visible_for_about_their_time(name):
    stream = signs(name, duration_s=200, side=16)
    frames = stream.at(np.arange(0, 200, 0.25))
    new = np.mean(np.diff(frames.classes) != 0) * 4  # changes per second
    visible_s = PRESETS[name].visible_s
    assert 0.6 / visible_s < new < 1.1 / visible_s


@pytest.mark.slow
def test_a_town_favours_some_classes_and_a_depot_has_equal_frequencies():
    counts = {}
    for name in ("depot", "town"):
        stream = signs(name, duration_s=2000, pace=0.01, side=16)
        counts[name] = np.bincount(stream.at(np.arange(0, 2000, 2.0)).classes, minlength=8) / 1000
    assert counts["depot"].std() < 0.03 < 0.06 < counts["town"].std()


def test_seasons_change_continuously():
    stream = signs("seasons", duration_s=200)
    before, at, after = (stream._look(0, time_s).colours for time_s in (44.9, 45.0, 45.1))
    assert np.abs(at - before).max() < 0.01 and np.abs(after - at).max() < 0.01
    assert np.abs(stream._look(0, 0.0).colours - at).mean() > 0.1


def test_parameters_have_their_effect():
    assert len(signs("town", classes=20).classes) == 20
    clear, noisy = (signs("depot", difficulty=difficulty).at([1.0]).images[0] for difficulty in (0.0, 3.0))
    smooth = [np.abs(np.diff(image.astype(int), axis=0)).mean() for image in (clear, noisy)]
    assert smooth[1] > 1.5 * smooth[0]
    with pytest.raises(RequestError, match=r"classes is 2\.5, allowed are whole numbers"):
        signs("town", classes=2.5)


def test_a_contact_sheet_has_the_class_of_each_frame():
    sheet = contact_sheet(signs("town"), [0.0, 5.0, 50.0])
    assert sheet.dtype == np.uint8 and sheet.shape[1] >= 3 * 256 and sheet.shape[0] >= 256 + 2 * 20
