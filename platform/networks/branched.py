"""A supernet: stages with an exit behind each and several operators in each; every path is a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.box_head import BoxHead, count_finer
from driftlab.platform.networks.chain import Chain
from driftlab.platform.networks.cost_counter import count_cost, stored_bytes
from driftlab.platform.networks.paths import BASE, Path, PathSpace
from driftlab.platform.networks.resizing import resize
from driftlab.platform.networks.zoo import Input

DROPOUT = 0.2
MakeStage = Callable[[Chain, int, str | None], nn.Module]  # stage number and operator; None: unchanged


class FrameExit(nn.Module):
    """Exit for classification: strided convolution, average pooling, dropout and a linear layer."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.local = _local(channels, stride=2)
        self.answer = nn.Linear(channels, outputs)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        pooled = F.dropout(self.local(x).mean(dim=(2, 3)), DROPOUT, self.training)
        logits: torch.Tensor = self.answer(pooled)
        return logits


class MapExit(nn.Module):
    """Exit for segmentation: convolution, 1x1 convolution and interpolation."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.local, self.answer = _local(channels, stride=1), nn.Conv2d(channels, outputs, 1)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        return resize(self.answer(self.local(x)), images)


class BoxExit(nn.Module):
    """Exit for detection: convolution and a box head."""

    def __init__(self, channels: int, outputs: int, finer: int) -> None:
        super().__init__()
        self.local, self.answer = _local(channels, stride=1), BoxHead(channels, outputs, finer)

    def forward(self, x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.answer(self.local(x), images)
        return output


def _local(channels: int, *, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())


class PathNetwork(nn.Module):
    """One path: the stem, one operator per stage up to the exit, and the exit's head."""

    def __init__(self, expects: Input, stem: nn.Module, stages: list[nn.Module], head: nn.Module, path: Path) -> None:
        super().__init__()
        self.expects, self.stem, self.stages, self.head, self.path = expects, stem, nn.Sequential(*stages), head, path

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.stages(self.stem(self.expects.convert(images))), images)
        return output


@dataclass(frozen=True, eq=False)
class Branched:
    """The modules of all paths, each stored once; the network of a path holds copies."""

    space: PathSpace
    expects: Input
    stem: nn.Module
    stages: tuple[tuple[nn.Module, ...], ...]  # by stage, one per operator
    heads: tuple[nn.Module, ...]  # by exit

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules with names."""
        yield "stem", self.stem
        for stage, (names, modules) in enumerate(zip(self.space.operators, self.stages, strict=True), 1):
            yield from ((f"{stage}.{name}", module) for name, module in zip(names, modules, strict=True))
        yield from ((f"exit.{stage}", head) for stage, head in enumerate(self.heads, 1))

    def used(self, path: Path) -> tuple[tuple[str, nn.Module], ...]:
        """Return the modules of a path with names."""
        known = dict(self.parts())
        names = [f"{stage}.{self.space.operators[stage - 1][one]}" for stage, one in enumerate(path, 1)]
        return tuple((name, known[name]) for name in ("stem", *names, f"exit.{len(path)}"))

    def network(self, path: Path) -> PathNetwork:
        """Return a copy of a path's network, in evaluation mode."""
        return copy.deepcopy(self.shared(path)).eval()

    def shared(self, path: Path) -> PathNetwork:
        """Return a path's network without a copy: training it changes all networks with the same modules."""
        (_, stem), *stages, (_, head) = self.used(path)
        return PathNetwork(self.expects, stem, [module for _, module in stages], head, path)

    def replaced(self, network: PathNetwork) -> Branched:
        """Return the supernet with the modules of a trained path's network."""
        learned = copy.deepcopy(network)
        stages = [list(modules) for modules in self.stages]
        for which, one in enumerate(network.path):
            stages[which][one] = learned.stages[which]
        heads, last = list(self.heads), len(network.path) - 1
        heads[last] = learned.head
        return replace(self, stem=learned.stem, stages=tuple(map(tuple, stages)), heads=tuple(heads))


