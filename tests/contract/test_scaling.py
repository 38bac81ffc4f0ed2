"""The contract of all members of the scaling family."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from architectures_factory import once_per_architecture
from counting_device import DEVICE, Held, counting_device
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.core.registry import FAMILIES, Member, builder_of
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.digest import digest
from driftlab.platform.networks.predict import predict, state_of
from driftlab.platform.networks.pruning import family as family_of_pruned
from driftlab.platform.networks.pruning import surgery
from driftlab.platform.networks.pruning.surgery import groups
from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames, grade
from driftlab.platform.scaling import elastic
from driftlab.platform.scaling.base import Budget, Profile

CLASSES = 4
SIZE = (16, 24)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3), dtype=np.uint8)


def labelled_frames(count: int, seed: int) -> LabelledFrames:
    """Return frames with patches of four colours, a class each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, (count, 4, 6)).repeat(4, axis=1).repeat(4, axis=2)
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]])
    images = colours[labels] + rng.normal(0, 20, (count, *SIZE, 3))
    return LabelledFrames(images.clip(0, 255).astype(np.uint8), labels.astype(np.uint8))


DATA = DataSplits(SEGMENTATION, CLASSES, labelled_frames(32, 0), labelled_frames(12, 1), labelled_frames(12, 2))


BUILDERS = sorted(name for name in FAMILIES["scaling"] if builder_of(Member("scaling", name)).name == name)
RATIOS = ("keep_ratios", (0.8, 0.45, 0.2))
QUICK = {
    "independent": (RATIOS, ("epochs", 2)),
    "nested": (RATIOS, ("prune_epochs", 1), ("grow_epochs", 1)),
    "usnet": (RATIOS, ("epochs", 1)),
    "surrogate": (("sources", ("snow", "brightness")), ("stages", (0.8, 0.3)), ("epochs", 1)),
    "branches": (("exits", 2), ("stage_epochs", 1), ("operator_epochs", 1), ("path_epochs", 1)),
    "once_for_all": (RATIOS, ("epochs", 1), ("candidates", 2)),
    "early_exit": (("exits", 2), ("stage_epochs", 1)),
    "darts": (("stages", 2), ("search_epochs", 1), ("epochs", 1)),
    "enas": (("stages", 2), ("search_epochs", 1), ("epochs", 1), ("steps", 2), ("candidates", 2)),
    "light": (("network", "squeezenet"), ("epochs", 1)),
}


def member_of(name: str) -> Any:
    return Member("scaling", name, QUICK.get(name, ())).make()


def network() -> nn.Module:
    return build("half", CLASSES, seed=0).eval()


@cache
def built(name: str) -> Any:
    """Return the member's family, built once; members never change it."""
    return member_of(name).build(network(), DATA)


@once_per_architecture
def groups_on_cpu(model: nn.Module, example: torch.Tensor) -> Any:
    return groups(copy.deepcopy(model).cpu(), example.cpu())


