"""Named sets and varied items: their expansions, and the refused ones."""

from __future__ import annotations

import pytest

from driftlab.datasets import labelled
from driftlab.datasets.signs import sets as signs
from driftlab.errors import RequestError
from driftlab.platform.lab import read
from driftlab.platform.lab.cells import cells_of, points_of
from driftlab.platform.lab.read import load, parse
from driftlab.platform.world import apps

STREET = {"name": "streets/running", "duration_s": 2.0, "fps": 2.0}


def asked(**changes):
    return parse({"name": "asked", "systems": ["no_custom"], "bounds": False, "workloads": [STREET], **changes})


def refused(**changes) -> str:
    with pytest.raises(RequestError) as caught:
        asked(**changes)
    return str(caught.value)


def test_a_set_expands_to_its_items_with_changes():
    found = asked(workloads=[{"set": "paper-streets", "duration_s": 5.0}, STREET | {"alias": "again"}]).workloads
    assert [part.label for part in found] == [
        *("interview", "dance", "street_comedian", "walking_paris", "walking_ny", "driving_la", "running"),
        "again",
    ]
    assert {part.duration_s for part in found[:-1]} == {5.0}


def test_a_change_may_reach_deeper_and_leaves_the_set_as_it_was():
    changed = {"set": "slow-phone", "name": "tight", "devices.0.memory_bytes": 1000, "devices.0.hardware.busy_w": 9.0}
    plain, tight = asked(fleets=[{"set": "slow-phone"}, changed]).fleets
    assert (plain.name, plain.devices[0].memory_bytes, plain.devices[0].hardware["busy_w"]) == ("slow", None, 2.5)
    assert (tight.name, tight.devices[0].memory_bytes, tight.devices[0].hardware["busy_w"]) == ("tight", 1000, 9.0)


def test_applications_are_written_out_within_their_workload():
    signs = {"name": "signs/depot", "height": 24, "width": 24, "apps": [{"set": "six-signs", "latency_goal_s": 0.5}]}
    (workload,) = asked(workloads=[signs], student={"network": "tiny_classifier"}).workloads
    assert [(app.name, app.pretrain_seed, app.latency_goal_s) for app in workload.apps] == [
        (name, seed, 0.5) for seed, name in enumerate(["vc", "ri50", "ri100", "vs", "vg", "rp"])
    ]


def test_a_file_may_define_sets():
    own = {"fleets": {"pair": [{"name": "a"}, {"name": "b", "devices": [{"count": 2}]}]}}
    assert [fleet.name for fleet in asked(sets=own, fleets=[{"set": "pair"}]).fleets] == ["a", "b"]


def test_fleets_vary_as_systems_do():
    fleet = {
        "name": "{count}-by-{link}",
        "devices": [{}],
        "vary": {"devices.0.count": [1, 3], "devices.0.link": ["3g", "lte"]},
    }
    found = asked(fleets=[fleet]).fleets
    assert [(part.name, part.devices[0].count, part.devices[0].link) for part in found] == [
        ("1-by-3g", 1, "3g"),
        ("1-by-lte", 1, "lte"),
        ("3-by-3g", 3, "3g"),
        ("3-by-lte", 3, "lte"),
    ]


def test_workloads_vary_by_their_alias_and_may_give_labels():
    workload = {**STREET, "alias": "pace-{pace}", "vary": {"params.pace": {"slow": 0.5, "fast": 2.0}}}
    found = asked(workloads=[workload]).workloads
    assert [(part.label, part.params) for part in found] == [("pace-slow", {"pace": 0.5}), ("pace-fast", {"pace": 2.0})]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fleets": [{"set": "slow-fone"}]}, "Did you mean 'slow-phone'?"),
        ({"fleets": [{"set": ["a"]}]}, "fleets.0: "),
        ({"fleets": [{"set": "slow-phone", "devices.3.count": 1}]}, "'3' is no position in a list of 1"),
        ({"fleets": [{"name": "all", "vary": {"gpus": [1, 2]}}]}, "it does not hold {gpus}"),
        ({"fleets": [{"name": "{gpus}-{more}", "vary": {"gpus": [1, 2]}}]}, "nothing varies {more}"),
        ({"fleets": [{"name": "{gpus}", "vary": {}}]}, "give at least one value"),
        ({"fleets": [{"name": "{gpus}", "vary": {"gpus": []}}]}, "give at least one value"),
        ({"workloads": [{**STREET, "vary": {"fps": [1.0]}}]}, "alias is missing"),
        ({"sets": ["a"]}, "sets is ['a']"),
        ({"sets": {"cars": {}}}, "sets.cars is no kind of set"),
        ({"sets": {"fleets": {"mine": 3}}, "fleets": [{"set": "mine"}]}, "the set 'mine' is 3"),
        ({"fleets": [{"name": "a-{x}-{y}", "vary": {"x": [*range(400)], "y": [*range(400)]}}]}, "more than 100,000"),
    ],
)
def test_a_wrong_set_is_refused_with_the_reason(changes, message):
    assert message in refused(**changes)


@pytest.mark.parametrize("name", read.names())
def test_reading_an_experiment_draws_no_frames(name, monkeypatch):
    def draw(*args, **kwargs):
        raise AssertionError("something was drawn")

    monkeypatch.setattr(signs, "draw", draw)
    monkeypatch.setattr(apps, "draw_trace", draw)
    points = points_of(load(name))
    assert len({point.id for point in points}) == len(points)


def test_drawing_would_be_seen(monkeypatch):
    monkeypatch.setattr(signs, "draw", None)
    monkeypatch.setattr(apps, "draw_trace", None)
    with pytest.raises(TypeError):
        labelled.open_set("signs/vc", counts=1)
    with pytest.raises(TypeError):
        cells_of(load("nestdnn-fig9"))


@pytest.mark.slow
def test_names_of_classes_are_those_of_the_drawn_set():
    for name in ("signs/vc", "signs/ri50", "digits"):
        assert labelled.class_names(name) == labelled.open_set(name, counts=1).classes
    with pytest.raises(RequestError, match="allowed are"):
        labelled.class_names("signs/vc", size=4096)
