"""Probing: where a network gains accuracy, block by block, and which exits and operators follow from that.

A light exit (an average and a linear layer) is trained behind every block, on features that it does not change. Exits
go where accuracy rises most for the operations, with some distance between them. A stage that gains much is critical:
it gets few operators. The paper gives the idea only; thresholds are ours.
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
from driftlab.platform.networks.training.training_loop import Course, Data
from driftlab.platform.scaling.staged import Prefix, train_exit

logger = logging.getLogger(__name__)
APART = 0.12  # of all operations, between two exits
CRITICAL_SHARE = 1 / 3  # of the stages


@dataclass(frozen=True)
class StagePlan:
    """The last block of each stage, and which stages are critical."""

    ends: tuple[int, ...]
    critical: tuple[bool, ...]

    def operators(self, usual: Operators) -> Operators:
        """Return the operators of each stage."""
        return tuple(CRITICAL if few else names for few, names in zip(self.critical, usual, strict=False))


class LightExit(nn.Module):
    """A probe: one linear layer on the average over places, or on each place; boxes have the head of their exits."""

    def __init__(self, block: Block, chain: Chain) -> None:
        super().__init__()
        outputs, *places = chain.output
        self.answer: nn.Module
        if chain.boxes:
            self.answer = BoxHead(block.outputs, outputs, count_finer(places[0], block.after[0]))
        else:
            self.answer = nn.Conv2d(block.outputs, outputs, 1) if places else nn.Linear(block.outputs, outputs)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        if isinstance(self.answer, nn.Conv2d):
            return resize(self.answer(x), images)
        logits: torch.Tensor = (
            self.answer(x, images) if isinstance(self.answer, BoxHead) else self.answer(x.mean(dim=(2, 3)))
        )
        return logits


def plan_stages(chain: Chain, data: Data, exits: int, course: Course) -> StagePlan:
    """Probe a chain, whatever its stages are, and plan its stages."""
    blocks = [block for stage in chain.stages for block in stage]
    scores = probe_blocks(chain, blocks, data, course)
    ends = place_exits(scores, block_macs(chain, blocks), exits)
    logger.info("Probed %d blocks: %s; exits behind %s", len(blocks), np.round(scores, 3), ends)
    return StagePlan(ends, critical_stages(scores, ends))


def probe_blocks(chain: Chain, blocks: Sequence[Block], data: Data, course: Course) -> list[float]:
    """Return the validation accuracy of a light exit behind each block."""
    prefix, scores = Prefix(data, chain), list[float]()
    prefix.pass_through(chain.stem)
    for number, block in enumerate(blocks):
        prefix.pass_through(block.base())
        rng = rng_for(data.seed, "scaling", "probe", number)
        scores.append(train_exit(prefix, nn.Identity(), LightExit(block, chain), course, rng))
    return scores


def block_macs(chain: Chain, blocks: Sequence[Block]) -> list[int]:
    """Count the operations of each block."""
    layers = count_cost(nn.Sequential(chain.stem, *(block.base() for block in blocks)), *chain.size).layers
    return [
        sum(layer.macs for layer in layers if layer.name.startswith(f"{number}."))
        for number in range(1, len(blocks) + 1)
    ]


def place_exits(scores: Sequence[float], macs: Sequence[int], exits: int) -> tuple[int, ...]:
    """Choose the blocks with exits: the last one, then those that gain most for their operations."""
    reached, gains = np.cumsum(macs), np.diff(scores, prepend=0.0) / np.maximum(1, macs)
    chosen = [len(scores) - 1]
    for block in sorted(range(len(scores) - 1), key=lambda one: (-gains[one], one)):
        distance = min(abs(int(reached[block]) - int(reached[one])) for one in chosen)
        if len(chosen) < exits and distance >= APART * reached[-1]:
            chosen.append(block)
    return tuple(sorted(chosen))


def critical_stages(scores: Sequence[float], ends: Sequence[int]) -> tuple[bool, ...]:
    """Tell which stages gain most: a third of them, if there are several."""
    gains = np.diff([scores[end] for end in ends], prepend=0.0)
    most = set(np.argsort(-gains, kind="stable")[: math.ceil(CRITICAL_SHARE * len(ends))].tolist())
    return tuple(stage in most and len(ends) > 1 for stage in range(len(ends)))
