"""Muri: trainings whose stages use different engines run interleaved, as one group.

In a group each engine serves one training after another. The time of a common iteration depends on the order; the best
one is used. A group's efficiency is the part of all engines' time in which they work. Groups are formed by matching
pairs of the highest total efficiency, then pairs of pairs.

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
from driftlab.platform.core.records import Engine
from driftlab.platform.scheduling.candidates import Candidate, LearningApp
from driftlab.platform.scheduling.plans import SharePlan, answering, reserve
from driftlab.platform.scheduling.sizing import Chosen, SharesAmongTrainings

Floats = npt.NDArray[np.float64]
Group = tuple[int, ...]
STAGES: tuple[Engine, ...] = ("storage", "cpu", "accelerator", "link")
LARGEST = 4  # trainings of a group
ROUNDS = 4  # of matching


@dataclass(frozen=True)
class Muri(SharesAmongTrainings):
    """Interleave the stages of up to four trainings, the shortest ones first."""

    bound: Annotated[float, Ge(0), Means("efficiency that a group of so many parts of four must exceed")] = 0.0
    autopack: Annotated[bool, Means("whether a group that is slower than its members one by one is split")] = False

    def plan(self, apps: Sequence[LearningApp], chosen: Chosen) -> SharePlan:
        answers, learn = reserve(apps, self.answer), np.zeros(len(apps))
        jobs = sorted(
            ((i, apps[i].candidates[k]) for i, k in enumerate(chosen) if k is not None), key=lambda job: job[1].seconds
        )
        if not jobs:
            return SharePlan(learn, answering(apps, answers), chosen)
        stages = np.array([stages_of(one) for _, one in jobs[:LARGEST]])
        first = next(group for group in groups_of(stages, 1, self.bound, self.autopack) if 0 in group)
        used = stages[list(first)] / np.maximum(stages[list(first)].sum(axis=0), 1e-12)
        members = [jobs[j][0] for j in first]
        learn[members] = (1 - answers) / len(members)
        parts = {
            i: dict(zip(map(str, STAGES), row, strict=True)) for i, row in zip(members, used.tolist(), strict=True)
        }
        names = dict.fromkeys(members, "+".join(apps[i].app for i in sorted(members)) if len(members) > 1 else "")
        return SharePlan(learn, answering(apps, answers), chosen, parts, names)


def stages_of(job: Candidate) -> list[float]:
    """Return the part of a training's time on each engine; all on the accelerator where none is known."""
    seconds = [job.need.seconds.get(engine, 0.0) for engine in STAGES]
    total = sum(seconds)
    return [each / total for each in seconds] if total else [float(engine == "accelerator") for engine in STAGES]


def period(stages: Floats) -> float:
    """Return the time of a common iteration in the best order; `stages` is [trainings, engines]."""
    engines, orders = stages.shape[1], itertools.permutations(range(len(stages)))
    return min(
        sum(max(float(stages[job, (i - j) % engines]) for j, job in enumerate(order)) for i in range(engines))
        for order in orders
    )


def efficiency(stages: Floats) -> float:
    """Return the part of all engines' time in which they work."""
    whole = stages.shape[1] * period(stages)
    return float(stages.sum()) / whole if whole else 0.0


def groups_of(stages: Floats, machines: int = 1, bound: float = 0.0, autopack: bool = False) -> list[Group]:
    """Merge trainings, given by priority, into groups by matching, until there are as many groups as machines."""
    groups: list[Group] = [(job,) for job in range(min(len(stages), LARGEST * machines))]
    for _ in range(ROUNDS):
        if len(groups) <= machines:
            break
        merged = merge_pairs(groups, stages, bound)
        if merged == groups:
            break
        groups = merged
    if autopack:
        groups = [part for group in groups for part in _unpacked(group, stages)]
    return groups


def _unpacked(group: Group, stages: Floats) -> list[Group]:
    slow = period(stages[list(group)]) > sum(period(stages[[job]]) for job in group)
    return [(job,) for job in group] if slow else [group]


def merge_pairs(groups: Sequence[Group], stages: Floats, bound: float = 0.0) -> list[Group]:
    """Merge the pairs of groups of the highest total efficiency."""
    weights = {}
    for a, b in itertools.combinations(range(len(groups)), 2):
        both = [*groups[a], *groups[b]]
        if len(both) <= LARGEST:
            found = efficiency(stages[both])
            if found > bound * len(both) / stages.shape[1]:
                weights[a, b] = found
    pairs = match_pairs(len(groups), weights)
    paired = {node for pair in pairs for node in pair}
    merged = [tuple(sorted((*groups[a], *groups[b]))) for a, b in pairs]
    return sorted([*merged, *(group for node, group in enumerate(groups) if node not in paired)])


def match_pairs(nodes: int, weights: dict[tuple[int, int], float]) -> tuple[tuple[int, int], ...]:
    """Return a matching of the highest total weight, exactly: for up to sixteen nodes."""

    @functools.cache
    def best(left: int) -> tuple[float, tuple[tuple[int, int], ...]]:
        if not left:
            return 0.0, ()
        first = (left & -left).bit_length() - 1
        rest = left & ~(1 << first)
        found = best(rest)
        for other in range(first + 1, nodes):
            weight = weights.get((first, other)) if rest >> other & 1 else None
            if weight is not None:
                total, pairs = best(rest & ~(1 << other))
                found = max(found, (total + weight, ((first, other), *pairs)), key=lambda one: one[0])
        return found

    return best((1 << nodes) - 1)[1]
