"""Plans against brute force and closed forms: Eq. 2, the greedy rules, the exact solvers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scheduling_factory as factory

from driftlab.platform.core.records import Variant
from driftlab.platform.scheduling import exact, greedy, programming
from driftlab.platform.scheduling.base import Demand
from driftlab.platform.scheduling.costs import Choices, UnitPlan, costs_of, memory_of, tabulate

choices, demands, memory_bytes, with_goal = factory.choices, factory.demands, factory.memory_bytes, factory.with_goal

ALPHAS = (0.0, 0.05, 0.3, 1.0)
SHARES = (1.0, 0.75, 0.55)  # of the memory that the largest networks need
OBJECTIVES = {"total": np.sum, "max": np.max}
TWO = (Variant("small", 0.7, 10, 0.1), Variant("large", 0.9, 30, 0.4))


def walked(given: Choices, method: str) -> UnitPlan:
    *_, last = greedy.allocate_units(given, method, greedy.smallest_plan(given))
    return last.plan


def value(given: Choices, plan: UnitPlan, objective: str = "total") -> float:
    return float(OBJECTIVES[objective](costs_of(given, plan)))


def brute_force(given: Choices, objective: str) -> float:
    """Return the lowest cost over all networks and units of all applications."""
    apps, networks, size = given.cost.shape
    best = np.inf
    for chosen in itertools.product(range(networks), repeat=apps):
        for units in itertools.product(range(1, size), repeat=apps):
            plan = UnitPlan(np.array(chosen), np.array(units))
            if sum(units) < size and memory_of(given, plan).sum() <= given.limit_bytes:
                best = min(best, value(given, plan, objective))
    return best


class TestCosts:
    def test_costs_match_equation_2(self):
        asked = Demand("a", 10.0, TWO, accuracy_goal=0.8, latency_goal_s=0.5)
        table = tabulate([asked], 100, 0.3, 4).cost[0]
        assert np.isinf(table[:, 0]).all()
        assert table[0, 1:] == pytest.approx([0.1, 0.1, 0.1, 0.1])
        late_s = np.array([0.4 / share - 0.5 for share in (0.25, 0.5, 0.75)])
        assert table[1, 1:] == pytest.approx([*(-0.1 + 0.3 * late_s), -0.1])

    def test_unmeasured_network_counts_as_meeting_the_goal(self):
        unknown = (replace(TWO[0], accuracy=None), TWO[1])
        table = tabulate([Demand("a", 10.0, unknown, accuracy_goal=0.8)], 100, 0.3, 2).cost[0]
        assert table[:, 1:] == pytest.approx(np.array([[0.0, 0.0], [-0.1, -0.1]]))


class TestExact:
    @pytest.mark.slow
    @pytest.mark.parametrize("objective", OBJECTIVES)
    @pytest.mark.parametrize("share", SHARES)
    def test_it_equals_brute_force(self, objective, share):
        for seed in range(6):
            given = choices(demands(seed, apps=3, networks=3), 0.3, share, units=7)
            plan = exact.solve(given, objective)
            assert value(given, plan, objective) == pytest.approx(brute_force(given, objective), abs=1e-7)
            assert memory_of(given, plan).sum() <= given.limit_bytes

    @pytest.mark.slow
    @pytest.mark.parametrize("share", SHARES)
    def test_of_the_plans_with_the_lowest_maximum_the_cheapest_in_total_is_near(self, share):
        """Exact where memory is slack; else the best of a search by prices and of exchanges."""
        for seed in range(6):
            given = choices(demands(seed, apps=3, networks=3), 0.3, share, units=7)
            plan = programming.levelled(given, walked(given, "highest"))
            highest = brute_force(given, "max")
            assert value(given, plan, "max") == pytest.approx(highest, abs=1e-9)
            below = replace(given, cost=np.where(given.cost <= highest + 1e-9, given.cost, np.inf))
            least = brute_force(below, "total")
            assert value(given, exact.solve(given, "max")) == pytest.approx(least, abs=1e-7)
            assert least - 1e-9 <= value(given, plan) <= least + (1e-9 if share == 1 else 0.01)
            assert memory_of(given, plan).sum() <= given.limit_bytes

    @pytest.mark.parametrize("alpha", ALPHAS)
    def test_programming_and_milp_agree_with_slack_memory(self, alpha):
        for seed in range(6):
            given = choices(demands(seed), alpha)
            first, second = programming.by_programming(given, "total"), exact.by_milp(given)
            assert value(given, first) == pytest.approx(value(given, second), abs=1e-7)
            highest = [value(given, by, "max") for by in (programming.by_programming(given, "max"),
                                                          programming.least_highest(given))]  # fmt: skip
            assert highest[0] == highest[1]

    @pytest.mark.slow
    @pytest.mark.parametrize("share", SHARES)
    def test_accuracy_goals_shift_the_total_and_not_the_optimum(self, share):
        for seed in range(20):
            usual = demands(seed)
            goals = np.random.default_rng(seed).uniform(0, 1, len(usual))
            moved = tuple(replace(one, accuracy_goal=goal) for one, goal in zip(usual, goals, strict=True))
            tables = [choices(given, ALPHAS[seed % 4], share) for given in (usual, moved)]
            plans = [exact.solve(table, "total") for table in tables]
            by = sum(after.accuracy_goal - before.accuracy_goal for before, after in zip(usual, moved, strict=True))
            totals = [value(table, plan) for table, plan in itertools.product(tables, plans)]
            assert totals == pytest.approx([totals[0], totals[0], totals[0] + by, totals[0] + by], abs=1e-7)

    @pytest.mark.slow
    @pytest.mark.parametrize("objective", OBJECTIVES)
    @pytest.mark.parametrize("share", SHARES)
    def test_cost_is_monotone_in_units_memory_and_applications(self, objective, share):
        """Goals exceed the accuracy of every network, so that no cost is negative."""

        def least(given: Choices) -> float:
            return value(given, exact.solve(given, objective), objective)

        for seed in range(5):
            given, alpha = with_goal(demands(seed, apps=3), 1.0), ALPHAS[seed % 4]
            whole = choices(given, alpha, share)
            grids = [choices(given, alpha, share, units) for units in (25, 50)]
            machines = [replace(whole, cost=whole.cost[:, :, : units + 1]) for units in (30, 70)]
            fewer = tabulate(given[:-1], int(whole.limit_bytes), alpha, 100)
            more_memory = replace(whole, limit_bytes=1.1 * whole.limit_bytes)
            of_whole = least(whole)
            rising = [*map(least, grids), of_whole], [*map(least, machines), of_whole]
            for found in (*rising, [of_whole, least(more_memory)], [of_whole, least(fewer)]):
                assert all(after <= before + 1e-7 for before, after in itertools.pairwise(found))

    def test_no_potentially_optimal_option_is_excluded(self):
        for seed in range(20):
            given = choices(demands(seed), 0.3)
            app, network, units = exact.options(given)
            assert len(app) < given.cost.size / 2
            for v, k in itertools.product(range(len(given.cost)), (1, 10, 50, 100)):
                left = (app == v) & (units <= k)
                assert given.cost[v, network[left], units[left]].min() == given.cost[v, :, k].min()

    def test_plan_never_exceeds_the_memory_by_a_byte(self):
        """A byte of a terabyte is below the tolerance of the solver."""
        size = 10**12
        large = (Variant("s", 0.5, size, 0.1), Variant("l", 0.9, 2 * size, 0.1))
        given = tabulate([Demand(app, 1.0, large) for app in "ab"], 4 * size - 1, 0.1, 10)
        plan = exact.solve(given, "total")
        assert sorted(plan.networks) == [0, 1]


class TestGreedy:
    @pytest.mark.slow
    @pytest.mark.parametrize("share", SHARES)
    def test_plans_are_within_the_limits_and_above_the_optimum(self, share):
        for seed in range(20):
            given = choices(demands(seed), ALPHAS[seed % 4], share)
            best = {objective: value(given, exact.solve(given, objective), objective) for objective in OBJECTIVES}
            for method in greedy.RULES:
                plan = walked(given, method)
                for after in (plan, greedy.allocate_surplus(given, plan), greedy.exchange(given, plan)):
                    assert after.units.min() >= 1
                    assert after.units.sum() <= 100
                    assert memory_of(given, after).sum() <= given.limit_bytes
                    assert all(value(given, after, objective) >= best[objective] - 1e-7 for objective in OBJECTIVES)

    @pytest.mark.slow
    def test_highest_rule_is_exact_without_a_memory_limit(self):
        for seed in range(200):
            given = choices(demands(seed), ALPHAS[seed % 4])
            best = value(given, programming.by_programming(given, "max"), "max")
            assert value(given, walked(given, "highest"), "max") == pytest.approx(best, abs=1e-9)

    def test_highest_rule_skips_applications_that_no_unit_helps(self):
        """One misses its accuracy goal at any number of units; the other is late below six units."""
        bad = Demand("bad", 1.0, (Variant("only", 0.1, 1, 0.1),), accuracy_goal=0.9, latency_goal_s=9.0)
        late = Demand("late", 1.0, (Variant("only", 0.5, 1, 0.6),), accuracy_goal=0.5, latency_goal_s=1.0)
        assert walked(tabulate([bad, late], 10, 0.1, 10), "highest").units.tolist() == [1, 6]

    def test_steepest_rule_is_exact_with_one_network_each(self):
        for seed in range(50):
            given = choices(demands(seed, networks=1), 0.3)
            best = value(given, programming.by_programming(given, "total"))
            for method in ("steepest", "lookahead"):
                assert value(given, walked(given, method)) == pytest.approx(best, abs=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("share", SHARES)
    def test_exchange_is_exact_between_two(self, share):
        for seed in range(20):
            given = choices(demands(seed, apps=2), ALPHAS[seed % 4], share)
            plan = greedy.exchange(given, greedy.smallest_plan(given))
            assert value(given, plan) == pytest.approx(value(given, exact.solve(given, "total")), abs=1e-7)
            assert memory_of(given, plan).sum() <= given.limit_bytes
            assert plan.units.sum() <= 100

    @pytest.mark.parametrize("method", greedy.RULES)
    def test_single_application_has_the_best_network_that_fits(self, method):
        for seed, share, alpha in itertools.product(range(10), SHARES, ALPHAS):
            given = choices(demands(seed, apps=1), alpha, share)
            plan = greedy.allocate_surplus(given, walked(given, method))
            fits = given.memory_bytes[0] <= given.limit_bytes
            assert plan.units.tolist() == [100]
            assert value(given, plan) == given.cost[0, fits, 100].min()

    def test_units_are_allocated_in_turn_until_several_help(self):
        """The large network is late below three units: one more unit lowers no cost, two do."""
        networks = (Variant("small", 0.5, 1, 0.1), Variant("large", 0.9, 1, 0.3))
        given = tabulate([Demand("a", 1.0, networks, latency_goal_s=1.0)] * 2, 10, 1.0, 10)
        plans = [walk.plan for walk in greedy.allocate_units(given, "steepest", greedy.smallest_plan(given))]
        assert [plan.units.tolist() for plan in plans] == [[1, 1], [2, 1], [3, 1], [3, 2], [3, 3]]
        assert value(given, plans[-1]) == pytest.approx(-0.8)

    def test_block_of_units_lowers_the_cost_more_than_units_in_turn(self):
        """The large network is worth its lateness from six of ten units on, and in time with eight."""
        networks = (Variant("small", 0.5, 1, 0.1), Variant("large", 0.9, 1, 0.8))
        given = tabulate([Demand("a", 1.0, networks, latency_goal_s=1.0)] * 2, 10, 1.0, 10)
        steep, ahead = (walked(given, method) for method in ("steepest", "lookahead"))
        assert steep.units.tolist() == [6, 4]
        assert ahead.units.tolist() == [8, 1]
        assert value(given, steep) == pytest.approx(-0.4 + 0.8 / 0.6 - 1)
        assert value(given, ahead) == pytest.approx(-0.4)

    def test_literal_rule_allocates_to_the_smallest_change(self):
        networks = (Variant("only", 0.5, 1, 0.1),)
        slow = (Variant("only", 0.5, 1, 1.0),)
        given = tabulate(
            [Demand("done", 1.0, networks, latency_goal_s=9.0), Demand("late", 1.0, slow, latency_goal_s=0.1)],
            10,
            1.0,
            10,
        )
        assert walked(given, "literal").units.tolist() == [9, 1]
        assert walked(given, "steepest").units.tolist() == [1, 9]

    def test_literal_rule_of_the_highest_cost_gives_units_that_lower_no_cost(self):
        """The hopeless application has the highest cost, which no number of units lowers."""
        hopeless = Demand("hopeless", 1.0, (Variant("only", 0.1, 1, 0.01),), latency_goal_s=9.0, accuracy_goal=1.0)
        late = Demand("late", 1.0, (Variant("only", 0.5, 1, 1.0),), latency_goal_s=2.0)
        given = tabulate([hopeless, late], 10, 0.1, 10)
        assert walked(given, "highest_literal").units.tolist() == [9, 1]
        assert walked(given, "highest").units[1] > 1

    @pytest.mark.parametrize("share", (*SHARES, 0.35))
    def test_exchange_skips_only_pairs_without_a_gain(self, share, monkeypatch):
        tables = [choices(demands(seed), ALPHAS[seed % 4], share) for seed in range(24)]
        starts = [
            *((given, greedy.smallest_plan(given)) for given in tables),
            *((t, walked(t, "steepest")) for t in tables),
        ]
        quick = [greedy.exchange(*start) for start in starts]
        monkeypatch.setattr(greedy, "_may_gain", lambda choices, plan, pairs: set(pairs))
        for start, found in zip(starts, quick, strict=True):
            full = greedy.exchange(*start)
            assert (found.networks.tolist(), found.units.tolist()) == (full.networks.tolist(), full.units.tolist())

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("method", greedy.RULES)
    def test_nan_cost_ends_the_allocation(self, method):
        given = choices(demands(0, apps=3), 0.3)
        cost = given.cost.copy()
        cost[1, 2, 1:] = np.nan
        plan = walked(replace(given, cost=cost), method)
        assert plan.units.min() >= 1
        assert plan.units.sum() <= 100

    def test_surplus_is_allocated_to_the_lowest_frame_rate(self):
        networks = (Variant("only", 0.5, 1, 0.1),)
        given = tabulate([Demand("a", 10.0, networks), Demand("b", 30.0, networks)], 10, 0.1, 100)
        assert greedy.allocate_surplus(given, greedy.smallest_plan(given)).units.tolist() == [25, 75]

    def test_allocation_resumes_from_an_unfinished_plan(self):
        for seed, method in itertools.product(range(12), greedy.RULES):
            given = choices(demands(seed), ALPHAS[seed % 4], SHARES[seed % 3])
            *begun, last = (walk.plan for walk in greedy.allocate_units(given, method, greedy.smallest_plan(given)))
            if begun:
                *_, again = greedy.allocate_units(given, method, begun[len(begun) // 2])
                assert np.array_equal(again.plan.units, last.units)
                assert np.array_equal(again.plan.networks, last.networks)
