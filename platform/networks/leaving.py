"""Paths of a supernet that a frame leaves at the first confident exit: network, cost, and training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.branched import Branched, sum_costs
from driftlab.platform.networks.early_exit import EarlyExitNetwork, Floats, mean_cost_of
from driftlab.platform.networks.paths import Path

HEAD = "head."  # prefix of the layers of an exit in the network of a path


def leaving_network(branched: Branched, path: Path, threshold: float) -> EarlyExitNetwork:
    """Return a copy of a path's network with all its exits, in evaluation mode."""
    (_, stem), *stages, _ = branched.used(path)
    network = EarlyExitNetwork(branched.expects, stem, [module for _, module in stages], branched.heads[: len(path)])
    network.thresholds, network.path = (threshold,) * (len(path) - 1), path
    return copy.deepcopy(network).eval()


def replaced_by(branched: Branched, network: EarlyExitNetwork) -> Branched:
    """Return the supernet with the modules of a trained network of `leaving_network`."""
    assert network.path is not None, "it is no path of a supernet"
    learned = copy.deepcopy(network)
    stages = [list(modules) for modules in branched.stages]
    for which, one in enumerate(network.path):
        stages[which][one] = learned.stages[which]
    heads = (*learned.heads, *branched.heads[len(learned.heads) :])
    return replace(branched, stem=learned.stem, stages=tuple(map(tuple, stages)), heads=heads)


def used_modules(branched: Branched, path: Path) -> list[str]:
    """Return the names of the modules of a path with all its exits, in running order."""
    stem, *stages, _ = (name for name, _ in branched.used(path))
    exits = [f"exit.{number}" for number in range(1, len(path) + 1)]
    return [stem, *(name for pair in zip(stages, exits, strict=True) for name in pair)]


def leaving_cost(branched: Branched, costs: Mapping[str, ModelCost], path: Path, leaving: Floats) -> ModelCost:
    """Return the mean cost of a frame of a path, given the cost of each module and the shares per exit."""
    parts = [(name, costs[name]) for name in used_modules(branched, path)]
    whole = sum_costs([replace(cost, layers=_as_run(name, cost.layers)) for name, cost in parts])
    return mean_cost_of(whole, leaving[: len(path)])


def _as_run(name: str, layers: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
    """Return the layers of a module with their names in `EarlyExitNetwork`."""
    if not name.startswith("exit."):
        return tuple(layers)
    number = int(name.partition(".")[2]) - 1
    return tuple(replace(one, name=f"heads.{number}.{one.name.removeprefix(HEAD)}") for one in layers)
