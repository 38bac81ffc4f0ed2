"""Baselines of AdaScale on one table of paths, against comparisons of all paths."""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftlab.platform.core.records import LoadReading, TimedInference, Variant
from driftlab.platform.core.registry import FAMILIES, Member, builder_of, member_class, parameter_faults
from driftlab.platform.scaling.adadeep import AdaDeep
from driftlab.platform.scaling.adaptivenet import AdaptiveNet, latency_front
from driftlab.platform.scaling.adaspring import AdaSpring
from driftlab.platform.scaling.base import Budget
from driftlab.platform.scaling.branches import deep_paths, exit_of, full_depth
from driftlab.platform.scaling.clairvoyant import Clairvoyant
from driftlab.platform.scaling.darts import moved
from driftlab.platform.scaling.legodnn import BlockProfiles, LegoDnn, relaxed
from driftlab.platform.scaling.nas import Nas
from driftlab.platform.world import measured

MEASURED = os.environ.get("DRIFTLAB_MEASURED")  # folder of profiles measured on real devices

NAMES = ("dwsep", "svd", "fire", "base")
CHOOSERS = sorted(name for name in FAMILIES["scaling"] if builder_of(Member("scaling", name)).name == "branches")


def paths(seed: int = 0, stages: int = 3, noise: float = 0.005) -> tuple[Variant, ...]:
    """Return paths with random costs per operator; costs are additive, losses too except for noise."""
    draw = random.Random(seed)
    cost = {(s, name): draw.uniform(1, 3) * (1 + 2 * (name == "base")) for s in range(stages) for name in NAMES}
    loss = {key: 0.0 if key[1] == "base" else draw.uniform(0.01, 0.1) for key in cost}
    found = []
    for depth in range(1, stages + 1):
        for path in itertools.product(NAMES, repeat=depth):
            spent = sum(cost[key] for key in enumerate(path))
            accuracy = 0.6 + 0.1 * depth - sum(loss[key] for key in enumerate(path)) + draw.uniform(-noise, noise)
            found.append(Variant(".".join(path), accuracy, round(1000 * spent), spent / 1000, spent / 10))
    return tuple(found)


def under(cpu: float, limit_s: float = 0.02, **more: float) -> Budget:
    return Budget(latency_s=limit_s, load=(LoadReading(0.0, cpu, 10**9, **more),))


@pytest.mark.parametrize("name", CHOOSERS)
def test_every_member_selects_a_path_for_any_budget(name: str):
    variants, member, state = paths(), Member("scaling", name).make(), None
    for budget in (
        Budget(), under(0.0), under(1.0), under(0.5, clock=0.0), Budget(latency_s=0.0, share=0.0),
        under(0.2, battery=0.0),
    ):  # fmt: skip
        which, state = member.select_variant(variants, budget, state)
        assert 0 <= which < len(variants)
        assert name in ("adascale", "clairvoyant") or exit_of(variants[which]) == 3
    assert member.select_variant(variants, Budget(variant=5), state)[0] == 5


PLANNERS = ("adadeep", "adaptivenet", "adascale", "adaspring", "clairvoyant", "legodnn")  # of them, by the budget


@pytest.mark.parametrize("name", PLANNERS)
def test_paths_that_do_not_fit_in_the_free_memory_are_dropped(name: str):
    variants, member, state = paths(), Member("scaling", name).make(), None
    sizes = sorted(variants[which].memory_bytes for which in full_depth(variants))
    for room in (10**9, sizes[40], sizes[0], sizes[5], 10**9):
        which, state = member.select_variant(variants, replace(under(0.2), memory_bytes=room), state)
        assert variants[which].memory_bytes <= room
        afresh, _ = member.select_variant(variants, replace(under(0.2), memory_bytes=room))
        assert variants[afresh].memory_bytes <= room
    numbers = range(len(variants)) if name in ("adascale", "clairvoyant") else full_depth(variants)
    smallest = min(numbers, key=lambda one: (variants[one].memory_bytes, one))
    for before in (None, state):
        assert member.select_variant(variants, replace(under(0.2), memory_bytes=0), before)[0] == smallest


