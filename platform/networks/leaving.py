"""A network that each frame leaves at the first exit that is sure enough: input-adaptive inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.account import count_cost
from driftlab.platform.networks.predict import evaluating, to_input, torch_device
from driftlab.platform.networks.zoo import Input
from driftlab.platform.tasks.tasks import Answers, Task

Floats = npt.NDArray[np.float64]


class LeavingNetwork(nn.Module):
    """Stages with an exit behind each; the answer of a frame is that of the first exit whose confidence is reached.

    All stages run for all frames of a batch, and answers are picked afterwards: `exit_costs` tells what a device that
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
        return self.leave(images)[0]

    def leave(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the answer of each frame, and the number of the exit at which it leaves, from 0 on."""
        outputs = self.outputs(images)
        answer, last = outputs[-1], len(outputs) - 1
        exits = torch.full((len(images),), last)
        if self.training:
            return answer, exits
        for number in reversed(range(last)):
            sure = confidence(outputs[number]) >= self.thresholds[number]
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
        numbers = {
            name: round(part * getattr(layer, name)) for name in ("macs", "input_bytes", "output_bytes", "weight_bytes")
        }
        layers.append(replace(layer, **numbers))
    return replace(whole, macs=sum(layer.macs for layer in layers), layers=tuple(layers))


def exit_costs(network: LeavingNetwork, size: tuple[int, int]) -> tuple[ModelCost, ...]:
    """Count a frame that leaves at each exit: the layers that it passes, with the exits that were not sure of it."""
    whole, found = count_cost(network, *size), []
    for exit_ in range(len(network.heads)):
        layers = tuple(layer for layer in whole.layers if _exit_behind(layer) <= exit_)
        found.append(replace(whole, macs=sum(layer.macs for layer in layers), layers=layers))
    return tuple(found)


def _exit_behind(layer: LayerCost) -> int:
    """Return the number of the next exit behind a layer: every frame passes those before the first one."""
    part, _, rest = layer.name.partition(".")
    return int(rest.partition(".")[0]) if part in ("stages", "heads") else 0


def predict_leaving(
    network: LeavingNetwork, images: npt.NDArray[np.uint8], task: Task, *, batch: int = 32, device: str = "cpu"
) -> tuple[Answers, list[int]]:
    """Predict every frame as `predict` does, and return the exit at which each one leaves."""
    network.to(torch_device(device))
    height, width = images.shape[1:3]
    answers, exits = task.blank(len(images), height, width), list[int]()
    with evaluating(network), torch.inference_mode():
        for start in range(0, len(images), batch):
            output, left = network.leave(to_input(images[start : start + batch]).to(device))
            answers[start : start + batch] = task.answers(output, height, width)
            exits += left.tolist()
    return answers, exits
