"""Shares by sensitivity: equal predicted losses of all layers at the cost of uniform shares."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import scaling_factory as factory
import torch

from driftlab.platform.core.registry import member_class, parameter_faults
from driftlab.platform.networks.pruning.surgery import cut, groups
from driftlab.platform.networks.training.training_loop import TrainingSchedule, grade, train_best
from driftlab.platform.scaling import sensitivity
from driftlab.platform.scaling.base import MIN_CHANNELS, width_of
from driftlab.platform.scaling.growing import PruningContext
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.scaling.sensitivity import (
    TIE_BREAK,
    count_macs,
    equally_lossy,
    loss_curve,
    measure_losses,
    narrowest,
)

EXAMPLE, SPARE = factory.some_images(), "deep.1.0"


def widths_of(context: PruningContext, shares: dict[str, float]) -> dict[str, int]:
    return {name: width_of(context.groups.sizes[name], share) for name, share in shares.items()}


def uniform(context: PruningContext, share: float) -> dict[str, int]:
    return widths_of(context, dict.fromkeys(context.groups.sizes, share))


@pytest.fixture(scope="module")
def context() -> PruningContext:
    """Return the context of a trained network with half of the channels of one group without effect."""
    model = factory.networks()["plain"]
    train_best(model, factory.problem(), TrainingSchedule(6, 0.05), np.random.default_rng(0))
    with torch.no_grad():
        for parameter in model.deep[1][1].parameters():
            parameter[::2] = 0
    return PruningContext(model, groups(model, EXAMPLE), factory.problem())


@pytest.fixture(scope="module")
def predicted(context) -> sensitivity.Losses:
    return measure_losses(context, "bn_gamma", 2)


@pytest.mark.slow
def test_a_curve_holds_the_losses_of_narrowing_one_group(context, predicted):
    data, size = context.data, context.groups.sizes[SPARE]
    whole = grade(context.model, data, data.val)
    gammas = context.model.deep[1][1].weight.abs()
    worst = 0.0
    for share in np.linspace(1, 0, 11):
        width = width_of(size, share)
        kept = gammas.argsort(descending=True, stable=True)[:width]
        worst = max(worst, whole - grade(cut(context.model, context.groups, {SPARE: kept}), data, data.val))
        assert predicted[SPARE][width] == pytest.approx(worst + TIE_BREAK * (1 - width / size))
    assert predicted[SPARE][size // 2] < TIE_BREAK < 0.05 < worst


def test_an_accuracy_curve_never_falls_with_pruned_channels():
    drawn = loss_curve(8, {2: 0.2, 4: -0.1})
    assert drawn == pytest.approx([0.201, 0.200875, 0.20075, 0.100625, 0.0005, 0.000375, 0.00025, 0.000125, 0.0])
    assert (np.diff(loss_curve(9, {2: 0.1, 5: 0.3, 6: -0.2})) < 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_all_lose_equally_and_compute_as_much_as_whole_channels_allow(context, seed, monkeypatch):
    rng, sizes = np.random.default_rng(seed), context.groups.sizes
    drawn = {name: loss_curve(size, {2: rng.random(), size // 2: rng.random() / 3}) for name, size in sizes.items()}
    costs = dict(zip(sizes, rng.random(len(sizes)), strict=True))

    def cost(_: PruningContext, widths: dict[str, int]) -> int:
        return int(1e6 * sum(costs[name] * width for name, width in widths.items()))

    monkeypatch.setattr(sensitivity, "count_macs", cost)
    levels = {level for lost in drawn.values() for level in lost[MIN_CHANNELS:]}
    before = sizes
    for share in (1.0, 0.7, 0.4, 0.1):
        goal = cost(context, uniform(context, share))
        found = widths_of(context, equally_lossy(context, drawn, share))
        fitting = [widths for widths in map(partial(narrowest, drawn), levels) if cost(context, widths) <= goal]
        assert found == max(fitting, key=partial(cost, context))
        level = max(drawn[name][width] for name, width in found.items())
        assert all(drawn[name][width - 1] > level for name, width in found.items() if width > MIN_CHANNELS)
        assert all(found[name] <= before[name] for name in sizes)
        before = found


@pytest.mark.slow
def test_a_layer_with_channels_to_spare_is_narrowed_first(context, predicted):
    keep = (0.9, 0.6)
    member = Nested(keep, shares="sensitivity", ranking="bn_gamma", accuracy_loss=1.0, prune_epochs=0, grow_epochs=0)
    family = member.build(context.model, context.data)
    for which, share in enumerate(keep[::-1]):
        widths = {name: counts[which] for name, counts in family.widths.items()}
        assert widths == widths_of(context, equally_lossy(context, predicted, share))
        assert widths[SPARE] < uniform(context, share)[SPARE]
        assert widths["deep.2.0"] > uniform(context, share)["deep.2.0"]
        assert 0.93 < count_macs(context, widths) / count_macs(context, uniform(context, share)) <= 1
    for counts in family.widths.values():
        assert all(small <= large for small, large in itertools.pairwise(counts))


def test_a_single_group_is_narrowed_to_the_cost():
    faults = parameter_faults(member_class("scaling", "nested"), {"shares": "sensitivity", "only": 1})
    assert faults == ["'shares' is sensitivity, must be uniform where 'only' one group is pruned"]
    assert "did you mean 'shares'" in parameter_faults(member_class("scaling", "nested"), {"share": "uniform"})[0]
