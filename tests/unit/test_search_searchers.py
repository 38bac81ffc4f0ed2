"""Searchers: equal seeds propose equal trials in any order of ends, and each finds good settings."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from driftlab.errors import RequestError, RunError
from driftlab.platform.core.space import (
    Constraint,
    Objective,
    OneOf,
    Range,
    SearchProblem,
    Space,
    Trial,
    best_of,
    constraint_of,
    hypervolume,
    key,
    leading,
    ranks,
)
from driftlab.platform.tune.samplers import SAMPLERS, EvolutionSampler, rewards, sampler_faults
from driftlab.platform.tune.study import Study

NUMBERS = Space({"a": Range(0.001, 1.0, log=True), "b": Range(-3, 3, integer=True), "c": Range(0.0, 1.0)})
MIXED = Space({"a": Range(0.001, 1.0, log=True), "b": OneOf((1, 2, 4, 8), ordered=True), "c": OneOf(("x", "y", "z"))})
OBJECTIVE = Objective("v")


def measure(settings):
    return {"v": -((np.log10(settings["a"]) + 2) ** 2) - (settings["b"] - 2) ** 2 / 9, "w": float(settings["b"])}


def drive(search, workers=1, seed=0, most=10_000):
    """Run a search with this many parallel trials, which end in a random order."""
    rng, running, ended = random.Random(seed), [], 0
    while ended < most:
        while len(running) < workers and (asked := search.ask()) is not None:
            running.append(asked)
        if not running:
            break
        number, settings = running.pop(rng.randrange(len(running)))
        search.tell(number, settings, None if number == 3 else measure(settings))
        ended += 1
    return running


def proposals(search):
    return {number: key(one.settings) for number, one in search.history.items()}


def problem_for(name, seed=0):
    return SearchProblem(NUMBERS if name == "cmaes" else MIXED, (OBJECTIVE,), seed=seed)


def search_of(name, trials=30, seed=0):
    problem = problem_for(name, seed)
    return Study(problem, name, trials, problem.space.at([0.5] * 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_proposals_do_not_depend_on_the_number_of_parallel_trials(name):
    one, three = search_of(name), search_of(name)
    drive(one)
    drive(three, workers=3, seed=5)
    assert len(one.history) == 30
    assert proposals(one) == proposals(three)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "grid"])
def test_another_seed_proposes_others(name):
    one, other = search_of(name), search_of(name, seed=1)
    drive(one)
    drive(other)
    assert proposals(one) != proposals(other)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_that_is_interrupted_ten_times_runs_every_trial_once(name):
    whole = search_of(name)
    drive(whole)
    known, ran = {}, []
    for cut in itertools.count():
        search = search_of(name)
        search.replay(known.values())
        drive(search, workers=4, seed=cut, most=1 + cut % 3)
        ran += [number for number in search.history if number not in known]
        known = dict(search.history)
        if len(known) == 30:
            break
    assert cut >= 10
    assert sorted(ran) == list(range(30))
    assert {number: key(one.settings) for number, one in known.items()} == proposals(whole)


def test_trials_of_another_search_are_refused():
    search = search_of("random")
    drive(search, most=12)
    with pytest.raises(RunError, match="cannot be continued"):
        search_of("random", seed=1).replay(search.history.values())


def test_a_missing_trial_in_the_middle_is_repeated_only():
    whole = search_of("tpe")
    drive(whole)
    search = search_of("tpe")
    search.replay(trial for number, trial in whole.history.items() if number != 4)
    assert search.ask() == (4, whole.history[4].settings)
    assert search.ask() is None
    search.tell(4, whole.history[4].settings, whole.history[4].metrics)
    assert search.ask() is None
    assert search.over
    assert proposals(search) == proposals(whole)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_defaults_are_the_first_trial(name):
    search = search_of(name, trials=1)
    assert search.ask() == (0, search.defaults)
    search.tell(*search.defaults and (0, search.defaults), measure(search.defaults))
    assert search.ask() is None
    assert search.over


def test_random_and_grid_end_with_a_small_space():
    space = Space({"a": OneOf((1, 2)), "b": OneOf(("x", "y", "z"))})
    for name in ("random", "grid"):
        search = Study(SearchProblem(space, (OBJECTIVE,)), name, 100, {"a": 1, "b": "x"})
        while (asked := search.ask()) is not None:
            search.tell(*asked, {"v": 0.0})
        assert len({key(one.settings) for one in search.history.values()}) == 6
        assert search.over


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "cmaes"])
def test_refused_settings_are_drawn_again_and_cost_no_trial(name):
    def is_accepted(settings):
        return settings["c"] != "z"

    def search():
        study = Study(problem_for(name), name, 12, MIXED.at([0.5] * 3), is_accepted)
        drive(study)
        return study

    found = search()
    assert len(found.history) == 12
    assert all(is_accepted(one.settings) for one in found.history.values())
    assert proposals(found) == proposals(search())


def test_evolution_repeats_no_settings_and_ends():
    space = Space({"a": OneOf((1, 2, 3)), "b": OneOf(("x", "y"))})
    search = Study(SearchProblem(space, (OBJECTIVE,)), "evolution", 100, {"a": 1, "b": "x"})
    while (asked := search.ask()) is not None:
        search.tell(*asked, {"v": float(asked[1]["a"])})
    tried = [key(one.settings) for one in search.history.values()]
    assert 6 <= len(tried) <= 9  # the first population may contain the defaults, without its knowledge
    assert len(set(tried)) == 6


@pytest.mark.parametrize("name", ["evolution", "tpe", "nsga2", "reinforce"])
def test_a_bound_is_kept(name):
    problem = SearchProblem(MIXED, (Objective("w"),), (Constraint("w", "<=", 4.0),))
    search = Study(problem, name, 60, MIXED.at([0.5] * 3))
    drive(search)
    late = [one for one in search.history.values() if one.number >= 40 and one.metrics]
    assert sum(one.metrics["w"] <= 4 for one in late) > len(late) / 2
    assert best_of(list(search.history.values()), problem).metrics["w"] == 4


def test_evolution_finds_the_optimum_of_a_large_grid():
    space = Space({name: OneOf(tuple(range(10)), ordered=True) for name in "abcd"})
    found = []
    for seed in range(7):
        best = np.random.default_rng(seed).integers(0, 10, 4)
        search = Study(SearchProblem(space, (OBJECTIVE,), seed=seed), "evolution", 500, dict.fromkeys("abcd", 0))
        while (asked := search.ask()) is not None:
            distance = sum(abs(asked[1][name] - at) for name, at in zip("abcd", best, strict=True))
            search.tell(*asked, {"v": -float(distance)})
            if distance == 0:
                break
        found.append(len(search.history))
    assert np.median(found) <= 250


def test_evolution_selects_the_least_crowded_trials_of_a_front():
    problem = SearchProblem(Space({"x": Range(0.0, 1.0)}), (Objective("v"), Objective("w")))
    results = []
    sampler = EvolutionSampler(problem, results, population=4, step=1e-4)
    for _ in range(10):
        sampler.propose()  # the first batch
    crowded, roomy = (0.5, 0.51, 0.52), (0.0, 0.25, 0.75, 1.0)
    results += [Trial(k, {"x": x}, {"v": x, "w": 1 - x}) for k, x in enumerate((*crowded, *roomy))]
    children = [sampler.propose()["x"] for _ in range(100)]
    nearest = {min((*crowded, *roomy), key=lambda x: abs(x - child)) for child in children}
    assert nearest == set(roomy)


def test_reinforce_finds_the_good_options():
    """Six settings with six options each and additive values: after 32 trials it beats random draws."""
    space = Space({name: OneOf(tuple("uvwxyz")) for name in "abcdef"})
    late = {}
    for name in ("reinforce", "random"):
        found = []
        for seed in range(2):
            worth = np.random.default_rng(seed).random((6, 6))
            search = Study(SearchProblem(space, (OBJECTIVE,), seed=seed), name, 40, space.at([0.0] * 6))
            while (asked := search.ask()) is not None:
                values = [worth["abcdef".index(key), "uvwxyz".index(value)] for key, value in asked[1].items()]
                search.tell(*asked, {"v": float(sum(values))})
                found += values if asked[0] >= 32 else []
        late[name] = np.mean(found)
    assert late["reinforce"] > late["random"] + 0.1


def test_a_reward_is_the_share_of_trials_that_are_beaten():
    problem = SearchProblem(MIXED, (Objective("v"),), (Constraint("w", "<=", 1.0),))
    rows = [(1, 0), (3, 0), (3, 1), (9, 2)]
    trials = [Trial(k, {}, dict(zip("vw", row, strict=True))) for k, row in enumerate(rows)]
    assert rewards([*trials, Trial(4, {}, None)], problem) == [0.5, 0.875, 0.875, 0.25, 0.0]
    assert rewards(trials[:1], problem) == [0.0]


def test_cmaes_reports_unsupported_problems():
    problem = SearchProblem(MIXED, (OBJECTIVE, Objective("w", "min")), (Constraint("w", "<=", 1.0),))
    assert len(sampler_faults("cmaes", problem)) == 4
    assert sampler_faults("cmaes", problem_for("cmaes")) == []


def test_an_unknown_searcher_is_refused():
    with pytest.raises(RequestError, match="evolution"):
        sampler_faults("evolutoin", problem_for("evolution"))


@pytest.mark.parametrize("text", ["v", "v < 3", "v <= three", "<= 3", "v <= 3 <= 4"])
def test_a_constraint_that_is_none_is_refused(text):
    with pytest.raises(RequestError):
        constraint_of(text)


def test_a_constraint_returns_its_violation():
    assert constraint_of("w<=4").violation({"w": 5}) == 0.25
    assert constraint_of(" w >= 4 ").violation({"w": 1}) == 0.75
    assert constraint_of("w >= 0").violation({"w": -2}) == 2.0


# --- fronts


def test_ranks_put_those_that_keep_the_bounds_first():
    problem = SearchProblem(MIXED, (Objective("v"), Objective("w", "min")), (Constraint("u", "<=", 1.0),))
    rows = [(1, 1, 0), (2, 1, 0), (1, 0, 1), (9, 0, 3), (9, 0, 2)]
    trials = [Trial(k, {}, dict(zip("vwu", row, strict=True))) for k, row in enumerate(rows)]
    assert ranks(trials, problem) == [1, 0, 0, 3, 2]
    assert [one.number for one in leading(trials, problem)] == [1, 2]
    assert best_of(trials, problem).number == 1
    assert best_of([], problem) is None


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_hypervolume_equals_the_counted_volume(dimensions):
    rng = np.random.default_rng(dimensions)
    for _ in range(20):
        points = rng.integers(0, 6, (5, dimensions)).astype(float)
        cells = itertools.product(range(6), repeat=dimensions)
        covered = sum(any((point <= np.array(cell)).all() for point in points) for cell in cells)
        assert hypervolume(points, (6.0,) * dimensions) == pytest.approx(covered)
