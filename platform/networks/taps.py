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

from driftlab.platform.core.records import LayerCost, ModelCost
from driftlab.platform.networks.cost_counter import tensors_in

_current = threading.local()  # `counts`: those that taps add to, in this thread


class Tap:
    """The hook of one layer with weights."""

    def __init__(self, name: str, ahead: Sequence[str]) -> None:
        self.name, self.names = name, (name, *ahead)
        self.frame_bytes = 1.0  # of its output for one frame
        self.macs = 0.0  # of one frame

    def __call__(self, module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        """Count a forward pass; the backward pass is counted when the gradient of the output arrives."""
        counts: LayerCounts | None = getattr(_current, "counts", None)
        if counts is None:
            return
        if isinstance(made, Tensor):
            first, frames = made, made.nbytes / self.frame_bytes
        else:
            first, *others = tensors_in(made)
            frames = sum([one.nbytes for one in others], first.nbytes) / self.frame_bytes
        counts.forward[self, frames] += 1
        if first.requires_grad:
            first.register_hook(partial(self._count_backward, counts.backward, frames, module))

    def _count_backward(
        self, backward: Counter[tuple[Tap, float, bool]], frames: float, module: nn.Module, gradient: Tensor
    ) -> None:
        """Count the gradients of inputs, and of weights that learn; another thread may call this."""
        backward[self, frames, any(weight.requires_grad for weight in module.parameters())] += 1


@dataclass
class LayerCounts:
    """How often layers ran: by tap and frames of the batch, backward also by whether the weights learned."""

    forward: Counter[tuple[Tap, float]] = field(default_factory=Counter)
    backward: Counter[tuple[Tap, float, bool]] = field(default_factory=Counter)

    @property
    def macs(self) -> float:
        """Return the multiply-accumulates; a gradient counts as much as a forward pass."""
        forward = sum(times * frames * one.macs for (one, frames), times in self.forward.items())
        backward = ((times * frames * one.macs, learned) for (one, frames, learned), times in self.backward.items())
        return forward + sum(macs * (1 + learned) for macs, learned in backward)

    def frames(self) -> dict[str, float]:
        """Return the frames that each layer processed; a gradient counts as much as a forward pass."""
        found: dict[str, float] = {}
        passes = [(*key, False, times) for key, times in self.forward.items()]
        for one, frames, learned, times in (*passes, *((*key, times) for key, times in self.backward.items())):
            for name in one.names:
                found[name] = found.get(name, 0.0) + times * frames
            found[one.name] += learned * times * frames
        return found

    def usual_batch(self, layer: str) -> float:
        """Return the frames of the layer's most frequent batch."""
        batches: Counter[float] = Counter()
        for (one, frames), times in self.forward.items():
            batches[frames] += times * (layer in one.names)
        return batches.most_common(1)[0][0] if batches else 1.0


def tap(model: nn.Module, cost: ModelCost) -> None:
    """Put taps on the layers of a network in place of those that it has."""
    modules, taps, ahead = dict(model.named_modules()), dict[str, Tap](), list[str]()
    runs: dict[str, list[LayerCost]] = {}  # of each layer for one frame
    for layer in cost.layers:
        runs.setdefault(layer.name, []).append(layer)
        if layer.name in modules and (layer.macs or layer.parameters) and layer.output_bytes:
            newest = taps.setdefault(layer.name, Tap(layer.name, ahead))
            ahead = []
        elif taps:
            newest.names += (layer.name,)
        else:
            ahead.append(layer.name)  # before the first layer with weights
    for module in modules.values():
        module.driftlab_tapped = True  # copies have it too, a module around them has not
        hooks = module._forward_hooks  # torch has no public list of hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, Tap)]:
            del hooks[key]
    for name, one in taps.items():
        one.frame_bytes = sum(layer.output_bytes for layer in runs[name]) / len(runs[name])
        one.macs = sum(layer.macs for layer in runs[name]) / len(runs[name])
        modules[name].register_forward_hook(one)


def is_tapped(module: nn.Module) -> bool:
    """Return whether a module belongs to a network with taps, or to a copy of one."""
    return "driftlab_tapped" in vars(module)


@contextmanager
def counting() -> Iterator[LayerCounts]:
    """Count the passes of tapped networks within this context."""
    before, _current.counts = getattr(_current, "counts", None), LayerCounts()
    try:
        yield _current.counts
    finally:
        _current.counts = before
