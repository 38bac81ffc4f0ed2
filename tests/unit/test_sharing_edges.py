"""Edge cases of sharing: a single application, networks of the same size, costs below zero."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import scheduling_factory as factory

from driftlab.platform.core.records import Variant
from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.scheduling.base import WINDOW_ONLY, Allocation, Demand, SchedulerInput, Scheduling
from driftlab.platform.scheduling.exact import Exact
from driftlab.platform.scheduling.nestdnn import NestDnn
from driftlab.platform.world.measured import knee, paged_bytes

ALPHAS = (0.0, 0.1, 1.0)
SHARES = (1.0, 0.75, 0.55)  # of the memory that the largest networks need
OBJECTIVES = {"total": sum, "max": max}
# Those that plan whenever something changes leave the network to the application.
UNCHOOSING = [name for name in FAMILIES["scheduling"] if member_class("scheduling", name).triggers != WINDOW_ONLY]
BLIND = (*UNCHOOSING, "status_quo")  # to memory
WALKS = [*itertools.product(["total"], ["lookahead", "steepest", "literal", "priced"]), ("max", "lookahead")]
LOWERING = [*(Exact(objective) for objective in OBJECTIVES), *(NestDnn(*walk) for walk in WALKS)]  # the cost of Eq. 2


def plain_costs(demand: Demand, alpha: float = 0.1) -> list[float]:
    """Return the cost of each network for an application with the whole processor."""
    late_s = [max(0.0, one.latency_s - demand.latency_goal_s) for one in demand.variants]
    return [demand.accuracy_goal - one.accuracy + alpha * s for one, s in zip(demand.variants, late_s, strict=True)]


def twice(member: Scheduling, given: SchedulerInput) -> Iterator[Allocation]:
    """Return a member's decision from scratch, and the one in the next window."""
    first = member.allocate(given)
    yield first
    yield member.allocate(replace(given, state=first.state))


class TestSingleApplication:
    """One application has the processor; memory is limited to each of its networks, to the byte."""

    def wanted(self, name: str, demand: Demand, memory_bytes: int) -> tuple[int | None, ...]:
        fits = [i for i, one in enumerate(demand.variants) if one.memory_bytes <= memory_bytes]
        if name in UNCHOOSING:
            return (None,)
        if name == "status_quo":
            return (knee(demand.variants),)
        if name == "mcdnn":
            keeps_up = [i for i in fits if demand.variants[i].latency_s <= demand.latency_goal_s]
            return (max(keeps_up, key=lambda i: demand.variants[i].accuracy, default=min(fits, default=None)),)
        return (min(fits, key=plain_costs(demand).__getitem__, default=None),)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", FAMILIES["scheduling"])
    def test_a_single_application_has_the_whole_device_and_the_best_network_that_fits(self, name):
        for seed in range(6):
            (demand,) = factory.demands(seed, apps=1)
            limits = [one.memory_bytes + more for one in demand.variants for more in (-1, 0)]
            for memory_bytes in limits:
                wanted = self.wanted(name, demand, memory_bytes)
                given = SchedulerInput(0.0, 10.0, memory_bytes, (demand,))
                for allocation in twice(Member("scheduling", name).make(), given):
                    assert factory.variants(allocation) == wanted
                    waits = wanted == (None,) and name not in UNCHOOSING
                    assert factory.shares(allocation) == (0.0 if waits else 1.0,)

    @pytest.mark.parametrize("name", sorted({*FAMILIES["scheduling"]} - {*BLIND}))
    def test_a_single_application_that_is_too_big_waits_until_there_is_memory(self, name):
        (demand,) = factory.demands(0, apps=1)
        least_bytes = demand.variants[0].memory_bytes
        member, short = Member("scheduling", name).make(), SchedulerInput(0.0, 10.0, least_bytes - 1, (demand,))
        waits = member.allocate(short)
        assert (factory.shares(waits), factory.variants(waits)) == ((0.0,), (None,))
        assert f"needs {least_bytes} bytes, {least_bytes - 1} are free" in factory.notes(waits)[0]
        runs = member.allocate(replace(short, memory_bytes=least_bytes, state=waits.state))
        assert (factory.shares(runs), factory.variants(runs), factory.notes(runs)) == ((1.0,), (0,), ("",))


