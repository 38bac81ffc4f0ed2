"""Contract of every scheduler that divides a processor between inference and training."""

from __future__ import annotations

import dataclasses
import math
import pickle

import learners_factory as factory
import numpy as np
import pytest

from driftlab.platform.core.records import Share, TaskCost
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import (
    Allocation,
    Grant,
    SchedulerInput,
    Scheduling,
    TrainingConfig,
    TrainingOffer,
)

ESTIMATING = ("ekya", "elasticdnn", "joint")  # they choose by estimated accuracies
BASELINES = ("recl", "afs", "synergy", "muri", "uniform_learning")
MEMBERS = {
    **{name: Member("scheduling", name) for name in (*ESTIMATING, *BASELINES)},
    "uniform sizes": Member("scheduling", "uniform_learning", (("config_choice", "best"),)),
    "fair": Member("scheduling", "ekya", (("start", "fair"),)),
    "evolution": Member("scheduling", "elasticdnn", (("solver", "evolution"),)),
    "recl sizes": Member("scheduling", "recl", (("config_choice", "best"),)),
    "afs sizes": Member("scheduling", "afs", (("config_choice", "best"),)),
    "synergy sizes": Member("scheduling", "synergy", (("config_choice", "best"),)),
    "muri sizes": Member("scheduling", "muri", (("config_choice", "best"),)),
}
ONE_AT_A_TIME = ("Joint", "Recl")
INSTANCES = 300
FEWER = 20  # of a member whose evolution takes 0.1 s
ROUNDING = 1e-9


@pytest.fixture(params=MEMBERS)
def member(request) -> Scheduling:
    return MEMBERS[request.param].make()


@pytest.fixture
def instances(member) -> int:
    return FEWER if getattr(member, "solver", "") == "evolution" else INSTANCES


def part(share: Share | None, engine: str) -> float:
    return 0.0 if share is None else share if isinstance(share, float) else share.get(engine, 0.0)


def check_shares(allocation: Allocation) -> None:
    for engine in ("accelerator", "cpu", "storage", "link"):
        parts = [
            part(share, engine)
            for grant in allocation.grants
            for share in (grant.inference_share, grant.training_share)
        ]
        assert min(parts, default=0) >= 0
        assert sum(parts) <= 1 + ROUNDING


def total(grant: Grant) -> float:
    return sum(part(grant.training_share, engine) for engine in ("accelerator", "cpu", "storage"))


def same(first: Grant, second: Grant) -> bool:
    shares = [
        (one.inference_share, *(part(one.training_share, engine) for engine in ("accelerator", "cpu")))
        for one in (first, second)
    ]
    return shares[0] == pytest.approx(shares[1], abs=1e-6) and first.config == second.config


