"""A machine that works share: against closed forms, integration, and the order of events of simpy's own resource."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_factory import Told, fair, job, seconds, told

from driftlab.errors import RunError
from driftlab.platform.core.records import Need, Share
from driftlab.platform.world.machine import Course, Machine, Pipelined, accelerator_share, done_s, first_come, rate

SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])


CHANGES = st.lists(st.tuples(st.floats(0.01, 20), SHARES), max_size=8)  # (after so long, this share)


def test_two_cameras_that_learn_share_fairly_with_their_inference():
    """Ekya's case: a trains for 10 s, b for 60 s (alone on the machine), both answer for 200 s."""
    clock = simpy.Environment()
    machine, ends = Machine(clock, fair), dict[str, float]()
    for name in ("a/answer", "b/answer"):
        machine.enter(name)
    for name, alone_s in (("a/learn", 10.0), ("b/learn", 60.0)):
        clock.process(job(machine, name, [seconds(alone_s)], ends))
    clock.run(until=200)
    assert ends == pytest.approx({"a/learn": 40.0, "b/learn": 190.0})
    for camera in "ab":
        (before, after, last) = machine.course(f"{camera}/answer", 0, 200)
        assert before == pytest.approx((0.0, 0.25))
        assert after == pytest.approx((40.0, 1 / 3))
        assert last == pytest.approx((190.0, 0.5))


