"""Buffers on their way: moved by a learner, sent, lost, sent again, kept by switches and checkpoints."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import Any

import pytest
from state_factory import CLASSES, HEIGHT, SERVER, WIDTH, frames

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import state
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.nodes.networks import Builder
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan, Wire
from driftlab.platform.world import hardware

FIXED, FROZEN = Member("scaling", "fixed"), Member("adaptation", "frozen")
MACHINE = hardware.find("laptop")
STUDENT = StudentSpec("half", CLASSES, HEIGHT, WIDTH, FROZEN, FIXED, 0)
TRAIN = DownlinkPlan(None, Phase(1))
FAMILY = (
    ("keep_ratios", [0.75, 0.5]),
    ("accuracy_loss", 1.0),
    ("prune_epochs", 0),
    ("grow_epochs", 1),
    ("ranked_on", 16),
)
BATCH_NORMS = ("private", "shared_frozen")


def application(adaptation: Member = FROZEN, scaling: Member = FIXED, weights: Any = None) -> AppNode:
    cost = count_cost(build("half", CLASSES, seed=0), HEIGHT, WIDTH)
    spec = AppNodeConfig("d", "app", replace(STUDENT, adaptation=adaptation, scaling=scaling), MACHINE, cost)
    return AppNode(spec, weights or state_of(build("half", CLASSES, seed=0)))


def learner(adaptation: Member = SERVER, scaling: Member = FIXED, weights: Any = None) -> LearnerNode:
    spec = replace(STUDENT, adaptation=adaptation, scaling=scaling)
    return LearnerNode(spec, weights or state_of(build("half", CLASSES, seed=0)))


def trained(node: LearnerNode, start_s: float, plan: DownlinkPlan = TRAIN) -> bytes:
    seen = frames(start_s)
    node.store(seen, seen.labels)
    payload: bytes = node.train(plan).payload
    return payload


def bits_of(held: state.State) -> list[bytes]:
    return [held.vector.tobytes(), *(array.tobytes() for array in held.buffers.arrays)]


def newest(node: AppNode) -> list[bytes]:
    return bits_of(node._versions[-1].state)


def in_step(device: AppNode, server: LearnerNode) -> bool:
    return newest(device) == bits_of(state.read(server._model))


class TestUpdates:
    def test_an_update_of_buffers_has_no_weight(self):
        server, device = learner(), application()
        before = newest(device)
        data = trained(server, 0.0)
        nbytes = sum(state.read_buffers(server._model).layout.nbytes)
        assert len(before[1:]) == 12
        assert data[4] == 2
        assert nbytes < len(data) < nbytes + 150
        assert device.apply(data, 1.0).facts.accepted
        assert in_step(device, server)
        assert newest(device)[0] == before[0]
        assert all(now != then for now, then in zip(newest(device)[1:], before[1:], strict=True))

    @pytest.mark.parametrize("wire", [Wire(), Wire("int4", "rice", feedback=True)])
    def test_after_a_lost_update_the_next_is_refused_and_a_resync_synchronises_both(self, wire):
        server, device = learner(), application()
        plan = replace(TRAIN, wire=wire)
        assert device.apply(trained(server, 0.0, plan), 1.0).facts.accepted
        trained(server, 10.0, plan)  # lost on the way
        held = newest(device)
        assert device.apply(trained(server, 20.0, plan), 21.0).facts.reason.startswith("out of order")
        assert newest(device) == held
        assert device.apply(server.resend().payload, 22.0).facts.accepted
        assert in_step(device, server)
        assert device.apply(trained(server, 30.0, plan), 31.0).facts.accepted
        assert in_step(device, server)

    def test_a_resync_restores_the_buffers_that_the_server_restored(self):
        """Buffers that are back at where they began must be sent all the same."""
        server, device = learner(), application()
        built = state.read(server._model)
        assert device.apply(trained(server, 0.0), 1.0).facts.accepted
        state.write(server._model, built)
        server.resend()  # lost as well: the buffers that the server last sent are those of the build
        assert device.apply(server.resend().payload, 2.0).facts.accepted
        assert in_step(device, server)

    def test_as_long_as_none_moved_none_is_sent(self):
        server = learner(Member("adaptation", "distill"))
        messages = [trained(server, 0.0), server.resend().payload, trained(server, 5.0, replace(TRAIN, dense=True))]
        server.switch(0)
        assert [data[4] for data in (*messages, trained(server, 9.0))] == [1] * 4


class TestCheckpoints:
    def test_both_ends_continue_from_one_with_the_same_buffers(self):
        server, device = learner(), application()
        assert device.apply(trained(server, 0.0), 1.0).facts.accepted
        trained(server, 10.0)  # lost on the way
        server, device = (pickle.loads(pickle.dumps(node)) for node in (server, device))
        assert not device.apply(trained(server, 20.0), 21.0).facts.accepted
        server, device = (pickle.loads(pickle.dumps(node)) for node in (server, device))
        assert device.apply(server.resend().payload, 22.0).facts.accepted
        assert in_step(device, server)


@pytest.mark.parametrize("batch_norm", BATCH_NORMS)
class TestSwitches:
    def nodes(self, batch_norm: str) -> tuple[AppNode, LearnerNode]:
        scaling = Member("scaling", "nested", (*FAMILY, ("batch_norm", batch_norm)))
        weights = Builder().build(FamilyRecipe(Recipe("half", height=HEIGHT, width=WIDTH, steps=2), scaling)).payload
        device, server = application(FROZEN, scaling, weights), learner(SERVER, scaling, weights)
        device.switch(1)
        server.switch(1)
        return device, server

    @pytest.mark.slow
    def test_trained_buffers_survive_a_switch_to_another_network(self, batch_norm):
        device, server = self.nodes(batch_norm)
        built = newest(device)
        assert device.apply(trained(server, 0.0), 3.0).facts.accepted
        learned = newest(device)
        assert learned[1:] != built[1:]
        for which in (0, 1):
            device.switch(which)
            server.switch(which)
            assert in_step(device, server)
        assert newest(device) == learned
        assert device.finish().facts.digest != hashlib.sha256(learned[0]).hexdigest()[:16]

    @pytest.mark.slow
    def test_a_switch_without_learning_leaves_the_digest_of_the_weights(self, batch_norm):
        device, _ = self.nodes(batch_norm)
        before = device.finish().facts.digest
        device.switch(0)
        device.switch(1)
        assert device.finish().facts.digest == before

    @pytest.mark.slow
    def test_buffers_lost_before_a_switch_arrive_with_the_next_update(self, batch_norm):
        device, server = self.nodes(batch_norm)
        trained(server, 0.0)  # lost on the way
        for which in (0, 1):
            device.switch(which)
            server.switch(which)
        assert not in_step(device, server)
        assert device.apply(server.resend().payload, 13.0).facts.accepted
        assert in_step(device, server)
