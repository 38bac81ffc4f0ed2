"""Cut, reorder and expand the channels of a network with known groups.

All edits use two linear maps between tensors by name: `restrict` selects the part of a smaller model, `lift` puts it
back among zeros; each is the adjoint of the other.
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
    """Build the dense model of the kept channels; its outputs equal those of `mask`.

    Groups that are not named keep all channels. Kept channels stay in their order; the order of the list is ignored.
    """
    return rebuild(model, groups, lambda state: restrict(state, groups, keep))


def permute(model: nn.Module, groups: Groups, order: Channels) -> nn.Module:
    """Build the model with reordered channels and equal outputs; channel `order[i]` becomes channel i."""
    new = _order(groups, order)

    def take(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        for row in ids:
            tensor = tensor.index_select(dim, _source(row, new).to(tensor.device))
        return tensor

    return rebuild(model, groups, lambda state: _along_axes(state, groups, take))


def mask(model: nn.Module, groups: Groups, keep: Channels) -> nn.Module:
    """Build the model of full size in which kept channels do not read the others."""
    return rebuild(model, groups, lambda state: silence(state, groups, keep))


def expand(small: nn.Module, big: nn.Module, groups: Groups, keep: Channels) -> nn.Module:
    """Build the big model with the tensors of the small one in their places; all other values stay."""
    theirs = _state(small)
    lifted = lift(theirs, groups, keep)
    there = lift({name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in theirs.items()}, groups, keep)

    def overlay(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.where(there[name], lifted[name], tensor) for name, tensor in state.items()}

    return rebuild(big, groups, overlay)


def restrict(state: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Return the small model's part of tensors with the big model's shapes."""
    stay = mark_kept(groups, keep)

    def take(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        return tensor.index_select(dim, _where(stay[ids].all(0), tensor))

    return _along_axes(state, groups, take)


def silence(state: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Return tensors of the big model's shapes with zero weights where kept channels read the others."""
    stay = mark_kept(groups, keep)
    return {name: _silence_tensor(name, tensor, groups, stay) for name, tensor in state.items()}


def lift(delta: Mapping[str, Tensor], groups: Groups, keep: Channels) -> dict[str, Tensor]:
    """Return tensors of the big model's shapes: the small model's at their places, else zeros."""
    stay = mark_kept(groups, keep)

    def put(tensor: Tensor, dim: int, ids: Tensor) -> Tensor:
        shape = [ids.shape[1] if d == dim else size for d, size in enumerate(tensor.shape)]
        return tensor.new_zeros(shape).index_copy(dim, _where(stay[ids].all(0), tensor), tensor)

    def kept(ids: Tensor) -> int:
        return int(stay[ids].all(0).sum())

    return _along_axes(delta, groups, put, size=kept)


def coordinates(layout: Layout, groups: Groups, keep: Channels) -> npt.NDArray[np.int64]:
    """Return the positions of the small model's flat vector in the big model's, which has this layout."""
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    places = {name: torch.arange(span.start, span.stop).view(shapes[name]) for name, span in layout.spans.items()}
    return torch.cat([places.reshape(-1) for places in restrict(places, groups, keep).values()]).numpy()


def mark_kept(groups: Groups, keep: Channels) -> Tensor:
    """Mark the kept channels; the last entry represents channels without a group."""
    stay = torch.ones(sum(groups.sizes.values()) + 1, dtype=torch.bool)
    for name, index in _check_channels(groups, keep, whole=False).items():
        group = groups.members[name]
        stay[group.span] = False
        stay[group.first + index] = True
    return stay


def _order(groups: Groups, order: Channels) -> Tensor:
    """Return the channel that replaces each channel."""
    new = torch.arange(sum(groups.sizes.values()) + 1)
    new[-1] = -1
    for name, index in _check_channels(groups, order, whole=True).items():
        group = groups.members[name]
        new[group.span] = group.first + index
    return new


def _source(ids: Tensor, new: Tensor) -> Tensor:
    """Return the source of each place; the places of one channel keep their order."""
    source = torch.empty_like(ids)
    source[new[ids].argsort(stable=True)] = ids.argsort(stable=True)
    return source


def _where(stay: Tensor, tensor: Tensor) -> Tensor:
    return torch.nonzero(stay).flatten().to(tensor.device)


def _silence_tensor(name: str, tensor: Tensor, groups: Groups, stay: Tensor) -> Tensor:
    """Return a tensor with zero weights where it reads removed channels.

    Rows of removed channels keep theirs.
    """
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
    """Apply a function to every dimension with channels of groups, of every tensor."""
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
    """Return a copy of a model with changed tensors; shared tensors stay shared."""
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
                module.groups = len(change({name: _block_numbers(before)})[name].unique())
        _update_sizes(module)
    return make_safe(rebuilt)


def _block_numbers(conv: _ConvNd) -> Tensor:
    """Return the block number of each weight of a grouped convolution."""
    blocks = torch.arange(conv.groups).repeat_interleave(len(conv.weight) // conv.groups)
    return blocks.view(-1, *(1,) * (conv.weight.dim() - 1)).expand(conv.weight.shape)


def _update_sizes(module: nn.Module) -> None:
    """Set a layer's numbers of channels from its weights, in place."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, _ConvTransposeNd):
        module.in_channels, module.out_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.in_channels, module.out_channels = weight.shape[1] * module.groups, weight.shape[0]
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _NormBase):
        values = weight if weight is not None else module.running_mean
        module.num_features = module.num_features if values is None else len(values)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)


def _check_channels(groups: Groups, selected: Channels, *, whole: bool) -> dict[str, Tensor]:
    """Return the channels as index tensors; raises an error with all faults."""
    index = {
        name: torch.as_tensor(list(channels) if isinstance(channels, range) else channels)
        for name, channels in selected.items()
    }
    faults = [fault for name, channels in index.items() for fault in _faults(groups, name, channels, whole=whole)]
    if faults:
        raise RequestError("Invalid channels: " + "; ".join(faults) + ".")
    return {name: channels.cpu().long() for name, channels in index.items()}


def _faults(groups: Groups, name: str, index: Tensor, *, whole: bool) -> Iterator[str]:
    size = groups.sizes.get(name)
    if size is None:
        yield _unknown_group(groups, name)
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


def _unknown_group(groups: Groups, name: str) -> str:
    home = groups.home(name)
    if home is not None:
        return f"the channels of layer '{name}' belong to the group '{home}'"
    if name in groups.fixed:
        return f"the channels of layer '{name}' must stay: {groups.fixed[name]}"
    close = difflib.get_close_matches(name, groups.sizes, n=1)
    return f"there is no group '{name}'" + (f", did you mean '{close[0]}'?" if close else "")