class MixedNetwork(nn.Module):
    """A supernet with all operators of each stage in parallel; the last exit predicts.

    The features of a stage are the mean of its operators, weighted by shares.

    It holds the modules of the supernet, not copies.
    """

    def __init__(self, branched: Branched) -> None:
        super().__init__()
        self.expects, self.stem, self.head = branched.expects, branched.stem, branched.heads[-1]
        self.stages = branched.stages
        self.registered = nn.ModuleList(module for modules in branched.stages for module in modules)

    def forward(self, images: torch.Tensor, shares: Sequence[torch.Tensor]) -> torch.Tensor:
        x = self.stem(self.expects.convert(images))
        for modules, parts in zip(self.stages, shares, strict=True):
            x = torch.stack([part * module(x) for part, module in zip(parts, modules, strict=True)]).sum(dim=0)
        output: torch.Tensor = self.head(x, images)
        return output


def branch(chain: Chain, space: PathSpace, make: MakeStage = Chain.stage) -> Branched:
    """Return a chain with operators and exits; weights that cannot be inherited are random."""
    with torch.no_grad():
        x = chain.stem(chain.expects.convert(torch.zeros(1, 3, *chain.size)))
        heads = []
        stages = tuple(
            tuple(make(chain, which, None if name == BASE else name) for name in names)
            for which, names in enumerate(space.operators)
        )
        for modules in stages:
            x = modules[-1].eval()(x)
            heads.append(_head(chain, x))
    built = Branched(space, chain.expects, chain.stem, stages, tuple(heads))
    for _, module in built.parts():
        module.eval()
    return built


def _head(chain: Chain, features: torch.Tensor) -> nn.Module:
    """Return an exit for the task of the network."""
    (outputs, *places), channels = chain.output, features.shape[1]
    if not places:
        return FrameExit(channels, outputs)
    if chain.boxes:
        return BoxExit(channels, outputs, count_finer(places[0], features.shape[-2]))
    return MapExit(channels, outputs)


def count_paths(branched: Branched, height: int, width: int) -> list[ModelCost]:
    """Return the cost of every path's network, by number; each module runs and is counted once."""
    return sum_paths(branched, count_modules(branched, height, width))


def sum_paths(branched: Branched, costs: Mapping[str, ModelCost]) -> list[ModelCost]:
    """Return the cost of every path's network, given that of each module."""
    space = branched.space
    return [sum_costs([costs[name] for name, _ in branched.used(space.decode(which))]) for which in range(len(space))]


def count_modules(branched: Branched, height: int, width: int) -> dict[str, ModelCost]:
    """Return the cost of every module, by name; each runs and is counted once."""
    space = branched.space
    diagonals = [tuple(min(one, count - 1) for count in space.counts) for one in range(max(space.counts))]
    exits = [diagonals[-1][: e + 1] for e in range(space.stages)]
    known: dict[str, ModelCost] = {}
    for path in (*diagonals, *exits):
        whole = count_cost(branched.network(path), height, width)
        for prefix, (name, module) in zip(_prefixes(path), branched.used(path), strict=True):
            layers = tuple(layer for layer in whole.layers if layer.name.startswith(prefix))
            known.setdefault(name, _cost_of(module, layers))
    return known


def module_bytes(branched: Branched) -> dict[str, int]:
    """Return the stored bytes of each module, by name."""
    return {name: stored_bytes(module) for name, module in branched.parts()}


def _prefixes(path: Path) -> list[str]:
    return ["stem", *(f"stages.{stage}." for stage in range(len(path))), "head."]


def _cost_of(module: nn.Module, layers: tuple[LayerCost, ...]) -> ModelCost:
    parameters = list(module.parameters())
    return ModelCost(
        macs=sum(layer.macs for layer in layers),
        parameters=sum(each.numel() for each in parameters),
        weight_bytes=stored_bytes(module),
        activation_bytes=sum(layer.output_bytes for layer in layers),
        layers=layers,
        kernel_bytes=sum(each.numel() * each.itemsize for each in parameters if each.dim() > 1),
    )


def sum_costs(costs: list[ModelCost]) -> ModelCost:
    """Return the summed cost of modules that run in sequence."""
    return ModelCost(
        macs=sum(cost.macs for cost in costs),
        parameters=sum(cost.parameters for cost in costs),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        activation_bytes=sum(cost.activation_bytes for cost in costs),
        layers=tuple(layer for cost in costs for layer in cost.layers),
        kernel_bytes=sum(cost.kernel_bytes for cost in costs),
    )
