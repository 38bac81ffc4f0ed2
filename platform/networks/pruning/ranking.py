"""Rank the filters of a network: a score per channel of every group; larger is more important.

NestDNN's triplet response residual (TRR, Section 3.1.3, Eq. 1) is the default; L1 norm, batch-norm scale and random
scores are its baselines. Scores are comparable within a group only: layers with more energy have larger scores. If
several layers make or read the channels of a group, the normalised scores of the layers are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from driftlab.datasets.frames import IGNORE
from driftlab.errors import RequestError
from driftlab.platform.networks.predict import evaluating, to_input
from driftlab.platform.networks.pruning.rankings import RESPONSES, Ranking, Response
from driftlab.platform.networks.pruning.surgery import Groups
from driftlab.platform.networks.tasks.tasks import TaskLabels

Scores = Mapping[str, Tensor]  # by group, one number per channel
BATCH = 64
EPSILON = 1e-12
POOLING = frozenset(("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "mean", "amax"))
FLATTENING = frozenset(("flatten", "reshape", "view"))
ACTIVATIONS = frozenset(("relu", "relu_", "relu6", "hardswish", "silu", "gelu", "leaky_relu"))


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The sums per class over the feature maps f_i that the triplet response residual requires.

    Maps are measured from a common centre. Distances do not depend on it, and a large common offset would cost digits
    when large sums are subtracted.
    """

    count: Tensor  # [classes] number of samples
    energy: Tensor  # [classes, channels] sum of ||f_i||²
    total: Tensor  # [classes, channels, numbers] sum of f_i
    centre: Tensor  # [channels, numbers]

    def __add__(self, other: ClassSums) -> ClassSums:
        if not bool(self.count.any()):
            return other
        moved = other.around(self.centre)
        return ClassSums(self.count + moved.count, self.energy + moved.energy, self.total + moved.total, self.centre)

    def around(self, centre: Tensor) -> ClassSums:
        """Return the sums of the same maps, measured from another centre."""
        shift, count = self.centre - centre, self.count[:, None]
        energy = self.energy + 2 * (self.total * shift).sum(dim=2) + count * shift.square().sum(dim=1)
        return ClassSums(self.count, energy, self.total + count[:, :, None] * shift, centre)


def rank(
    model: nn.Module,
    groups: Groups,
    method: Ranking,
    *,
    images: npt.NDArray[np.uint8],
    labels: TaskLabels,
    rng: np.random.Generator,
) -> Scores:
    """Return the scores of every group's channels; only rankings by response use the images and labels."""
    if method in RESPONSES:
        return _by_response(model, groups, images, labels, RESPONSES[method])
    if method == "random":
        return {name: torch.from_numpy(rng.random(size)) for name, size in groups.sizes.items()}
    return _by_weights(model, groups, norms=method == "bn_gamma")


def triplet_response_residual(sums: ClassSums, *, ratio: bool = False) -> Tensor:
    """Return TRR_i of Eq. 1, averaged over all triplets (anchor, positive, negative), for each channel.

    In closed form: the triplets of a class with n of N samples contain every squared distance to another class n - 1
    times, and every squared distance within the class N - n times. A class with one sample has no triplet. With `ratio`
    the residual is divided by the distances within classes; a filter without response scores 0.
    """
    n, rest = sums.count[:, None], (sums.count.sum() - sums.count)[:, None]
    all_classes = sums.total.sum(dim=0)
    others = sums.energy.sum(dim=0) - sums.energy
    # Sum of ||f(anc) - f(neg)||² over pairs of different classes, and of ||f(anc) - f(pos)||² over pairs of one class.
    between = rest * sums.energy + n * others - 2 * (sums.total * (all_classes - sums.total)).sum(dim=2)
    within = 2 * n * sums.energy - 2 * sums.total.square().sum(dim=2)
    triplets = (n * (n - 1) * rest).sum()
    if not triplets > 0:
        raise RequestError("Ranking by triplets requires two classes, one of them with two samples. Use l1 instead.")
    residual = ((n - 1) * between - rest * within).sum(dim=0)
    if not ratio:
        return residual / triplets
    distances_within = (rest * within).sum(dim=0)
    return residual / distances_within.clamp_min(EPSILON * float(distances_within.max()) + EPSILON)


def sum_by_class(maps: Tensor, labels: npt.NDArray[np.integer[Any]], classes: int) -> ClassSums:
    """Return the sums over maps [samples, channels, numbers] in float64.

    Large sums are subtracted from each other.
    """
    label = torch.from_numpy(labels.astype(np.int64))
    listed = (label >= 0) & (label < classes)
    member = F.one_hot(label[listed], classes).double().T
    maps = maps[listed].double()
    centre = maps.mean(dim=0) if len(maps) else maps.new_zeros(maps.shape[1:])
    maps = maps - centre
    energy, flat = maps.square().sum(dim=2), maps.flatten(1)
    total = (member @ flat).view(classes, *maps.shape[1:])
    return ClassSums(member.sum(dim=1), member @ energy, total, centre)


