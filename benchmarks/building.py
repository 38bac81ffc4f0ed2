"""Time the building of each family of networks that an experiment needs; prints a JSON line for each.

`processor_s` is the processor time of training and measuring the family, given the pre-trained network that all of
them start from; `ratio` is this time over that of the first system on the same network.
"""

from __future__ import annotations

import argparse
import time

from _shared import options_of, report

from driftlab.platform.lab.builds import recipes_of
from driftlab.platform.lab.read import Choice, load
from driftlab.platform.networks.training.artifacts import obtain
from driftlab.platform.networks.training.pretrain import build_family


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
            "processor_s": round(took_s, 1),
            "ratio": round(took_s / first.setdefault(recipe.network.key(), took_s), 2),
        }
        report(line)


if __name__ == "__main__":
    main()