@pytest.mark.parametrize("name", PLANNERS)
def test_new_accuracies_are_planned_by(name: str):
    """The most accurate path becomes the least accurate; all are in time and use equal energy."""
    member = Member("scaling", name).make()
    known = tuple(replace(one, energy_j=1.0) for one in paths())
    turned = tuple(replace(one, accuracy=1 - one.accuracy) for one in known)
    budget = under(0.0, limit_s=1.0)
    first, state = member.select_variant(known, budget)
    for step in range(1, 8):
        which, state = member.select_variant(turned, replace(budget, now_s=step / 2), state)
    assert which == member.select_variant(turned, budget)[0] != first


def test_the_bound_uses_the_future_load_and_no_sensed_one():
    variants, member = paths(), Clairvoyant()
    assert member.uses_true_load
    for sensed, true in ((0.0, 0.6), (0.9, 0.2)):
        limit_s = 0.02 * (1 - 0.9 * true)
        good = [one.accuracy for one in variants if one.latency_s <= limit_s]
        budget = replace(under(sensed), coming=LoadReading(0.0, true, 10**9))
        assert variants[member.select_variant(variants, budget)[0]].accuracy == max(good)


class TestLegoDnn:
    def test_additive_drops_give_the_most_accurate_path_within_the_limits(self):
        draw, variants = random.Random(0), paths(1, noise=0.0)
        numbers = full_depth(variants)
        for _ in range(100):
            limit_s, room = draw.uniform(0.001, 0.03), draw.randrange(2000, 30_000)
            which, _ = LegoDnn().select_variant(variants, Budget(latency_s=limit_s, memory_bytes=room))
            small = [one for one in numbers if variants[one].memory_bytes <= room]
            good = [one for one in small if variants[one].latency_s <= limit_s]
            if good:
                assert variants[which].accuracy == pytest.approx(max(variants[one].accuracy for one in good))
            elif small:
                assert variants[which].memory_bytes <= room

    def test_limits_are_relaxed_in_steps_as_little_as_possible(self):
        assert [relaxed(limit, 3.25, 0.5) for limit in (1.0, 3.25, 4.0, None)] == [3.5, 3.25, 4.0, math.inf]
        variants = paths(1, noise=0.0)
        tight = LegoDnn(latency_step_s=1e-6)
        which, _ = tight.select_variant(variants, Budget(latency_s=1e-6))
        assert variants[which].latency_s == min(variants[one].latency_s for one in full_depth(variants))

    def test_an_accuracy_drop_is_the_mean_of_three_environments(self):
        names = ("a", "b", "c")
        known = {(x, y): 0.9 - 0.1 * names[::-1].index(x) - 0.03 * names[::-1].index(y) * (1 + names[::-1].index(x))
                 for x in names for y in names}  # fmt: skip
        variants = tuple(Variant(".".join(path), accuracy, 1, 0.01) for path, accuracy in known.items())
        profiles = BlockProfiles(variants, *deep_paths(variants))
        expected = [known[other, "c"] - known[other, "a"] for other in ("c", "b", "a")]
        assert profiles.accuracy_drop(1, "a") == pytest.approx(sum(expected) / 3)

    def test_the_middle_environment_is_counted_from_the_original(self):
        """Of four variants the median is the one next to the original."""
        names = ("c", "b", "a", "original")
        known = {(x, y): 0.9 - 0.1 * (x == "a") * (y == "c") for x in names for y in names}
        variants = tuple(Variant(".".join(path), accuracy, 1, 0.01) for path, accuracy in known.items())
        assert BlockProfiles(variants, *deep_paths(variants)).accuracy_drop(1, "c") == pytest.approx(0.1 / 3)

    def drawn(self, seed: int) -> tuple[tuple[Variant, ...], dict[str, float], tuple[TimedInference, ...]]:
        """Return paths, their latencies with a drawn slowdown per block, and measurements of four of them."""
        variants, draw = paths(seed, noise=0.0), random.Random(seed)
        slowdowns, prefix = [draw.uniform(0.8, 2.5) for _ in range(3)], {"": 0.0}
        prefix |= {one.name: one.latency_s for one in variants}
        true_s = {}
        for one in (variants[which] for which in full_depth(variants)):
            names = one.name.split(".")
            ends_s = [prefix[".".join(names[:depth])] for depth in range(4)]
            true_s[one.name] = sum(map(math.prod, zip(np.diff(ends_s), slowdowns, strict=True)))
        measured = ("base.base.base", "svd.base.base", "base.svd.base", "base.base.svd")
        idle = LoadReading(0.0, 0.0, 10**9)
        return variants, true_s, tuple(TimedInference(name, prefix[name], true_s[name], idle) for name in measured)

    @pytest.mark.slow
    def test_each_block_slows_by_its_own_factor(self):
        """The network of the least drop within the limit is found; one slowdown for all exceeds it often."""
        late = 0
        for seed in range(60):
            variants, true_s, timed = self.drawn(seed)
            limit_s = random.Random(-seed).uniform(min(true_s.values()), max(true_s.values()))
            budget = Budget(latency_s=limit_s, timed=timed, load=(timed[0].reading,))
            which, profiles = LegoDnn().select_variant(variants, budget)
            chosen = variants[which]
            best = max(one.accuracy for one in variants if true_s.get(one.name, math.inf) <= limit_s * (1 - 1e-3))
            assert true_s[chosen.name] <= limit_s * (1 + 1e-3)
            assert chosen.accuracy >= best - 1e-9
            whole = true_s["base.base.base"] / timed[0].idle_s
            uniform = replace(budget, timed=(), latency_s=limit_s / whole)
            late += true_s[variants[LegoDnn().select_variant(variants, uniform, profiles)[0]].name] > limit_s * (
                1 + 1e-3
            )
        assert late >= 6

    def test_without_measurements_all_blocks_slow_alike(self):
        variants, _, timed = self.drawn(0)
        profiles = BlockProfiles(variants, *deep_paths(variants))
        assert profiles.slowdowns(()).tolist() == [1.0] * 3
        slower = [replace(one, taken_s=3 * one.idle_s) for one in timed]
        assert profiles.slowdowns(slower) == pytest.approx([3.0] * 3)
        assert profiles.times_s.sum(axis=1) == pytest.approx(
            [variants[which].latency_s for which in profiles.paths.values()]
        )


