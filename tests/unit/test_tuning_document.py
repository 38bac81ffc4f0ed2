"""The document of a search: read in full, or refused with all faults before the search starts."""

from __future__ import annotations

import pytest
import tuning_factory as factory
import yaml

from driftlab.errors import RequestError
from driftlab.platform.core.space import OneOf, Range
from driftlab.platform.tune.document import experiment_of, is_idle, parse
from driftlab.platform.tune.session import begin_search
from driftlab.tune_spaces.catalogue import load, raw
from driftlab.tune_spaces.ranges import files

RATE, BATCH = factory.RATE, factory.BATCH


def refused(*overrides, **changes):
    with pytest.raises(RequestError) as caught:
        factory.document(*overrides, **changes)
    return str(caught.value)


def test_a_document_is_read():
    document = factory.document()
    assert document.problem.space.domains == {RATE: Range(1e-4, 1e-1, log=True), BATCH: OneOf((5, 10, 15, 20))}
    assert [one.metric for one in document.problem.objectives] == ["score", "energy_j"]
    assert [system["name"] for system in document.experiment["systems"]] == ["tent"]
    assert document.experiment["bounds"] is False
    assert document.defaults() == {RATE: 1e-3, BATCH: 32}


def test_a_search_without_objectives_improves_the_live_score():
    raw = factory.raw()
    del raw["objectives"]
    assert [one.metric for one in parse(raw).problem.objectives] == ["score_live"]


def test_written_documents_are_read_unchanged():
    document = factory.document(constraints=["energy_j <= 5"])
    stored = yaml.safe_load(yaml.safe_dump(document.model_dump(mode="json")))
    assert parse(stored) == document
    assert type(document).model_validate(stored) == document


def test_overrides_reach_the_document_and_the_experiment():
    document = factory.document(
        "trials=7", "seeds=[105]", "workloads.0.duration_s=5", "systems.0.adaptation.momentum=0.5"
    )
    assert (document.trials, document.seeds) == (7, (105,))
    assert document.experiment["workloads"][0]["duration_s"] == 5
    assert document.experiment["systems"][0]["adaptation"]["momentum"] == 0.5


@pytest.mark.slow
def test_another_system_is_searched_as_the_first_one_is():
    first, other = (load("domains", ["size=small", *more]) for more in ([], ["system=shot-small"]))
    assert [system["name"] for system in other.experiment["systems"]] == [other.system] == ["shot-small"]
    assert other.space == first.space and other.seeds == first.seeds and other.trials == first.trials
    momentum = "systems.0.adaptation.momentum"
    own = load("domains", ["system=onda-small", f"space={{{momentum}: {{from: 0.1, to: 0.5, why: own}}}}"])
    assert list(own.space) == [momentum] and own.defaults() == {momentum: 0.1}


def test_overrides_reach_domains_whose_paths_hold_dots():
    momentum = "systems.0.adaptation.momentum"
    document = factory.document(
        f"space.{RATE}.to=0.01", f"space.{BATCH}=[5, 10]", f"space.{momentum}={{from: 0.5, to: 0.9}}", "trials=3"
    )
    assert document.problem.space.domains == {
        RATE: Range(1e-4, 1e-2, True),
        BATCH: OneOf((5, 10)),
        momentum: Range(0.5, 0.9),
    }
    assert factory.document(f"space.{BATCH}.values=[5, 10]").problem.space.domains[BATCH] == OneOf((5, 10))
    assert "learning_rate" in refused("space.systems.0.adaptation.learning_rat.to=0.01")
    assert "from" in refused(f"space.{RATE}.until=0.01")
    assert RATE in refused(f"space.{RATE}=0.01")


def test_a_size_overrides_the_document():
    document = factory.document("size=small", sizes={"small": {"trials": 3, "experiment": {"window_s": 3}}})
    assert (document.trials, document.size, document.experiment["window_s"]) == (3, "small", 3)


def test_a_tune_section_of_an_experiment_is_a_space(tmp_path):
    experiment = {"name": "own", "systems": ["no_custom", "tent"], **factory.SPACE["experiment"], "seeds": [0, 1]}
    section = {"system": "tent", "space": factory.SPACE["space"], "seeds": [100], "held_out": [200]}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**experiment, "tune": section}))
    document = load(str(file))
    assert (document.name, document.system, document.trials) == ("own", "tent", 20)
    assert len(document.experiment["systems"]) == 1


@pytest.mark.parametrize("space", [None, {}, [], "all"])
def test_an_empty_space_is_refused(space):
    assert "space" in refused(space=space)


@pytest.mark.parametrize(
    "domain",
    [
        {},
        {"values": []},
        {"values": [1, 1]},
        {"from": 1},
        {"from": 2, "to": 1},
        {"from": 1, "to": 1},
        {"from": 0, "to": 1, "scale": "log"},
        {"from": 0.5, "to": 2, "integer": True},
        {"from": 1, "to": 2, "values": [1]},
        {"from": 1, "to": 2, "scale": "linaer"},
        {"from": 1, "to": 2, "step": 1},
        {"from": float("nan"), "to": 2},
    ],
)
def test_a_contradictory_domain_is_refused_with_its_place(domain):
    assert RATE in refused(space={RATE: domain})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("systems.0.adaptation.learning_rat", "learning_rate"),
        ("systems.1.adaptation.learning_rate", "position"),
        ("nothing.here", "nothing"),
        ("seeds", "no setting"),
        ("systems.0.name", "no setting"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path, message):
    assert message in refused(space={path: [0.1, 0.2]})