@pytest.mark.parametrize("name", BUILDERS)
class TestEveryScaling:
    @pytest.fixture
    def member(self, name):
        return member_of(name)

    @pytest.fixture
    def family(self, name):
        return copy.deepcopy(built(name))

    def test_select_without_limits_returns_a_working_network(self, member, family):
        labels = predict(member.select(family, Budget()), IMAGES)
        assert labels.shape == (2, 16, 24)
        assert labels.max() < CLASSES

    def test_flags_are_booleans(self, member):
        assert isinstance(member.needs_data, bool)
        assert isinstance(member.nested, bool)
        if not member.needs_data:
            assert len(member.profile(member.build(network(), None), SIZE)) == 1

    def test_build_is_deterministic_and_changes_no_model_and_no_generator(self, name, member):
        model = network()
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        again = member.build(model, DATA)
        member.select(again, Budget())
        assert torch.equal(before, torch.random.get_rng_state())
        assert digest(state_of(model)) == digest(state_of(network()))
        assert digest(member.store(again)) == digest(member.store(built(name)))

    @pytest.mark.slow
    def test_on_another_device_it_builds_the_same_networks_there(self, name, member, monkeypatch):
        """Only channels are found on the CPU: their tracer cannot follow tensors of the fake device."""

        for module in (surgery, family_of_pruned, elastic):
            monkeypatch.setattr(module, "groups", groups_on_cpu)
        with counting_device():
            found = member.build(network().to(DEVICE), DATA)
            for which in range(len(member.profile(found, SIZE))):
                state = member.select(found, Budget(variant=which)).state_dict()
                assert all(isinstance(value, Held) for value in state.values())
            assert digest(member.store(found)) == digest(member.store(built(name)))
            again = member.restore(network().to(DEVICE), member.store(found), SIZE)
            state = member.select(again, Budget()).state_dict()
            assert all(isinstance(value, Held) for value in state.values())

    def test_profile_matches_the_measured_networks(self, name, member, family):
        profile = member.profile(family, SIZE)
        for which, known in enumerate(profile):
            variant = member.select(family, Budget(variant=which))
            whole = count_cost(variant, *SIZE)
            assert known.cost.macs <= whole.macs if name == "early_exit" else known.cost == whole
            assert known.memory_bytes >= known.cost.weight_bytes
            for told, labelled_frames in ((known.accuracy, DATA.val), (known.test_accuracy, DATA.test)):
                assert told is None or told == pytest.approx(grade(variant, DATA, labelled_frames), abs=1e-6)
            assert (known.accuracy is None) == (known.test_accuracy is None)
        assert len({one.name for one in profile}) == len(profile)
        if any(one.parts for one in profile):
            assert [one.memory_bytes for one in profile] == [sum(dict(one.parts).values()) for one in profile]
        else:
            assert [one.memory_bytes for one in profile] == sorted({one.memory_bytes for one in profile})
            assert [one.cost.macs for one in profile] == sorted({one.cost.macs for one in profile})

    def test_select_refuses_an_index_outside_the_family(self, member, family):
        for which in (-1, len(member.profile(family, SIZE))):
            with pytest.raises(RequestError, match="variant is"):
                member.select(family, Budget(variant=which))

    def test_restore_returns_the_stored_family(self, member, family):
        arrays = member.store(family)
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays.values())
        again = member.restore(network(), arrays, SIZE)
        assert digest(member.store(again)) == digest(arrays)
        assert member.profile(again, SIZE) == member.profile(family, SIZE)
        assert (
            vector.read(member.select(again, Budget())).tobytes()
            == vector.read(member.select(family, Budget())).tobytes()
        )

    def test_a_pickled_family_predicts_the_same(self, member, family):
        again = pickle.loads(pickle.dumps(family))
        assert np.array_equal(
            predict(member.select(family, Budget()), IMAGES), predict(member.select(again, Budget()), IMAGES)
        )

    def test_absorb_keeps_the_weights_of_a_trained_network(self, member, family):
        for which in range(len(member.profile(family, SIZE))):
            variant = member.select(family, Budget(variant=which))
            learned = vector.read(variant) + np.float32(0.25)
            vector.write(variant, learned)
            family = member.absorb(family, variant)
            assert vector.read(member.select(family, Budget(variant=which))).tobytes() == learned.tobytes()

    def test_absorb_changes_networks_that_share_weights_only(self, member, family):
        count = len(member.profile(family, SIZE))
        profile = member.profile(family, SIZE)
        before = [vector.read(member.select(family, Budget(variant=which))) for which in range(count)]
        variant = member.select(family, Budget(variant=0))
        vector.write(variant, before[0] + np.float32(0.25))
        family = member.absorb(family, variant)
        for which in range(1, count):
            moved = vector.read(member.select(family, Budget(variant=which))) != before[which]
            assert moved.sum() == (len(before[0]) if member.nested else shared(profile[0], profile[which]))


def shared(one: Profile, other: Profile) -> int:
    """Return the number of parameters in modules that two paths share."""
    parts = [name for name, _ in other.parts]
    common = {place_of(which, len(parts)) for which, name in enumerate(parts) if name in dict(one.parts)}
    return sum(layer.parameters for layer in other.cost.layers if any(layer.name.startswith(place) for place in common))


def place_of(which: int, count: int) -> str:
    """Return the name of a module in a path's network, by its place among the modules of the path."""
    return "stem" if which == 0 else "head" if which == count - 1 else f"stages.{which - 1}."


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"fixed", "light"}))
def test_networks_without_cuttable_channels_are_refused(name):
    """Its only channels are the outputs."""
    with pytest.raises(RequestError, match=r"Sequential has no .*scaling 'fixed'"):
        member_of(name).build(torch.nn.Sequential(torch.nn.Conv2d(3, CLASSES, 1)).eval(), DATA)
