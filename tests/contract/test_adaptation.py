"""What every member of the adaptation family promises."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from driftlab.datasets.frames import IGNORE
from driftlab.platform.adaptation.base import Adapted, Batch, Phase
from driftlab.platform.core.catalogue import FAMILIES, Member, member_class, parameters
from driftlab.platform.models import vector
from driftlab.platform.models.zoo import build

CLASSES = 4
SHORT = Phase(iterations=2)


def batch(seed: int = 0, *, labelled: bool = True, frames: int = 4) -> Batch:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (frames, 16, 24, 3), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, (frames, 16, 24), dtype=np.uint8)
    return Batch(images, labels if labelled else None, rng)


def buffers(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.named_buffers()}


@pytest.mark.parametrize("name", sorted(FAMILIES["adaptation"]))
class TestEveryAdaptation:
    @pytest.fixture
    def member(self, name):
        return Member("adaptation", name).make()

    @pytest.fixture
    def model(self):
        return build("half", CLASSES, seed=0)

    def phases(self, member, model, count: int = 2) -> list[Adapted]:
        state, done = member.prepare(model), []
        for number in range(count):
            done.append(member.adapt(model, state, batch(number, labelled=member.needs_labels), SHORT))
            state = done[-1].state
        return done

    def test_its_parameters_are_data(self, name):
        cls = member_class("adaptation", name)
        assert isinstance(cls.needs_labels, bool)
        assert cls() == cls()
        for key, (_, default) in parameters(cls).items():
            assert Member("adaptation", name, ((key, default),)).make() == cls()

    def test_the_driver_reads_it_without_torch(self, name):
        module = FAMILIES["adaptation"][name].partition(":")[0]
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_the_same_frames_give_the_same_weights(self, member, model):
        twin = copy.deepcopy(model)
        first, second = self.phases(member, model), self.phases(member, twin)
        assert vector.read(model).tobytes() == vector.read(twin).tobytes()
        assert buffers(model) == buffers(twin)
        assert [done.losses for done in first] == [done.losses for done in second]

    def test_it_goes_on_from_a_checkpoint(self, member, model):
        state = member.adapt(model, member.prepare(model), batch(labelled=member.needs_labels), SHORT).state
        twin, state_of_twin = pickle.loads(pickle.dumps((model, state)))
        given = {"labelled": member.needs_labels}
        member.adapt(model, state, batch(1, **given), SHORT)
        member.adapt(twin, state_of_twin, batch(1, **given), SHORT)
        assert vector.read(model).tobytes() == vector.read(twin).tobytes()
        assert buffers(model) == buffers(twin)

    def test_the_state_passed_in_stays_as_it_was(self, member, model):
        """A call that is repeated after a fault must find what the first one found."""
        state = member.adapt(model, member.prepare(model), batch(labelled=member.needs_labels), SHORT).state
        kept = pickle.dumps(state)
        member.adapt(model, state, batch(1, labelled=member.needs_labels), SHORT)
        assert pickle.dumps(state) == kept

    def test_the_frames_stay_as_they_were(self, member, model):
        given = batch(labelled=member.needs_labels)
        given.images.flags.writeable = False
        if given.labels is not None:
            given.labels.flags.writeable = False
        member.adapt(model, member.prepare(model), given, SHORT)

    def test_it_leaves_no_gradient_and_no_borrowed_storage(self, member, model):
        self.phases(member, model)
        for parameter in model.parameters():
            assert parameter.grad is None
            assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()

    def test_changed_says_what_changed(self, member, model):
        state = member.prepare(model)
        for number in range(3):
            before = vector.read(model)
            done = member.adapt(model, state, batch(number, labelled=member.needs_labels), SHORT)
            moved = vector.read(model) != before
            if done.changed is None:
                assert not moved.any()
            else:
                assert done.changed.shape == moved.shape
                assert not moved[~done.changed].any()
            state = done.state

    def test_it_does_not_disturb_the_generators_of_others(self, member, model):
        torch.manual_seed(5)
        np.random.seed(5)
        before = torch.random.get_rng_state(), np.random.get_state()[1].tobytes()
        self.phases(member, model)
        assert torch.equal(before[0], torch.random.get_rng_state())
        assert before[1] == np.random.get_state()[1].tobytes()

    def test_reset_gives_a_fresh_state_and_keeps_the_weights(self, member, model):
        fresh = pickle.dumps(member.prepare(model))
        state = self.phases(member, model)[-1].state
        weights = vector.read(model)
        reset = member.reset(model, state)
        assert vector.read(model).tobytes() == weights.tobytes()
        assert pickle.dumps(reset) == fresh

    def test_a_batch_that_teaches_nothing_changes_nothing(self, member, model):
        state = member.prepare(model)
        empty = batch(labelled=member.needs_labels, frames=0)
        blank = batch(labelled=member.needs_labels)
        if blank.labels is not None:
            blank.labels[:] = IGNORE
        given = [empty, blank, batch(labelled=False)] if member.needs_labels else [empty]
        for nothing in given:
            before = vector.read(model)
            done = member.adapt(model, state, nothing, SHORT)
            assert vector.read(model).tobytes() == before.tobytes()
            assert done.changed is None
            assert done.iterations == 0
            assert done.skipped or not member.needs_labels
