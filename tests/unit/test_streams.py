"""Streets: constant and recurring parts, and the cues of a class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from imports_factory import loaded_by

from driftlab.datasets.catalogue import WORKLOADS, find_workload, open_stream
from driftlab.datasets.script import Script, draw_script
from driftlab.datasets.sheet import PALETTE, contact_sheet, save_png
from driftlab.datasets.streets.look import blend_appearance, draw_look
from driftlab.datasets.streets.presets import CAR, CLASSES, PERSON, PRESETS
from driftlab.datasets.streets.travel import Travel
from driftlab.errors import DataError, RequestError

STREETS = [name for name in WORKLOADS if name.startswith("streets/")]


def street(name, seed=0, duration_s=120.0, **params):
    return open_stream(f"streets/{name}", seed=seed, height=48, width=80, fps=4, duration_s=duration_s, **params)


@pytest.mark.parametrize("name", STREETS)
def test_boxes_are_the_visible_extents_of_persons_and_cars(name):
    frames = open_stream(name, seed=3, height=64, width=128, fps=2, duration_s=60).at(np.arange(0, 60, 3.0))
    for labels, boxes in zip(frames.labels, frames.boxes, strict=True):
        covered = np.zeros_like(labels)
        for kind, *corners in boxes:
            x0, y0, x1, y1 = (int(corner) for corner in corners)
            assert 0 <= x0 < x1 <= 128 and 0 <= y0 < y1 <= 64
            inside = labels[y0:y1, x0:x1] == kind
            # Another thing of the class may stand in front, so the box is tight around at least this much of it.
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
            covered[y0:y1, x0:x1] |= inside * np.uint8(1 << int(kind == CAR))
        for kind, bit in ((PERSON, 1), (CAR, 2)):
            assert np.array_equal(labels == kind, (covered & bit > 0) & (labels == kind))


def test_streams_are_ordered_by_their_number_of_changes():
    changes = {name: len(street(name, duration_s=60).changes_s()) for name in PRESETS}
    assert changes["interview"] == changes["drift"] == 0
    assert changes["dance"] <= changes["street_comedian"] <= changes["walking_paris"] < changes["walking_ny"]
    assert changes["walking_ny"] <= changes["driving_la"] < changes["running"]
    assert len(street("running", duration_s=60, pace=2.0).changes_s()) > changes["running"]


@pytest.mark.slow
def test_the_stream_any_is_one_of_the_streets_and_over_seeds_all_of_them():
    size = {"height": 24, "width": 32, "fps": 1, "duration_s": 2}
    seen = set()
    for seed in range(40):
        drawn = open_stream("any-street", seed=seed, **size, noise=0.5).at([1.0])
        streets = {name: open_stream(name, seed=seed, **size, noise=0.5).at([1.0]) for name in STREETS}
        seen |= {name for name, same in streets.items() if np.array_equal(same.images, drawn.images)}
    assert seen == set(STREETS)


@pytest.mark.parametrize("name", PRESETS)
def test_changes_are_where_the_scene_numbers_change(name):
    stream = street(name, duration_s=400)
    times_s = np.arange(0, 400, 0.25)
    numbers = [
        draw_script(PRESETS[name].visits, PRESETS[name].fresh, 0, 1.0).scene_at(float(time_s)) for time_s in times_s
    ]
    steps = times_s[1:][np.diff(numbers) != 0]
    assert len(steps) == len(stream.changes_s())
    assert np.all((steps - np.array(stream.changes_s()) >= 0) & (steps - np.array(stream.changes_s()) < 0.25))


def test_a_stream_is_the_beginning_of_a_longer_one():
    short, long = street("driving_la", duration_s=30), street("driving_la", duration_s=300)
    assert np.array_equal(short.at([29.0]).images, long.at([29.0]).images)
    assert short.changes_s() == tuple(time_s for time_s in long.changes_s() if time_s < 30)


def mean_colours(frames):
    """Average colour of each class that occurs, per batch."""
    return {
        kind: frames.images[frames.labels == kind].mean(0)
        for kind in range(len(CLASSES))
        if (frames.labels == kind).sum() > 500
    }


@pytest.mark.slow
def test_a_scene_that_returns_is_similar_and_another_is_not():
    stream = street("driving_la", duration_s=120)
    times_s = np.arange(0, 120, 0.5)
    frames = stream.at(times_s)
    first = frames.scenes[0]
    away = int(np.argmax(frames.scenes != first))
    back = away + int(np.argmax(frames.scenes[away:] == first))
    assert back > away and frames.scenes[back] == first
    before, other, again = (mean_colours(frames[part : part + 8]) for part in (0, away, back))
    same = [np.abs(before[kind] - again[kind]).mean() for kind in before.keys() & again.keys()]
    changed = [np.abs(before[kind] - other[kind]).mean() for kind in before.keys() & other.keys()]
    assert np.median(same) < 12 and np.median(changed) > 25, (same, changed)  # of 255 steps


@pytest.mark.slow
def test_colour_does_not_determine_the_class():
    """The nearest class colour, learnt on many scenes, is hardly better than chance on others."""
    seen = [mean_colours(street("drift", seed=seed, duration_s=2).at([0.0, 1.0])) for seed in range(40)]
    colours = np.array([[means.get(kind, [np.nan] * 3) for kind in range(PERSON)] for means in seen])
    centres = np.nanmean(colours[:20], axis=0)
    spread = np.nanstd(colours, axis=0).mean()
    assert np.std(centres, axis=0).mean() < 0.6 * spread
    rest = colours[20:]
    known = ~np.isnan(rest[..., 0])
    guesses = np.argmin(((rest[:, :, None] - centres) ** 2).sum(-1), axis=-1)
    assert (guesses == np.arange(PERSON))[known].mean() < 0.4


def test_a_car_waits_at_lights():
    stream = street("driving_la", duration_s=60)
    times_s = np.arange(0, 60, 0.5)
    places_m = np.array([stream._travel.distance_m(float(time_s)) for time_s in times_s])
    speeds = np.diff(places_m) / 0.5
    assert (speeds < 1e-9).mean() > 0.2 and speeds.max() > 10 and speeds.min() >= -1e-9


def test_travel_is_the_integral_of_the_speed():
    travel = Travel(((0.0, 1.0), (2.0, 3.0), (5.0, 0.0), (6.0, 1.0)), phase_s=1.3)
    grid = np.linspace(0, 17.7, 200_001)
    speed = np.interp((grid + 1.3) % 6.0, *np.array(travel.knots).T)
    expected = np.sum((speed[1:] + speed[:-1]) / 2) * (grid[1] - grid[0])
    assert travel.distance_m(17.7) == pytest.approx(expected, rel=1e-4)
    assert travel.distance_m(0.0) == 0.0


def test_rounds_of_visits_advance_and_return():
    script = Script(starts_s=(0.0, 2.0, 3.0), scenes=(0, 1, 0), round_s=5.0, fresh=1)
    assert [script.scene_at(float(second)) for second in range(11)] == [0, 0, 1, 0, 0, 1, 1, 2, 1, 1, 2]
    assert script.changes_s(11.0) == (2.0, 3.0, 5.0, 7.0, 8.0, 10.0)


def test_a_drifting_look_moves_steadily_and_without_a_jump():
    rng = np.random.default_rng(0)
    first, second = draw_look(rng), draw_look(rng)
    half = blend_appearance(first, second, 0.5)
    assert np.allclose(half.colours, (first.colours + second.colours) / 2)
    assert half.gain == pytest.approx((first.gain + second.gain) / 2)
    stream = street("drift", duration_s=300)
    look = stream._draw_scene(0).look
    before, at, after = (stream._look(look, time_s).colours for time_s in (59.9, 60.0, 60.1))
    assert np.abs(at - before).max() < 0.01 and np.abs(after - at).max() < 0.01
    assert np.abs(stream._look(look, 0.0).colours - at).mean() > 0.05


@pytest.mark.slow
def test_parameters_have_their_effects():
    empty = street("walking_ny", crowd=0.0).at([2.0, 7.0])
    assert not np.isin(empty.labels, [PERSON, CAR]).any() and all(len(boxes) == 0 for boxes in empty.boxes)
    full = street("walking_ny", crowd=2.0).at(np.arange(0, 60, 2.0))
    assert np.isin(full.labels, [PERSON, CAR]).mean() > 0.02
    calm, loud = (street("interview", noise=noise).at([2.0]) for noise in (0.0, 3.0))
    assert np.array_equal(calm.labels, loud.labels)
    assert np.abs(calm.images.astype(int) - loud.images.astype(int)).mean() > 3


@pytest.mark.slow
def test_few_scenes_are_kept_and_they_are_small():
    stream = street("running", duration_s=300)
    stream.at(np.arange(0, 300, 5.0))
    assert len(stream._scenes) <= 2
    assert sum(scene.tiles.nbytes for scene in stream._scenes.values()) < 2_000_000


@pytest.mark.slow
def test_the_catalogue_is_light():
    code = "import driftlab.datasets.catalogue as c; c.find_workload('streets/drift')"
    assert loaded_by(code, {"cv2", "torch", "av", "scipy"}) == set()


@pytest.mark.parametrize(
    ("name", "row", "family"),
    [
        ("video:a:b.mp4", "video:PATH", "streets"),
        ("cityscapes:/data", "cityscapes:FOLDER", "streets"),
        ("folder:/data", "folder:FOLDER", "streets"),
        ("camera", "camera:SOURCE", "streets"),
        ("camera:/dev/video0", "camera:SOURCE", "streets"),
        ("set:cifar10", "set:cifar10:FOLDER", "set:cifar10"),
        ("set:cifar10:/data", "set:cifar10:FOLDER", "set:cifar10:/data"),
    ],
)
def test_capitals_in_a_row_stand_for_a_name_in_the_request(name, row, family):
    found = find_workload(name)
    assert found == replace(WORKLOADS[row], name=name, family=family)


@pytest.mark.parametrize("name", ["video", "folder", "domains", "cameras", "set:nothing", "set:x:/data", "", ":"])
def test_a_name_without_a_row_is_refused(name):
    with pytest.raises(RequestError, match=f"Unknown workload '{name}'"):
        find_workload(name)


def test_domains_of_a_video_open_that_video():
    with pytest.raises(DataError, match=r"no video file 'missing\.mp4'"):
        open_stream("domains:video:missing.mp4", seed=0, height=32, width=32, fps=1.0, duration_s=10.0)


@pytest.mark.slow
def test_a_contact_sheet_shows_frames_above_their_truth(tmp_path):
    stream = replace_size(street("driving_la"))
    sheet = contact_sheet(stream, [0.0, 30.0, 60.0, 90.0, 110.0])
    assert sheet.dtype == np.uint8 and sheet.shape[1] >= 4 * 256 and sheet.shape[0] > 2 * 2 * 128
    for kind in range(5):
        assert (sheet == PALETTE[kind]).all(-1).any()
    path = save_png(sheet, tmp_path / "sheet.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(RequestError, match="Cannot write"):
        save_png(sheet, tmp_path / "no" / "sheet.png")
    with pytest.raises(RequestError, match="at least one time"):
        contact_sheet(stream, [])


def replace_size(stream):
    """Open the same street at another size."""
    return type(stream)(replace(stream._request, height=64, width=128))


def test_the_palette_has_a_colour_for_each_class():
    assert PALETTE.shape == (256, 3) and PALETTE.dtype == np.uint8 and not PALETTE.flags.writeable
    assert len({tuple(colour) for colour in PALETTE[:32].tolist()}) == 32
