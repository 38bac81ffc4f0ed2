"""Offers of several applications that a scheduler decides together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import learning_factory as factory
import pytest
from loop_factory import COST, FPS, FixedMember, rows, run, stored, uploads

from driftlab.platform.core.records import Passes, TaskCost, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import (
    Allocation,
    Demand,
    Grant,
    SchedulerInput,
    Scheduling,
    TrainingConfig,
    TrainingOffer,
)
from driftlab.platform.sim.interleaving import interleaved
from driftlab.platform.sim.setting import TrainingSite
from driftlab.platform.world.apps import AppGoals, Event
from driftlab.platform.world.clock import make_clock
from driftlab.platform.world.processor import Processor

DISTILL = Member("adaptation", "distill", (("step_choices", (10, 20)),))
SHORT, LONG = Passes((4,) * 10, (4,) * 10), Passes((4,) * 40, (4,) * 40)


@dataclass
class Planner(Scheduling):
    """A scheduler that makes every application train, and records its calls."""

    waits_for_all_offers = True
    asked: list[SchedulerInput] = field(default_factory=list)

    def initial_trials(self, configs: int) -> Sequence[int]:
        return range(configs)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        part = 0.5 / max(1, len(window.demands))
        return Allocation((Grant(part, training_share=part, config=1),) * len(window.demands))

    @property
    def offers(self) -> list[tuple[float, list[str]]]:
        """List the times of offers with the applications that made them."""
        found = [
            (asked.start_s, [one.app for one in asked.demands if one.learning and one.learning.state == "offered"])
            for asked in self.asked
        ]
        return [(at, apps) for at, apps in found if apps]


def ran(names: tuple[str, ...] = ("a", "b"), **more: Any) -> tuple[Any, Any, Planner]:
    """Run applications with equal periods; the trial of the last one takes longer."""
    scheduler = Planner()

    def tried(node: Any, plan: Any, phases: Any) -> TrialScores:
        return TrialScores(0.5, (0.6, 0.7), (LONG if node.name.endswith(names[-1]) else SHORT,) * 2, Passes((5,)))

    script = {"run_trials": tried, **more.pop("script", {})}
    given = {"adaptation": DISTILL, "scheduling": FixedMember(scheduler), **factory.TEACHER, **more}
    session, loop = run(factory.OnDevice(uploads(5.0)), session=factory.on_device(**script), apps=names, **given)
    return session, loop, scheduler


def test_two_applications_with_equal_periods_get_one_call_with_both_offers():
    session, loop, scheduler = ran()
    ((_, apps),) = scheduler.offers
    assert apps == ["a", "b"]
    first, second = sorted(rows(loop, "updates"), key=lambda row: row["app"])
    assert first["train_start_s"] == pytest.approx(second["train_start_s"]) == pytest.approx(scheduler.offers[0][0])
    assert len(session.of("train")) == 2


def test_while_an_offer_waits_its_share_for_learning_is_not_taken():
    _, loop, scheduler = ran()
    decided_s = scheduler.offers[0][0]
    waiting = [row for row in rows(loop, "shares") if row["app"] == "a" and 5.0 < row["time_s"] < decided_s]
    assert waiting and all(row["training_share"] is None for row in waiting[1:])
    assert [row["training_share"] for row in rows(loop, "shares") if row["app"] == "b" and row["time_s"] == 5.0]


def test_an_application_that_ends_without_labels_releases_the_other():
    def nothing(node: Any, frames: Any, labels: Any, stamp_s: Any) -> Any:
        usable_s = None if node.name.endswith("b") else frames.facts.newest_s
        return stored(frames.facts, usable_s=usable_s)

    session, _, scheduler = ran(script={"store": nothing})
    assert scheduler.offers[0][1] == ["a"]
    assert [note.node.name for note in session.of("train")] == ["device-0/a"]


def test_an_application_that_leaves_releases_the_other():
    events = (*(Event(0.0, "start", AppGoals(name, FPS)) for name in "ab"), Event(6.0, "stop", AppGoals("b", FPS)))
    session, _, scheduler = ran(events=events)
    assert scheduler.offers == [(pytest.approx(6.0), ["a"])]
    assert [note.node.name for note in session.of("train")] == ["device-0/a"]


# Engines --------------------------------------------------------------------------------------------------------------


class TestEngines:
    """Training takes 2 s of storage and 2 s of processor for each of two applications."""

    FED = replace(factory.PHONE, macs_per_s=1e18, bytes_per_s=1e18, overhead_s=0.0, load_s=0.05, prepare_s=0.05)

    def lengths(self, name: str) -> list[float]:
        site = TrainingSite(self.FED, None, None)
        cost = site.training_cost(COST, Passes((4,) * 10, (4,) * 10))
        assert dict(cost.seconds) == {
            "accelerator": pytest.approx(0, abs=1e-6),
            "storage": pytest.approx(2.0),
            "cpu": pytest.approx(2.0),
        }
        clock = make_clock("virtual")
        processor, ended = Processor(clock, lambda processor, reason: shares), []
        member = Member("scheduling", name).make()
        configs = (TrainingConfig("10 steps", cost),)
        demands = tuple(Demand(app, 1.0, (), learning=TrainingOffer("offered", configs)) for app in "ab")
        grants = member.allocate(SchedulerInput(0.0, 100.0, 10**9, demands, reason="offer")).grants
        given = [
            SimpleNamespace(demand=demand, grant=grant, training_share=grant.training_share)
            for demand, grant in zip(demands, grants, strict=True)
        ]
        groups = interleaved(given)
        shares = {f"{one.demand.app}/training": groups.get(one.demand.app, one.training_share) for one in given}

        def learn(app: str) -> Any:
            with processor.entered(f"{app}/training") as work:
                yield work.granted
                yield from processor.run_job(work, cost)
            ended.append(clock.now)

        for app in "ab":
            clock.process(learn(app))
        clock.run()
        return ended

    def test_a_part_that_a_member_has_no_share_of_counts_as_none(self):
        cost = TaskCost({"storage": 2.0, "cpu": 1.0})
        learning = TrainingOffer("running", left=cost)
        found = []
        for rest in ({}, {"accelerator": 0.0, "link": 0.0}):
            shares = {"a": {"storage": 0.5, **rest}, "b": {"cpu": 0.25, **rest}}
            found.append(
                interleaved(
                    SimpleNamespace(
                        demand=Demand(app, 1.0, (), learning=learning),
                        grant=Grant(0.5, interleave_group="both"),
                        training_share=learn,
                    )
                    for app, learn in shares.items()
                )
            )
        assert found[0] == found[1]
        assert set(found[0]) == {"a", "b"}

    def test_stages_of_a_group_overlap_on_the_processor(self):
        """In the best order one loads while the other decodes: 6 s; sequential stages take 8 s.

        A fifth of the processor is kept for the inference of two applications.
        """
        assert self.lengths("muri") == [pytest.approx(6.0 / 0.8, rel=1e-3)] * 2
        assert self.lengths("synergy") == [pytest.approx(8.0 / 0.8, rel=1e-3)] * 2
