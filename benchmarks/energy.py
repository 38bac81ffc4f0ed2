"""Compare AdaScale's energy of each path with that of a hardware profile; prints one JSON line.

AdaScale computes energy from memory accesses. `rank` is the Spearman correlation of the two orders, `spread` is the
greatest ratio of the two energies over the smallest. `hits` is the share of tensors that a simulated cache serves in
the first and the second run of the whole network.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from _shared import options_of, report

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.branched import branch, count_paths
from driftlab.platform.networks.chain import chain_of
from driftlab.platform.networks.paths import PathSpace
from driftlab.platform.networks.spaces import SPACES
from driftlab.platform.world.accesses import accesses, energy_j, simulated_share
from driftlab.platform.world.cost import inference_j
from driftlab.platform.world.hardware import find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="staged")
    parser.add_argument("--space", default="paper480", choices=sorted(SPACES))
    parser.add_argument("--hardware", default="raspberry-pi-4")
    parser.add_argument("--cache", type=int, default=1 << 20, help="bytes")
    options = options_of(parser, network="tiny_staged", space="tiny")
    chain = chain_of(build(options.network, 10, seed=0).eval(), torch.zeros(1, 3, 32, 32), 4)
    costs = count_paths(branch(chain, PathSpace(SPACES[options.space])), 32, 32)
    hits = [simulated_share(costs[-1], options.cache, runs) for runs in (1, 2)]
    ours = np.array([energy_j(accesses(cost), simulated_share(cost, options.cache)) for cost in costs])
    profile = np.array([inference_j(cost, find(options.hardware)) for cost in costs])
    ranks = [values.argsort().argsort() for values in (ours, profile)]
    line = {
        "benchmark": "energy",
        "paths": len(costs),
        "rank": round(float(np.corrcoef(*ranks)[0, 1]), 3),
        "spread": round(float((ours / profile).max() / (ours / profile).min()), 2),
        "hits": [round(share, 3) for share in hits],
    }
    report(line)


if __name__ == "__main__":
    main()
