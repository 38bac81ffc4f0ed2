"""Score generic networks on unseen worlds by steps of pre-training; prints a JSON line for each.

`score` is the mean over seeds; each seed has a different network and different worlds. `gain` is the increase of the
score over the previous, smaller number of steps. If it is near zero, more steps on such worlds do not help.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import fmean

from _shared import options_of, report

from driftlab.datasets.catalogue import find_workload
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import load
from driftlab.platform.networks.training.artifacts import Recipe, obtain
from driftlab.platform.networks.training.pretrain import draw_data
from driftlab.platform.networks.training.training_loop import grade


def score(recipe: Recipe) -> float:
    model = build(recipe.network, recipe.classes, seed=0)
    load(model, obtain(recipe))
    data = draw_data(recipe)
    return grade(model, data, data.test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="tiny")
    parser.add_argument("--workload", default="city/running", help="a workload of the family of worlds")
    parser.add_argument("--size", type=int, nargs=2, default=[64, 96], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs="+", default=[1250, 2500, 5000, 10000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    options = options_of(parser, size=[24, 32], steps=[1, 2], seeds=[100], network="half")
    world = find_workload(options.workload)
    recipe = Recipe(
        network=options.network,
        height=options.size[0],
        width=options.size[1],
        workloads=world.family,
        batch=options.batch,
        lessons=tuple(sorted(world.pretraining_streams.items())),
    )
    before = None
    for steps in options.steps:
        found = fmean(score(replace(recipe, steps=steps, seed=seed)) for seed in options.seeds)
        line = {
            "benchmark": "pretraining",
            "network": options.network,
            "worlds": world.family,
            "steps": steps,
            "seeds": len(options.seeds),
            "score": round(found, 4),
            "gain": None if before is None else round(found - before, 4),
        }
        report(line)
        before = found


if __name__ == "__main__":
    main()
