"""A network that each frame leaves at the first exit that is sure enough: input-adaptive inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from driftlab.platform.core.records import ModelCost
from driftlab.platform.networks.account import count_cost
from driftlab.platform.networks.zoo import Input

Floats = npt.NDArray[np.float64]


class LeavingNetwork(nn.Module):
    """Stages with an exit behind each; the answer of a frame is that of the first exit whose confidence is reached.

    All stages run for all frames of a batch, and answers are picked afterwards: `mean_cost` tells what a device that
    stops would compute. While it trains, it answers at the last exit.
    """

    def __init__(
        self, expects: Input, stem: nn.Module, stages: Sequence[nn.Module], heads: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.expects, self.stem = expects, stem
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)
        self.thresholds: tuple[float, ...] = (float("inf"),) * (len(stages) - 1)  # of all exits but the last

    def outputs(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the output of every exit."""
        x, found = self.stem(self.expects.convert(images)), []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            found.append(head(x, images))
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs = self.outputs(images)
        answer = outputs[-1]
        if self.training:
            return answer
        for output, threshold in zip(outputs[-2::-1], self.thresholds[::-1], strict=True):
            sure = confidence(output) >= threshold
            answer = torch.where(sure.view(-1, *[1] * (answer.dim() - 1)), output, answer)
        return answer


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
        kind, _, rest = layer.name.partition(".")
        part = float(reached[int(rest.partition(".")[0])]) if kind in ("stages", "heads") else 1.0
        numbers = {
            name: round(part * getattr(layer, name)) for name in ("macs", "input_bytes", "output_bytes", "weight_bytes")
        }
        layers.append(replace(layer, **numbers))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))