class TestWork:
    @settings(max_examples=60, deadline=None)
    @given(alone_s=st.floats(0.001, 20), changes=CHANGES)
    def test_what_it_gets_over_time_is_what_it_needs(self, alone_s: float, changes: list[tuple[float, float]]):
        clock, machine, policy = told(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(alone_s)], ends))

        def change() -> Iterator[Any]:
            for after_s, share in changes:
                yield clock.timeout(after_s)
                policy.changed(machine, a=share)

        clock.process(change())
        clock.run(until=1e6)
        course = machine.course("a", 0, 1e6)
        assert done_s(0, alone_s, course) == pytest.approx(ends.get("a", math.inf))
        stops = [*(time_s for time_s, _ in course[1:]), clock.now]
        done = sum((stop_s - time_s) * share for (time_s, share), stop_s in zip(course, stops, strict=True))
        if "a" in ends:
            assert done == pytest.approx(alone_s, abs=1e-9)
        else:
            assert machine.works["a"].share == 0.0
            assert done + machine.works["a"].left_s == pytest.approx(alone_s, abs=1e-9)

    @settings(max_examples=60, deadline=None)
    @given(start_s=st.floats(0, 30), alone_s=st.floats(0, 20), changes=CHANGES)
    def test_when_it_is_done_follows_from_its_course(self, start_s: float, alone_s: float, changes: list[Any]):
        times = [sum(after_s for after_s, _ in changes[: i + 1]) for i in range(len(changes))]
        course: Course = ((0.0, 0.5), *zip(times, (share for _, share in changes), strict=True))
        clock, machine, policy = told(a=0.5)
        ends: dict[str, float] = {}

        def change() -> Iterator[Any]:
            for time_s, share in course[1:]:
                yield clock.timeout(time_s - clock.now)
                policy.changed(machine, a=share)

        clock.process(change())
        clock.process(job(machine, "a", [seconds(alone_s)], ends, start_s))
        clock.run(until=1e6)
        assert ends.get("a", math.inf) == pytest.approx(done_s(start_s, alone_s, course))

    def test_without_a_share_it_waits_and_goes_on_when_it_has_one_again(self):
        clock, machine, policy = told(a=0.5)
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(10)], ends))
        clock.run(until=8)
        policy.changed(machine, a=0.0)
        clock.run(until=1000)
        assert ends == {}
        assert machine.left(machine.works["a"]) == seconds(6)
        policy.changed(machine, a=1.0)
        clock.run(until=1005)
        assert machine.works["a"].left_s == 6  # as of when shares were given out last
        machine.share_out("window")
        assert machine.left(machine.works["a"]) == seconds(1)
        clock.run(until=2000)
        assert ends == {"a": 1006}

    def test_what_is_done_when_its_share_is_taken_away_is_done(self):
        """The window begins at the very instant, and before the work's own end."""
        clock, machine, policy = told(a=0.3)
        ends: dict[str, float] = {}

        def window() -> Iterator[Any]:
            yield clock.timeout(10)
            policy.changed(machine, a=0.0)

        clock.process(window())
        clock.process(job(machine, "a", [seconds(0.1)] * 2 + [seconds(2.8)], ends))
        clock.run(until=100)
        assert ends == pytest.approx({"a": 10})

    def test_works_that_follow_one_another_keep_their_place(self):
        clock = simpy.Environment()
        machine, ends = Machine(clock, first_come(1)), dict[str, float]()
        clock.process(job(machine, "first", [seconds(2), seconds(3)], ends))
        clock.process(job(machine, "second", [seconds(1)], ends, start_s=1))
        clock.run()
        assert ends == {"first": 5, "second": 6}

    def test_one_that_leaves_while_others_wait_frees_what_it_had(self):
        clock = simpy.Environment()
        machine, ends = Machine(clock, first_come(1)), dict[str, float]()
        gone, given_up = machine.enter("gone"), machine.enter("given up")
        clock.process(job(machine, "next", [seconds(2)], ends))
        clock.run(until=1)
        machine.leave(given_up)  # it never had its turn
        clock.run(until=3)
        assert ends == {}
        machine.leave(gone)
        machine.leave(gone)  # again changes nothing
        clock.run()
        assert ends == {"next": 5}
        assert machine.course("gone", 0, 9) == ((0, 1.0), (3, 0.0))
        assert machine.works == {}

    def test_one_that_is_sent_away_in_the_middle_never_gets_it_done(self):
        clock, machine, _ = told(a=0.5, b=0.5)
        ends: dict[str, float] = {}
        for name in "ab":
            clock.process(job(machine, name, [seconds(4)], ends))
        clock.run(until=2)
        machine.leave(machine.works["a"], "go")
        clock.run(until=50)
        assert ends == {"b": 8}

    def test_an_interrupt_of_somebody_else_ends_it_and_frees_its_place(self):
        clock, machine, _ = told(a=1.0)
        ends: dict[str, float] = {}
        process = clock.process(job(machine, "a", [seconds(4)], ends))
        clock.run(until=1)
        process.defused = True
        process.interrupt("stop")
        clock.run()
        assert isinstance(process.value, simpy.Interrupt)
        assert (ends, machine.works) == ({}, {})

    def test_a_clock_that_is_given_up_asks_for_no_more_shares(self):
        clock, machine, policy = told(a=0.1)
        process = job(machine, "a", [seconds(4)], {})
        clock.process(process)
        clock.run(until=1)
        process.close()
        assert policy.reasons == ["offer"]

    @pytest.mark.parametrize("alone_s", [math.nan, math.inf, -1.0])
    def test_a_need_that_nothing_can_do_is_refused(self, alone_s: float):
        _, machine, _ = told(a=1.0)
        with pytest.raises(RunError, match="must be finite"):
            next(machine.do(machine.enter("a"), seconds(alone_s)))

    def test_only_those_who_are_there_work_and_once(self):
        _, machine, _ = told(a=1.0)
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
    def test_those_that_no_machine_has_are_refused(self, shares: dict[str, Share]):
        _, machine, policy = told()
        for name in shares:
            machine.enter(name)
        with pytest.raises(RunError, match="share"):
            policy.changed(machine, **shares)

    def test_of_several_processors_nobody_has_more_than_one(self):
        clock, policy = simpy.Environment(), Told(a=1.0, b=1.0)
        machine = Machine(clock, policy, capacity=2)
        works = [machine.enter(name) for name in "ab"]
        assert [work.share for work in works] == [1.0, 1.0]
        with pytest.raises(RunError, match=r"1\.5"):
            policy.changed(machine, a=1.5, b=0.5)

    def test_rounding_is_no_fault(self):
        _, machine, policy = told()
        for i in range(10):
            machine.enter(f"w{i}")
        policy.changed(machine, **{f"w{i}": 0.1 + 1e-9 for i in range(10)})
        assert machine.works["w9"].share == 0.1 + 1e-9

    def test_parts_of_a_machine_follow_one_another(self):
        need = Need({"accelerator": 3.0, "cpu": 1.0})
        assert rate(need, 0.5) == 0.5
        assert rate(need, {"accelerator": 0.5, "cpu": 0.25}) == pytest.approx(4 / (3 / 0.5 + 1 / 0.25))
        assert rate(need, {"accelerator": 1.0}) == rate(need, Pipelined({"accelerator": 1.0})) == 0.0
        assert rate(need, Pipelined({"accelerator": 0.5, "cpu": 0.25})) == pytest.approx(4 * min(0.5 / 3, 0.25 / 1))
        assert rate(seconds(3), {"accelerator": 0.5}) == 0.5
        assert rate(Need(), {"accelerator": 0.5}) == 1.0
        assert rate(Need(), {"accelerator": 0.0}) == rate(Need(), {}) == 0.0
        assert (
            accelerator_share(0.4),
            accelerator_share({"accelerator": 0.3, "cpu": 1.0}),
            accelerator_share({"cpu": 1.0}),
        ) == (0.4, 0.3, 0.0)

    def test_works_on_other_parts_of_a_machine_do_not_slow_each_other(self):
        clock, machine, policy = told(a={"accelerator": 1.0}, b={"cpu": 1.0})
        ends: dict[str, float] = {}
        clock.process(job(machine, "a", [seconds(4)], ends))
        clock.process(job(machine, "b", [Need({"cpu": 6.0})], ends))
        clock.run(until=2)
        policy.changed(machine, a={"accelerator": 0.5})
        clock.run()
        assert ends == {"a": 6, "b": 6}

    def test_the_policy_hears_why_it_is_asked(self):
        clock, machine, policy = told(a=0.5)
        clock.process(job(machine, "a", [seconds(1)], {}))
        machine.leave(machine.enter("b", "come"), "go")
        clock.run()
        assert policy.reasons == ["come", "go", "offer", "end"]

    def test_memory_peaks_where_most_is_held_at_once(self):
        clock, machine, _ = told(answer=0.5, a=0.25, b=0.25)
        machine.enter("answer", need=Need(memory_bytes=100))
        clock.process(job(machine, "a", [seconds(1, 30), seconds(1, 20)], {}))
        clock.process(job(machine, "b", [seconds(1, 45)], {}, start_s=5))
        clock.run()
        assert machine.peak_memory_bytes == 165  # the second one of a beside b's

    def test_a_course_begins_with_the_share_at_its_start_and_ends_before_its_stop(self):
        clock, machine, policy = told(a=0.5)
        machine.enter("a")
        for time_s, share in ((2, 0.25), (4, 1.0), (4, 0.75), (6, 0.0)):
            clock.run(until=time_s) if clock.now < time_s else None
            policy.changed(machine, a=share)
        assert machine.course("a", 0, 4) == ((0, 0.5), (2, 0.25))
        assert machine.course("a", 4, 6) == ((4, 0.75),)
        assert machine.course("a", 5, 9) == ((5, 0.75), (6, 0.0))
        assert machine.course("nobody", 1, 2) == ((1, 0.0),)
