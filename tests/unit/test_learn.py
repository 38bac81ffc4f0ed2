"""The transaction of training: counted passes, restored state, and the contents of a state's digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from adaptation_factory import content, prepared
from tta_factory import STREAM, frames, state_of

from driftlab.platform.adaptation import run
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.distill import DistillState
from driftlab.platform.adaptation.estimating import DomainHistory, EstimatorState
from driftlab.platform.adaptation.learn import LearningAdaptation, NormAffine, StreamAdaptation
from driftlab.platform.adaptation.memory import ElasticState, MethodState, StreamState
from driftlab.platform.adaptation.wrapper import WrapperState
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.state import canonical_bytes

ONE = {"a": np.arange(3, dtype=np.float32)}
VECTOR = ONE["a"]
# Tables hold these: another class name, field name or order of the fields changes the digest of every run.
DIGESTS = {
    "7420af2de2bd112e": StreamState(ONE, (ONE,), 2, "head"),
    "8608f2e54fc98e09": MethodState(ONE, (ONE,), 2, None, ONE, ONE),
    "fc14c22e2cad4c42": DistillState((VECTOR,), 3, VECTOR, VECTOR, VECTOR > 0),
    "8872f5d3789a4baf": WrapperState(StreamState(ONE), ONE),
    "63b02f81a84318b0": ElasticState(ONE),
    "f2dad09260b43ffc": EstimatorState(ONE, pack=ONE),
}


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_state_keeps_the_digest_of_its_content(digest):
    assert hashlib.sha256(canonical_bytes(DIGESTS[digest])).hexdigest()[:16] == digest


@pytest.mark.parametrize("state", [*DIGESTS.values(), DomainHistory()], ids=lambda state: type(state).__name__)
def test_a_new_name_of_a_state_would_not_change_its_digest(state):
    renamed = type("Renamed", (type(state),), {})(**{one.name: getattr(state, one.name) for one in fields(state)})
    assert canonical_bytes(renamed) == canonical_bytes(state)


@dataclass(frozen=True)
class ScriptedSteps(NormAffine):
    """A member that makes the steps of a test's script."""

    losses: tuple[str, ...] = ()

    def train_step(self, run, rows) -> None:
        outputs = run.outputs(rows)
        with torch.no_grad():
            run.outputs(rows[:2])
        kind = self.losses[min(run.made, len(self.losses) - 1)]
        if kind == "twice":
            outputs = outputs + run.outputs(rows[:1])
        if kind != "none":
            run.learn(outputs.square().mean() * (float("nan") if kind == "nan" else 1.0))


def adapted(*losses: str, phase: Phase = STREAM) -> tuple[Any, Any, dict[str, bytes], dict[str, bytes]]:
    model = build("tiny_classifier", 4, seed=0).eval()
    member = ScriptedSteps(variant="run", losses=losses, batch=5)
    state, before = member.prepare(model), state_of(model)
    return state, member.adapt(model, state, frames(6), phase), before, state_of(model)


def test_passes_are_counted_and_gradients_where_they_went_back():
    assert adapted("usual")[1].passes.forward == (6, 2)
    assert adapted("usual")[1].passes.backward == (6,)
    assert adapted("twice")[1].passes.backward == (6, 1)
    skipped = adapted("none")[1].passes
    assert (skipped.forward, skipped.backward) == ((6, 2), ())
    phase = adapted("usual", phase=Phase(3))[1].passes
    assert (phase.forward, phase.backward) == ((5, 2) * 3, (5,) * 3)


@pytest.mark.parametrize(("losses", "why"), [(("nan",), "loss nan"), (("none",), "nothing in the batch")])
def test_a_call_without_a_step_or_with_a_loss_that_is_no_number_is_undone(losses, why):
    state, done, before, after = adapted(*losses)
    assert why in done.skipped and done.state is state and done.changed is None
    assert before == after  # stored statistics too, which the pass has moved


def test_a_phase_is_undone_as_a_whole():
    state, done, before, after = adapted("usual", "usual", "nan", phase=Phase(4))
    assert "not finite after 3 iterations" in done.skipped and done.state is state and before == after
    assert len(done.passes.forward) == 6  # the computed passes are charged


def test_a_member_without_a_training_step_is_refused():
    class WithoutSteps(LearningAdaptation, StreamAdaptation):
        pass

    with pytest.raises(TypeError, match="train_step"):
        WithoutSteps()


@pytest.mark.parametrize("name", ["tent", "cotta", "shot", "note", "bufr"])
def test_steps_in_place_are_those_along_one_vector(name, monkeypatch):
    """Large networks use the former, small ones the latter; an odd length would reveal another order."""
    found = []
    for limit in (run.IN_ONE, 0):
        monkeypatch.setattr(run, "IN_ONE", limit)
        params = {"every_frames": 3, "capacity": 4} if name == "note" else {}
        member, model = Member("adaptation", name, tuple(params.items())).make(), build("tiny_classifier", 4, seed=0)
        state = prepared(member, model.eval())
        for number in range(3):
            done = member.adapt(model, state, frames(7, number), STREAM)
            state = done.state
        found.append((state_of(model), content(state), done.losses))
        assert done.iterations
    assert found[0] == found[1]
