"""A network that each frame leaves at the first exit that is sure enough: input-adaptive inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from driftlab.platform.core.records import LayerCost, ModelCost, Passes
from driftlab.platform.networks.box_head import box_confidence
from driftlab.platform.networks.branched import BoxExit
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.zoo import Input

Floats = npt.NDArray[np.float64]


class ExitLog(list[int]):
    """The exits of frames in the order in which they passed; copies of a network go on writing into the same log."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ExitLog:
        return self


class LeavingNetwork(nn.Module):
    """Stages with an exit behind each; the answer of a frame is that of the first exit whose confidence is reached.

    All stages run for all frames of a batch, and answers are picked afterwards: `reached_cost` tells what a device that
    stops would compute. While it trains, it answers at the last exit.
    """

    def __init__(
        self, expects: Input, stem: nn.Module, stages: Sequence[nn.Module], heads: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.expects, self.stem = expects, stem
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)
        self.thresholds: tuple[float, ...] = (float("inf"),) * (len(stages) - 1)  # of all exits but the last
        self.log: ExitLog | None = None

    def outputs(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of every exit."""
        x, found = self.stem(self.expects.convert(images)), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            found.append(head(x, images))
        return found

    def confidence(self, output: torch.Tensor) -> torch.Tensor:
        """Return how sure an exit is of each frame."""
        return box_confidence(output) if isinstance(self.heads[0], BoxExit) else confidence(output)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer, exits = self.leave(images)
        if self.log is not None:
            self.log += exits.tolist()
        return answer

    def leave(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the answer of each frame, and the number of the exit at which it leaves, from 0 on."""
        outputs = self.outputs(images)
        answer, last = outputs[-1], len(outputs) - 1
        exits = torch.full((len(images),), last)
        if self.training:
            return answer, exits
        for number in reversed(range(last)):
            sure = self.confidence(outputs[number]) >= self.thresholds[number]
            answer = torch.where(sure.view(-1, *[1] * (answer.dim() - 1)), outputs[number], answer)
            exits = torch.where(sure.cpu(), number, exits)
        return answer, exits


def confidence(output: torch.Tensor) -> torch.Tensor:
    """Return the largest probability of each frame, averaged over places."""
    return output.softmax(dim=1).amax(dim=1).flatten(1).mean(dim=1) if output.dim() > 2 else output.softmax(1).amax(1)


def place_thresholds(confidences: Floats, shares: Sequence[float]) -> tuple[float, ...]:
    """Set thresholds so that given shares of the frames leave at each exit (MSDNet); a row holds a frame's exits.

    At each exit the surest of the frames that are left leave; the last exit takes the rest.
    """
    left, found = np.ones(len(confidences), dtype=bool), []
    for exit_, share in enumerate(shares[:-1]):
        here = np.sort(confidences[left, exit_])[::-1]
        count = min(len(here), int(share * len(confidences)))
        threshold = float(here[count - 1]) if count else float("inf")
        left &= confidences[:, exit_] < threshold
        found.append(threshold)
    return tuple(found)


def leaving_shares(confidences: Floats, thresholds: Sequence[float]) -> Floats:
    """Return the share of the frames that leave at each exit."""
    sure = np.column_stack([confidences[:, :-1] >= np.array(thresholds), np.ones(len(confidences), dtype=bool)])
    return np.bincount(sure.argmax(axis=1), minlength=confidences.shape[1]) / len(confidences)


def geometric_shares(exits: int, ratio: float) -> Floats:
    """Return shares of frames that rise or fall from exit to exit by a ratio."""
    found = np.power(ratio, np.arange(exits, dtype=np.float64))
    shares: Floats = found / found.sum()
    return shares


def mean_cost(network: LeavingNetwork, size: tuple[int, int], leaving: Floats) -> ModelCost:
    """Count the mean cost of a frame, given the shares that leave at each exit; overheads of layers stay whole."""
    whole = count_cost(network, *size)
    reached = 1 - np.concatenate([[0.0], np.cumsum(leaving)[:-1]])
    layers = []
    for layer in whole.layers:
        part = float(reached[_exit_behind(layer)])
        layers.append(_scaled(layer, part, ("macs", "input_bytes", "output_bytes", "weight_bytes")))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))


def reached_cost(whole: ModelCost, exits: Sequence[int]) -> ModelCost:
    """Count the mean cost of a frame of a batch whose frames leave at these exits.

    A layer works for the frames that reach it, and reads its weights once; layers that none reaches are left out.
    """
    left = np.asarray(exits)
    layers = []
    for layer in whole.layers:
        part = float(np.mean(left >= _exit_behind(layer)))
        if part:
            layers.append(_scaled(layer, part, ("macs", "input_bytes", "output_bytes")))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))


def reached_work(work: Passes, whole: ModelCost, reached: ModelCost) -> Passes:
    """Return passes without the training of modules that no frame reached: no gradient comes back to them."""
    if work.trained is None:
        return work
    unreached = {layer.name for layer in whole.layers} - {layer.name for layer in reached.layers}
    kept = [which for which, name in enumerate(work.trained) if name not in unreached]
    shares = None if work.shares is None else tuple(work.shares[which] for which in kept)
    return replace(work, trained=tuple(work.trained[which] for which in kept), shares=shares)


def _scaled(layer: LayerCost, part: float, names: Sequence[str]) -> LayerCost:
    return replace(layer, **{name: round(part * getattr(layer, name)) for name in names})


def _exit_behind(layer: LayerCost) -> int:
    """Return the number of the next exit behind a layer: every frame passes those before the first one."""
    part, _, rest = layer.name.partition(".")
    return int(rest.partition(".")[0]) if part in ("stages", "heads") else 0


@contextmanager
def record_exits(model: nn.Module) -> Iterator[ExitLog]:
    """Record the exit of each frame that passes within this context; a network that none leaves early has no exits."""
    log = ExitLog()
    if not isinstance(model, LeavingNetwork):
        yield log
        return
    before, model.log = model.log, log
    try:
        yield log
    finally:
        model.log = before
