"""Early exit: each frame leaves at the first exit whose confidence reaches its threshold."""

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
    """The exit numbers of frames, in running order; copies of a network append to the same log."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ExitLog:
        return self


class EarlyExitNetwork(nn.Module):
    """Stages with an exit behind each.

    A frame is predicted by the first exit whose confidence reaches its threshold.

    All stages run for all frames of a batch, and the predictions are selected afterwards; `reached_cost` returns the
    cost of a device that stops at the exits. In training mode the last exit predicts all frames.
    """

    def __init__(
        self, expects: Input, stem: nn.Module, stages: Sequence[nn.Module], heads: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.expects, self.stem = expects, stem
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)
        self.thresholds: tuple[float, ...] = (float("inf"),) * (len(stages) - 1)  # of all exits except the last
        self.log: ExitLog | None = None
        self.path: tuple[int, ...] | None = None  # its operators, if it is a path of a supernet

    def outputs(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of every exit."""
        x, outputs = self.stem(self.expects.convert(images)), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            outputs.append(head(x, images))
        return outputs

    def confidence(self, output: torch.Tensor) -> torch.Tensor:
        """Return the confidence of an exit's output per frame."""
        return output_confidence(self.heads[0], output)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output, exits = self.exit_early(images)
        if self.log is not None:
            self.log += exits.tolist()
        return output

    def exit_early(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output of each frame, and the number of its exit, from 0 on."""
        outputs = self.outputs(images)
        output, last = outputs[-1], len(outputs) - 1
        exits = torch.full((len(images),), last)
        if self.training:
            return output, exits
        for number in reversed(range(last)):
            confident = self.confidence(outputs[number]) >= self.thresholds[number]
            output = torch.where(confident.view(-1, *[1] * (output.dim() - 1)), outputs[number], output)
            exits = torch.where(confident.cpu(), number, exits)
        return output, exits


def confidence(output: torch.Tensor) -> torch.Tensor:
    """Return the largest class probability of each frame, averaged over places."""
    return output.softmax(dim=1).amax(dim=1).flatten(1).mean(dim=1) if output.dim() > 2 else output.softmax(1).amax(1)


def output_confidence(head: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Return the confidence of a head's output per frame."""
    return box_confidence(output) if isinstance(head, BoxExit) else confidence(output)


def place_thresholds(confidences: Floats, shares: Sequence[float]) -> tuple[float, ...]:
    """Return thresholds at which given shares of frames exit at each exit (MSDNet).

    The confidences are [frames, exits].

    The most confident of the remaining frames exit at each exit; the last exit takes the rest.
    """
    remaining, thresholds = np.ones(len(confidences), dtype=bool), []
    for exit_, share in enumerate(shares[:-1]):
        ranked = np.sort(confidences[remaining, exit_])[::-1]
        count = min(len(ranked), int(share * len(confidences)))
        threshold = float(ranked[count - 1]) if count else float("inf")
        remaining &= confidences[:, exit_] < threshold
        thresholds.append(threshold)
    return tuple(thresholds)


def leaving_shares(confidences: Floats, thresholds: Sequence[float]) -> Floats:
    """Return the share of frames that exit at each exit."""
    confident = np.column_stack([confidences[:, :-1] >= np.array(thresholds), np.ones(len(confidences), dtype=bool)])
    return np.bincount(confident.argmax(axis=1), minlength=confidences.shape[1]) / len(confidences)


def geometric_shares(exits: int, ratio: float) -> Floats:
    """Return shares of frames that form a geometric series over the exits."""
    powers = np.power(ratio, np.arange(exits, dtype=np.float64))
    shares: Floats = powers / powers.sum()
    return shares


def mean_cost(network: EarlyExitNetwork, size: tuple[int, int], leaving: Floats) -> ModelCost:
    """Return the mean cost of a frame for given shares per exit; overheads of layers are not reduced."""
    return mean_cost_of(count_cost(network, *size), leaving)


def mean_cost_of(whole: ModelCost, leaving: Floats) -> ModelCost:
    """Return the mean cost of a frame, given the cost of all layers and the shares of frames per exit."""
    reached = 1 - np.concatenate([[0.0], np.cumsum(leaving)[:-1]])
    layers = []
    for layer in whole.layers:
        part = float(reached[_exit_behind(layer)])
        layers.append(_scaled(layer, part, ("macs", "input_bytes", "output_bytes", "weight_bytes")))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))


def reached_cost(whole: ModelCost, exits: Sequence[int]) -> ModelCost:
    """Return the mean cost of a frame of a batch with these exits.

    A layer computes the frames that reach it and reads its weights once; layers without frames are dropped.
    """
    reached = np.asarray(exits)
    layers = []
    for layer in whole.layers:
        part = float(np.mean(reached >= _exit_behind(layer)))
        if part:
            layers.append(_scaled(layer, part, ("macs", "input_bytes", "output_bytes")))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))


def reached_work(work: Passes, whole: ModelCost, reached: ModelCost) -> Passes:
    """Return passes without the training of modules that no frame reached: they have no gradient."""
    unreached = {layer.name for layer in whole.layers} - {layer.name for layer in reached.layers}
    work = replace(work, beyond=tuple(one for one in work.beyond if one[0] not in unreached))
    if work.trained is None:
        return work
    kept = [which for which, name in enumerate(work.trained) if name not in unreached]
    shares = None if work.shares is None else tuple(work.shares[which] for which in kept)
    return replace(work, trained=tuple(work.trained[which] for which in kept), shares=shares)


def _scaled(layer: LayerCost, part: float, names: Sequence[str]) -> LayerCost:
    return replace(layer, **{name: round(part * getattr(layer, name)) for name in names})


def _exit_behind(layer: LayerCost) -> int:
    """Return the number of the next exit behind a layer; 0 for layers that every frame passes."""
    part, _, rest = layer.name.partition(".")
    return int(rest.partition(".")[0]) if part in ("stages", "heads") else 0


@contextmanager
def record_exits(model: nn.Module) -> Iterator[ExitLog]:
    """Record the exit of each frame within this context.

    The log of a network without early exit stays empty.
    """
    log = ExitLog()
    if not isinstance(model, EarlyExitNetwork):
        yield log
        return
    before, model.log = model.log, log
    try:
        yield log
    finally:
        model.log = before
