"""What every member of the scaling family promises."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from driftlab.platform.core.catalogue import FAMILIES, Member, member_class, parameters
from driftlab.platform.models import vector
from driftlab.platform.models.predict import predict
from driftlab.platform.models.zoo import build
from driftlab.platform.scaling.base import Budget, Scaling

CLASSES = 4
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", sorted(FAMILIES["scaling"]))
class TestEveryScaling:
    @pytest.fixture
    def member(self, name) -> Scaling:
        made: Scaling = Member("scaling", name).make()
        return made

    @pytest.fixture
    def family(self, member):
        return member.build(build("half", CLASSES, seed=0))

    def test_its_parameters_are_data(self, name):
        cls = member_class("scaling", name)
        assert issubclass(cls, Scaling)
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen
        assert cls() == cls()
        assert not hasattr(cls, "faults") or cls().faults() == []
        for key, (_, default) in parameters(cls).items():
            assert Member("scaling", name, ((key, default),)).make() == cls()

    def test_it_says_in_one_line_what_it_does(self, name):
        first, *rest = (member_class("scaling", name).__doc__ or "").splitlines()
        assert 10 < len(first) <= 120
        assert first.endswith(".")
        assert not rest or rest[0] == ""

    def test_the_driver_reads_it_without_torch(self, name):
        module = FAMILIES["scaling"][name].partition(":")[0]
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_without_limits_there_is_a_network_that_predicts(self, member, family):
        labels = predict(member.select(family, Budget()), IMAGES)
        assert labels.shape == (2, 16, 24)
        assert labels.max() < CLASSES

    def test_the_same_budget_gives_the_same_network(self, member):
        first, second = (member.build(build("half", CLASSES, seed=0)) for _ in range(2))
        ours, theirs = (member.select(family, Budget()) for family in (first, second))
        assert vector.layout_of(ours) == vector.layout_of(theirs)
        assert vector.read(ours).tobytes() == vector.read(theirs).tobytes()

    def test_a_family_goes_on_from_a_checkpoint(self, member, family):
        again = pickle.loads(pickle.dumps(family))
        assert np.array_equal(
            predict(member.select(family, Budget()), IMAGES), predict(member.select(again, Budget()), IMAGES)
        )

    def test_what_a_variant_has_learned_stays_in_the_family(self, member, family):
        variant = member.select(family, Budget())
        learned = vector.read(variant) + np.float32(0.25)
        vector.write(variant, learned)
        member.absorb(family, variant)
        assert vector.read(member.select(family, Budget())).tobytes() == learned.tobytes()

    def test_it_does_not_disturb_the_generators_of_others(self, member):
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        member.select(member.build(build("half", CLASSES, seed=0)), Budget())
        assert torch.equal(before, torch.random.get_rng_state())
