"""Order of events of a processor as of a simpy resource, and a wall clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simpy
from processor_factory import FixedPolicy, fair, job, make_processor, seconds
from simpy.rt import RealtimeEnvironment

from driftlab.platform.core.records import Share
from driftlab.platform.world.processor import Processor, ProcessorTask, first_come, round_robin

Log = list[tuple[float, Any, str]]


class TestOrder:
    """Order among events of one instant: as with a plain timeout and a simpy resource."""

    @pytest.mark.parametrize("processors", [1, 2, 3])
    def test_events_are_those_of_a_simpy_resource(self, processors: int):
        for seed in range(150):
            plans = drawn(seed)
            assert turns(plans, by_machine(processors)) == turns(plans, by_resource(processors))

    def test_task_with_a_constant_share_waits_for_one_timeout(self):
        for seed in range(50):
            draw = random.Random(seed)
            waits = [[draw.choice([0, 1, 1, 2]) for _ in range(3)] for _ in range(6)]
            orders = []
            for which in (None, draw.randrange(6)):
                clock, processor, policy = make_processor(w=1.0)
                work, log = processor.enter("w"), []
                for i, each in enumerate(waits):
                    clock.process(self.waiting(processor, work if i == which else None, i, each, log, policy))
                clock.run()
                orders.append(log)
            assert orders[0] == orders[1]

    def waiting(
        self,
        processor: Processor,
        work: ProcessorTask | None,
        name: int,
        waits: list[int],
        log: Log,
        policy: FixedPolicy,
    ) -> Iterator[Any]:
        for wait_s in waits:
            if work is None:
                yield processor.clock.timeout(wait_s)
                same: Share = {"accelerator": 1.0} if policy.shares["w"] == 1.0 else 1.0
                policy.changed(processor, w=same)  # another form of the same pace
            else:
                yield from processor.run_job(work, seconds(wait_s))
            log.append((processor.clock.now, name, "waited"))


@pytest.mark.parametrize(("count", "ends"), [(1, {"long": 11.0, "short": 2.0}), (2, {"long": 10.0, "short": 1.0})])
def test_turns_let_a_short_round_end_before_a_long_one(count: int, ends: dict[str, float]):
    """One GPU halves the speed of both until the short round has ended; with two each has its own."""
    clock, found = simpy.Environment(), dict[str, float]()
    processor = Processor(clock, round_robin(count), capacity=count)
    clock.process(job(processor, "long", [seconds(10.0)], found))
    clock.process(job(processor, "short", [seconds(1.0)], found))
    clock.run()
    assert found == pytest.approx(ends)


Plan = tuple[int, list[int], int, int]  # arrival, durations of its jobs, pause, number of repetitions


Turn = Callable[[simpy.Environment], Callable[[str, list[int], Callable[[str], None]], Iterator[Any]]]


def drawn(seed: int) -> list[Plan]:
    draw = random.Random(seed)
    return [
        (
            draw.choice([0, 0, 1, 2, 3, 4]),
            [draw.choice([0, 1, 1, 2, 3]) for _ in range(draw.randint(1, 3))],
            draw.choice([0, 0, 1]),
            draw.choice([1, 2]),
        )
        for _ in range(draw.randint(1, 9))
    ]


def turns(plans: list[Plan], turn: Turn) -> Log:
    clock, log = simpy.Environment(), Log()
    take = turn(clock)

    def come(name: int, start_s: int, works: list[int], rest_s: int, times: int) -> Iterator[Any]:
        yield clock.timeout(start_s)
        for time in range(times):
            log.append((clock.now, name, "asks"))
            yield from take(f"{name}/{time}", works, lambda what: log.append((clock.now, name, what)))
            yield clock.timeout(rest_s)
            log.append((clock.now, name, "rested"))

    for name, plan in enumerate(plans):
        clock.process(come(name, *plan))
    clock.run()
    return log


def by_machine(processors: int) -> Turn:
    def on(clock: simpy.Environment) -> Any:
        processor = Processor(clock, first_come(processors), processors)

        def take(name: str, works: list[int], say: Callable[[str], None]) -> Iterator[Any]:
            with processor.entered(name) as work:
                yield work.granted
                for alone_s in works:
                    say("starts")
                    yield from processor.run_job(work, seconds(alone_s))
                    say("ends")

        return take

    return on


def by_resource(processors: int) -> Turn:
    def on(clock: simpy.Environment) -> Any:
        resource = simpy.Resource(clock, processors)

        def take(name: str, works: list[int], say: Callable[[str], None]) -> Iterator[Any]:
            with resource.request() as request:
                yield request
                for alone_s in works:
                    say("starts")
                    yield clock.timeout(alone_s)
                    say("ends")

        return take

    return on


def test_it_runs_on_a_wall_clock():
    clock = RealtimeEnvironment(factor=0.01, strict=False)
    processor, ends = Processor(clock, fair), dict[str, float]()
    for name, alone_s in (("a", 1.0), ("b", 3.0)):
        clock.process(job(processor, name, [seconds(alone_s)], ends))
    clock.run(until=10)
    assert ends == {"a": 2, "b": 4}