class TestNetworksOfTheSameSize:
    """Every network has a twin: as large and as fast, and less accurate."""

    def twins(self, demand: Demand, place: int) -> Demand:
        pairs = []
        for one in demand.variants:
            pair = [replace(one, name=f"{one.name}-worse", accuracy=one.accuracy - 0.01)]
            pair.insert(place, one)
            pairs += pair
        return replace(demand, variants=tuple(pairs))

    @pytest.mark.slow
    @pytest.mark.parametrize("member", [*LOWERING, Member("scheduling", "mcdnn").make()], ids=str)
    @pytest.mark.parametrize("place", [0, 1])
    def test_the_better_of_two_is_run(self, member, place):
        for seed, share in itertools.product(range(3), SHARES):
            plain = factory.window(factory.demands(seed, apps=3, networks=3), share)
            given = replace(plain, demands=tuple(self.twins(one, place) for one in plain.demands))
            for allocation in twice(member, given):
                assert {which % 2 for which in factory.variants(allocation)} == {place}

    def test_a_switch_between_networks_of_equal_size_moves_bytes_unless_nested(self):
        two = (Variant("worse", 0.7, 40, 0.1), Variant("better", 0.9, 40, 0.1))
        for before, after in ((0, 1), (1, 0)):
            assert paged_bytes(two, before, after, nested=True) == (0, 0)
            assert paged_bytes(two, before, after, nested=False) == (40, 40)


class TestNegativeCosts:
    """Every network is above its goal and in time on a single unit: all costs are negative."""

    def above(self, seed: int, share: float, apps: int = 3) -> SchedulerInput:
        usual = factory.demands(seed, apps)
        easy = [replace(one, accuracy_goal=0.01 * i, latency_goal_s=100.0) for i, one in enumerate(usual)]
        return factory.window((replace(easy[0], priority=1.5), *easy[1:]), share)

    def costs(self, given: SchedulerInput, chosen: tuple[int, ...]) -> list[float]:
        pairs = zip(given.demands, chosen, strict=True)
        return [demand.priority * (1 + plain_costs(demand)[which]) - 1 for demand, which in pairs]

    def fits(self, given: SchedulerInput, chosen: tuple[int, ...]) -> bool:
        pairs = zip(given.demands, chosen, strict=True)
        return sum(demand.variants[which].memory_bytes for demand, which in pairs) <= given.memory_bytes

    @pytest.mark.parametrize("member", LOWERING, ids=str)
    @pytest.mark.parametrize("alpha", ALPHAS)
    def test_with_memory_for_all_each_runs_its_best_as_in_the_exact_schedule(self, member, alpha):
        for seed in range(4):
            given = self.above(seed, 1.0)
            exact = Exact(member.objective, alpha).allocate(given)
            assert max(self.costs(given, factory.variants(exact))) < 0
            for allocation in twice(replace(member, alpha=alpha), given):
                assert factory.variants(allocation) == factory.variants(exact) == (4, 4, 4)
                assert sum(factory.shares(allocation)) == pytest.approx(1)

    @pytest.mark.parametrize("member", LOWERING, ids=str)
    @pytest.mark.parametrize("share", SHARES[1:])
    def test_within_memory_no_member_beats_brute_force_and_the_exact_schedule_equals_it(self, member, share):
        join = OBJECTIVES[member.objective]
        for seed in range(3):
            given = self.above(seed, share)
            everything = [c for c in itertools.product(range(5), repeat=3) if self.fits(given, c)]
            best = min(join(self.costs(given, chosen)) for chosen in everything)
            for allocation in twice(member, given):
                found = join(self.costs(given, factory.variants(allocation)))
                assert self.fits(given, factory.variants(allocation))
                assert sum(factory.shares(allocation)) == pytest.approx(1)
                if isinstance(member, Exact):
                    assert found == pytest.approx(best, abs=1e-7)
                else:
                    assert found >= best - 1e-7

    @pytest.mark.parametrize("share", SHARES)
    def test_two_share_memory_as_the_exact_schedule_does(self, share):
        for seed in range(10):
            given = self.above(seed, share, apps=2)
            best = sum(self.costs(given, factory.variants(Exact().allocate(given))))
            for allocation in twice(NestDnn(), given):
                assert sum(self.costs(given, factory.variants(allocation))) == pytest.approx(best, abs=1e-7)
