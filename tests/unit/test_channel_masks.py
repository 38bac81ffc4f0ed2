"""Drafts: wire format, and delivery from a learner to an application that cuts its master."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from state_factory import CLASSES, HEIGHT, WIDTH, frames

from driftlab.errors import WireError
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.nodes.networks import Builder
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan
from driftlab.platform.streaming.wire import channel_mask
from driftlab.platform.world import hardware

KEPT = {"first": np.array([0, 3, 8]), "größe": np.array([1])}
SURROGATE = Member("scaling", "surrogate", (("keep_ratios", [0.6, 0.3]), ("stages", [0.3]), ("epochs", 1)))
RECIPE = FamilyRecipe(Recipe("half", height=HEIGHT, width=WIDTH, steps=2), SURROGATE)


class TestWire:
    def test_channel_mask_and_update_round_trip(self):
        kept, update = channel_mask.split(channel_mask.encode(KEPT, b"DLTA..."))
        assert kept is not None and list(kept) == list(KEPT)
        assert all(np.array_equal(kept[name], KEPT[name]) for name in KEPT)
        assert update == b"DLTA..."
        assert len(channel_mask.encode(KEPT, b"")) == 11 + (2 + 5 + 4 + 2) + (2 + 7 + 4 + 1) + 4

    def test_update_without_a_channel_mask_has_none(self):
        assert channel_mask.split(b"DLTA...") == (None, b"DLTA...")

    def test_damage_is_refused(self):
        message = channel_mask.encode(KEPT, b"DLTA...")
        head = len(message) - 7
        for place in range(4, head):
            torn = bytearray(message)
            torn[place] ^= 4
            with pytest.raises(WireError):
                channel_mask.split(bytes(torn))
            with pytest.raises(WireError):
                channel_mask.split(message[:place])


@cache
def built() -> Reply:
    return Builder().build(RECIPE)


def student(adaptation: str, **params: object) -> StudentSpec:
    member = Member("adaptation", adaptation, tuple(params.items()))
    return StudentSpec("half", CLASSES, HEIGHT, WIDTH, member, SURROGATE, seed=0)


def nodes() -> tuple[AppNode, LearnerNode]:
    machine = hardware.find("laptop")
    cost = built().facts.profile[0].cost
    application = AppNode(AppNodeConfig("d", "app", student("frozen"), machine, cost), built().payload)
    learner = LearnerNode(student("elasticdnn_teacher", iterations=2, share=0.2, select="topfrac"), built().payload)
    for node in (application, learner):
        node.switch(0)
        node._follows = True
    return application, learner


def update_of(learner: LearnerNode, start_s: float, iterations: int = 2) -> Reply:
    seen = frames(start_s)
    learner.store(seen, seen.labels)
    return learner.train(DownlinkPlan(None, Phase(iterations)))


def masters(application: AppNode, learner: LearnerNode) -> list[dict[str, np.ndarray]]:
    return [state_of(node._family.gated) for node in (application, learner)]


class TestDelivery:
    @pytest.mark.slow
    def test_device_cuts_its_master_and_has_the_learners_weights(self):
        application, learner = nodes()
        learner._sends_all = False
        before, sizes = application._versions[-1].state.vector.copy(), []
        for number in range(3):
            reply = update_of(learner, 10.0 * number)
            kept, _ = channel_mask.split(reply.payload)
            assert kept is not None
            receipt = application.apply(reply.payload, 10.0 * number).facts
            assert receipt.accepted, receipt.reason
            held = application._versions[-1].state
            assert held.vector.tobytes() == learner._vector.tobytes()
            assert [a.tobytes() for a in held.buffers.arrays] == [a.tobytes() for a in learner._buffers.arrays]
            ours, theirs = masters(application, learner)
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
            sizes.append((reply.facts.values, reply.facts.bytes))
        assert held.vector.shape == before.shape
        assert all(0 < values < 0.5 * len(before) for values, _ in sizes)  # the chosen filters, not the network

    @pytest.mark.slow
    def test_lost_update_is_repaired_by_a_full_one(self):
        application, learner = nodes()
        learner._sends_all = False
        update_of(learner, 0.0)
        late = update_of(learner, 10.0)
        assert "out of order" in application.apply(late.payload, 10.0).facts.reason
        assert application.apply(learner.resend().payload, 11.0).facts.accepted
        last = update_of(learner, 20.0)
        assert last.facts.values == len(learner._vector)
        assert application.apply(last.payload, 20.0).facts.accepted
        assert application._versions[-1].state.vector.tobytes() == learner._vector.tobytes()

    @pytest.mark.slow
    def test_phase_without_training_still_sends_its_network(self):
        application, learner = nodes()
        learner._sends_all = False
        reply = update_of(learner, 0.0, iterations=0)
        assert reply.facts.skipped == "the phase has no steps"
        assert reply.facts.values == 0
        assert reply.facts.passes.others  # of choosing the channels
        assert application.apply(reply.payload, 0.0).facts.accepted

    @pytest.mark.slow
    def test_a_channel_mask_for_another_network_of_the_family_is_refused(self):
        application, learner = nodes()
        learner._sends_all = False
        reply = update_of(learner, 0.0)
        application.switch(1)
        receipt = application.apply(reply.payload, 0.0).facts
        assert not receipt.accepted
        assert "the channel mask keeps" in receipt.reason
