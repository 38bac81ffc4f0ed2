"""Buffers on their way: moved by a learner, sent, lost, sent again, kept by switches and checkpoints."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from state_factory import CLASSES, DEVICE, HEIGHT, SERVER, WIDTH, frames

from driftlab.datasets.frames import Frames
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


def watch(node: AppNode, seen: Frames) -> Any:
    """Let an application see frames with the whole machine, and wait until every answer is there."""
    return node.run_stream(seen, None, float(seen.times_s[-1]) + 100, ((float(seen.times_s[0]), 1.0),))


def trained(node: LearnerNode, start_s: float, answer: DownlinkPlan = TRAIN) -> bytes:
    seen = frames(start_s)
    node.store(seen, seen.labels)
    payload: bytes = node.train(answer).payload
    return payload


def bits_of(held: state.State) -> list[bytes]:
    return [held.vector.tobytes(), *(array.tobytes() for array in held.buffers.arrays)]


def newest(node: AppNode) -> list[bytes]:
    return bits_of(node._versions[-1].state)


def in_step(device: AppNode, server: LearnerNode) -> bool:
    return newest(device) == bits_of(state.read(server._model))


class TestUpdates:
    def test_one_that_moves_buffers_only_carries_no_weight(self):
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
    def test_after_a_lost_one_the_next_is_refused_and_a_resync_brings_both_into_step(self, wire):
        server, device = learner(), application()
        answer = replace(TRAIN, wire=wire)
        assert device.apply(trained(server, 0.0, answer), 1.0).facts.accepted
        trained(server, 10.0, answer)  # lost on the way
        held = newest(device)
        assert device.apply(trained(server, 20.0, answer), 21.0).facts.reason.startswith("out of order")
        assert newest(device) == held
        assert device.apply(server.resend().payload, 22.0).facts.accepted
        assert in_step(device, server)
        assert device.apply(trained(server, 30.0, answer), 31.0).facts.accepted
        assert in_step(device, server)

    def test_a_resync_undoes_on_the_device_what_the_server_has_undone(self):
        """Buffers that are back at where they began must be sent all the same."""
        server, device = learner(), application()
        built = state.read(server._model)
        assert device.apply(trained(server, 0.0), 1.0).facts.accepted
        state.write(server._model, built)
        server.resend()  # lost as well: what the server last sent are the buffers as built
        assert device.apply(server.resend().payload, 2.0).facts.accepted
        assert in_step(device, server)

    def test_buffers_are_compared_with_those_last_sent(self):
        server, device = learner(), application()
        built = state.read(server._model)
        assert device.apply(trained(server, 0.0), 1.0).facts.accepted
        same = server._pack(TRAIN, None).data
        state.write(server._model, built)
        undone = server._pack(TRAIN, None).data
        assert (same[4], undone[4]) == (1, 2)
        assert device.apply(same, 2.0).facts.accepted
        assert device.apply(undone, 3.0).facts.accepted
        assert newest(device) == bits_of(built)

    def test_as_long_as_none_moved_none_is_sent(self):
        server = learner(Member("adaptation", "distill"))
        messages = [trained(server, 0.0), server.resend().payload, trained(server, 5.0, replace(TRAIN, dense=True))]
        server.switch(0)
        assert [data[4] for data in (*messages, trained(server, 9.0))] == [1] * 4

    def test_versions_are_used_with_their_own_buffers(self):
        server, device = learner(), application()
        states = [newest(device)]
        for number in range(2):
            assert device.apply(trained(server, 10.0 * number), 1.0 + number).facts.accepted
            states.append(newest(device))
        shown = []
        blank = np.zeros((1, HEIGHT, WIDTH), np.uint8)
        device._predict = lambda sights: shown.append(bits_of(state.read(device._model))) or blank
        watch(device, frames(0.0))  # shown at 0, 1 and 2 s
        assert shown == states
        assert len({tuple(bits) for bits in states}) == 3


class TestCheckpoints:
    def test_both_ends_go_on_from_one_with_the_same_buffers(self):
        server, device = learner(), application()
        assert device.apply(trained(server, 0.0), 1.0).facts.accepted
        trained(server, 10.0)  # lost on the way
        server, device = (pickle.loads(pickle.dumps(node)) for node in (server, device))
        assert not device.apply(trained(server, 20.0), 21.0).facts.accepted
        server, device = (pickle.loads(pickle.dumps(node)) for node in (server, device))
        assert device.apply(server.resend().payload, 22.0).facts.accepted
        assert in_step(device, server)


class TestDigest:
    def test_an_update_of_buffers_moves_it(self):
        server, device = learner(), application()
        digests = [device.finish().facts.digest]
        for number in range(2):
            device.apply(trained(server, 10.0 * number), 1.0 + number)
            digests.append(device.finish().facts.digest)
        assert len(set(digests)) == 3

    def test_what_is_learned_on_the_device_moves_it(self):
        found = []
        for adaptation in (FROZEN, DEVICE):
            node = application(adaptation)
            found.append(node.finish().facts.digest)
            watch(node, frames(0.0))
            found.append(node.finish().facts.digest)
            assert pickle.loads(pickle.dumps(node)).finish().facts.digest == found[-1]
        assert found[0] == found[1] == found[2] != found[3]

    def test_the_state_of_an_adaptation_on_the_device_moves_it(self):
        node = application(DEVICE)
        before = node.finish().facts.digest
        node._adapter.memory = {"steps": 1}
        assert node.finish().facts.digest != before


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
    def test_buffers_that_were_learned_stay_when_another_network_runs_in_between(self, batch_norm):
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
    def test_buffers_that_were_lost_before_a_switch_come_with_the_next_update(self, batch_norm):
        device, server = self.nodes(batch_norm)
        trained(server, 0.0)  # lost on the way
        for which in (0, 1):
            device.switch(which)
            server.switch(which)
        assert not in_step(device, server)
        assert device.apply(server.resend().payload, 13.0).facts.accepted
        assert in_step(device, server)
