"""IADA: the training of each part, and features that become similar to those of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from adaptation_factory import NETWORKS, prepared
from tta_factory import frames

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.iada import DISCRIMINATOR, Iada, generator
from driftlab.platform.adaptation.memory import below
from driftlab.platform.networks.predict import state_of


def after(member: Iada, phases: int = 1) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return the weights before and after some phases, and the last state."""
    model = NETWORKS["tiny_classifier"][1]().eval()
    state = prepared(member, model)
    before = state_of(model)
    for number in range(phases):
        done = member.adapt(model, state, frames(12, number), Phase())
        assert not done.skipped
        state = done.state
    return before, state_of(model), state


@pytest.mark.slow
def test_the_head_and_the_generator_stay_through_thirty_domains():
    member = Iada(iterations=1, batch=6, source_steps=2)
    before, weights, state = after(member, phases=30)
    assert all(np.array_equal(before[name], weights[name]) for name in before if name.startswith("head."))
    assert any(not np.array_equal(before[name], weights[name]) for name in before if name.startswith("deep."))
    fresh = prepared(member, NETWORKS["tiny_classifier"][1]().eval())
    assert all(np.array_equal(state.pack[name], fresh.pack[name]) for name in fresh.pack)


def test_without_weight_only_the_discriminator_and_batch_norms_move():
    before, weights, state = after(Iada(iterations=3, batch=6, source_steps=2, adversarial_weight=0.0))
    moved = {name for name in before if not np.array_equal(before[name], weights[name])}
    assert moved
    assert all(name.endswith(("running_mean", "running_var", "num_batches_tracked")) for name in moved)
    tells, first = below(DISCRIMINATOR, state.held), below(DISCRIMINATOR, state.pack)
    assert any(not np.array_equal(tells[name], first[name]) for name in first)


@pytest.mark.slow
def test_the_generator_approaches_the_source_features():
    real = torch.randn(256, 3, generator=torch.Generator().manual_seed(0)).abs() + torch.tensor([0.0, 2.0, 4.0])
    gaps = []
    for steps in (0, 100, 300):
        torch.manual_seed(0)
        arrays = Iada(source_steps=steps).imitate(real)
        makes = generator(3, positive=bool(arrays["positive"]))
        makes.load_state_dict({name: torch.tensor(value) for name, value in below("makes", arrays).items()})
        made = makes(torch.randn(512, 32)).detach()
        assert made.min() >= 0
        gaps.append(float((made.mean(dim=0) - real.mean(dim=0)).norm()))
    assert max(gaps[1:]) < 0.7 * gaps[0]
