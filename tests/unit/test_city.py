"""City streets: usual and unusual looks, and the effects of conditions."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

from driftlab.datasets.catalogue import WORKLOADS, open_stream
from driftlab.datasets.city.palette import SKIES, Ink, draw_city, draw_look
from driftlab.datasets.city.presets import CONDITIONS, PRETRAINING, SETTINGS
from driftlab.datasets.city.textures import GLASS, LIT, Swatch, draw_textures, photograph
from driftlab.datasets.severity import SeveritySchedule, faults_in, read
from driftlab.datasets.streets.look import TILE
from driftlab.datasets.streets.presets import CLASSES, PERSON, ROAD, SKY
from driftlab.errors import DataError, RequestError

TIMES_S = np.arange(0, 24, 3.0)
MOVING = {"motion", "passers"}  # conditions that change the objects in the scene
PLAIN = {"variety": 1.0, "motion": 1.0, "passers": 0.0}


def city(name="walking_paris", seed=0, **params):
    size = {"height": 48, "width": 80, "fps": 4, "duration_s": 240.0}
    return open_stream(f"city/{name}", seed=seed, **size, **{**PLAIN, **params})


def strongest(name):
    return {name: CONDITIONS[name].high}


def test_a_severity_schedule_is_constant_drifts_or_switches():
    assert [SeveritySchedule(0.8).at(time_s) for time_s in (0.0, 1e5)] == [0.8, 0.8]
    drift = SeveritySchedule(0.8, "drift", 10.0)
    assert [drift.at(time_s) for time_s in (0.0, 5.0, 10.0, 15.0, 20.0)] == pytest.approx([0, 0.4, 0.8, 0.4, 0])
    switch = SeveritySchedule(3.0, "switch", 10.0, neutral=1.0)
    assert [switch.at(time_s) for time_s in (0.0, 9.99, 10.0, 19.99, 20.0)] == [1.0, 1.0, 3.0, 3.0, 1.0]


def test_a_severity_is_a_number_or_a_schedule():
    assert faults_in("fog", 0.5, 0, 1) == []
    assert faults_in("fog", {"severity": 0.5, "schedule": "switch", "period_s": 20}, 0, 1) == []
    assert read({"severity": 0.5, "period_s": 20}, 0.0) == SeveritySchedule(0.5, "stay", 20.0)
    for wrong in (2.0, "much", {"severity": 2.0}, {"schedule": "drift"}, {"severity": 0.5, "period_s": 0}):
        assert len(faults_in("fog", wrong, 0, 1)) == 1
    assert len(faults_in("fog", {"severty": 1, "schedule": "hop", "period_s": "x"}, 0, 1)) == 4


@pytest.mark.slow
def test_the_nearest_class_colour_often_gives_the_class():
    """The nearest class colour of other cities names most classes of photographs, few of drawings."""
    kinds = len(CLASSES)
    seen = np.full((24, kinds, 3), np.nan)
    for seed in range(len(seen)):
        frames = city("drift", seed=seed, variety=0.5).at([0.0, 1.0])
        for kind in range(kinds):
            if (frames.labels == kind).sum() > 100:
                seen[seed, kind] = frames.images[frames.labels == kind].mean(0)
    centres = np.nanmean(seen[:12, :PERSON], axis=0)
    rest = seen[12:, :PERSON]
    known = ~np.isnan(rest[..., 0])
    guesses = np.argmin(((rest[:, :, None] - centres) ** 2).sum(-1), axis=-1)
    assert (guesses == np.arange(PERSON))[known].mean() > 0.6


@pytest.mark.parametrize("variety", [0.2, 1.0, 3.0])
def test_roads_stay_grey_and_skies_are_skies(variety):
    skies = []
    for seed in range(30):
        drawn = draw_city(np.random.default_rng(seed), variety)
        look = draw_look(drawn, np.random.default_rng([seed, 1]), variety)
        road = look.colours[Ink.ROAD] / drawn.tint
        assert np.ptp(road) < 0.06, road
        distances = np.abs(look.colours[Ink.SKY] / drawn.tint - SKIES).max(axis=1)
        skies.append(int(np.argmin(distances)))
        assert variety > 1 or distances.min() < 0.17
    assert len(set(skies)) >= 2  # not one mean of all skies, however little cities vary


def test_colours_stray_with_variety():
    def spread(variety):
        rngs = [np.random.default_rng(seed) for seed in range(60)]
        colours = [draw_look(draw_city(rng, variety), rng, variety).colours[: Ink.SKY] for rng in rngs]
        return np.std(colours, axis=0).mean()

    spreads = [spread(variety) for variety in (0.0, 0.4, 1.0, 2.0)]
    assert spreads == sorted(spreads) and spreads[-1] > 1.5 * spreads[1] > 0


@pytest.mark.parametrize("name", ["walking_ny", "street_comedian"])
def test_each_person_wears_a_different_coat(name):
    for seed in range(3):
        scene = city(name, seed, passers=2.0)._draw_scene(0)
        people = [figure for figure in scene.figures if figure.thing.kind == PERSON]
        regulars = Counter(figure.finishes[1].slot for figure in people if figure.passer < 0)
        assert len(people) > 10 and max(regulars.values()) == 1
        assert sum(figure.passer >= 0 for figure in people) == 6


@pytest.mark.parametrize("name", sorted(set(CONDITIONS) - MOVING))
def test_a_condition_changes_the_image_and_never_the_truth(name):
    neutral, most = city(**{name: CONDITIONS[name].neutral}).at(TIMES_S), city(**strongest(name)).at(TIMES_S)
    assert np.array_equal(neutral.labels, most.labels)
    assert all(np.array_equal(a, b) for a, b in zip(neutral.boxes, most.boxes, strict=True))
    assert np.abs(neutral.images.astype(int) - most.images.astype(int)).mean() > 1


@pytest.mark.parametrize("name", sorted(CONDITIONS))
def test_a_condition_that_switches_is_absent_and_then_whole(name):
    condition = {"severity": CONDITIONS[name].high, "schedule": "switch", "period_s": 10.0}
    switching, without, whole = (
        city(**{name: value}) for value in (condition, CONDITIONS[name].neutral, CONDITIONS[name].high)
    )
    before, after = [1.0, 9.0, 21.0], [11.0, 19.0]
    assert np.array_equal(switching.at(before).images, without.at(before).images)
    assert np.array_equal(switching.at(after).images, whole.at(after).images)
    assert not np.array_equal(switching.at(after).images, without.at(after).images)


def test_a_condition_that_drifts_moves_without_a_jump():
    fog = city(fog={"severity": 1.0, "schedule": "drift", "period_s": 20.0}, noise=0.0)
    clear, half, thick = (frame.astype(float) for frame in fog.at([0.0, 10.0, 20.0]).images)
    assert clear.std() > half.std() > thick.std()
    assert np.array_equal(fog.at([0.0]).images, city(noise=0.0).at([0.0]).images)


@pytest.mark.slow
def test_weather_and_night_look_as_they_should():
    truth = city("driving_la", noise=0.0).at(TIMES_S)

    def mean(kind=None, **params):
        images = city("driving_la", noise=0.0, **params).at(TIMES_S).images.astype(float)
        return images.mean() if kind is None else images[truth.labels == kind].mean()

    assert mean(night=1.0) < 0.45 * mean()
    assert mean(ROAD, snow=1.0) > 1.3 * mean(ROAD)
    assert mean(ROAD, rain=1.0) < 0.85 * mean(ROAD)
    sky = city("driving_la", noise=0.0, fog=1.0).at(TIMES_S).images[truth.labels == SKY].astype(float)
    assert np.ptp(sky.mean(axis=0)) < 12  # grey: the three channels alike
    assert mean(1, shadows=1.0) < mean(1, shadows=0.0)


@pytest.mark.slow
def test_passers_hide_and_motion_moves():
    def moved(**params):
        labels = city("walking_paris", **params).at(np.arange(0, 20, 0.25)).labels
        return (labels[1:] != labels[:-1]).mean()

    assert moved(motion=3.0) > 1.3 * moved()
    people = [(city("dance", passers=many).at(TIMES_S).labels == PERSON).mean() for many in (0.0, 1.0, 3.0)]
    assert people[0] < people[1] < people[2]


@pytest.mark.slow
def test_presets_have_separate_settings_that_any_city_accepts():
    size = {"height": 24, "width": 32, "fps": 1, "duration_s": 3}
    kinds = set()
    for seed in range(12):
        drawn = open_stream("any-city", seed=seed, **size).at([1.0])
        same = {
            name
            for name in SETTINGS
            if np.array_equal(open_stream(f"city/{name}", seed=seed, **size).at([1.0]).images, drawn.images)
        }
        assert len(same) == 1
        kinds |= same
    assert len(kinds) > 3
    foggy = open_stream("any-city", seed=0, **size, fog=1.0).at([1.0])
    assert not np.array_equal(foggy.images, open_stream("any-city", seed=0, **size).at([1.0]).images)
    defaults = {name: WORKLOADS[f"city/{name}"].parameters["variety"].default for name in SETTINGS}
    assert defaults == {name: settings["variety"] for name, settings in SETTINGS.items()}


def test_pretraining_streams_override_every_setting_of_a_preset():
    assert {name for settings in SETTINGS.values() for name in settings} <= set(PRETRAINING)


def test_a_longer_stream_begins_as_the_shorter_one_does():
    long = city("walking_ny", seed=3)
    short = open_stream("city/walking_ny", seed=3, height=48, width=80, fps=4, duration_s=20, **PLAIN)
    times_s = [0.0, 7.25, 19.75]
    assert np.array_equal(short.at(times_s).images, long.at(times_s).images)
    assert short.changes_s() == tuple(time_s for time_s in long.changes_s() if time_s < 20)


def test_textures_repeat_and_walls_have_windows():
    textures = draw_textures(np.random.default_rng(0))
    marks = textures.marks.reshape(-1, TILE, TILE)
    assert all(np.isin(marks[Swatch.WALL + wall], (GLASS, LIT)).mean() > 0.1 for wall in range(4))
    assert not marks[Swatch.ASPHALT].any()
    tones = textures.tones.reshape(-1, TILE, TILE)
    clouds = tones[Swatch.CLOUDS]
    assert np.abs(clouds[:, 0] - clouds[:, -1]).mean() < 2 * np.abs(np.diff(clouds, axis=1)).mean()


def test_photographs_change_textures_and_require_scikit_image(monkeypatch):
    pytest.importorskip("skimage")
    drawn, shot = (city(photos=share, noise=0.0).at([2.0]) for share in (0.0, 1.0))
    assert np.array_equal(drawn.labels, shot.labels) and not np.array_equal(drawn.images, shot.images)
    photograph.cache_clear()
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(DataError, match="scikit-image"):
        city(photos=0.5).at([0.0])
    photograph.cache_clear()


def test_wrong_conditions_are_refused_together():
    with pytest.raises(RequestError) as caught:
        city(fog={"severity": 4, "schedule": "hop"}, rain=-1)
    for part in ("fog.severity is 4", "fog.schedule is 'hop'", "rain is -1"):
        assert part in str(caught.value)