def _by_response(
    model: nn.Module, groups: Groups, images: npt.NDArray[np.uint8], labels: TaskLabels, response: Response
) -> Scores:
    """Return the residuals of the maps that the next layer reads, traced back to before any pooling."""
    if labels.dtype == object:
        raise RequestError("trr requires classes of frames or pixels. Use ranking l1 for other tasks.")
    traced = POOLING | FLATTENING | (ACTIVATIONS if response.linear else frozenset())
    classes = int(labels[labels != IGNORE].max(initial=0) if labels.ndim > 1 else labels.max(initial=0)) + 1
    totals: dict[str, ClassSums] = {}
    readers = _readers(model, groups)
    channel_of: dict[str, Tensor] = {}  # by reader: the channel of each map

    def add_maps(name: str, rows: slice, trace: SourceTrace) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            maps, channel_of[name] = trace.before(inputs[0], readers[name])
            sums = sum_by_class(*_split_samples(maps, labels[rows]), classes)
            totals[name] = totals[name] + sums if name in totals else sums

        return hook

    with evaluating(model), torch.inference_mode():
        for start in range(0, len(images), BATCH):
            rows, trace = slice(start, start + BATCH), SourceTrace(traced)
            hooks = [
                model.get_submodule(name).register_forward_pre_hook(add_maps(name, rows, trace)) for name in readers
            ]
            with trace:
                model(to_input(images[rows]).to(next(model.parameters()).device))
            for hook in hooks:
                hook.remove()
    parts = [(channel_of[name], triplet_response_residual(sums, ratio=response.ratio)) for name, sums in totals.items()]
    return _sum_layers(groups, parts)


class SourceTrace(TorchFunctionMode):
    """Record the input of pooling, flattening and activation functions for each of their outputs."""

    def __init__(self, traced: frozenset[str]) -> None:
        super().__init__()
        self._traced = traced
        self._sources: dict[int, tuple[Tensor, Tensor]] = {}  # by id; holding both tensors keeps ids unique

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        traced = func.__name__ in self._traced and isinstance(args[0], Tensor) and args[0].dim() == 4
        source = args[0].clone() if traced and func.__name__ in ACTIVATIONS else args[0]  # some are in place
        output = func(*args, **(kwargs or {}))
        if traced and isinstance(output, Tensor):
            self._sources[id(output)] = (output, source)
        return output

    def before(self, x: Tensor, channels: Tensor) -> tuple[Tensor, Tensor]:
        """Trace a layer's input back to the output maps of filters; return them with the channel of each map."""
        while id(x) in self._sources:
            _, source = self._sources[id(x)]
            if channels.shape[1] % source.shape[1]:
                break
            each = channels.view(len(channels), source.shape[1], -1)
            if (each != each[:, :, :1]).any():
                break  # the function mixes channels
            x, channels = source, each[:, :, 0]
        return x, channels


def _split_samples(x: Tensor, labels: TaskLabels) -> tuple[Tensor, npt.NDArray[np.integer[Any]]]:
    """Split a layer's input into samples with one class each: frames, or places if labels are per pixel."""
    maps = x.detach().cpu().flatten(2) if x.dim() > 2 else x.detach().cpu()[:, :, None]
    if labels.ndim == 1:
        return maps, labels
    height, width = x.shape[2:]
    rows, columns = (
        np.arange(size) * whole // size for size, whole in zip((height, width), labels.shape[1:], strict=True)
    )
    places = maps.transpose(1, 2).flatten(0, 1)[:, :, None]
    return places, labels[:, rows[:, None], columns].reshape(-1)


def _readers(model: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """Return the layers that read channels, with the channel of each input."""
    readers = {}
    for tensor, dim in sorted(groups.reads):
        layer, _, kind = tensor.rpartition(".")
        module = model.get_submodule(layer)
        inputs = getattr(module, "in_channels", getattr(module, "in_features", None))
        channels = groups.axes[tensor, dim]
        if kind == "weight" and inputs == channels.shape[1] * getattr(module, "groups", 1):
            readers[layer] = channels.repeat(1, inputs // channels.shape[1])
    return readers


def _by_weights(model: nn.Module, groups: Groups, *, norms: bool) -> Scores:
    """Return the L1 norm of the weights that make each channel.

    With `norms` it is the absolute scale of the batch norm.
    """
    tensors = dict(model.named_parameters())
    parts = []
    for (name, dim), channels in groups.axes.items():
        if (name, dim) in groups.reads or name not in tensors:
            continue
        weights = tensors[name].detach().abs().double().cpu()
        is_norm = isinstance(model.get_submodule(name.rpartition(".")[0]), _NormBase)
        if (norms and is_norm and name.endswith("weight")) or (not norms and weights.dim() > 1):
            parts.append((channels, weights.movedim(dim, 0).reshape(channels.shape[1], -1).sum(dim=1)))
    return _sum_layers(groups, parts)


def _sum_layers(groups: Groups, parts: list[tuple[Tensor, Tensor]]) -> Scores:
    """Return the summed scores of the layers for each group's channels; each layer has equal weight."""
    scores: dict[str, Tensor] = {}
    for name, group in groups.members.items():
        by_layer = []
        for channels, values in parts:
            inside = (channels >= group.first) & (channels < group.first + group.size)
            if bool(inside.any()):
                zeros = torch.zeros(group.size, dtype=torch.float64)
                by_layer.append(zeros.index_add(0, channels[inside] - group.first, values.expand_as(channels)[inside]))
        if not by_layer:
            raise RequestError(f"This ranking has no scores for the channels of '{name}'. Use ranking l1 or random.")
        scores[name] = torch.stack([each / each.abs().mean().clamp_min(1e-300) for each in by_layer]).sum(dim=0)
    return scores
