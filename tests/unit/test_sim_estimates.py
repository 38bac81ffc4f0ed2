"""Estimates of a family's networks: their data, the learner's scores, and the scheduler's view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import learning_factory as factory
import numpy as np
import pytest
from loop_factory import COST, FPS, FixedMember, rows, run, trained, uploads
from scaling_factory import CLASSES, SIZE, problem

from driftlab.platform.adaptation import estimating
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.elasticdnn import ElasticDnn
from driftlab.platform.core.records import AccuracyEstimates, LayerCost, Passes
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.scaling.base import Budget, Profile
from driftlab.platform.scaling.surrogate import Surrogate
from driftlab.platform.scheduling.base import Allocation, Grant, SchedulerInput, Scheduling
from driftlab.platform.sim.rounds import DECLINED
from driftlab.platform.sim.setting import BuiltNetwork
from driftlab.platform.world.cost import task_cost

ESTIMATING = Member("adaptation", "elasticdnn", (("estimates", 4),))
COUNTED = {"plain": 10_000_000, "other": 20_000_000}  # operations of the one layer of each path
FOUND = AccuracyEstimates((0.3, 0.6), (0.5, 0.6), (0.8, 0.7), Passes((20,)), Passes((20,) * 5, (20,) * 4))


@dataclass
class Chooser(Scheduling):
    """A scheduler that chooses a given training configuration and records its calls."""

    config: int | None
    asked: list[SchedulerInput] = field(default_factory=list)

    def initial_trials(self, configs: int) -> Sequence[int]:
        return range(configs)

    def allocate(self, window: SchedulerInput) -> Allocation:
        self.asked.append(window)
        return Allocation((Grant(0.6, training_share=0.4, config=self.config),) * len(window.demands))


class TestOffers:
    """Two networks are offered after one estimate of both."""

    def ran(self, config: int | None):
        scheduler = Chooser(config)
        session = factory.on_device(estimate=lambda node, phase: FOUND, switch=lambda node, variant: variant)
        whole = replace(COST, macs=2 * COST.macs)
        profile = tuple(Profile(name, None, 100, cost) for name, cost in (("small", COST), ("large", whole)))
        student = BuiltNetwork("tiny", profile, "digest", "the student's weights")
        given = {"adaptation": ESTIMATING, "scheduling": FixedMember(scheduler), "session": session, "student": student}
        session, loop = run(factory.OnDevice(uploads(5.0)), **given)
        return session, loop, scheduler

    def test_each_network_is_offered_with_its_size_estimates_and_cost(self):
        session, _, scheduler = self.ran(1)
        assert not session.of("run_trials")
        (offered,) = [
            w.demands[0].learning for w in scheduler.asked if w.reason == "offer" and w.demands[0].learning.configs
        ]
        found = [
            (config.name, config.size, config.before, config.accuracy, config.variant) for config in offered.configs
        ]
        assert found == [("small", 0.3, 0.5, 0.8, 0), ("large", 0.6, 0.6, 0.7, 1)]
        assert offered.accuracy_before == 0.5
        assert offered.configs[0].cost.isolated_s == pytest.approx(
            task_cost(COST, factory.PHONE, FOUND.phase_passes).isolated_s
        )
        assert offered.configs[1].cost.isolated_s > offered.configs[0].cost.isolated_s

    def test_the_chosen_network_runs_before_it_is_trained_and_stays(self):
        session, loop, _ = self.ran(1)
        switched = [(note.node.kind, note.facts) for note in session.of("switch")]
        assert switched == [("application", 0), ("learner", 0), ("application", 1), ("learner", 1)]
        assert [row["training_config"] for row in rows(loop, "updates")] == ["large"]
        assert [row["network"] for row in rows(loop, "shares")][-1] == "large"
        assert sum(note.facts.frames for note in session.of("run_stream")) == 30 * FPS

    def test_a_scheduler_may_decline(self):
        session, loop, _ = self.ran(None)
        assert rows(loop, "updates")[0]["reason"] == DECLINED
        assert not session.of("train") and {note.facts for note in session.of("switch")} == {0}


def test_scaling_uses_the_estimates_and_the_trained_network_is_charged():
    """The path with another operator is better on the source, the plain path in the domain."""
    costs = [replace(COST, layers=(LayerCost(name, "Conv2d", macs, 10, 8, 8, 40),)) for name, macs in COUNTED.items()]
    profile = tuple(
        Profile(name, accuracy, 100, cost) for name, accuracy, cost in zip(COUNTED, (0.6, 0.9), costs, strict=True)
    )
    work = Passes((4,), (4,), ("plain",))
    session = factory.on_device(
        estimate=lambda node, phase: replace(FOUND, after=(0.8, 0.3)),
        switch=lambda node, variant: variant,
        train=lambda node, plan, watched: trained(passes=work),
    )
    at_once = Member("scaling", "adascale", (("patience", 1), ("dwell_s", 0.0)))
    given = {"adaptation": ESTIMATING, "scaling": at_once, "session": session}
    student = BuiltNetwork("tiny", profile, "digest", "the student's weights")
    session, loop = run(factory.OnDevice(uploads(5.0, 15.0)), student=student, window_s=5.0, **given)
    switched = [(note.node.kind, note.facts) for note in session.of("switch")]
    assert switched == [("application", 1), ("learner", 1), ("application", 0), ("learner", 0)]
    _, second = rows(loop, "updates")
    assert second["isolated_s"] == pytest.approx(
        task_cost(costs[1], factory.PHONE, FOUND.passes).isolated_s
        + task_cost(costs[0], factory.PHONE, work).isolated_s
    )


@pytest.fixture(scope="module")
def built():
    """Return a member, a small master with two sizes, and the member's estimator for it."""
    scaling, data = Surrogate(keep_ratios=(0.6, 0.3), stages=(0.3,), epochs=1), problem()
    family = scaling.build(build("tiny_residual", CLASSES, seed=0).eval(), data)
    member = ElasticDnn(iterations=1, estimates=4)
    return member, scaling, family, member.summarise_source_family(scaling, family, data)


