"""Rank the filters of a network: score every channel of every group; larger is more important.

Scores compare channels of one group only: layers with more energy have larger scores throughout. Where several layers
make the channels of a group, or several read them, each layer's scores are normalised and added.
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
from driftlab.platform.networks.tasks.tasks import Answers

Scores = Mapping[str, Tensor]  # by group, one number per channel
BATCH = 64
TINY = 1e-12
POOLING = frozenset(("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "mean", "amax"))
FLATTENING = frozenset(("flatten", "reshape", "view"))
ACTIVATIONS = frozenset(("relu", "relu_", "relu6", "hardswish", "silu", "gelu", "leaky_relu"))


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums over feature maps for the triplet response residual, class by class; a map is a vector of numbers.

    Maps are measured from a centre among them: distances do not depend on it, and a large common offset would cost
    digits where large sums are subtracted.
    """

    count: Tensor  # [classes] samples
    energy: Tensor  # [classes, channels] sum of the maps' squared lengths
    total: Tensor  # [classes, channels, numbers] sum of the maps
    centre: Tensor  # [channels, numbers]

    def __add__(self, other: Sums) -> Sums:
        if not bool(self.count.any()):
            return other
        there = other.around(self.centre)
        return Sums(self.count + there.count, self.energy + there.energy, self.total + there.total, self.centre)

    def around(self, centre: Tensor) -> Sums:
        """Return the sums of the same maps from another centre."""
        moved, count = self.centre - centre, self.count[:, None]
        energy = self.energy + 2 * (self.total * moved).sum(dim=2) + count * moved.square().sum(dim=1)
        return Sums(self.count, energy, self.total + count[:, :, None] * moved, centre)


def rank(
    model: nn.Module,
    groups: Groups,
    method: Ranking,
    *,
    images: npt.NDArray[np.uint8],
    labels: Answers,
    rng: np.random.Generator,
) -> Scores:
    """Score the channels of every group by a method; only those by response use the images and their labels."""
    if method in RESPONSES:
        return _by_response(model, groups, images, labels, RESPONSES[method])
    if method == "random":
        return {name: torch.from_numpy(rng.random(size)) for name, size in groups.sizes.items()}
    return _by_weights(model, groups, norms=method == "bn_gamma")


def triplet_response_residual(sums: Sums, *, ratio: bool = False) -> Tensor:
    """Average Eq. 1 of NestDNN over all triplets (anchor, positive, negative), in closed form: one number per channel.

    Summed over the triplets of class c, with n of the N samples, the distances between classes count n - 1 times and
    those within it N - n times. A class with a single sample makes no triplet. With `ratio` the sum is divided by that
    of the distances within classes; a filter that never answers has 0.
    """
    n, rest = sums.count[:, None], (sums.count.sum() - sums.count)[:, None]
    everything = sums.total.sum(dim=0)
    others = sums.energy.sum(dim=0) - sums.energy
    between = rest * sums.energy + n * others - 2 * (sums.total * (everything - sums.total)).sum(dim=2)
    within = 2 * n * sums.energy - 2 * sums.total.square().sum(dim=2)
    triplets = (n * (n - 1) * rest).sum()
    if not triplets > 0:
        raise RequestError("Filters are ranked by triplets: two classes are needed, one of them with two samples.")
    residual = ((n - 1) * between - rest * within).sum(dim=0)
    if not ratio:
        return residual / triplets
    close = (rest * within).sum(dim=0)
    return residual / close.clamp_min(TINY * float(close.max()) + TINY)


def sums_of(maps: Tensor, labels: npt.NDArray[np.integer[Any]], classes: int) -> Sums:
    """Sum the maps [samples, channels, numbers] class by class, in float64: large sums will be subtracted."""
    kind = torch.from_numpy(labels.astype(np.int64))
    known = (kind >= 0) & (kind < classes)
    member = F.one_hot(kind[known], classes).double().T
    maps = maps[known].double()
    centre = maps.mean(dim=0) if len(maps) else maps.new_zeros(maps.shape[1:])
    maps = maps - centre
    energy, flat = maps.square().sum(dim=2), maps.flatten(1)
    total = (member @ flat).view(classes, *maps.shape[1:])
    return Sums(member.sum(dim=1), member @ energy, total, centre)


