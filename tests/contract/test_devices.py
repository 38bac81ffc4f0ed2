"""The contract of every member on a GPU: results are as on the CPU, and steps read nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from adaptation_factory import HEIGHT, NETWORKS, VARIANTS, WIDTH, batch_of, content, prepared
from counting_device import DEVICE, Held, Transfers, counting_device

from driftlab.datasets.catalogue import open_stream
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.nodes.teacher import TeacherNode
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec, TeacherSpec
from driftlab.platform.streaming.base import DownlinkPlan
from driftlab.platform.world.hardware import HARDWARE

# Rules that need values of every step; all other members read nothing.
READS = {
    "adabn-full": "PyTorch's cumulative average divides by the number of batches",
    "bufr": "ranges have a floor, and units that never varied are left out",
    "cotta": "views are drawn where the source is not confident",
    "eata": "samples are chosen",
    "elasticdnn": "a phase stops when predictions collapse",
    "elasticdnn_teacher": "likewise",
    "neo": "it stops at features that are not finite",
    "note": "the memory of frames depends on predictions",
    "rotta": "likewise",
    "sar": "samples are chosen, and a collapse is undone",
    "t3a": "it stops at features that are not finite",
}
FRAMES = {
    "ace": "frames of the source are restyled on the CPU",
    "cotta": "the generator of the member draws the views",
    "cua": "samples of other domains are replayed",
    "elasticdnn_cua": "likewise",
    "note": "the memory is on the CPU",
    "rotta": "likewise",
}
STEPS = (2, 4)
CLASSES, SIZE = 8, (32, 48)
STUDENT = StudentSpec("half", CLASSES, *SIZE, Member("adaptation", "distill"), Member("scaling", "fixed"), seed=5)
LABELS = ["-".join(map(str, (name, *params.values()))) for name, params in VARIANTS]


def run(member: Any, network: str, device: str) -> list[Any]:
    """Learn in turns from the stream and in phases, and predict; return all results."""
    task, make = NETWORKS[network]
    model, found = make().eval().to(device), list[Any]()
    state = prepared(member, model)
    for number in range(3):
        given = batch_of(task, number, labelled=member.labels == "teacher")
        done = member.adapt(model, state, given, Phase(2, on_stream=member.learns_on_stream and number % 2 == 1))
        predicted = member.predict(model, done.state, given)
        state = predicted.state
        found += [content(state), list(predicted.predictions), done.losses, done.passes, done.skipped, done.accepted]
    if device == DEVICE:
        assert all(isinstance(value, Held) for value in model.state_dict().values())
    return found


def moved(member: Any, steps: int) -> Transfers:
    """Return the transfers of one phase."""
    network = "tiny_classifier" if "classification" in member.tasks else "tiny_detector"
    task, make = NETWORKS[network]
    with counting_device() as transfers:
        model = make().eval().to(DEVICE)
        state = prepared(member, model)
        before = len(transfers.read), len(transfers.copied)
        member.adapt(model, state, batch_of(task, labelled=member.labels == "teacher"), Phase(steps))
        return Transfers(transfers.read[before[0] :], transfers.copied[before[1] :])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=LABELS)
class TestEveryAdaptation:
    @pytest.fixture
    def member(self, name, params):
        return Member("adaptation", name, tuple(params.items())).make()

    def test_it_computes_the_same_there(self, member, name, params):
        suit = [one for one, (task, _) in NETWORKS.items() if task.name in member.tasks]
        network = suit[VARIANTS.index((name, params)) % len(suit)]
        expected = run(member, network, "cpu")
        with counting_device():
            assert pickle.dumps(run(member, network, DEVICE)) == pickle.dumps(expected)

    def test_its_steps_read_nothing_and_copy_no_frame(self, member, name, params):
        few, many = (moved(member, steps) for steps in STEPS)
        rule = getattr(member, "member", name)  # a policy has the steps of the member that it wraps
        stated = not READS.keys().isdisjoint({rule, f"{rule}-{params.get('variant')}"})
        assert stated or len(many.read) == len(few.read)
        frames = [sum(numbers >= HEIGHT * WIDTH * 3 for numbers in each.copied) for each in (few, many)]
        assert name in FRAMES or frames[0] == frames[1]


def session(kind: str, device: str) -> list[Any]:
    """Make the calls of a node; return the payloads of its replies, and the digest of its last state."""
    spec = replace(STUDENT, torch_device=device)
    stream = open_stream("streets/running", seed=3, height=SIZE[0], width=SIZE[1], fps=4.0, duration_s=4.0)
    seen = stream.at(np.arange(0, 2, 0.25))
    weights = state_of(build("half", CLASSES, seed=1))
    cost = count_cost(build("half", CLASSES, seed=0), *SIZE)
    tent = replace(spec, adaptation=Member("adaptation", "tent", (("stream_batch", 3),)))
    node: Any
    if kind == "teacher":
        node = TeacherNode(TeacherSpec("network", "segmentation", "half", CLASSES, *SIZE, torch_device=device), weights)
        calls = [("label", seen)]
    elif kind == "learner":
        node = LearnerNode(spec, weights)
        calls = [
            ("store", seen, seen.labels),
            ("train", DownlinkPlan(None, Phase(3)), True),
            ("check", seen),
            ("finish",),
        ]
    else:
        node = AppNode(AppNodeConfig("d", "segmentation", tent, HARDWARE["jetson-nx"], cost), weights)
        calls = [("run_stream", seen, None, 2.0, ((0.0, 1.0),)), ("predict_images", seen.images), ("finish",)]
    replies = []
    for verb, *given in [("",), *calls]:
        replies += [getattr(node, verb)(*given)] if verb else []
        network = node._network if kind == "teacher" else node._model
        places = {type(value) for value in network.state_dict().values()}
        assert places == ({torch.Tensor} if device == "cpu" else {Held})
    return [*(reply.payload for reply in replies), replies[-1].facts]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["learner", "application", "teacher"])
def test_a_node_computes_the_same_there(kind):
    """Its network is on the device from its first call to its last."""
    found = [session(kind, "cpu")]
    with counting_device():
        found.append(session(kind, DEVICE))
    assert pickle.dumps(found[0]) == pickle.dumps(found[1])
