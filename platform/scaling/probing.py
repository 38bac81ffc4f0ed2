"""AdaScale's branch diversity establishment (Section III-A).

It probes every block, places exits, and finds critical stages.

A light exit (pooling and a linear layer) is trained behind every block on frozen features. Exits are placed where
accuracy rises most per operation, with a minimum distance. Stages with a large gain are critical and get few operators.
The paper gives no thresholds; those here are ours.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.box_head import BoxHead, count_finer
from driftlab.platform.networks.chain import Block, Chain
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.paths import CRITICAL, Operators
from driftlab.platform.networks.resizing import resize
from driftlab.platform.networks.training.training_loop import DataSplits, TrainingSchedule
from driftlab.platform.scaling.staged import Prefix, train_exit

logger = logging.getLogger(__name__)
MIN_DISTANCE = 0.12  # between two exits, as a share of all operations
CRITICAL_SHARE = 1 / 3  # of the stages


@dataclass(frozen=True)
class StagePlan:
    """The last block of each stage, and whether it is critical."""

    ends: tuple[int, ...]
    critical: tuple[bool, ...]

    def operators(self, usual: Operators) -> Operators:
        """Return the operators of each stage: a short list for critical ones."""
        return tuple(CRITICAL if few else names for few, names in zip(self.critical, usual, strict=False))


class LightExit(nn.Module):
    """A light exit: a linear layer on the pooled features or on each place.

    For detection it is the head of normal exits.
    """

    def __init__(self, block: Block, chain: Chain) -> None:
        super().__init__()
        outputs, *places = chain.output
        self.head: nn.Module
        if chain.boxes:
            self.head = BoxHead(block.outputs, outputs, count_finer(places[0], block.after[0]))
        else:
            self.head = nn.Conv2d(block.outputs, outputs, 1) if places else nn.Linear(block.outputs, outputs)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if isinstance(self.head, nn.Conv2d):
            return resize(self.head(x), images)
        logits: torch.Tensor = self.head(x, images) if isinstance(self.head, BoxHead) else self.head(x.mean(dim=(2, 3)))
        return logits


def plan_stages(chain: Chain, data: DataSplits, exits: int, schedule: TrainingSchedule) -> StagePlan:
    """Probe the blocks of a chain and plan its stages; its present stages do not matter."""
    blocks = [block for stage in chain.stages for block in stage]
    scores = probe_blocks(chain, blocks, data, schedule)
    ends = place_exits(scores, block_macs(chain, blocks), exits)
    logger.info("Probed %d blocks: %s; exits behind %s", len(blocks), np.round(scores, 3), ends)
    return StagePlan(ends, critical_stages(scores, ends))


def probe_blocks(chain: Chain, blocks: Sequence[Block], data: DataSplits, schedule: TrainingSchedule) -> list[float]:
    """Return the validation accuracy of a light exit behind each block."""
    prefix, scores = Prefix(data, chain), list[float]()
    prefix.pass_through(chain.stem)
    for number, block in enumerate(blocks):
        prefix.pass_through(block.base())
        rng = rng_for(data.seed, "scaling", "probe", number)
        scores.append(train_exit(prefix, nn.Identity(), LightExit(block, chain).to(prefix.train.device), schedule, rng))
    return scores


def block_macs(chain: Chain, blocks: Sequence[Block]) -> list[int]:
    """Return the multiply-accumulates of each block."""
    layers = count_cost(nn.Sequential(chain.stem, *(block.base() for block in blocks)), *chain.size).layers
    return [
        sum(layer.macs for layer in layers if layer.name.startswith(f"{number}."))
        for number in range(1, len(blocks) + 1)
    ]


def place_exits(scores: Sequence[float], macs: Sequence[int], exits: int) -> tuple[int, ...]:
    """Return the blocks with exits: the last one, and those with the largest gain per operation."""
    reached, gains = np.cumsum(macs), np.diff(scores, prepend=0.0) / np.maximum(1, macs)
    chosen = [len(scores) - 1]
    for block in sorted(range(len(scores) - 1), key=lambda one: (-gains[one], one)):
        distance = min(abs(int(reached[block]) - int(reached[one])) for one in chosen)
        if len(chosen) < exits and distance >= MIN_DISTANCE * reached[-1]:
            chosen.append(block)
    return tuple(sorted(chosen))


def critical_stages(scores: Sequence[float], ends: Sequence[int]) -> tuple[bool, ...]:
    """Return whether each stage is critical: the third with the largest gains; none of a single stage."""
    gains = np.diff([scores[end] for end in ends], prepend=0.0)
    critical = set(np.argsort(-gains, kind="stable")[: math.ceil(CRITICAL_SHARE * len(ends))].tolist())
    return tuple(stage in critical and len(ends) > 1 for stage in range(len(ends)))