class TestAdaptiveNet:
    def test_the_list_holds_the_undominated_paths(self):
        variants = paths()
        front = latency_front(variants)
        for which in full_depth(variants):
            quicker = [one for one in full_depth(variants) if variants[one].latency_s < variants[which].latency_s]
            beaten = any(variants[one].accuracy >= variants[which].accuracy for one in quicker)
            assert (which in front) == (not beaten)

    def test_it_runs_the_slowest_network_in_time_without_oscillation(self):
        variants = paths()
        front, member, state = latency_front(variants), AdaptiveNet(), None
        for cpu in (0.0, 0.0, 0.6, 0.6, 0.0, 0.0):
            which, state = member.select_variant(variants, under(cpu), state)
            limit_s = 0.02 * (1 - 0.9 * cpu)
            assert which == max((one for one in front if variants[one].latency_s <= limit_s), default=front[0],
                                key=lambda one: variants[one].latency_s)  # fmt: skip

    def test_a_slower_network_requires_slack(self):
        two = (Variant("a", 0.5, 1, 0.01), Variant("b", 0.6, 1, 0.0198))
        member = AdaptiveNet(slack=0.02)
        assert member.select_variant(two, under(0.0))[0] == 1
        _, low = member.select_variant(two, under(0.1))
        assert member.select_variant(two, under(0.0), low)[0] == 0
        assert member.select_variant(two, under(0.0, limit_s=0.021), low)[0] == 1

    def test_the_evolutionary_search_is_close_to_the_list_of_all_paths(self):
        variants = paths(stages=4)
        member = AdaptiveNet(search="evolution", limits=6)
        times_s = [variants[which].latency_s for which in full_depth(variants)]
        found, every = member.front(variants), latency_front(variants)
        assert found == tuple(sorted(found, key=lambda one: variants[one].latency_s))
        for limit_s in np.linspace(min(times_s), max(times_s), 6):
            best, ours = (
                max(variants[one].accuracy for one in front if variants[one].latency_s <= limit_s)
                for front in (every, found)
            )
            assert best - 0.01 <= ours <= best

    @pytest.mark.skipif(not MEASURED, reason="DRIFTLAB_MEASURED names no folder of measured profiles")
    @pytest.mark.parametrize("device", ["jetson", "xiaomi", "nvidia_3090"])
    def test_published_lists_are_followed_down_and_up_again(self, device: str):
        names = {"model": "app", "acc_top1": "accuracy_percent"}
        for variants in measured.read(
            Path(str(MEASURED), "adaptivenet_searched.csv"), names, {"device": device}
        ).values():
            front, member, state = latency_front(variants), AdaptiveNet(), None
            assert 9 <= len(front) <= 11
            limit_s, chosen = 1.1 * max(one.latency_s for one in variants), []
            for cpu in (0.0, 0.2, 0.2, 0.0, 0.0):
                which, state = member.select_variant(variants, under(cpu, limit_s), state)
                chosen.append(front.index(which))
            assert chosen[0] == chosen[3] == chosen[4] == len(front) - 1
            assert chosen[1] == chosen[2] < chosen[0]