class TestEverySchedulerOfLearners:
    def test_shares_of_random_windows_add_up_to_one_processor(self, member, instances):
        for seed in range(instances):
            check_shares(member.allocate(factory.drawn(seed)))

    def test_result_does_not_depend_on_the_order_of_applications(self, member, instances):
        for seed in range(instances // 3):
            given = factory.drawn(seed)
            order = np.random.default_rng(seed).permutation(len(given.demands))
            turned = dataclasses.replace(given, demands=tuple(given.demands[i] for i in order))
            first, second = member.allocate(given).grants, member.allocate(turned).grants
            assert all(same(first[i], grant) for i, grant in zip(order, second, strict=True))

    def test_no_job_starves(self, member, instances):
        """In repeated calls with unchanged demands, every training and every inference has a share eventually."""
        for seed in range(instances // 15):
            given, learned, answered = factory.drawn(seed), set(), set()
            needs = {one.app for one in given.demands if one.learning is not None and one.learning.state == "running"}
            for step in range(8):
                allocation = member.allocate(dataclasses.replace(given, start_s=given.start_s + 100.0 * step))
                pairs = list(zip(given.demands, allocation.grants, strict=True))
                learned |= {one.app for one, grant in pairs if total(grant) > 0}
                answered |= {one.app for one, grant in pairs if grant.inference_share > 0}
                given = dataclasses.replace(given, state=allocation.state)
            assert needs <= learned
            assert answered == {one.app for one in given.demands}

    @pytest.mark.parametrize("count", [0, 1, 101])
    def test_any_number_of_applications_trains(self, member, count):
        configs = factory.config(20, 0.6, 0.3), factory.config(60, 0.8, 0.9)
        given = factory.window(*(factory.offered(f"app{i:03}", 0.5, *configs) for i in range(count)))
        allocation = member.allocate(given)
        check_shares(allocation)
        assert len(allocation.grants) == count
        if count == 1:
            (grant,) = allocation.grants
            assert grant.config is not None
            assert total(grant) > 0
            assert grant.inference_share > 0

    def test_equal_applications_have_equal_shares_unless_trained_in_sequence(self, member):
        configs = factory.config(20, 0.6, 0.3), factory.config(60, 0.8, 0.9)
        grants = member.allocate(factory.window(*(factory.offered(name, 0.5, *configs) for name in "abc"))).grants
        assert len({grant.config for grant in grants}) == 1 or type(member).__name__ in ("Ekya", "Joint")
        if type(member).__name__ not in ("Ekya", "Afs", *ONE_AT_A_TIME):
            assert len({round(part(grant.training_share, "accelerator"), 9) for grant in grants}) == 1

    @pytest.mark.parametrize("odd", [math.nan, 1.7, -0.3, None])
    def test_odd_estimates_count_as_unknown_or_as_the_nearest_bound(self, member, odd):
        configs = factory.config(20, odd, 0.3), factory.config(60, odd, 0.9)
        given = factory.window(factory.offered("a", odd, *configs), factory.offered("b", 0.5, *configs))
        allocation = member.allocate(given)
        check_shares(allocation)
        assert allocation == member.allocate(given)
        if (odd is None or math.isnan(odd)) and type(
            member
        ).__name__ != "Joint":  # the first configuration without estimates
            assert [grant.config for grant in allocation.grants] == [0, 0]
            learning = [total(grant) > 0 for grant in allocation.grants]
            assert all(learning) or (any(learning) and type(member).__name__ in ONE_AT_A_TIME)
        noted = [bool(grant.note) for grant in allocation.grants]
        assert all(noted) or odd is None or type(member).__name__ == "UniformLearning"

    def test_configuration_beyond_the_memory_is_declined_with_a_note(self, member):
        big = TrainingConfig("big", TaskCost({"accelerator": 10.0}, memory_bytes=10**12), 0.9)
        (grant,) = member.allocate(factory.window(factory.offered("a", 0.5, big))).grants
        assert (grant.config, total(grant)) == (None, 0.0)
        assert "1000000000 bytes" in grant.note

    def test_departing_application_frees_its_training_share(self, member):
        names = "abc"
        first = member.allocate(factory.window(*(factory.running(name, 50.0) for name in names)))
        state = pickle.loads(pickle.dumps(first.state))
        left = factory.window(
            *(factory.running(name, 40.0) for name in "ac"),
            state=state,
            reason="departure",
            start_s=10.0,
            window_s=190.0,
        )
        allocation = member.allocate(left)
        check_shares(allocation)
        used = sum(grant.inference_share + part(grant.training_share, "accelerator") for grant in allocation.grants)
        assert used == pytest.approx(1.0)

    def test_labelling_or_trials_have_a_share(self, member):
        """In sequence where one trains at a time."""
        preparing = factory.demand("b", TrainingOffer("running", left=TaskCost({"accelerator": 5.0})))
        given = factory.window(factory.offered("a", 0.5, factory.config(20, 0.9, 0.3)), preparing)
        offers, prepares = (total(grant) > 0 for grant in member.allocate(given).grants)
        assert prepares or (offers and type(member).__name__ in ONE_AT_A_TIME)


@pytest.mark.parametrize("name", ESTIMATING)
class TestEstimatingSchedulers:
    def test_no_training_runs_without_an_expected_gain(self, name):
        given = factory.window(factory.offered("a", 0.8, factory.config(20, 0.7, 0.5)))
        member = Member("scheduling", name, (("allow_none", True),) if name == "elasticdnn" else ()).make()
        (grant,) = member.allocate(given).grants
        assert (grant.config, total(grant), grant.inference_share) == (None, 0.0, 1.0)
        assert grant.note

    def test_training_that_ends_late_is_not_started_or_noted(self, name):
        """After profiling, 1 s of the window is left, and each configuration takes a minute."""
        given = factory.window(factory.offered("a", 0.5, factory.config(60, 0.9, 0.5)), window_s=1.0)
        (grant,) = Member("scheduling", name).make().allocate(given).grants
        assert grant.config is None or name == "ekya"  # with candidates, it always trains
        assert grant.note


def test_state_of_another_member_is_ignored():
    given: SchedulerInput = factory.drawn(3)
    plain = MEMBERS["ekya"].make().allocate(given)
    assert MEMBERS["ekya"].make().allocate(dataclasses.replace(given, state=("nestdnn", 3))) == plain
