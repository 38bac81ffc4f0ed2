"""Shared processor against closed forms, integration, and the order of events of a simpy resource."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_factory import FixedPolicy, fair, job, make_processor, seconds

from driftlab.errors import RunError
from driftlab.platform.core.records import Share, TaskCost
from driftlab.platform.world.processor import (
    InterleavedShare,
    Processor,
    ShareSchedule,
    accelerator_share,
    first_come,
    rate,
    task_end_s,
)

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])


CHANGES = st.lists(st.tuples(st.floats(0.01, 20), SHARES), max_size=8)  # (delay, new share)


def test_two_cameras_share_fairly_between_training_and_inference():
    """Ekya's case: isolated training of 10 s for a and 60 s for b, inference of both for 200 s."""
    clock = simpy.Environment()
    processor, ends = Processor(clock, fair), dict[str, float]()
    for name in ("a/answer", "b/answer"):
        processor.enter(name)
    for name, alone_s in (("a/learn", 10.0), ("b/learn", 60.0)):
        clock.process(job(processor, name, [seconds(alone_s)], ends))
    clock.run(until=200)
    assert ends == pytest.approx({"a/learn": 40.0, "b/learn": 190.0})
    for camera in "ab":
        (before, after, last) = processor.share_schedule(f"{camera}/answer", 0, 200)
        assert before == pytest.approx((0.0, 0.25))
        assert after == pytest.approx((40.0, 1 / 3))
        assert last == pytest.approx((190.0, 0.5))


