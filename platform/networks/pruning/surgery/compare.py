"""Compare a cut network with the masked one, as code may compute with the number of channels.

`x / x.shape[1]` keeps every channel in place, but its result changes with fewer channels. Both networks run on noise
with random weights, because trained or initial weights may hide a layer (a final scale of 0).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from driftlab.platform.networks.cost_counter import tensors_in
from driftlab.platform.networks.pruning.surgery import edit
from driftlab.platform.networks.pruning.surgery.trace import Branch, isolated_rng

if TYPE_CHECKING:
    from driftlab.platform.networks.pruning.surgery.grouping import Groups

# Number types with the tolerated difference between two orders of addition. The second is used if the first exceeds
# its tolerance; FLOAT32_TOLERANCE applies if only float32 runs.
PRECISIONS = ((torch.float32, 1e-5), (torch.float64, 1e-7))
FLOAT32_TOLERANCE = 1e-3


def differing_groups(model: nn.Module, example: Tensor, groups: Groups, branches: Sequence[Branch]) -> list[str]:
    """Return the names of groups for which the cut and the masked network have different outputs."""
    with isolated_rng():
        image = torch.randn_like(example[:1]) if example.is_floating_point() else example[:1]
        randomised = edit.rebuild(model, groups, _randomised)
    if not all(bool(made.isfinite().all()) for made in _outputs(randomised, image, branches) or ()):
        randomised = copy.deepcopy(model)  # random weights overflow: the comparison would be void
    names = [name for name, size in groups.sizes.items() if size > 1]
    return _bisect(names, lambda some: _agree(randomised, image, groups, some, branches))


def largest_difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference between the outputs of two networks, relative to the largest value."""
    if [made.shape for made in ours] != [made.shape for made in theirs]:
        return math.inf
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if other.numel()]
    return max(
        (float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs), default=0
    )


def _bisect(names: list[str], agree: Callable[[list[str]], bool]) -> list[str]:
    """Return the names that differ, by bisection."""
    if not names or agree(names):
        return []
    if len(names) == 1:
        return names
    return _bisect(names[: len(names) // 2], agree) + _bisect(names[len(names) // 2 :], agree)


def _agree(model: nn.Module, image: Tensor, groups: Groups, names: list[str], branches: Sequence[Branch]) -> bool:
    """Return whether the cut and the masked network have equal outputs.

    It computes in the most exact number type that runs.
    """
    keep = {name: [channel for channel in range(groups.sizes[name]) if channel % 3 != 1] for name in names}
    off = 0.0
    for kind, digits in PRECISIONS:
        theirs = _outputs(edit.mask(model, groups, keep).to(kind), image, branches)
        if theirs is None:
            return off <= FLOAT32_TOLERANCE
        ours = _outputs(edit.cut(model, groups, keep).to(kind), image, branches)
        off = math.inf if ours is None else largest_difference(ours, theirs)
        if off <= digits:
            return True
    return False


def _outputs(model: nn.Module, image: Tensor, branches: Sequence[Branch]) -> list[Tensor] | None:
    """Return the outputs of all branches with equal random numbers; None if the model does not run."""
    kind = next((tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()), image.dtype)
    given = image.to(kind) if image.is_floating_point() else image
    made: list[Tensor] = []
    model.eval()
    for branch in branches:
        try:
            with torch.no_grad(), isolated_rng():
                result = branch(model, given.clone())
        except Exception:  # a model may raise anything on an unsuitable number type or on fewer channels
            return None
        made += [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]
    return made


def _randomised(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return random weights, large enough that every layer affects the output."""
    return {name: _noise(name, tensor) if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _noise(name: str, tensor: Tensor) -> Tensor:
    drawn = torch.randn_like(tensor) * (max(1, tensor[0].numel()) ** -0.5 if tensor.dim() > 1 else 0.5)
    return drawn.abs() + 0.5 if "var" in name or (tensor.dim() == 1 and name.endswith("weight")) else drawn
