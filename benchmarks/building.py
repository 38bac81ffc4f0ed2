"""Time the building of each family of networks that an experiment needs; prints a JSON line for each.

`processor_s` is the processor time of training and measuring the family, given the pre-trained network that all of
them start from; `ratio` is this time over that of the first system on the same network. `choices` is the number of
networks among which a family of paths chooses under load, or a search of one path before deployment.
"""

from __future__ import annotations

import argparse
import math
import time

from _shared import options_of, report

from driftlab.platform.lab.builds import recipes_of
from driftlab.platform.lab.read import Choice, load
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.spaces import find_space
from driftlab.platform.networks.training.artifacts import FamilyRecipe, obtain
from driftlab.platform.networks.training.pretrain import build_family
from driftlab.platform.scaling.branches import Branches, branch_model
from driftlab.platform.scaling.searched import PathSearchScaling


def choices_of(recipe: FamilyRecipe) -> int | None:
    """Count the paths of a family's space; a search compares those to the last exit."""
    network, scaling = recipe.network, recipe.scaling.make()
    if not isinstance(scaling, (Branches, PathSearchScaling)):
        return None
    size = network.height, network.width
    model = build(network.network, network.classes, seed=0, size=size).eval()
    exits = scaling.exits if isinstance(scaling, Branches) else scaling.stages
    space = branch_model(model, size, find_space(scaling.space), exits).space
    return len(space) if isinstance(scaling, Branches) else math.prod(space.counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="adascale-spaces")
    parser.add_argument("--workload", nargs="*", default=[], help="workloads of the experiment; all by default")
    parser.add_argument("--system", nargs="*", default=[], help="systems of the experiment; all by default")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in `driftlab run`")
    options = options_of(parser, experiment="quick", set=["student.pretrain_steps=0"])
    choice = Choice(systems=tuple(options.system), workloads=tuple(options.workload))
    first: dict[str, float] = {}
    for recipe in recipes_of(load(options.experiment, options.set, choice)).values():
        weights = obtain(recipe.network)
        begun_s = time.process_time()
        build_family(recipe, weights)
        took_s = time.process_time() - begun_s
        line = {
            "benchmark": "building",
            "network": recipe.network.network,
            "family": str(recipe.scaling),
            "choices": choices_of(recipe),
            "processor_s": round(took_s, 1),
            "ratio": round(took_s / first.setdefault(recipe.network.key(), took_s), 2),
        }
        report(line)


if __name__ == "__main__":
    main()
