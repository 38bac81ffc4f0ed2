"""Networks of several widths as one: what they share is one vector, and each network is made from its beginning.

The vector begins with all that the smallest network holds, then comes what the next one adds, and so on: loading a
larger network appends a slice, going back to a smaller one drops it. What a network does not share is its own, whole.
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
from driftlab.platform.pruning.surgery import Groups, cut, groups, lift, restrict

Vector = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Widths = Mapping[str, tuple[int, ...]]  # of each group of channels: how many each network has, from the smallest on


@dataclass(frozen=True, eq=False)
class Family:
    """Networks of one architecture; network k has the first `widths[group][k]` channels of each group."""

    model: nn.Module  # of full width; only its architecture counts
    groups: Groups
    widths: Widths
    accuracies: tuple[float, ...]  # on data to choose by
    judged: tuple[float, ...]  # accuracies on data that nothing is chosen by
    shared: Vector
    private: tuple[Weights, ...]  # what each network has for itself

    def __len__(self) -> int:
        return len(self.private)

    @cached_property
    def places(self) -> tuple[Places, ...]:
        """Where in the shared vector the numbers of each network lie, in the order of its own tensors."""
        lists = [_flat(restrict(self._numbered, self.groups, keep)) for keep in self.keeps]
        place = torch.full((sum(tensor.numel() for tensor in self._numbered.values()),), -1)
        held = 0
        for numbers in lists:
            new = numbers[place[numbers] < 0]
            place[new] = torch.arange(held, held + len(new))
            held += len(new)
        return tuple(place[numbers].numpy() for numbers in lists)

    @cached_property
    def keeps(self) -> tuple[dict[str, range], ...]:
        """Which channels of the full width each network has."""
        return tuple({name: range(counts[k]) for name, counts in self.widths.items()} for k in range(len(self)))

    @property
    def nested(self) -> bool:
        """Whether the networks share anything."""
        return len(self.shared) > 0

    def ends(self) -> tuple[int, ...]:
        """Say how much of the shared vector each network needs."""
        return tuple(len(places) for places in self.places)

    def memory_bytes(self, which: int) -> int:
        """Count what is in memory while a network runs; what networks that share have for themselves always is."""
        own = [sum(array.nbytes for array in private.values()) for private in self.private]
        return self.shared[: self.ends()[which]].nbytes + (sum(own) if self.nested else own[which])

    @cached_property
    def _numbered(self) -> dict[str, Tensor]:
        """Number what can be shared across the tensors of full width."""
        tensors = {name: tensor for name, tensor in _tensors(self.model).items() if name not in self.private[0]}
        stops = np.cumsum([tensor.numel() for tensor in tensors.values()]).tolist()
        return {
            name: torch.arange(stop - tensor.numel(), stop).view(tensor.shape)
            for (name, tensor), stop in zip(tensors.items(), stops, strict=True)
        }


def gather(model: nn.Module, found: Groups, widths: Widths, networks: Sequence[nn.Module], *, own: set[str]) -> Family:
    """Make a family of dense networks, from the smallest on; `own` names the tensors that they do not share.

    Of what they share the largest one's numbers count: the others must agree, or be meant to change.
    """
    states = [_tensors(network) for network in networks]
    private = tuple({name: _array(state[name]) for name in state if name in own} for state in states)
    unknown = (0.0,) * len(networks)
    empty = Family(model, found, widths, unknown, unknown, np.empty(0, dtype=np.float32), private)
    shared = np.empty(empty.ends()[-1], dtype=np.float32)
    shared[empty.places[-1]] = _flat({name: states[-1][name] for name in empty._numbered}).numpy()
    return replace(empty, shared=shared)


def dense(family: Family, which: int) -> nn.Module:
    """Make one network of the family, in evaluation mode and where the family's model is."""
    network = cut(family.model, family.groups, family.keeps[which]).eval()
    tensors = _tensors(network)
    begun = family.shared[: family.ends()[which]][family.places[which]]
    names = [name for name in tensors if name not in family.private[which]]
    parts = torch.split(torch.from_numpy(begun), [tensors[name].numel() for name in names])
    with torch.no_grad():
        for name, part in zip(names, parts, strict=True):
            tensors[name].copy_(part.view(tensors[name].shape))
        for name, array in family.private[which].items():
            tensors[name].copy_(torch.from_numpy(np.array(array)))
    return network


def absorbed(family: Family, network: nn.Module) -> Family:
    """Take over what a network of the family has learned.

    What is shared changes for all who hold it. What is each network's own changes in this one; where networks share
    anything, the others' own parameters move by as much, channel by channel, and their statistics stay.
    """
    which, state = _recognised(family, network), _tensors(network)
    own, shared = family.private[which], family.shared.copy()
    shared[family.places[which]] = _flat({name: state[name] for name in family._numbered}).numpy()
    learned = {name: _array(state[name]) for name in own}
    private = [learned if k == which else kept for k, kept in enumerate(family.private)]
    if family.nested:
        trained = [name for name, _ in network.named_parameters() if name in own]
        change = {name: torch.from_numpy(learned[name] - own[name]) for name in trained}
        moved = lift(change, family.groups, family.keeps[which])
        for k, keep in enumerate(family.keeps):
            if k != which:
                mine = restrict(moved, family.groups, keep)
                private[k] = {**private[k], **{name: private[k][name] + mine[name].numpy() for name in trained}}
    return replace(family, shared=shared, private=tuple(private))


def stored(family: Family) -> Weights:
    """Write a family as plain arrays by name."""
    return {
        "shared": family.shared,
        "accuracies": np.array(family.accuracies),
        "judged": np.array(family.judged),
        **{f"widths/{name}": np.array(counts) for name, counts in family.widths.items()},
        **{f"private/{k}/{name}": array for k, own in enumerate(family.private) for name, array in own.items()},
    }


def restored(model: nn.Module, arrays: Weights, size: tuple[int, int]) -> Family:
    """Read a family of this model again, which sees frames of this size."""
    example = torch.zeros(1, 3, *size, device=next(model.parameters()).device)
    widths, private = dict[str, tuple[int, ...]](), [dict[str, npt.NDArray[np.generic]]() for _ in arrays["accuracies"]]
    for key, array in arrays.items():
        kind, _, name = key.partition("/")
        if kind == "widths":
            widths[name] = tuple(array.tolist())
        elif kind == "private":
            which, _, name = name.partition("/")
            private[int(which)][name] = array
    accuracies, judged = (tuple(arrays[name].tolist()) for name in ("accuracies", "judged"))
    return Family(model, groups(model, example), widths, accuracies, judged, np.array(arrays["shared"]), tuple(private))


def _recognised(family: Family, network: nn.Module) -> int:
    """Find which network of the family this is, by its shapes."""
    shapes = {name: tensor.shape for name, tensor in _tensors(network).items()}
    blank = {name: tensor.to("meta") for name, tensor in _tensors(family.model).items()}
    for which, keep in enumerate(family.keeps):
        if {name: tensor.shape for name, tensor in restrict(blank, family.groups, keep).items()} == shapes:
            return which
    raise RequestError(f"This {type(network).__name__} is none of the family's {len(family)} networks.")


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _array(tensor: Tensor) -> npt.NDArray[np.generic]:
    return np.array(tensor.cpu().numpy())


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Lay tensors end to end; there may be none."""
    parts = [tensor.reshape(-1).cpu() for tensor in tensors.values()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
