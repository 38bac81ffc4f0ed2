"""Muri (SIGCOMM 2022): interleave trainings whose stages use different resources.

In a group of up to four, each resource serves one training after another. The time T of a common iteration depends on
the order; the best order is used. The interleaving efficiency γ of a group is the fraction of all resources' time in
which they work. Groups are formed in rounds of maximum-weight matching on γ: first pairs of trainings, then pairs of
groups.

Differs from the paper: one device takes the place of a cluster, so only the first group runs. Stage times are parts of
a training's whole time, as if all iterations took as long, and the overhead of interleaving is not modelled.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Resource
from driftlab.platform.scheduling.candidates import Candidate, LearningApp
from driftlab.platform.scheduling.plans import SharePlan, equal_inference, inference_reserve
from driftlab.platform.scheduling.sizing import ChosenConfigs, SharesAmongTrainings

Floats = npt.NDArray[np.float64]
Group = tuple[int, ...]
STAGES: tuple[Resource, ...] = ("storage", "cpu", "accelerator", "link")
MAX_GROUP = 4  # trainings
ROUNDS = 4  # of matching


@dataclass(frozen=True)
class Muri(SharesAmongTrainings):
    """Muri (SIGCOMM 2022): interleave stages of up to four trainings that use different resources."""

    bound: Annotated[float, Ge(0), Means("minimum efficiency of a group of four; of a smaller one in proportion")] = 0.0
    autopack: Annotated[bool, Means("whether a group that is slower than its members in sequence is split")] = False

    def plan(self, apps: Sequence[LearningApp], chosen: ChosenConfigs) -> SharePlan:
        """Group the trainings, shortest first, and give the training share to the group of the shortest one."""
        reserved, training = inference_reserve(apps, self.inference_share), np.zeros(len(apps))
        jobs = sorted(
            ((i, apps[i].candidates[k]) for i, k in enumerate(chosen) if k is not None), key=lambda job: job[1].seconds
        )
        if not jobs:
            return SharePlan(training, equal_inference(apps, reserved), chosen)
        stages = np.array([stages_of(one) for _, one in jobs[:MAX_GROUP]])
        first = next(group for group in group_jobs(stages, 1, self.bound, self.autopack) if 0 in group)
        used = stages[list(first)] / np.maximum(stages[list(first)].sum(axis=0), 1e-12)
        members = [jobs[j][0] for j in first]
        training[members] = (1 - reserved) / len(members)
        resources = {
            i: dict(zip(map(str, STAGES), row, strict=True)) for i, row in zip(members, used.tolist(), strict=True)
        }
        names = dict.fromkeys(members, "+".join(apps[i].app for i in sorted(members)) if len(members) > 1 else "")
        return SharePlan(training, equal_inference(apps, reserved), chosen, resources, names)


def stages_of(job: Candidate) -> list[float]:
    """Return the part of a training's time on each resource; 1 on the accelerator if no time is known."""
    seconds = [job.cost.seconds.get(name, 0.0) for name in STAGES]
    total = sum(seconds)
    return [each / total for each in seconds] if total else [float(name == "accelerator") for name in STAGES]


def period(stages: Floats) -> float:
    """Return T, the time of a common iteration in the best order; `stages` is [trainings, resources]."""
    resources, orders = stages.shape[1], itertools.permutations(range(len(stages)))
    return min(
        sum(max(float(stages[job, (i - j) % resources]) for j, job in enumerate(order)) for i in range(resources))
        for order in orders
    )


def interleaving_efficiency(stages: Floats) -> float:
    """Return γ, the fraction of all resources' time in which they work."""
    whole = stages.shape[1] * period(stages)
    return float(stages.sum()) / whole if whole else 0.0


def group_jobs(stages: Floats, machines: int = 1, bound: float = 0.0, autopack: bool = False) -> list[Group]:
    """Merge trainings, given by priority, in rounds of matching, until one group per machine is left."""
    groups: list[Group] = [(job,) for job in range(min(len(stages), MAX_GROUP * machines))]
    for _ in range(ROUNDS):
        if len(groups) <= machines:
            break
        merged = merge_pairs(groups, stages, bound)
        if merged == groups:
            break
        groups = merged
    if not autopack:
        return groups
    packed: list[Group] = []
    for group in groups:
        slower = period(stages[list(group)]) > sum(period(stages[[job]]) for job in group)
        packed += [(job,) for job in group] if slower else [group]
    return packed


def merge_pairs(groups: Sequence[Group], stages: Floats, bound: float = 0.0) -> list[Group]:
    """Merge the pairs of groups of the highest total efficiency: one round of matching."""
    weights = {}
    for a, b in itertools.combinations(range(len(groups)), 2):
        both = [*groups[a], *groups[b]]
        if len(both) <= MAX_GROUP:
            efficiency = interleaving_efficiency(stages[both])
            if efficiency > bound * len(both) / stages.shape[1]:
                weights[a, b] = efficiency
    pairs = match_pairs(len(groups), weights)
    paired = {node for pair in pairs for node in pair}
    merged = [tuple(sorted((*groups[a], *groups[b]))) for a, b in pairs]
    return sorted([*merged, *(group for node, group in enumerate(groups) if node not in paired)])


def match_pairs(nodes: int, weights: dict[tuple[int, int], float]) -> tuple[tuple[int, int], ...]:
    """Return a maximum-weight matching of up to sixteen nodes, exactly."""

    @functools.cache
    def best(left: int) -> tuple[float, tuple[tuple[int, int], ...]]:
        if not left:
            return 0.0, ()
        first = (left & -left).bit_length() - 1
        rest = left & ~(1 << first)
        matching = best(rest)
        for other in range(first + 1, nodes):
            weight = weights.get((first, other)) if rest >> other & 1 else None
            if weight is not None:
                total, pairs = best(rest & ~(1 << other))
                matching = max(matching, (total + weight, ((first, other), *pairs)), key=lambda one: one[0])
        return matching

    return best((1 << nodes) - 1)[1]
