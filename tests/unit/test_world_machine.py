"""Shared processor against closed forms, integration, and the order of events of a simpy resource."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_factory import FixedPolicy, job, make_processor, seconds

from driftlab.errors import RunError
from driftlab.platform.core.records import Share, TaskCost
from driftlab.platform.world.machine import (
    InterleavedShare,
    Processor,
    ShareSchedule,
    accelerator_share,
    done_s,
    first_come,
    rate,
)

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])


CHANGES = st.lists(st.tuples(st.floats(0.01, 20), SHARES), max_size=8)  # (delay, new share)


class TestTasks:
    @settings(max_examples=60, deadline=None)
    @given(alone_s=st.floats(0.001, 20), changes=CHANGES)
    def test_share_over_time_adds_up_to_the_cost(self, alone_s: float, changes: list[tuple[float, float]]):
        clock, machine, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(alone_s)], ends))

        def change() -> Iterator[Any]:
            for after_s, share in changes:
                yield clock.timeout(after_s)
                policy.changed(machine, a=share)

        clock.process(change())
        clock.run(until=1e6)
        schedule = machine.course("a", 0, 1e6)
        assert done_s(0, alone_s, schedule) == pytest.approx(ends.get("a", math.inf))
        stops = [*(time_s for time_s, _ in schedule[1:]), clock.now]
        done = sum((stop_s - time_s) * share for (time_s, share), stop_s in zip(schedule, stops, strict=True))
        if "a" in ends:
            assert done == pytest.approx(alone_s, abs=1e-9)
        else:
            assert machine.works["a"].share == 0.0
            assert done + machine.works["a"].left_s == pytest.approx(alone_s, abs=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(start_s=st.floats(0, 30), alone_s=st.floats(0, 20), changes=CHANGES)
    def test_end_follows_from_the_share_schedule(self, start_s: float, alone_s: float, changes: list[Any]):
        times = [sum(after_s for after_s, _ in changes[: i + 1]) for i in range(len(changes))]
        schedule: ShareSchedule = ((0.0, 0.5), *zip(times, (share for _, share in changes), strict=True))
        clock, machine, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}

        def change() -> Iterator[Any]:
            for time_s, share in schedule[1:]:
                yield clock.timeout(time_s - clock.now)
                policy.changed(machine, a=share)

        clock.process(change())
        clock.process(job(machine, "a", [seconds(alone_s)], ends, start_s))
        clock.run(until=1e6)
        assert ends.get("a", math.inf) == pytest.approx(done_s(start_s, alone_s, schedule))

    def test_task_without_a_share_waits_and_resumes(self):
        clock, machine, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(10)], ends))
        clock.run(until=8)
        policy.changed(machine, a=0.0)
        clock.run(until=1000)
        assert ends == {}
        assert machine.left(machine.works["a"]) == seconds(6)
        policy.changed(machine, a=1.0)
        clock.run(until=1005)
        assert machine.works["a"].left_s == 6  # at the last distribution of shares
        machine.share_out("window")
        assert machine.left(machine.works["a"]) == seconds(1)
        clock.run(until=2000)
        assert ends == {"a": 1006}

    def test_task_that_ends_as_its_share_is_removed_has_ended(self):
        """The window begins at the instant of the end, and before the event of the end."""
        clock, machine, policy = make_processor(a=0.3)
        ends: dict[str, float] = {}

        def window() -> Iterator[Any]:
            yield clock.timeout(10)
            policy.changed(machine, a=0.0)

        clock.process(window())
        clock.process(job(machine, "a", [seconds(0.1)] * 2 + [seconds(2.8)], ends))
        clock.run(until=100)
        assert ends == pytest.approx({"a": 10})

    def test_leaving_task_frees_its_share_for_waiting_tasks(self):
        clock = simpy.Environment()
        machine, ends = Processor(clock, first_come(1)), dict[str, float]()
        gone, given_up = machine.enter("gone"), machine.enter("given up")
        clock.process(job(machine, "next", [seconds(2)], ends))
        clock.run(until=1)
        machine.leave(given_up)  # it never had a share
        clock.run(until=3)
        assert ends == {}
        machine.leave(gone)
        machine.leave(gone)  # a second removal has no effect
        clock.run()
        assert ends == {"next": 5}
        assert machine.course("gone", 0, 9) == ((0, 1.0), (3, 0.0))
        assert machine.works == {}

    def test_foreign_interrupt_ends_the_task_and_frees_its_place(self):
        clock, machine, _ = make_processor(a=1.0)
        ends: dict[str, float] = {}
        process = clock.process(job(machine, "a", [seconds(4)], ends))
        clock.run(until=1)
        process.defused = True
        process.interrupt("stop")
        clock.run()
        assert isinstance(process.value, simpy.Interrupt)
        assert (ends, machine.works) == ({}, {})

    @pytest.mark.parametrize("alone_s", [math.nan, math.inf, -1.0])
    def test_impossible_cost_is_refused(self, alone_s: float):
        _, machine, _ = make_processor(a=1.0)
        with pytest.raises(RunError, match="must be finite"):
            next(machine.do(machine.enter("a"), seconds(alone_s)))

    def test_only_entered_tasks_run_and_enter_once(self):
        _, machine, _ = make_processor(a=1.0)
        work = machine.enter("a")
        with pytest.raises(RunError, match="already"):
            machine.enter("a")
        machine.leave(work)
        with pytest.raises(RunError, match="enter it first"):
            next(machine.do(work, seconds(1)))


class TestShares:
    @pytest.mark.parametrize(
        "shares",
        [
            {"a": 1.1},
            {"a": 0.6, "b": 0.5},
            {"a": math.nan},
            {"a": -0.1, "b": 0.5},
            {"a": {"cpu": 0.6}, "b": {"cpu": 0.5}},
            {"a": {"cpu": 0.6}, "b": 0.5},
            {"a": {"cpu": 0.6, "accelerator": math.nan}},
            {"a": math.inf},
        ],
    )
    def test_impossible_shares_are_refused(self, shares: dict[str, Share]):
        _, machine, policy = make_processor()
        for name in shares:
            machine.enter(name)
        with pytest.raises(RunError, match="share"):
            policy.changed(machine, **shares)

    def test_a_task_has_at_most_one_of_several_processors(self):
        clock, policy = simpy.Environment(), FixedPolicy(a=1.0, b=1.0)
        machine = Processor(clock, policy, capacity=2)
        works = [machine.enter(name) for name in "ab"]
        assert [work.share for work in works] == [1.0, 1.0]
        with pytest.raises(RunError, match=r"1\.5"):
            policy.changed(machine, a=1.5, b=0.5)

    def test_resources_are_used_in_sequence(self):
        cost = TaskCost({"accelerator": 3.0, "cpu": 1.0})
        assert rate(cost, 0.5) == 0.5
        assert rate(cost, {"accelerator": 0.5, "cpu": 0.25}) == pytest.approx(4 / (3 / 0.5 + 1 / 0.25))
        assert rate(cost, {"accelerator": 1.0}) == rate(cost, InterleavedShare({"accelerator": 1.0})) == 0.0
        assert rate(cost, InterleavedShare({"accelerator": 0.5, "cpu": 0.25})) == pytest.approx(
            4 * min(0.5 / 3, 0.25 / 1)
        )
        assert rate(seconds(3), {"accelerator": 0.5}) == 0.5
        assert rate(TaskCost(), {"accelerator": 0.5}) == 1.0
        assert rate(TaskCost(), {"accelerator": 0.0}) == rate(TaskCost(), {}) == 0.0
        assert (
            accelerator_share(0.4),
            accelerator_share({"accelerator": 0.3, "cpu": 1.0}),
            accelerator_share({"cpu": 1.0}),
        ) == (0.4, 0.3, 0.0)

    def test_tasks_on_different_resources_do_not_slow_each_other(self):
        clock, machine, policy = make_processor(a={"accelerator": 1.0}, b={"cpu": 1.0})
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(4)], ends))
        clock.process(job(machine, "b", [TaskCost({"cpu": 6.0})], ends))
        clock.run(until=2)
        policy.changed(machine, a={"accelerator": 0.5})
        clock.run()
        assert ends == {"a": 6, "b": 6}

    def test_peak_memory_is_that_of_concurrent_tasks(self):
        clock, machine, _ = make_processor(answer=0.5, a=0.25, b=0.25)
        machine.enter("answer", cost=TaskCost(memory_bytes=100))
        clock.process(job(machine, "a", [seconds(1, 30), seconds(1, 20)], {}))
        clock.process(job(machine, "b", [seconds(1, 45)], {}, start_s=5))
        clock.run()
        assert machine.peak_memory_bytes == 165  # the second job of a together with that of b

    def test_share_schedule_covers_its_span(self):
        clock, machine, policy = make_processor(a=0.5)
        machine.enter("a")
        for time_s, share in ((2, 0.25), (4, 1.0), (4, 0.75), (6, 0.0)):
            clock.run(until=time_s) if clock.now < time_s else None
            policy.changed(machine, a=share)
        assert machine.course("a", 0, 4) == ((0, 0.5), (2, 0.25))
        assert machine.course("a", 4, 6) == ((4, 0.75),)
        assert machine.course("a", 5, 9) == ((5, 0.75), (6, 0.0))
        assert machine.course("nobody", 1, 2) == ((1, 0.0),)
