"""Devices that share the GPUs of a server under a scheduling member."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from loop_factory import FakeSession, FixedMember, ScriptedStreaming, rows, run, uploads

from driftlab.platform.core.records import Passes, RecallResult, SampleDescription, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling
from driftlab.platform.sim.server import spread

GAINS = {"device-0": 0.1, "device-1": 0.3}


@dataclass
class LargestGainFirst(Scheduling):
    """A scheduler that serves the round with the largest expected gain."""

    uses_observed_accuracy = schedules_server = True
    asked: list[SchedulerInput] = field(default_factory=list)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        gains = [
            0.0 if one.learning is None else (one.learning.accuracy_after or 0) - (one.learning.accuracy_before or 0)
            for one in window.demands
        ]
        first = gains.index(max(gains))
        return Allocation(tuple(Grant(0.0, training_share=float(place == first)) for place in range(len(gains))))


def served(scheduler: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Run two devices that send at the same time, twice; one gains more in each round."""
    scores: dict[str, int] = {}

    def tried(node: Any, plan: Any, phases: Any, fresh: bool) -> TrialScores:
        scores[node.name] = scores.get(node.name, 0) + 1
        after = scores[node.name] % 2 == 0
        return TrialScores(0.5 + after * GAINS[node.name], (), (), Passes((5,)))

    session = FakeSession(run_trials=tried)
    given = {} if scheduler is None else {"scheduling": FixedMember(scheduler)}
    session, loop = run(ScriptedStreaming(uploads(5.0, 15.0)), session=session, devices=2, **given)
    return session, sorted(rows(loop, "updates"), key=lambda row: row["train_end_s"])


class TestSharedServer:
    def test_the_round_that_gained_more_is_served_first(self):
        scheduler = LargestGainFirst()
        session, updates = served(scheduler)
        assert [row["device"] for row in updates] == ["device-0", "device-1", "device-1", "device-0"]
        both = [asked for asked in scheduler.asked if len(asked.demands) == 2][-1]
        gains = {
            one.app: (one.learning.accuracy_before, one.learning.accuracy_after) for one in both.demands if one.learning
        }
        assert gains["device-1"][1] == pytest.approx(0.8)
        assert len(session.of("run_trials")) == 8

    def test_measuring_the_gain_of_a_round_is_charged(self):
        (plain, *_), (paid, *_) = served(None)[1], served(LargestGainFirst())[1]
        assert paid["isolated_s"] > plain["isolated_s"]

    def test_without_such_a_member_rounds_are_served_in_order_of_arrival_and_not_measured(self):
        session, updates = served(None)
        assert [row["device"] for row in updates] == ["device-0", "device-1"] * 2
        assert not session.of("run_trials")

    def test_rounds_in_turns_end_together_where_by_arrival_the_second_waits(self):
        """Two equal rounds begin at once; in turns both take twice the time of one."""
        ends = {}
        for order in ("arrival", "round_robin"):
            _, loop = run(ScriptedStreaming(uploads(5.0)), devices=2, server_order=order)
            ends[order] = sorted(row["train_end_s"] - row["label_start_s"] for row in rows(loop, "updates"))
        alone, both = ends["arrival"][0], ends["round_robin"]
        assert both == pytest.approx([2 * alone, 2 * alone], rel=0.02)


@pytest.mark.parametrize(
    ("wanted", "gpus", "given"),
    [
        ([0.0, 0.9, 0.0], 1, [0.0, 1.0, 0.0]),
        ([0.2, 0.2], 1, [0.5, 0.5]),
        ([0.0, 0.0], 1, [1.0, 0.0]),
        ([0.9, 0.0, 0.0], 2, [1.0, 1.0, 0.0]),
        ([0.9], 4, [1.0]),
    ],
)
def test_shares_are_spread_over_the_gpus(wanted, gpus, given):
    assert spread(wanted, gpus) == pytest.approx(given)


class TestSharedZoo:
    """RECL at the server: one zoo for each network as built."""

    HERE, THERE = (1.0, 0.0), (0.0, 1.0)  # mean features of two scenes

    def resumed(self, zoo: str) -> list[tuple[str, float, str | None]]:
        """Return device, time and start of each phase; camera B enters the scene of camera A after 60 s."""
        loops: list[Any] = []

        def described(node: Any) -> SampleDescription:
            entered = node.name == "device-0" or loops[0].now_s > 60
            return SampleDescription(0.4, self.HERE if entered else self.THERE, Passes((8,)))

        def recalled(node: Any, now: float, margin: float, numbers: Any, *stored: Any) -> RecallResult:
            """Find the oldest network of camera A better in its scene, and no other one."""
            pairs = dict(zip(numbers, stored, strict=True))
            entered = node.name == "device-0" or loops[0].now_s > 60
            good = [number for number, job in pairs.items() if job.node.name == "device-0" and entered]
            return RecallResult(0.7 if good else now, min(good, default=None), Passes((8,) * len(pairs)))

        session = FakeSession(describe_samples=described, recall_expert=recalled)
        loops.append(session)
        recl = Member("scheduling", "recl", (("zoo", zoo),))
        plans = uploads(5.0, 65.0)
        _, loop = run(ScriptedStreaming(plans), session=session, devices=2, duration_s=80.0, scheduling=recl)
        updates = sorted(rows(loop, "updates"), key=lambda row: row["train_end_s"])
        return [(row["device"], round(row["label_start_s"], -1), row["training_config"]) for row in updates]

    def test_a_camera_that_enters_the_scene_of_another_one_starts_from_its_network(self):
        found = self.resumed("shared")
        assert [start for device, time_s, start in found if (device, time_s) == ("device-1", 10.0)] == [None]
        assert [start for device, time_s, start in found if device == "device-1" and time_s > 60] == [
            "stored network 1"
        ]

    def test_with_own_zoos_it_starts_from_its_own_network(self):
        assert [start for device, _, start in self.resumed("own") if device == "device-1"] == [None, None]
