"""Cut, reorder and expand the channels of a network whose groups are known.

Two linear maps between tensors by name do the work: `restrict` selects the part that a smaller model has, `lift`
puts it back among zeros; each is the other's adjoint.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from driftlab.errors import RequestError
from driftlab.platform.networks.module_utils import copy_model
from driftlab.platform.networks.pruning.surgery.trace import group_by_storage
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.vector import Layout

if TYPE_CHECKING:
    from driftlab.platform.networks.pruning.surgery.grouping import Groups

Channels = Mapping[str, Tensor | npt.NDArray[np.integer] | list[int] | range]  # by group


def cut(model: nn.Module, groups: Groups, keep: Channels) -> nn.Module:
    """Build the dense model of the channels to keep; it computes the same as `mask`.

    Groups that are not named keep everything. Kept channels stay in order, whatever the order of the list.
    """
    return rebuild(model, groups, lambda state: restrict(state, groups, keep))


def permute(model: nn.Module, groups: Groups, order: Channels) -> nn.Module:
    """Build the model with its channels in a new order, computing the same; channel `order[i]` becomes channel i."""
    new = _order(groups, order)

    def take(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        for row in ids:
            tensor = tensor.index_select(dim, _source(row, new).to(tensor.device))
        return tensor

    return rebuild(model, groups, lambda state: _along_axes(state, groups, take))


def mask(model: nn.Module, groups: Groups, keep: Channels) -> nn.Module:
    """Build the model of full size in which kept channels do not read the others; those stay for growing back."""
    return rebuild(model, groups, lambda state: silence(state, groups, keep))


def expand(small: nn.Module, big: nn.Module, groups: Groups, keep: Channels) -> nn.Module:
    """Build the big model with the small one's tensors in their places; all other values are the big model's."""
    theirs = _state(small)
    lifted = lift(theirs, groups, keep)
    there = lift({name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in theirs.items()}, groups, keep)

    def overlay(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.where(there[name], lifted[name], tensor) for name, tensor in state.items()}

    return rebuild(big, groups, overlay)


def restrict(state: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Select from tensors of the big model's shapes the part that the small model has."""
    stay = mark_kept(groups, keep)

    def take(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        return tensor.index_select(dim, _where(stay[ids].all(0), tensor))

    return _along_axes(state, groups, take)


def silence(state: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Zero the weights by which kept channels read the others, in tensors of the big model's shapes."""
    stay = mark_kept(groups, keep)
    return {name: _silenced(name, tensor, groups, stay) for name, tensor in state.items()}


def lift(delta: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Put tensors of the small model's shapes at their places in the big one's, among zeros."""
    stay = mark_kept(groups, keep)

    def put(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        shape = [ids.shape[1] if d == dim else size for d, size in enumerate(tensor.shape)]
        return tensor.new_zeros(shape).index_copy(dim, _where(stay[ids].all(0), tensor), tensor)

    def kept(ids: Tensor) -> int:
        return int(stay[ids].all(0).sum())

    return _along_axes(delta, groups, put, size=kept)


def coordinates(layout: Layout, groups: Groups, keep: Channels) -> npt.NDArray[np.int64]:
    """Return the positions of the small model's flat vector in the big one's, whose layout this is."""
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    places = {name: torch.arange(span.start, span.stop).view(shapes[name]) for name, span in layout.spans.items()}
    return torch.cat([places.reshape(-1) for places in restrict(places, groups, keep).values()]).numpy()


def mark_kept(groups: Groups, keep: Channels) -> Tensor:
    """Mark every channel that stays; the last entry stands for channels without a group."""
    stay = torch.ones(sum(groups.sizes.values()) + 1, dtype=torch.bool)
    for name, index in _checked(groups, keep, whole=False).items():
        group = groups.members[name]
        stay[group.span] = False
        stay[group.first + index] = True
    return stay


def _order(groups: Groups, order: Channels) -> Tensor:
    """Return for every channel the one that takes its place."""
    new = torch.arange(sum(groups.sizes.values()) + 1)
    new[-1] = -1
    for name, index in _checked(groups, order, whole=True).items():
        group = groups.members[name]
        new[group.span] = group.first + index
    return new


def _source(ids: Tensor, new: Tensor) -> Tensor:
    """Return the source of each place; a channel with several places keeps their order."""
    source = torch.empty_like(ids)
    source[new[ids].argsort(stable=True)] = ids.argsort(stable=True)
    return source


def _where(stay: Tensor, tensor: Tensor) -> Tensor:
    return torch.nonzero(stay).flatten().to(tensor.device)


def _silenced(name: str, tensor: Tensor, groups: Groups, stay: Tensor) -> Tensor:
    """Zero the weights that read a removed channel, except in the rows of removed channels."""
    read = [dim for dim in groups.dims.get(name, ()) if (name, dim) in groups.reads]
    if not read:
        return tensor.clone()
    gone = torch.zeros((1,) * tensor.dim(), dtype=torch.bool)
    kept = ~gone
    for dim in groups.dims[name]:
        here = stay[groups.axes[name, dim]].all(0).view([-1 if d == dim else 1 for d in range(tensor.dim())])
        if dim in read:
            gone = gone | ~here
        else:
            kept = kept & here
    return tensor.masked_fill((gone & kept).to(tensor.device), 0)


def _along_axes(
    state: Mapping[str, Tensor],
    groups: Groups,
    act: Callable[[Tensor, int, Tensor], Tensor],
    size: Callable[[Tensor], int] = lambda ids: ids.shape[1],
) -> dict[str, Tensor]:
    """Apply a function to every dimension of every tensor along which channels of groups lie."""
    changed = {}
    for name, tensor in state.items():
        for dim in groups.dims.get(name, ()):
            ids = groups.axes[name, dim]
            if tensor.dim() <= dim or tensor.shape[dim] != size(ids):
                raise RequestError(
                    f"'{name}' has shape {tuple(tensor.shape)}; in the network whose groups these are it has "
                    f"{size(ids)} along dimension {dim}"
                )
            tensor = act(tensor, dim, ids)
        changed[name] = tensor
    return changed


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensors[0].detach() for name, tensors in group_by_storage(model).items()}


def rebuild(
    model: nn.Module, groups: Groups, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> nn.Module:
    """Copy a model with other tensors; shared tensors stay shared."""
    shared = group_by_storage(model)
    if absent := sorted(groups.dims.keys() - shared.keys()):
        raise RequestError(f"the groups are of another network: this one has no '{absent[0]}'")
    state = {name: tensors[0].detach() for name, tensors in shared.items()}
    memo: dict[int, Any] = {}
    for name, new in change(state).items():
        own = new.clone(memory_format=torch.contiguous_format) if new is state[name] else new.contiguous()
        for old in shared[name]:
            memo[id(old)] = nn.Parameter(own, old.requires_grad) if isinstance(old, nn.Parameter) else own
    rebuilt = copy_model(model, memo)
    first = {id(tensor): name for name, tensors in shared.items() for tensor in tensors}
    for before, module in zip(model.modules(), rebuilt.modules(), strict=True):
        if isinstance(before, _ConvNd) and before.groups > 1:
            assert isinstance(module, _ConvNd)
            name = first[id(before.weight)]
            if module.weight.shape != before.weight.shape:
                module.groups = len(change({name: _blocks(before)})[name].unique())
        _describe(module)
    return make_safe(rebuilt)


def _blocks(conv: _ConvNd) -> Tensor:
    """Number the block of every weight of a grouped convolution."""
    blocks = torch.arange(conv.groups).repeat_interleave(len(conv.weight) // conv.groups)
    return blocks.view(-1, *(1,) * (conv.weight.dim() - 1)).expand(conv.weight.shape)


def _describe(module: nn.Module) -> None:
    """Set a layer's numbers of channels to those of its weights."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.in_channels, module.out_channels = weight.shape[1] * module.groups, weight.shape[0]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _NormBase):
        held = weight if weight is not None else module.running_mean
        module.num_features = module.num_features if held is None else len(held)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)


def _checked(groups: Groups, given: Channels, *, whole: bool) -> dict[str, Tensor]:
    """Check the channels, and report all faults at once."""
    index = {
        name: torch.as_tensor(list(channels) if isinstance(channels, range) else channels)
        for name, channels in given.items()
    }
    faults = [fault for name, channels in index.items() for fault in _faults(groups, name, channels, whole=whole)]
    if faults:
        raise RequestError("The channels are not right: " + "; ".join(faults) + ".")
    return {name: channels.cpu().long() for name, channels in index.items()}


def _faults(groups: Groups, name: str, index: Tensor, *, whole: bool) -> Iterator[str]:
    size = groups.sizes.get(name)
    if size is None:
        yield _stranger(groups, name)
    elif index.dim() != 1 or (index.numel() and (index.is_floating_point() or index.dtype == torch.bool)):
        yield f"'{name}' needs a list of indices, got {index.dtype} of shape {tuple(index.shape)}"
    elif not index.numel():
        yield f"'{name}' is left with none of its {size} channels, it needs at least 1"
    elif int(index.min()) < 0 or int(index.max()) >= size:
        wrong = int(index.min()) if int(index.min()) < 0 else int(index.max())
        yield f"'{name}' has channels 0 to {size - 1}, got {wrong}"
    elif len(index.unique()) < len(index):
        yield f"'{name}' names a channel twice"
    elif whole and len(index) != size:
        yield f"'{name}' has {size} channels, an order names all of them, got {len(index)}"


def _stranger(groups: Groups, name: str) -> str:
    home = groups.home(name)
    if home is not None:
        return f"the channels of layer '{name}' belong to the group '{home}'"
    if name in groups.fixed:
        return f"the channels of layer '{name}' must stay: {groups.fixed[name]}"
    close = difflib.get_close_matches(name, groups.sizes, n=1)
    return f"there is no group '{name}'" + (f", did you mean '{close[0]}'?" if close else "")
