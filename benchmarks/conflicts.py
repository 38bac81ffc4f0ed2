"""Compare the updates of a master in two consecutive domains (Figure 13 (b) to (e) of ElasticDNN).

It prints one JSON line for each master of `elasticdnn-gates`, for similar domains (one shift at two severities) and for
dissimilar ones. Counted are the weights of the last gated layer. `joint` is the share of its filters that both domains
keep. `acute` is the share of filters whose two updates form an acute angle, over the filters that both domains train;
`by_chance` is this share if each filter is compared with the next one. `later` is the mean change of joint weights in
the second domain over that in the first; `others` is that of joint weights over that of other weights in the second. A
value is null where there is nothing to compare.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from _shared import options_of, report
from _updates import Update, compare

from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.domains.shifts import shifted
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.lab.builds import recipes_of
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import Choice, load
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.pruning.surgery import lift
from driftlab.platform.networks.training.artifacts import obtain_family
from driftlab.platform.networks.training.pretrain import draw_data
from driftlab.platform.scaling.base import Budget

EXPERIMENT, SAMPLES, SEVERITIES = "elasticdnn-gates", 100, (2, 4)
ONLY = Budget(variant=0)


@dataclass(frozen=True, eq=False)
class Trainer:
    """A master's members and the frames that stand for its domains."""

    scaling: Any
    adaptation: Any
    data: Any

    def phase(self, master: Any, domain: Domain) -> tuple[Any, Update]:
        """Return the master after a phase in a domain, and the update of its last gated layer."""
        rng = rng_for(self.data.seed, "conflicts", domain.shift, domain.severity)
        rows = rng.permutation(len(self.data.train))[:SAMPLES]
        images = np.stack([shifted(one, domain, rng) for one in self.data.train.images[rows]])
        mask = self.scaling.select_channels(master, ONLY, images, self.data.task)
        cut = self.scaling.apply_mask(master, ONLY, mask)
        surrogate = self.scaling.select(cut, ONLY)
        before = state_of(surrogate)
        batch = Batch(images, None, rng, self.data.task)
        self.adaptation.adapt(surrogate, self.adaptation.prepare(surrogate), batch, Phase())
        name = f"{master.gated.sites[-1].conv}.weight"
        changes = {name: torch.from_numpy(state_of(surrogate)[name] - before[name])}
        change, kept = (
            lift(each, master.groups, mask.kept)[name].flatten(1).numpy()
            for each in (changes, {name: torch.ones_like(changes[name])})
        )
        return self.scaling.absorb(cut, surrogate), Update(change, kept > 0)


def pairs_of(shifts: list[str]) -> Iterator[tuple[bool, Domain, Domain]]:
    """List consecutive domains: both severities of a shift in both orders, and each shift with the next."""
    for shift, (first, second) in itertools.product(shifts, (SEVERITIES, SEVERITIES[::-1])):
        yield True, Domain(shift, first), Domain(shift, second)
    for (first, second), severity in itertools.product(zip(shifts, [*shifts[1:], shifts[0]], strict=True), SEVERITIES):
        yield False, Domain(first, severity), Domain(second, severity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--system", nargs="*", default=["follows", "usual"])
    parser.add_argument("--shifts", type=int, default=6, help="shifts of the experiment that are used")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in `driftlab run`")
    quick = ["student.pretrain_steps=2", "systems.0.scaling.sources=[]", "systems.0.scaling.epochs=0"]
    options = options_of(parser, seed=[0], system=["follows"], shifts=2, set=quick)
    for system in options.system:
        found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for seed in options.seed:
            spec = load(EXPERIMENT, [f"seeds=[{seed}]", *options.set], Choice(systems=(system,)))
            (recipe,), (cell,) = recipes_of(spec).values(), cells_of(spec)
            scaling, network = recipe.scaling.make(), recipe.network
            adaptation = replace(cell.system.adaptation.make(), guard=False)
            trainer = Trainer(scaling, adaptation, draw_data(network))
            size = network.height, network.width
            model = build(network.network, network.classes, seed=0, size=size).eval()
            master = scaling.restore(model, obtain_family(recipe), size)
            shifts = spec.workloads[0].params["shifts"][: options.shifts]
            phase = cache(partial(trainer.phase, master))
            for similar, first, second in pairs_of(list(shifts)):
                after, one = phase(first)
                found[similar].append(compare(one, trainer.phase(after, second)[1]))
        for similar, rows in found.items():
            known = {name: [row[name] for row in rows if np.isfinite(row[name])] for name in rows[0]}
            means = {name: round(float(np.mean(values)), 3) if values else None for name, values in known.items()}
            domains = "similar" if similar else "dissimilar"
            report({"benchmark": "conflicts", "system": system, "domains": domains, "pairs": len(rows), **means})


if __name__ == "__main__":
    main()
