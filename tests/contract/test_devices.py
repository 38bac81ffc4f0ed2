"""The contract of every member on a GPU: it computes there what it computes on the CPU, and its steps read nothing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from adaptation_factory import HEIGHT, NETWORKS, VARIANTS, WIDTH, batch_of, content, prepared
from counting_device import DEVICE, Held, Transfers, counting_device

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.registry import Member

# Rules that need values of every step; whoever is not listed reads nothing.
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
STEPS = (2, 6)
LABELS = ["-".join(map(str, (name, *params.values()))) for name, params in VARIANTS]


def run(member: Any, network: str, device: str) -> list[Any]:
    """Learn in turns from the stream and in phases, and predict; return all results."""
    task, make = NETWORKS[network]
    model, found = make().eval().to(device), list[Any]()
    state = prepared(member, model)
    for number in range(4):
        given = batch_of(task, number, labelled=member.labels == "teacher")
        done = member.adapt(model, state, given, Phase(2, on_stream=member.learns_on_stream and number % 2 == 1))
        predicted = member.predict(model, done.state, given)
        state = predicted.state
        found += [content(state), list(predicted.predictions), done.losses, done.passes, done.skipped, done.accepted]
    if device == DEVICE:
        assert all(isinstance(value, Held) for value in model.state_dict().values())
    return found


def moved(member: Any, steps: int) -> Transfers:
    """Return what one phase moves."""
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