def _by_response(
    model: nn.Module, groups: Groups, images: npt.NDArray[np.uint8], labels: Answers, response: Response
) -> Scores:
    """Compute residuals of the maps that the next layer reads, as they were before any pooling, batch by batch."""
    if labels.dtype == object:
        raise RequestError("trr ranks filters by classes of whole frames or of pixels; for other tasks rank by l1.")
    traced = POOLING | FLATTENING | (ACTIVATIONS if response.linear else frozenset())
    classes = int(labels[labels != IGNORE].max(initial=0) if labels.ndim > 1 else labels.max(initial=0)) + 1
    found: dict[str, Sums] = {}
    readers = _readers(model, groups)
    channel_of: dict[str, Tensor] = {}  # of each reader: which channel each map is

    def listen(name: str, rows: slice, maps: SourceTrace) -> Callable[..., None]:
        def look(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen, channel_of[name] = maps.before(given[0], readers[name])
            sums = sums_of(*_samples(seen, labels[rows]), classes)
            found[name] = found[name] + sums if name in found else sums

        return look

    with evaluating(model), torch.inference_mode():
        for start in range(0, len(images), BATCH):
            rows, maps = slice(start, start + BATCH), SourceTrace(traced)
            hooks = [model.get_submodule(name).register_forward_pre_hook(listen(name, rows, maps)) for name in readers]
            with maps:
                model(to_input(images[rows]).to(next(model.parameters()).device))
            for hook in hooks:
                hook.remove()
    parts = [(channel_of[name], triplet_response_residual(sums, ratio=response.ratio)) for name, sums in found.items()]
    return _gathered(groups, parts)


class SourceTrace(TorchFunctionMode):
    """Records the source of every map that some functions make: pooling, flattening, activations."""

    def __init__(self, traced: frozenset[str]) -> None:
        super().__init__()
        self._traced = traced
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # by id; both tensors are held, so that no id is reused

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        follows = func.__name__ in self._traced and isinstance(args[0], Tensor) and args[0].dim() == 4
        source = args[0].clone() if follows and func.__name__ in ACTIVATIONS else args[0]  # some overwrite it
        made = func(*args, **(kwargs or {}))
        if follows and isinstance(made, Tensor):
            self._made[id(made)] = (made, source)
        return made

    def before(self, given: Tensor, channels: Tensor) -> tuple[Tensor, Tensor]:
        """Trace a layer's input back to the maps that filters made, and return the channel of each map."""
        while id(given) in self._made:
            _, source = self._made[id(given)]
            if channels.shape[1] % source.shape[1]:
                break
            each = channels.view(len(channels), source.shape[1], -1)
            if (each != each[:, :, :1]).any():
                break  # not made channel by channel
            given, channels = source, each[:, :, 0]
        return given, channels


def _samples(given: Tensor, labels: Answers) -> tuple[Tensor, npt.NDArray[np.integer[Any]]]:
    """Split a layer's input into samples with a class each: frames, or places where every pixel has its class."""
    maps = given.detach().cpu().flatten(2) if given.dim() > 2 else given.detach().cpu()[:, :, None]
    if labels.ndim == 1:
        return maps, labels
    height, width = given.shape[2:]
    rows, columns = (
        np.arange(size) * whole // size for size, whole in zip((height, width), labels.shape[1:], strict=True)
    )
    places = maps.transpose(1, 2).flatten(0, 1)[:, :, None]
    return places, labels[:, rows[:, None], columns].reshape(-1)


def _readers(model: nn.Module, groups: Groups) -> dict[str, Tensor]:
    """Find the layers that read channels, and the channel of each of their inputs."""
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
    """Sum the absolute weights that make a channel, or take the absolute scale of its batch norms."""
    tensors = dict(model.named_parameters())
    parts = []
    for (name, dim), channels in groups.axes.items():
        if (name, dim) in groups.reads or name not in tensors:
            continue
        weights = tensors[name].detach().abs().double().cpu()
        is_norm = isinstance(model.get_submodule(name.rpartition(".")[0]), _NormBase)
        if (norms and is_norm and name.endswith("weight")) or (not norms and weights.dim() > 1):
            parts.append((channels, weights.movedim(dim, 0).reshape(channels.shape[1], -1).sum(dim=1)))
    return _gathered(groups, parts)


def _gathered(groups: Groups, parts: list[tuple[Tensor, Tensor]]) -> Scores:
    """Add the scores of several layers for the channels of each group, with equal weight per layer."""
    scores: dict[str, Tensor] = {}
    for name, group in groups.members.items():
        says = []
        for channels, values in parts:
            mine = (channels >= group.first) & (channels < group.first + group.size)
            if bool(mine.any()):
                own = torch.zeros(group.size, dtype=torch.float64)
                says.append(own.index_add(0, channels[mine] - group.first, values.expand_as(channels)[mine]))
        if not says:
            raise RequestError(f"Nothing ranks the channels of '{name}' by this method; rank by l1 or random instead.")
        scores[name] = torch.stack([each / each.abs().mean().clamp_min(1e-300) for each in says]).sum(dim=0)
    return scores