def test_ends_that_a_member_does_not_take_are_refused():
    assert f"space.{BATCH}: -1 is refused" in refused(space={BATCH: [-1, 10]})
    assert f"space.{RATE}: 20.0 is refused" in refused(space={RATE: {"from": 0.1, "to": 20}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": {"scroe": "max"}}, "score"),
        ({"objectives": {}}, "objectives"),
        ({"objectives": {"score": "maximal"}}, "score"),
        ({"constraints": ["energy <= 5"]}, "energy_j"),
        ({"constraints": ["energy_j < 5"]}, "METRIC <= NUMBER"),
        ({"constraints": ["energy_j <= 5", "energy_j >= 6"]}, "at most 5 and at least 6"),
        ({"seeds": [99]}, "99"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [100, 100]}, "twice"),
        ({"held_out": [99, 300]}, "99"),
        ({"held_out": [100]}, "both"),
        ({"trials": 0}, "trials"),
        ({"searcher": "evolutoin"}, "evolution"),
        ({"searcher": "cmaes"}, "choice"),
        ({"system": "tnet"}, "tent"),
        ({"system": None}, "system"),
        ({"experiment": "quikc"}, "quick"),
        ({"experiment": None}, "experiment"),
        ({"early_stopping": True, "objectives": {"memory_bytes": "min"}}, "end of a trial"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_document_is_refused_with_the_reason(changes, message):
    assert message in refused(**changes)


def test_every_fault_is_named_at_once():
    message = refused(space={RATE: {"from": 2, "to": 1}, BATCH: [-1]}, objectives={"x": "max"}, seeds=[1])
    assert message.count("\n  - ") == 4


def test_a_seed_of_the_experiment_itself_is_refused():
    experiment = {**factory.SPACE["experiment"], "seeds": [0, 100]}
    assert "[100]" in refused(experiment=experiment)


def test_a_metric_that_the_run_does_not_measure_is_refused():
    still = {**factory.SPACE["experiment"]}
    still["workloads"] = [{**still["workloads"][0], "run_networks": False}]
    assert "run_networks" in refused(experiment=still)


def test_a_score_without_truth_is_refused(tmp_path):
    from video_factory import write_video

    video = write_video(tmp_path / "film.mp4")
    experiment = {"workloads": [{"name": f"video:{video}", "duration_s": None}], "teacher": {"kind": "network"}}
    space = {"systems.0.streaming.interval_s": {"from": 5, "to": 20}}
    assert "no truth" in refused(system="ams", experiment=experiment, space=space)
    asked = {"kbps": "min"}
    assert factory.document(system="ams", experiment=experiment, space=space, objectives=asked).objectives == asked


@pytest.mark.parametrize(
    ("system", "path", "allowed"),
    [
        ("one_time", "streaming.sample_s", False),  # a minute by default, longer than the stream
        ("best_static", "streaming.iterations", False),
        ("ams", "streaming.interval_s", True),
    ],
)
def test_trials_are_stopped_early_only_where_a_beginning_is_a_short_run(system, path, allowed):
    changes = {"system": system, "experiment": {"workloads": [{"name": "streets/interview", "duration_s": 20}]}}
    changes |= {"space": {f"systems.0.{path}": [5, 10]}, "early_stopping": True}
    if allowed:
        assert factory.document(**changes).early_stopping
    else:
        assert "end of the session" in refused(**changes)


def test_trials_whose_settings_read_the_end_are_not_stopped_early():
    minute = {"workloads": [{"name": "streets/interview", "duration_s": 60}]}
    path = "systems.0.streaming.sample_s"
    changes = {"system": "one_time", "experiment": minute, "early_stopping": True}
    assert factory.document(**changes, space={path: {"from": 4, "to": 40}}).early_stopping
    assert "end of the session" in refused(**changes, space={path: {"from": 4, "to": 80}})


@pytest.mark.parametrize("name", ["tnet", "streaming/local", "scheduling/uniform", "no_custom", "none.yaml"])
def test_a_missing_space_is_refused(name):
    with pytest.raises(RequestError):
        load(name)


LONG = {
    "system": "one_time",
    "experiment": {
        "systems": ["one_time"],
        "window_s": 5,
        "student": {"network": "tiny", "pretrain_steps": 2},
        "workloads": [{"name": "streets/running", "duration_s": 20, "fps": 2, "height": 32, "width": 48}],
    },
    "objectives": {"score_live": "max"},
}
SAMPLE = "systems.0.streaming.sample_s"


def test_a_search_in_which_the_system_can_never_act_is_refused():
    message = refused(**LONG, space={SAMPLE: {"from": 20, "to": 40}})
    assert "'one_time' acts in no session of 20.0 s" in message


def test_settings_with_which_the_system_cannot_act_are_not_tried(tmp_path):
    document = factory.document(**LONG, space={SAMPLE: {"from": 5, "to": 60}}, trials=12, searcher="random")
    with begin_search(document, tmp_path / "run") as session:
        tried = [session.next().settings[SAMPLE] for _ in range(9)]
    assert tried[0] == 60  # the defaults
    assert max(tried[1:]) < 20


@pytest.mark.parametrize("name", files())
def test_systems_can_act_with_the_defaults_of_a_space(name):
    for size in raw(name).get("sizes", {"": {}}):
        document = load(name, [f"size={size}"] if size else [])
        assert not is_idle(experiment_of(document.experiment, document.defaults(), document.seeds)), size
