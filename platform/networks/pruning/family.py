"""A family of networks of several widths, with shared weights.

The weights are one vector, of which each network uses a prefix.

The vector starts with the weights of the smallest network, followed by those that each larger network adds: switching
to a larger network appends a slice, switching back drops it. Unshared tensors are stored per network. A width of 0
under the name of a block means that the network has no such block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.errors import RequestError
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.pruning.depth import outside_blocks, without_blocks
from driftlab.platform.networks.pruning.surgery import Groups, cut, groups, lift, restrict

Vector = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Widths = Mapping[str, tuple[int, ...]]  # by group: channels of each network, the smallest first


@dataclass(frozen=True, eq=False)
class Family:
    """Networks of one architecture; network k has the first `widths[group][k]` channels of each group."""

    model: nn.Module  # of full width; only its architecture is used
    groups: Groups
    widths: Widths
    val_accuracies: tuple[float, ...]
    test_accuracies: tuple[float, ...]
    shared: Vector
    private: tuple[Weights, ...]  # unshared tensors, by network

    def __len__(self) -> int:
        return len(self.private)

    @cached_property
    def places(self) -> tuple[Places, ...]:
        """Return the positions of each network's weights in the shared vector, in the order of its tensors."""
        lists = [_flat(self.restricted(self._numbered, which)) for which in range(len(self))]
        place = torch.full((sum(tensor.numel() for tensor in self._numbered.values()),), -1)
        end = 0
        for numbers in lists:
            new = numbers[place[numbers] < 0]
            place[new] = torch.arange(end, end + len(new))
            end += len(new)
        return tuple(place[numbers].numpy() for numbers in lists)

    @cached_property
    def keeps(self) -> tuple[dict[str, range], ...]:
        """Return the channels of each network, as positions at full width."""
        widths = {name: counts for name, counts in self.widths.items() if name in self.groups.sizes}
        return tuple({name: range(counts[k]) for name, counts in widths.items()} for k in range(len(self)))

    def restricted(self, tensors: Mapping[str, Tensor], which: int) -> dict[str, Tensor]:
        """Restrict tensors of full width to those of a network."""
        return outside_blocks(restrict(tensors, self.groups, self.keeps[which]), self.missing(which))

    def missing(self, which: int) -> tuple[str, ...]:
        """Return the names of blocks that a network does not have."""
        return tuple(name for name, counts in self.widths.items() if not counts[which])

    @property
    def nested(self) -> bool:
        """Return whether the networks share weights."""
        return len(self.shared) > 0

    def ends(self) -> tuple[int, ...]:
        """Return the length of each network's prefix of the shared vector."""
        return tuple(len(places) for places in self.places)

    def memory_bytes(self, which: int) -> int:
        """Return the bytes in memory while a network runs.

        A nested family also holds the unshared tensors of all networks.
        """
        own = [sum(array.nbytes for array in private.values()) for private in self.private]
        return self.shared[: self.ends()[which]].nbytes + (sum(own) if self.nested else own[which])

    @cached_property
    def _numbered(self) -> dict[str, Tensor]:
        """Return the shareable tensors of full width, each number replaced by its index."""
        tensors = {name: tensor for name, tensor in _tensors(self.model).items() if name not in self.private[-1]}
        stops = np.cumsum([tensor.numel() for tensor in tensors.values()]).tolist()
        return {
            name: torch.arange(stop - tensor.numel(), stop).view(tensor.shape)
            for (name, tensor), stop in zip(tensors.items(), stops, strict=True)
        }


def merge_networks(
    model: nn.Module, groups: Groups, widths: Widths, networks: Sequence[nn.Module], *, own: set[str]
) -> Family:
    """Build a family from dense networks, the smallest first; `own` names the tensors that are not shared.

    Shared weights come from the largest network; different ones of other networks are lost.
    """
    states = [_tensors(network) for network in networks]
    private = tuple({name: _array(state[name]) for name in state if name in own} for state in states)
    unknown = (0.0,) * len(networks)
    empty = Family(model, groups, widths, unknown, unknown, np.empty(0, dtype=np.float32), private)
    shared = np.empty(empty.ends()[-1], dtype=np.float32)
    shared[empty.places[-1]] = _flat({name: states[-1][name] for name in empty._numbered if name in states[-1]}).numpy()
    return replace(empty, shared=shared)


