"""Groups of trainings whose stages interleave on the resources of a device, as granted by a scheduler.

All trainings of a group run one iteration per period, which is that of the best order of their stages. Each uses a
resource for its stage's part of the period, and its stages overlap with those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.core.records import Resource, TaskCost
from driftlab.platform.scheduling.muri import STAGES, period
from driftlab.platform.world.processor import InterleavedShare

if TYPE_CHECKING:
    from driftlab.platform.sim.device import AppShare


def interleaved(allocations: Iterable[AppShare]) -> dict[str, InterleavedShare]:
    """Return the training shares of all members of groups, by application."""
    groups: dict[str, list[tuple[AppShare, Mapping[Resource, float]]]] = {}
    for one in allocations:
        if one.grant.interleave_group and isinstance(one.training_share, Mapping):
            groups.setdefault(one.grant.interleave_group, []).append((one, one.training_share))
    shares = {}
    for members in groups.values():
        stages = np.array([_parts(_remaining_cost(one)) for one, _ in members])
        taken = [sum(learn.get(engine, 0.0) for _, learn in members) for engine in STAGES]
        used = stages * max(taken) / period(stages)
        for (one, _), row in zip(members, used.tolist(), strict=True):
            shares[one.demand.app] = InterleavedShare({e: part for e, part in zip(STAGES, row, strict=True) if part})
    return shares


def _remaining_cost(one: AppShare) -> TaskCost:
    """Return the cost of the configuration chosen for an offer, or else of the rest of the phase."""
    learning, config = one.demand.learning, one.grant.config
    if learning is None:
        return TaskCost()
    if learning.state == "offered" and config is not None and config < len(learning.configs):
        return learning.configs[config].cost
    return learning.left


def _parts(cost: TaskCost) -> list[float]:
    whole = cost.isolated_s
    return [cost.seconds.get(engine, 0.0) / whole if whole else float(engine == "accelerator") for engine in STAGES]
