"""Paths of a supernet: their numbers, the training of stages, and shared modules."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scaling_factory as factory
import torch
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member, builder_of
from driftlab.platform.networks import branched
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.paths import PathSpace
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe
from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic, grade
from driftlab.platform.scaling import staged
from driftlab.platform.scaling.base import Budget, variants_on
from driftlab.platform.scaling.branches import Branches, PathFamily, branch_model
from driftlab.platform.scaling.conditional import Pair, commits, train_conditionally
from driftlab.platform.world import hardware
from driftlab.platform.world.measured import paged_bytes

SCHEDULE = staged.StagedSchedule(TrainingSchedule(1, 0.05, 16), operator_epochs=2, path_epochs=1)


@cache
def network() -> nn.Module:
    return build("tiny_staged", factory.CLASSES, seed=0).eval()


def modules() -> branched.Branched:
    with deterministic(0):
        return branch_model(network(), factory.SIZE, SPACES["tiny"], 4)


@cache
def family() -> PathFamily:
    made, data = modules(), factory.problem()
    accuracies = staged.grade_paths(made, data, data.val)
    return PathFamily(made, accuracies, accuracies)


def digests(made: branched.Branched) -> dict[str, float]:
    return {
        name: sum(float(value.double().abs().sum()) for value in module.state_dict().values())
        for name, module in made.parts()
    }


@pytest.mark.parametrize(("preset", "count"), [("tiny", 120), ("small", 340), ("paper480", 480)])
def test_numbers_of_paths_are_unique(preset: str, count: int):
    space = PathSpace(SPACES[preset])
    assert len(space) == count
    assert [space.encode(space.decode(number)) for number in range(count)] == list(range(count))
    assert len({space.name(space.decode(number)) for number in range(count)}) == count
    assert sorted(map(space.encode, space.walk())) == list(range(count))
    assert [space.name(space.decode(space.whole(which))) for which in (0, 1)] == ["base", "base.base"]


def test_numbers_are_in_mixed_radix_with_the_first_stage_first():
    space = PathSpace((("a", "base"), ("b", "c", "base")))
    names = ["a", "base", "a.b", "a.c", "a.base", "base.b", "base.c", "base.base"]
    assert [space.name(space.decode(number)) for number in range(len(space))] == names
    for wrong in (-1, 8):
        with pytest.raises(RequestError, match=f"variant is {wrong}"):
            space.decode(wrong)
    for path in ((2,), (0, 0, 0), ()):
        with pytest.raises(RequestError, match="path is"):
            space.encode(path)


@pytest.mark.slow
def test_each_module_is_measured_once_and_paths_equal_single_measurements():
    made, data = family(), factory.problem()
    member = Branches()
    profile = member.profile(made, factory.SIZE)
    assert len(profile) == len(made) == 120
    for number in np.random.default_rng(0).choice(120, 20, replace=False).tolist():
        alone = member.select(made, Budget(variant=number))
        assert profile[number].cost == count_cost(alone, *factory.SIZE)
        assert profile[number].accuracy == pytest.approx(grade(alone, data, data.val), abs=1e-9)


@pytest.mark.slow
def test_a_switch_moves_only_modules_that_differ():
    profile = Branches().profile(family(), factory.SIZE)
    variants = variants_on(hardware.find("phone-lo"), profile)
    number = {one.name: which for which, one in enumerate(variants)}
    whole, other = number["base.base.base.base"], number["base.svd.base.base"]
    size = {name: count for one in variants for name, count in one.parts}
    assert paged_bytes(variants, other, whole, nested=False) == (size["2.base"], size["2.svd"])
    assert paged_bytes(variants, None, whole, nested=False) == (variants[whole].memory_bytes, 0)
    assert paged_bytes(variants, whole, number["base.base"], nested=False) == (
        size["exit.2"], size["3.base"] + size["4.base"] + size["exit.4"],
    )  # fmt: skip


@pytest.mark.slow
def test_training_a_stage_changes_no_earlier_stage():
    made, data = modules(), factory.problem()
    prefix = staged.Prefix(data, made)
    prefix.pass_through(made.stem)
    prefix.pass_through(made.stages[0][-1])
    before = digests(made)
    body, head = made.stages[1][-1], made.heads[1]
    staged.train_exit(prefix, body, head, TrainingSchedule(3, 0.05, 32), np.random.default_rng(0))
    changed = {name for name, value in digests(made).items() if value != before[name]}
    assert changed == {"2.base", "exit.2"}
    assert all(value.grad is None for _, module in made.parts() for value in module.parameters())


@pytest.mark.slow
def test_operators_train_without_changes_to_stages_and_exits():
    made, data = modules(), factory.problem()
    before = digests(made)
    with deterministic(0):
        staged.train_operators(made, data, SCHEDULE)
        staged.train_paths(made, data, SCHEDULE)
    same = {name for name, value in digests(made).items() if value == before[name]}
    assert same == {"stem", *(f"{stage}.base" for stage in range(1, 5)), *(f"exit.{stage}" for stage in range(1, 5))}


@pytest.mark.slow
def test_an_operator_approaches_its_stage_epoch_by_epoch():
    made = modules()
    x = staged.run(made.stem, to_input(factory.problem().train.images))
    goal = staged.run(made.stages[0][-1], x)
    with deterministic(0):
        errors = [
            staged._distil(made.stages[0][0], x, goal, replace(SCHEDULE, operator_epochs=1), np.random.default_rng(0))
            for _ in range(3)
        ]
    assert errors[2] < errors[1] < errors[0]


def test_members_that_only_choose_share_networks():
    given = (("stage_epochs", 2),)
    recipe = Recipe("tiny_staged")
    keys = {
        FamilyRecipe(recipe, builder_of(Member("scaling", name, (*given, *more)))).key()
        for name, more in (("adascale", ()), ("adascale", (("mode", "paper"),)), ("branches", (("exit", 1),)))
    }
    assert len(keys) == 1
    assert builder_of(Member("scaling", "adascale")) == Member("scaling", "branches")
    assert builder_of(Member("scaling", "nested", given[:0])) == Member("scaling", "nested")


@pytest.mark.slow
def test_branches_runs_one_exit_for_every_budget():
    variants = variants_on(hardware.find("phone-lo"), Branches().profile(family(), factory.SIZE))
    for which, name in ((1, "base"), (3, "base.base.base"), (None, "base.base.base.base")):
        chosen, state = Branches(exit=which).select_variant(variants, Budget(latency_s=1e-9), state="kept")
        assert (variants[chosen].name, state) == (name, "kept")


def test_absorb_copies_the_weights_of_a_path():
    made = family()
    alone = made.branched.network((2, 0))
    again = Branches().absorb(made, copy.deepcopy(alone))
    assert digests(again.branched) == digests(made.branched)
    with pytest.raises(RequestError, match="none of the family's 120 networks"):
        Branches().absorb(made, network())


@pytest.mark.slow
def test_a_stage_in_further_training_never_loses_at_its_exit():
    """Earlier stages keep every bit; the previous exit is scored with its saved weights."""
    made, data = modules(), factory.problem()
    prefix = staged.Prefix(data, made)
    for module in (made.stem, made.stages[0][-1]):
        prefix.pass_through(module)
    before = digests(made)
    pair = Pair(prefix, (made.stages[1][-1], made.stages[2][-1]), (made.heads[1], made.heads[2]))
    first = pair.score()
    with deterministic(0):
        found = [first, *commits(pair, data, TrainingSchedule(4, 0.05, 32), first, 2)]
    assert found == sorted(found)
    assert pair.score() == found[-1] > first
    changed = {name for name, value in digests(made).items() if value != before[name]}
    assert changed == {"2.base", "exit.2", "3.base", "exit.3"}


@pytest.mark.slow
def test_conditional_training_leads_to_the_same_exits():
    made, data = modules(), factory.problem()
    with deterministic(0):
        scores = train_conditionally(made, data, TrainingSchedule(2, 0.05, 32))
    graded = staged.grade_paths(made, data, data.val)
    assert scores == pytest.approx([graded[made.space.whole(which)] for which in range(4)])


@pytest.mark.slow
def test_the_further_the_frozen_part_reaches_the_less_a_step_keeps(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    measured = importlib.import_module("training_memory")
    images = torch.zeros(256, 3, *factory.SIZE)  # with few frames the momentum of later, wider stages is more
    kept = [measured.training_bytes(stage, x) for stage, x, _ in measured.stages_of(modules(), images)]
    assert len(kept) == 4 and kept == sorted(kept, reverse=True) and len(set(kept)) == 4


def test_a_stage_stops_training_at_its_accuracy(monkeypatch):
    monkeypatch.setattr(staged, "epochs", lambda *given, **named: iter(range(4)))

    def left(goal: float | None, *scores: float) -> tuple[float, list[float]]:
        rest, part = iter(scores), nn.Linear(1, 1)
        best = staged.keep_best(part, None, None, None, None, rest.__next__, goal)
        return best, list(rest)

    assert left(0.6, 0.2, 0.5, 0.4, 0.7, 0.9) == (0.7, [0.9])
    assert left(0.6, 0.7, 0.9) == (0.7, [0.9]), "it has reached it before training"
    assert left(None, 0.2, 0.5, 0.4, 0.7, 0.6) == (0.7, [])
    assert [staged.goal_of((0.5, 0.8), which) for which in range(3)] == [0.5, 0.8, 0.8]
    assert staged.goal_of((), 2) is None


def test_two_stages_stop_training_together_at_the_accuracy_of_the_later(monkeypatch):
    monkeypatch.setattr("driftlab.platform.scaling.conditional.epochs", lambda *given, **named: iter(()))
    later = iter([0.3, 0.6, 0.5])

    class Scored(Pair):
        def score(self) -> float:
            return 0.4

        def score_last(self) -> float:
            return next(later)

    pair = Scored(None, (nn.Linear(1, 1), nn.Linear(1, 1)), (nn.Linear(1, 1), nn.Linear(1, 1)))
    given = (pair, replace(factory.problem(), seed=0), TrainingSchedule(3, 0.05, 32), 0.1, 1)
    assert list(commits(*given, 0.55)) == [0.4, 0.4]
    assert list(later) == [0.5]
    assert len(list(commits(*given))) == 3