def extract(family: Family, which: int) -> nn.Module:
    """Build one network of the family, in evaluation mode and on the device of the family's model."""
    network = cut(family.model, family.groups, family.keeps[which]).eval()
    without_blocks(network, family.missing(which))
    tensors = _tensors(network)
    values = family.shared[: family.ends()[which]][family.places[which]]
    names = [name for name in tensors if name not in family.private[which]]
    parts = torch.split(torch.from_numpy(values), [tensors[name].numel() for name in names])
    with torch.no_grad():
        for name, part in zip(names, parts, strict=True):
            tensors[name].copy_(part.view(tensors[name].shape))
        for name, array in family.private[which].items():
            tensors[name].copy_(torch.from_numpy(np.array(array)))
    return network


def absorb(family: Family, network: nn.Module) -> Family:
    """Return the family with the trained weights of one network.

    Shared weights change for all networks that use them. In a nested family, unshared parameters of the other networks
    change by the same amount per channel; their statistics stay.
    """
    which, state = _find_network(family, network), _tensors(network)
    own, shared = family.private[which], family.shared.copy()
    shared[family.places[which]] = _flat({name: state[name] for name in family._numbered if name in state}).numpy()
    trained = {name: _array(state[name]) for name in own}
    private = [trained if k == which else kept for k, kept in enumerate(family.private)]
    if family.nested:
        names = [name for name, _ in network.named_parameters() if name in own]
        changes = {name: torch.from_numpy(trained[name] - own[name]) for name in names}
        lifted = lift(changes, family.groups, family.keeps[which])
        for k, keep in enumerate(family.keeps):
            if k != which:
                change = restrict(lifted, family.groups, keep)
                both = [name for name in names if name in private[k]]
                private[k] = {**private[k], **{name: private[k][name] + change[name].numpy() for name in both}}
    return replace(family, shared=shared, private=tuple(private))


def store(family: Family) -> Weights:
    """Return a family as arrays by name."""
    return {
        "shared": family.shared,
        "accuracies": np.array(family.val_accuracies),
        "judged": np.array(family.test_accuracies),
        **{f"widths/{name}": np.array(counts) for name, counts in family.widths.items()},
        **{f"private/{k}/{name}": array for k, own in enumerate(family.private) for name, array in own.items()},
    }


def restore(model: nn.Module, arrays: Weights, size: tuple[int, int]) -> Family:
    """Restore a stored family of this model, for frames of this size."""
    example = torch.zeros(1, 3, *size, device=next(model.parameters()).device)
    widths, private = dict[str, tuple[int, ...]](), [dict[str, npt.NDArray[np.generic]]() for _ in arrays["accuracies"]]
    for key, array in arrays.items():
        kind, _, name = key.partition("/")
        if kind == "widths":
            widths[name] = tuple(array.tolist())
        elif kind == "private":
            which, _, name = name.partition("/")
            private[int(which)][name] = array
    val_accuracies, test_accuracies = (tuple(arrays[name].tolist()) for name in ("accuracies", "judged"))
    return Family(
        model,
        groups(model, example),
        widths,
        val_accuracies,
        test_accuracies,
        np.array(arrays["shared"]),
        tuple(private),
    )


def _find_network(family: Family, network: nn.Module) -> int:
    """Find a network's index in the family by its shapes."""
    shapes = {name: tensor.shape for name, tensor in _tensors(network).items()}
    blank = {name: tensor.to("meta") for name, tensor in _tensors(family.model).items()}
    for which in range(len(family)):
        if {name: tensor.shape for name, tensor in family.restricted(blank, which).items()} == shapes:
            return which
    raise RequestError(f"This {type(network).__name__} is none of the family's {len(family)} networks.")


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    return np.array(tensor.cpu().numpy())


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the concatenated tensors, empty without tensors."""
    parts = [tensor.reshape(-1).cpu() for tensor in tensors.values()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