def test_nas_runs_the_given_operators_for_every_budget():
    variants = paths()
    for cpu in (0.0, 1.0):
        which, _ = Nas(stage1="svd", stage2="fire", stage3="dwsep", stage4="svd").select_variant(variants, under(cpu))
        assert variants[which].name == "svd.fire.dwsep"
    few = tuple(one for one in variants if "fire" not in one.name)
    assert few[Nas(stage1="fire").select_variant(few, Budget())[0]].name == "base.base.base"


class TestAdaSpring:
    def test_a_beam_of_all_paths_finds_the_best_score_and_a_beam_of_two_is_close(self):
        for seed in range(5):
            variants, budget = paths(seed), under(0.3)
            slower = 1 / (1 - 0.27)
            wide, usual = AdaSpring(beam=1000), AdaSpring()
            scores = {which: usual.score(variants[which], budget, slower) for which in full_depth(variants)}
            assert wide.search(variants, budget, slower) == max(scores, key=scores.__getitem__)
            assert scores[usual.search(variants, budget, slower)] > max(scores.values()) - 0.1

    def test_it_searches_when_the_load_has_changed_enough(self):
        variants, member = paths(), AdaSpring(change=0.3)
        first, state = member.select_variant(variants, under(0.0))
        assert member.select_variant(variants, under(0.2), state) == (first, state)
        assert member.select_variant(variants, under(0.7), state)[1] != state

    def test_an_empty_battery_makes_energy_count(self):
        variants = paths()
        full, empty = (member_energy(variants, battery) for battery in (1.0, 0.0))
        assert empty == min(variants[which].energy_j for which in full_depth(variants)) < full


def member_energy(variants: tuple[Variant, ...], battery: float) -> float:
    budget = Budget(latency_s=0.1, energy_j=1.0, load=(LoadReading(0.0, 0.0, 10**9, battery=battery),))
    return variants[AdaSpring(energy_weight=0.01).select_variant(variants, budget)[0]].energy_j


class TestAdaDeep:
    def test_it_finds_a_path_nearly_as_good_as_the_best(self):
        member, found = AdaDeep(), []
        for seed in range(5):
            variants, limit_s = paths(seed), 0.012
            rewards = {which: member._reward(variants, which, limit_s) for which in full_depth(variants)}
            which = member.search(variants, Budget(latency_s=limit_s))
            assert variants[which].latency_s <= limit_s
            found.append(max(rewards.values()) - rewards[which])
        assert max(found) < 0.02

    def test_it_never_changes_and_is_the_same_every_time(self):
        variants, member = paths(), AdaDeep()
        which, state = member.select_variant(variants, under(0.0))
        assert (
            member.select_variant(variants, under(0.9), state)[0]
            == which
            == member.select_variant(variants, under(0.0))[0]
        )


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("early_exit", {"ratios": []}, "'ratios'"),
        ("early_exit", {"ratios": [1.0, 1.0]}, "'ratios'"),
        ("adascale", {"latency_weight": 0, "energy_weight": 0.0}, "'energy_weight'"),
    ],
)
def test_parameters_that_make_no_choice_are_refused_before_a_run(name: str, params: dict[str, Any], message: str):
    (fault,) = parameter_faults(member_class("scaling", name), params)
    assert message in fault


def test_weights_are_put_back_where_a_step_of_a_search_fails():
    torch = pytest.importorskip("torch")
    weights = [torch.ones(2)]
    with pytest.raises(ZeroDivisionError), moved(weights, [torch.ones(2)], 0.5):
        _ = 1 / 0
    assert weights[0].tolist() == [1.0, 1.0]
