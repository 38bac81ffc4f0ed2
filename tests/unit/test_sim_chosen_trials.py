"""Schedulers that choose the trials, and learners that continue with a stored network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import learning_factory as factory
import pytest
from loop_factory import COST, FixedMember, rows, run, uploads

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Passes, RecallResult, SampleDescription, TaskCost, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling, TrainingConfig
from driftlab.platform.sim.offers import measured
from driftlab.platform.sim.rounds import DECLINED
from driftlab.platform.world.cost import task_cost

DISTILL = Member("adaptation", "distill", (("step_choices", (10, 20)),))
SCORING, WORK = Passes((5,)), Passes((4,) * 20, (4,) * 20)


@dataclass
class ConfigChooser(Scheduling):
    """A scheduler that requests trials of some configurations and trains with one."""

    tries: tuple[int, ...] = ()
    config: int | None = 0
    later: int | None = 0  # from 10 s on
    recall_drop: float | None = None
    uses_estimates = uses_observed_accuracy = True
    asked: list[SchedulerInput] = field(default_factory=list)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        count = len(window.demands)
        config = self.later if window.start_s >= 10 else self.config
        grant = Grant(0.6 / count, training_share=0.4 / count, config=config, trials=self.tries)
        return Allocation((grant,) * count)

    @property
    def offers(self) -> list[tuple[float | None, ...]]:
        learning = [window.demands[0].learning for window in self.asked if window.demands]
        return [tuple(config.accuracy for config in one.configs) for one in learning if one and one.state == "offered"]


def ran(scheduler: ConfigChooser, **script: Any) -> tuple[Any, Any]:
    def tried(node: Any, plan: Any, phases: tuple[Phase, ...]) -> TrialScores:
        return TrialScores(0.5, (0.7,) * len(phases), (WORK,) * len(phases), SCORING)

    session = factory.on_device(**{"run_trials": tried, **script})
    given = {"adaptation": DISTILL, "scheduling": FixedMember(scheduler), **factory.TEACHER}
    return run(factory.OnDevice(uploads(5.0)), session=session, **given)


class TestTrials:
    def test_without_chosen_configs_the_network_is_only_scored(self):
        scheduler = ConfigChooser()
        session, _ = ran(scheduler)
        assert [note.args[1] for note in session.of("run_trials")] == [()]
        assert scheduler.offers[-1] == (None, None)

    @pytest.mark.parametrize("tries", [(1,), (0, 1), (1, 7)])
    def test_chosen_configs_are_tried_charged_and_offered_again(self, tries):
        scheduler = ConfigChooser(tries, config=1)
        session, loop = ran(scheduler)
        there = [i for i in tries if i < 2]
        assert session.of("run_trials")[1].args[1] == tuple(Phase((10, 20)[i]) for i in there)
        assert scheduler.offers[-1] == tuple(0.7 if i in there else None for i in range(2))
        assert session.of("train")[0].args[0].phase == Phase(20)
        (update,) = rows(loop, "updates")
        plain, trials = rows(ran(ConfigChooser(config=1))[1], "updates")[0], len(there)
        more_s = (
            task_cost(COST, factory.PHONE, SCORING).isolated_s
            + trials * task_cost(COST, factory.PHONE, WORK).isolated_s
        )
        assert update["isolated_s"] == pytest.approx(plain["isolated_s"] + more_s)


class TestStoredNetworks:
    @staticmethod
    def ran(
        config: int | None, later: int | None, resumed: int | None = None, **options: Any
    ) -> tuple[Any, Any, ConfigChooser]:
        scheduler = ConfigChooser(config=config, later=later, recall_drop=0.1)
        scheduler.uses_estimates = False
        session = factory.on_device(  # the accuracy falls after the first round
            describe_samples=lambda node: SampleDescription(0.9 if session.now_s < 10 else 0.5, (1.0, 2.0), SCORING),
            recall_expert=lambda node, *given: RecallResult(0.8, resumed, WORK),
        )
        given = {"adaptation": DISTILL, "scheduling": FixedMember(scheduler), **factory.TEACHER, **options}
        return *run(factory.OnDevice(uploads(5.0, 15.0)), session=session, **given), scheduler

    @pytest.mark.parametrize(("later", "phase", "name"), [(1, Phase(20), "stored network 1; 20 steps"),
                                                        (None, Phase(0), "stored network 1")])  # fmt: skip
    def test_a_round_continues_with_a_recalled_expert_and_sends_it_untrained(self, later, phase, name):
        session, loop, scheduler = self.ran(1, later, resumed=1)
        assert session.of("recall_expert")[0].args[:3] == (0.5, 0.05, (1,))
        assert not session.of("run_trials")
        assert session.of("train")[1].args[0].phase == phase
        update = rows(loop, "updates")[1]
        assert (update["training_config"], update["reason"]) == (name, None)
        assert update["isolated_s"] > task_cost(COST, factory.PHONE, Passes(WORK.forward)).isolated_s
        assert scheduler.asked[-1].demands[0].observed == 0.8
        assert len(session.of("store_expert")) == 2

    def test_a_scheduler_without_a_stored_network_may_decline(self):
        session, loop, _ = self.ran(None, None)
        assert not session.of("train")
        assert rows(loop, "updates")[0]["reason"] == DECLINED

    def test_applications_with_the_same_network_share_the_stored_ones(self):
        """Each application compares the stored network of the other one."""
        session, _, _ = self.ran(1, 1, apps=("a", "b"))
        stored = session.of("store_expert")[0]
        first = next(note for note in session.of("recall_expert") if note.node != stored.node)
        assert stored in first.args[3:]


def test_the_cost_of_a_short_trial_gives_the_cost_of_the_whole_config():
    """Two of ten steps took 5 of the trial's 7 seconds less those that any number of steps takes."""
    config = TrainingConfig("ten steps", TaskCost(), trial_fraction=0.2, variant=1)
    trial, fixed = TaskCost({"accelerator": 7.0}, 10, 14.0), TaskCost({"accelerator": 2.0}, 0, 4.0)
    assert measured(config, 0.5, trial, fixed).cost == TaskCost({"accelerator": 27.0}, 10, pytest.approx(54.0))
    assert measured(replace(config, cost=trial), 0.5, trial, fixed).cost == trial
