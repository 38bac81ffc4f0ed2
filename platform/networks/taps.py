"""Count the layers that really run: forward and backward, also in copies and in parts of a network.

A tap is a hook on a layer with weights. It counts that layer and the ones without weights that follow it, and it counts
only within `counting`. A copy of a network has copies of its taps, so that its passes count too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from driftlab.platform.core.records import ModelCost
from driftlab.platform.networks.cost_counter import tensors_in

_current = threading.local()  # `counts`: those that taps add to, in this thread


@dataclass
class LayerCounts:
    """How often layers ran: by layer and frames of the batch."""

    forward: Counter[tuple[str, float]] = field(default_factory=Counter)
    backward: Counter[tuple[str, float]] = field(default_factory=Counter)  # gradients: of inputs, and of weights

    def frames(self) -> dict[str, float]:
        """Return the frames that each layer processed; a gradient counts as much as a forward pass."""
        found: dict[str, float] = {}
        for counter in (self.forward, self.backward):
            for (name, frames), times in counter.items():
                found[name] = found.get(name, 0.0) + times * frames
        return found

    def usual_batch(self, layer: str) -> float:
        """Return the frames of the layer's most frequent batch."""
        batches = Counter({frames: times for (name, frames), times in self.forward.items() if name == layer})
        return batches.most_common(1)[0][0] if batches else 1.0


class Tap:
    """The hook of one layer with weights."""

    def __init__(self, name: str, ahead: Sequence[str]) -> None:
        self.name, self.names = name, (name, *ahead)
        self.frame_bytes = 1.0  # of its output for one frame

    def __call__(self, module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        """Count a forward pass; the backward pass is counted when the gradient of the output arrives."""
        counts: LayerCounts | None = getattr(_current, "counts", None)
        if counts is None:
            return
        outputs = [made] if isinstance(made, Tensor) else list(tensors_in(made))
        frames = sum(one.numel() * one.itemsize for one in outputs) / self.frame_bytes
        for name in self.names:
            counts.forward[name, frames] += 1
        if outputs[0].requires_grad:
            weights = list(module.parameters())
            outputs[0].register_hook(partial(self._count_backward, counts.backward, frames, weights))

    def _count_backward(
        self, backward: Counter[tuple[str, float]], frames: float, weights: Sequence[Tensor], gradient: Tensor
    ) -> None:
        """Count the gradient of the inputs, and that of the weights if they learn; another thread may call this."""
        for name in self.names:
            backward[name, frames] += 1
        backward[self.name, frames] += any(weight.requires_grad for weight in weights)


def tap(model: nn.Module, cost: ModelCost) -> None:
    """Put taps on the layers of a network in place of those that it has."""
    modules, taps, ahead = dict(model.named_modules()), dict[str, Tap](), list[str]()
    sizes: dict[str, list[int]] = {}  # of the outputs of a layer, which may run several times
    for layer in cost.layers:
        sizes.setdefault(layer.name, []).append(layer.output_bytes)
        if layer.name in modules and (layer.macs or layer.parameters) and layer.output_bytes:
            newest = taps.setdefault(layer.name, Tap(layer.name, ahead))
            ahead = []
        elif taps:
            newest.names += (layer.name,)
        else:
            ahead.append(layer.name)  # before the first layer with weights
    for module in modules.values():
        hooks = module._forward_hooks  # torch has no public list of hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, Tap)]:
            del hooks[key]
    for name, one in taps.items():
        one.frame_bytes = sum(sizes[name]) / len(sizes[name])
        modules[name].register_forward_hook(one)


@contextmanager
def counting() -> Iterator[LayerCounts]:
    """Count the passes of tapped networks within this context."""
    before, _current.counts = getattr(_current, "counts", None), LayerCounts()
    try:
        yield _current.counts
    finally:
        _current.counts = before
