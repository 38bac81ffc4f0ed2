"""The longest chain of feature blocks of a network, cut into stages for operators and exits.

The chain starts at the network's input.

A block maps one feature map to one. Sequential containers are split into their parts; layers without convolutions
belong to the preceding block. Everything behind the chain (head, upsampling) is dropped: exits have separate heads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from driftlab.errors import RequestError
from driftlab.platform.networks.box_head import BoxOutput
from driftlab.platform.networks.features import head_of
from driftlab.platform.networks.operators import OPERATORS, LowRank, OperatorBlock, inherit
from driftlab.platform.networks.predict import evaluating
from driftlab.platform.networks.published.library import Published
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.zoo import Input

SHORTCUTS = ("shortcut", "downsample")  # names of the shortcut of a residual block


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive modules of the chain with one convolutional part, and their shape."""

    parts: tuple[nn.Module, ...]
    inputs: int
    outputs: int
    before: tuple[int, int]  # height and width of its input
    after: tuple[int, int]

    @property
    def stride(self) -> int:
        return max(1, round(self.before[0] / self.after[0]))

    @property
    def replaceable(self) -> bool:
        """Return whether an operator can have the block's shape: stride 1 or 2, sizes rounded up."""
        return self.stride <= 2 and all(
            after == -(-before // self.stride) for before, after in zip(self.before, self.after, strict=True)
        )

    def base(self) -> nn.Module:
        """Return a copy of the block."""
        return nn.Sequential(*copy.deepcopy(self.parts)) if len(self.parts) > 1 else copy.deepcopy(self.parts[0])

    def replaced(self, name: str) -> nn.Module:
        """Return the block with an operator as residual part.

        A low-rank operator inherits the weights of the first convolution.
        """
        if name == "identity" and self.stride == 1 and self.inputs == self.outputs:
            return nn.Identity()
        operator = make_safe(OPERATORS[name](self.inputs, self.outputs, self.stride))
        first = next(module for part in self.parts for module in part.modules() if isinstance(module, nn.Conv2d))
        if isinstance(operator, LowRank) and first.weight.shape == (self.outputs, self.inputs, 3, 3):
            inherit(operator, first.weight)
        return OperatorBlock(operator, self.outputs, None if name == "identity" else self._shortcut())

    def _shortcut(self) -> nn.Module | None:
        """Return a copy of the block's shortcut; None if it has none."""
        if len(self.parts) > 1 or isinstance(self.parts[0], nn.Conv2d):
            return None
        for name in SHORTCUTS:
            shortcut = getattr(self.parts[0], name, None)
            if isinstance(shortcut, nn.Module):
                return copy.deepcopy(shortcut)
        return nn.Identity() if self.stride == 1 and self.inputs == self.outputs else None


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain: the input that it expects, its first block, and the blocks of each stage."""

    expects: Input
    stem: nn.Module
    stages: tuple[tuple[Block, ...], ...]
    output: tuple[int, ...]  # shape of the network's output for one frame
    size: tuple[int, int]  # of the frame
    boxes: bool = False  # whether the output holds boxes

    def stage(self, which: int, operator: str | None) -> nn.Module:
        """Return a copy of a stage with an operator for each block that it can replace; None: unchanged."""
        blocks = self.stages[which]
        return nn.Sequential(
            *(
                block.base() if operator is None or not block.replaceable else block.replaced(operator)
                for block in blocks
            )
        )


def chain_of(model: nn.Module, example: torch.Tensor, stages: int | Sequence[int]) -> Chain:
    """Cut a network into stages of equally many blocks, or behind the given block numbers.

    It has at most `stages` stages.

    Refuses a network with fewer than two blocks.
    """
    expects = model.expects if isinstance(model, Published) else Input()
    with evaluating(model), torch.no_grad():
        blocks = list(_blocks(model.network if isinstance(model, Published) else model, expects.convert(example)))
        output = model(example)
    if len(blocks) < 2 or not isinstance(output, torch.Tensor) or output.dim() not in (2, 4):
        raise RequestError(
            f"{type(model).__name__} has no block that an operator can replace: the chain from its input has "
            f"{len(blocks)} convolutional blocks, 2 are required. Use another network or scaling 'fixed'."
        )
    rest = blocks[1:]
    if isinstance(stages, int):
        parts = np.array_split(np.arange(len(rest)), min(stages, len(rest)))
    else:
        parts = np.split(np.arange(stages[-1] + 1), [end + 1 for end in stages[:-1]])
    groups = tuple(tuple(rest[which] for which in part) for part in parts)
    size = (example.shape[-2], example.shape[-1])
    return Chain(expects, blocks[0].base(), groups, tuple(output.shape[1:]), size, isinstance(model, BoxOutput))


@dataclass(eq=False)
class _Call:
    """A call of a module on one tensor; it holds the tensors, so that their ids are not reused."""

    name: str
    module: nn.Module
    given: Any
    begun: int
    made: Any = None
    ended: int = -1


def _calls(model: nn.Module, images: torch.Tensor) -> tuple[list[_Call], torch.Tensor]:
    """Record the calls of all modules of the network, in order of their start."""
    calls, open_, now = list[_Call](), list[_Call](), iter(range(1_000_000))

    def begin(name: str) -> Any:
        def hook(module: nn.Module, given: Any) -> None:
            calls.append(_Call(name, module, given[0] if len(given) == 1 else None, next(now)))
            open_.append(calls[-1])

        return hook

    def end(_: nn.Module, given: Any, made: Any) -> None:
        call = open_.pop()
        call.made, call.ended = made, next(now)

    hooks = [
        hook
        for name, module in model.named_modules()
        if name
        for hook in (module.register_forward_pre_hook(begin(name)), module.register_forward_hook(end))
    ]
    try:
        model(images)
    finally:
        for each in hooks:
            each.remove()
    return calls, images


def _blocks(model: nn.Module, images: torch.Tensor) -> Iterator[Block]:
    """Yield the blocks of the chain, without the network's head."""
    head, example = head_of(model, images), images
    calls, now = _calls(model, example)
    parts, begin, last = list[nn.Module](), example, -1
    for call in _follow(calls, now):
        if head == call.name or head.startswith(f"{call.name}."):
            break
        if any(isinstance(module, nn.Conv2d) for module in call.module.modules()):
            if parts:
                yield _block(parts, begin, now)
            parts, begin = [], call.given
        if not isinstance(call.module, nn.AdaptiveAvgPool2d):
            parts.append(call.module)
            now = call.made
        last = call.ended
    if parts and last >= 0:
        yield _block(parts, begin, now)


def _follow(calls: Sequence[_Call], now: torch.Tensor) -> Iterator[_Call]:
    """Yield the calls along the chain, as long as each takes the output of the previous one."""
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.name] = counts.get(call.name, 0) + 1
    ended = -1
    for call in calls:
        if call.begun < ended or call.given is not now:
            continue
        if type(call.module).forward is nn.Sequential.forward and len(call.module) > 0:  # type: ignore[arg-type]
            continue
        if counts[call.name] > 1 or not isinstance(call.made, torch.Tensor) or call.made.dim() != 4:
            return
        yield call
        now, ended = call.made, call.ended


def _block(parts: Sequence[nn.Module], before: torch.Tensor, after: torch.Tensor) -> Block:
    sizes = ((x.shape[-2], x.shape[-1]) for x in (before, after))
    return Block(tuple(parts), before.shape[1], after.shape[1], *sizes)