class TestEstimator:
    """From shifted source frames to the estimate for a domain."""

    def batch(self, seed: int = 0) -> Batch:
        rng = np.random.default_rng(seed)
        return Batch(rng.integers(0, 256, (12, *SIZE, 3), dtype=np.uint8), None, rng, CLASSIFICATION)

    def test_domains_are_shifts_that_tests_leave_out(self):
        found = estimating.pseudo_domains(20)
        assert len(set(found)) == 20
        assert {domain.shift for domain in found} == set(estimating.SHIFTS)
        assert [domain.severity for domain in found[:8]] == [1] * 4 + [2] * 4

    @pytest.mark.slow
    def test_a_domain_is_estimated_for_every_size_and_counts_in_the_next_one(self, built):
        member, scaling, family, pack = built
        network = scaling.select(family, Budget(variant=0))
        state, source = member.prepare(network, pack), scaling.source(family)
        first, state = member.estimate(source, state, self.batch(), Phase(2))
        assert first.passes == Passes((12,)) and first.phase_passes.backward == (12, 12)
        assert 0 < first.sizes[0] < first.sizes[1] < 1
        assert all(0 <= one <= 1 for one in (*first.before, *first.after))
        again = member.estimate(source, state, self.batch(), Phase(2))[0]
        assert again == first  # nothing was observed in between
        done = member.adapt(network, state, self.batch(), Phase(1))
        state = done.state if not done.skipped else replace(state, history=state.history.observe(0, 0.0, 0.0))
        assert len(state.history.means) == len(state.history.seen) == 1
        calibrated, _ = member.estimate(source, state, self.batch(1), Phase(2))
        plain, _ = member.estimate(source, member.prepare(network, pack), self.batch(1), Phase(2))
        seen = state.history.seen[0]
        moved = (seen[:2] - seen[2:]) / 2
        expected = np.clip(np.array([plain.before, plain.after]).T + moved, 0, 1)
        assert pytest.approx(expected) == np.array([calibrated.before, calibrated.after]).T

    def test_without_an_estimator_there_is_no_estimate(self, built):
        _, scaling, family, _ = built
        network = scaling.select(family, Budget(variant=0))
        plain = ElasticDnn()
        assert plain.has_source_summary is False and not plain.summarise_source_family(scaling, family, problem())
        assert plain.estimate(network, plain.prepare(network), self.batch(), Phase(2))[0] is None
