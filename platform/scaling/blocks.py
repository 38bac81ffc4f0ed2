"""Variants of a stage that are made from its own blocks: with fewer filters (LegoDNN), or as one block (AdaptiveNet).

Filters are cut where no other block sees it, so that a variant maps the same channels as its stage; what has no such
filters stays as it is. A stage merged into one block keeps its first one, which changes channels and resolution.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from driftlab.platform.networks.chain import Block, Chain
from driftlab.platform.networks.paths import MERGED, SPARSE
from driftlab.platform.networks.pruning.ranking import rank
from driftlab.platform.networks.pruning.surgery import cut, groups
from driftlab.platform.scaling.base import width_of
from driftlab.platform.scaling.growing import best_channels


def make_stage(chain: Chain, which: int, name: str | None) -> nn.Module:
    """Make a stage with an operator or a variant of its own blocks; None: as it is."""
    blocks = chain.stages[which]
    if name == MERGED:
        return nn.Sequential(blocks[0].base()) if _fits(blocks) else chain.stage(which, None)
    if name in SPARSE:
        return nn.Sequential(*(thinned(block, 1 - SPARSE[name]) for block in blocks))
    return chain.stage(which, name)


def thinned(block: Block, share: float) -> nn.Module:
    """Copy a block with a share of its inner filters, those of the largest weights."""
    base = block.base().eval()
    with torch.no_grad():
        found = groups(base, torch.zeros(1, block.inputs, *block.before))
    if not found.sizes:
        return base
    nothing = np.zeros(0, np.uint8)
    scores = rank(base, found, "l1", images=nothing, labels=nothing, rng=np.random.default_rng(0))
    kept = {
        name: best_channels(torch.arange(size), scores[name], width_of(size, share))
        for name, size in found.sizes.items()
    }
    return cut(base, found, kept)


def _fits(blocks: tuple[Block, ...]) -> bool:
    """Tell whether the first block alone has the shape of all."""
    return (blocks[0].outputs, blocks[0].after) == (blocks[-1].outputs, blocks[-1].after)