class TestTasks:
    @settings(max_examples=60, deadline=None)
    @given(alone_s=st.floats(0.001, 20), changes=CHANGES)
    def test_share_over_time_adds_up_to_the_cost(self, alone_s: float, changes: list[tuple[float, float]]):
        clock, processor, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(processor, "a", [seconds(alone_s)], ends))

        def change() -> Iterator[Any]:
            for after_s, share in changes:
                yield clock.timeout(after_s)
                policy.changed(processor, a=share)

        clock.process(change())
        clock.run(until=1e6)
        schedule = processor.share_schedule("a", 0, 1e6)
        assert task_end_s(0, alone_s, schedule) == pytest.approx(ends.get("a", math.inf))
        stops = [*(time_s for time_s, _ in schedule[1:]), clock.now]
        done = sum((stop_s - time_s) * share for (time_s, share), stop_s in zip(schedule, stops, strict=True))
        if "a" in ends:
            assert done == pytest.approx(alone_s, abs=1e-9)
        else:
            assert processor.tasks["a"].share == 0.0
            assert done + processor.tasks["a"].left_s == pytest.approx(alone_s, abs=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(start_s=st.floats(0, 30), alone_s=st.floats(0, 20), changes=CHANGES)
    def test_end_follows_from_the_share_schedule(self, start_s: float, alone_s: float, changes: list[Any]):
        times = [sum(after_s for after_s, _ in changes[: i + 1]) for i in range(len(changes))]
        schedule: ShareSchedule = ((0.0, 0.5), *zip(times, (share for _, share in changes), strict=True))
        clock, processor, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}

        def change() -> Iterator[Any]:
            for time_s, share in schedule[1:]:
                yield clock.timeout(time_s - clock.now)
                policy.changed(processor, a=share)

        clock.process(change())
        clock.process(job(processor, "a", [seconds(alone_s)], ends, start_s))
        clock.run(until=1e6)
        assert ends.get("a", math.inf) == pytest.approx(task_end_s(start_s, alone_s, schedule))

    def test_task_without_a_share_waits_and_resumes(self):
        clock, processor, policy = make_processor(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(processor, "a", [seconds(10)], ends))
        clock.run(until=8)
        policy.changed(processor, a=0.0)
        clock.run(until=1000)
        assert ends == {}
        assert processor.remaining_cost(processor.tasks["a"]) == seconds(6)
        policy.changed(processor, a=1.0)
        clock.run(until=1005)
        assert processor.tasks["a"].left_s == 6  # at the last distribution of shares
        processor.share_out("window")
        assert processor.remaining_cost(processor.tasks["a"]) == seconds(1)
        clock.run(until=2000)
        assert ends == {"a": 1006}

    def test_task_that_ends_as_its_share_is_removed_has_ended(self):
        """The window begins at the instant of the end, and before the event of the end."""
        clock, processor, policy = make_processor(a=0.3)
        ends: dict[str, float] = {}

        def window() -> Iterator[Any]:
            yield clock.timeout(10)
            policy.changed(processor, a=0.0)

        clock.process(window())
        clock.process(job(processor, "a", [seconds(0.1)] * 2 + [seconds(2.8)], ends))
        clock.run(until=100)
        assert ends == pytest.approx({"a": 10})

    def test_consecutive_jobs_keep_their_place(self):
        clock = simpy.Environment()
        processor, ends = Processor(clock, first_come(1)), dict[str, float]()
        clock.process(job(processor, "first", [seconds(2), seconds(3)], ends))
        clock.process(job(processor, "second", [seconds(1)], ends, start_s=1))
        clock.run()
        assert ends == {"first": 5, "second": 6}

    def test_leaving_task_frees_its_share_for_waiting_tasks(self):
        clock = simpy.Environment()
        processor, ends = Processor(clock, first_come(1)), dict[str, float]()
        gone, given_up = processor.enter("gone"), processor.enter("given up")
        clock.process(job(processor, "next", [seconds(2)], ends))
        clock.run(until=1)
        processor.leave(given_up)  # it never had a share
        clock.run(until=3)
        assert ends == {}
        processor.leave(gone)
        processor.leave(gone)  # a second removal has no effect
        clock.run()
        assert ends == {"next": 5}
        assert processor.share_schedule("gone", 0, 9) == ((0, 1.0), (3, 0.0))
        assert processor.tasks == {}

    def test_cancelled_job_ends_at_once_and_returns_its_remaining_cost(self):
        clock, processor, _ = make_processor(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(processor, "a", [seconds(4), seconds(1)], ends))
        clock.run(until=3)
        assert processor.cancel_job(processor.tasks["a"]).isolated_s == pytest.approx(2.5)
        clock.run()
        assert ends == {"a": 5}

    def test_removed_task_never_ends_its_job(self):
        clock, processor, _ = make_processor(a=0.5, b=0.5)
        ends: dict[str, float] = {}
        for name in "ab":
            clock.process(job(processor, name, [seconds(4)], ends))
        clock.run(until=2)
        processor.leave(processor.tasks["a"], "departure")
        clock.run(until=50)
        assert ends == {"b": 8}

    def test_foreign_interrupt_ends_the_task_and_frees_its_place(self):
        clock, processor, _ = make_processor(a=1.0)
        ends: dict[str, float] = {}
        process = clock.process(job(processor, "a", [seconds(4)], ends))
        clock.run(until=1)
        process.defused = True
        process.interrupt("stop")
        clock.run()
        assert isinstance(process.value, simpy.Interrupt)
        assert (ends, processor.tasks) == ({}, {})

    def test_abandoned_clock_calls_no_policy(self):
        clock, processor, policy = make_processor(a=0.1)
        process = job(processor, "a", [seconds(4)], {})
        clock.process(process)
        clock.run(until=1)
        process.close()
        assert policy.reasons == ["offer"]

    @pytest.mark.parametrize("alone_s", [math.nan, math.inf, -1.0])
    def test_impossible_cost_is_refused(self, alone_s: float):
        _, processor, _ = make_processor(a=1.0)
        with pytest.raises(RunError, match="must be finite"):
            next(processor.run_job(processor.enter("a"), seconds(alone_s)))

    def test_only_entered_tasks_run_and_enter_once(self):
        _, processor, _ = make_processor(a=1.0)
        work = processor.enter("a")
        with pytest.raises(RunError, match="already"):
            processor.enter("a")
        processor.leave(work)
        with pytest.raises(RunError, match="enter it first"):
            next(processor.run_job(work, seconds(1)))


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
        _, processor, policy = make_processor()
        for name in shares:
            processor.enter(name)
        with pytest.raises(RunError, match="share"):
            policy.changed(processor, **shares)

    def test_a_task_has_at_most_one_of_several_processors(self):
        clock, policy = simpy.Environment(), FixedPolicy(a=1.0, b=1.0)
        processor = Processor(clock, policy, capacity=2)
        works = [processor.enter(name) for name in "ab"]
        assert [work.share for work in works] == [1.0, 1.0]
        with pytest.raises(RunError, match=r"1\.5"):
            policy.changed(processor, a=1.5, b=0.5)

    def test_rounding_of_shares_is_accepted(self):
        _, processor, policy = make_processor()
        for i in range(10):
            processor.enter(f"w{i}")
        policy.changed(processor, **{f"w{i}": 0.1 + 1e-9 for i in range(10)})
        assert processor.tasks["w9"].share == 0.1 + 1e-9

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
        clock, processor, policy = make_processor(a={"accelerator": 1.0}, b={"cpu": 1.0})
        ends: dict[str, float] = {}
        clock.process(job(processor, "a", [seconds(4)], ends))
        clock.process(job(processor, "b", [TaskCost({"cpu": 6.0})], ends))
        clock.run(until=2)
        policy.changed(processor, a={"accelerator": 0.5})
        clock.run()
        assert ends == {"a": 6, "b": 6}

    def test_policy_receives_the_reason(self):
        clock, processor, policy = make_processor(a=0.5)
        clock.process(job(processor, "a", [seconds(1)], {}))
        processor.leave(processor.enter("b", "arrival"), "departure")
        clock.run()
        assert policy.reasons == ["arrival", "departure", "offer", "end"]

    def test_peak_memory_is_that_of_concurrent_tasks(self):
        clock, processor, _ = make_processor(answer=0.5, a=0.25, b=0.25)
        processor.enter("answer", cost=TaskCost(memory_bytes=100))
        clock.process(job(processor, "a", [seconds(1, 30), seconds(1, 20)], {}))
        clock.process(job(processor, "b", [seconds(1, 45)], {}, start_s=5))
        clock.run()
        assert processor.peak_memory_bytes == 165  # the second job of a together with that of b

    def test_share_schedule_covers_its_span(self):
        clock, processor, policy = make_processor(a=0.5)
        processor.enter("a")
        for time_s, share in ((2, 0.25), (4, 1.0), (4, 0.75), (6, 0.0)):
            clock.run(until=time_s) if clock.now < time_s else None
            policy.changed(processor, a=share)
        assert processor.share_schedule("a", 0, 4) == ((0, 0.5), (2, 0.25))
        assert processor.share_schedule("a", 4, 6) == ((4, 0.75),)
        assert processor.share_schedule("a", 5, 9) == ((5, 0.75), (6, 0.0))
        assert processor.share_schedule("nobody", 1, 2) == ((1, 0.0),)
