"""Channel groups: the channels of a network that must be removed or moved together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from driftlab.errors import DriftlabError, RequestError
from driftlab.platform.networks.pruning.surgery import edit
from driftlab.platform.networks.pruning.surgery.compare import differing_groups
from driftlab.platform.networks.pruning.surgery.trace import Branch, Leaves, Pass, Place, Trace, call_model, run

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
STAYS = -1  # number of channels without a group


@dataclass(frozen=True)
class Group:
    """Channels that occur in the same places: each can be removed, and any two can be swapped."""

    name: str  # first layer that makes them
    size: int
    first: int  # number of channel 0 among the channels of all groups
    layers: tuple[str, ...]  # layers that make these channels, in running order

    @property
    def span(self) -> slice:
        """Return the slice of its channels among those of all groups."""
        return slice(self.first, self.first + self.size)

    def has(self, numbers: Ids) -> Bools:
        """Mark the numbers that are channels of this group."""
        return np.asarray((numbers >= self.first) & (numbers < self.first + self.size))


@dataclass(frozen=True, eq=False)
class Groups:
    """The channel groups of an architecture, valid for all weights."""

    members: Mapping[str, Group]
    fixed: Mapping[str, str]  # layers whose channels must stay, with the reason
    axes: Mapping[Place, Tensor]  # [1 or 2, size]: channels required by each place along a dimension, or STAYS
    reads: frozenset[Place]  # dimensions along which a tensor reads channels

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of channels of each group."""
        return {name: group.size for name, group in self.members.items()}

    @cached_property
    def dims(self) -> dict[str, list[int]]:
        """Return the dimensions of each tensor with channels of groups."""
        dims: dict[str, list[int]] = {}
        for name, dim in self.axes:
            dims.setdefault(name, []).append(dim)
        return dims

    def home(self, layer: str) -> str | None:
        """Return the name of a group with channels of a layer; None if there is none."""
        return next((group.name for group in self.members.values() if layer in group.layers), None)


def groups(
    model: nn.Module, example: Tensor, *, leaves: Leaves | None = None, branches: Sequence[Branch] = (call_model,)
) -> Groups:
    """Find the channel groups of a model by running it on one image, in evaluation and in training mode.

    `branches` are the call modes of the model. Training mode is skipped if it requires more than images or is not
    deterministic. Modules of a type in `leaves` are treated as one function with that rule. Then a trial runs with a
    third of every group cut. Channels are fixed if the code depends on their number, or if the output of the trial
    differs from that of the masked model. Layers that never run keep their shape.
    """
    trace, passes = _first_trace(
        model, example, [Pass(branch, mode) for mode in (False, True) for branch in branches], leaves
    )
    ran = trace.labels
    while True:
        found, numbers = _collect(trace)
        keep = {name: np.flatnonzero(np.arange(size) % 3 != 1) for name, size in found.sizes.items() if size > 2}
        trial, error = run(edit.cut(model, found, keep), example, passes, leaves)
        remaining = np.flatnonzero(edit.mark_kept(found, keep).numpy()[numbers[:, :ran]].all(axis=0))
        layer, labels = _clash(trace, trial, remaining)
        clashing = [group for group in found.members.values() if group.has(numbers[:, labels]).any()]
        if not clashing and (error is not None or trial.labels != len(remaining)):
            if any(each.training for each in passes):  # such as stochastic depth
                trace, passes = _first_trace(model, example, [each for each in passes if not each.training], leaves)
                ran = trace.labels
                continue
            raise _refusal(trial, error, "does not run with fewer channels as it does with all") from error
        reason = f"{layer} depends on their number"
        if not clashing:
            clashing = [found.members[name] for name in differing_groups(model, example, found, branches)]
            reason = "with fewer of them the output of the model changes"
        if not clashing:
            return found
        pinned = trace.pin(reason)
        for group in clashing:
            trace.unite(torch.from_numpy(np.flatnonzero(group.has(numbers).any(axis=0))), pinned)


def _first_trace(
    model: nn.Module, example: Tensor, passes: list[Pass], leaves: Leaves | None
) -> tuple[Trace, list[Pass]]:
    """Return the first trace and the supported passes: evaluation is required, training is optional."""
    while True:
        trace, error = run(model, example, passes, leaves)
        if error is None:
            return trace, passes
        if trace.current is None or not trace.current.training:
            raise _refusal(trace, error, f"does not run on an example of shape {tuple(example.shape)}") from error
        passes = [each for each in passes if each != trace.current]


def _collect(trace: Trace) -> tuple[Groups, Ids]:
    """Return the groups and the channel number of each label.

    A grouped convolution can lose whole blocks, or the same place in every block. Its channels are in two groups, and a
    channel is kept if both keep it: the result again consists of blocks of equal size.
    """
    members: dict[str, Group] = {}
    numberings = [_number(trace, trace.blocks, members)]
    if trace.evenly:
        numberings.append(_number(trace, trace.evenly, members, torch.cat(trace.evenly, dim=1).unique().numpy()))
    numbers = np.stack([number for number, _ in numberings])
    axes = {place: torch.from_numpy(numbers[:, labels.numpy()]) for place, labels in trace.axes.items()}
    axes = {place: _drop_empty_row(found) for place, found in axes.items() if bool((found != STAYS).any())}
    fixed = {
        layer: why for layer, why in numberings[0][1].items() if all(layer in reasons for _, reasons in numberings)
    }
    return Groups(members, fixed, axes, frozenset(trace.reads & axes.keys())), numbers


def _drop_empty_row(channels: Tensor) -> Tensor:
    """Return the channels without a second row that is all STAYS."""
    return channels[:1] if bool((channels[1:] == STAYS).all()) else channels


def _number(
    trace: Trace, pairs: list[Tensor], members: dict[str, Group], only: Ids | None = None
) -> tuple[Ids, dict[str, str]]:
    """Number the channels for one kind of cut, after those of `members`.

    The new groups are added to `members`.

    `only` restricts the groups to these labels and to more than one channel. Returns the number of each label, and the
    layers whose channels must stay, with the reason.
    """
    same = _classes(trace.labels, [*trace.united, *pairs])
    fixed = {int(same[label]): why for label, why in reversed(trace.fixed.items())}
    axes = {place: same[labels.numpy()] for place, labels in trace.axes.items()}
    makers = {place: axes[place] for place in trace.makes}
    made = np.unique(np.concatenate([np.empty(0, np.int64), *makers.values()]))
    made = made if only is None else np.intersect1d(made, same[only])
    number, first = np.full(len(same), STAYS), sum(group.size for group in members.values())
    for channels in _group_alike([channel for channel in made.tolist() if channel not in fixed], axes):
        if only is not None and len(channels) == 1:
            continue
        layers = tuple(dict.fromkeys(layer_of(place) for place, found in makers.items() if channels[0] in found))
        name = _free_name(layers[0], members)
        members[name] = Group(name, len(channels), first, layers)
        number[channels] = np.arange(first, first + len(channels))
        first += len(channels)
    reasons = {layer_of(place): fixed[c] for place, found in makers.items() for c in found.tolist() if c in fixed}
    return number[same], reasons


def _group_alike(channels: list[int], axes: Mapping[Place, Ids]) -> list[list[int]]:
    """Return lists of channels that occur equally often in the same places."""
    if not channels:
        return []
    rows = np.concatenate([*axes.values()])
    columns = np.repeat(np.arange(len(axes)), [len(found) for found in axes.values()])
    times = coo_array((np.ones(len(rows), np.int64), (rows, columns))).tocsr()
    alike: dict[bytes, list[int]] = {}
    for channel in channels:
        row = slice(times.indptr[channel], times.indptr[channel + 1])
        alike.setdefault(times.indices[row].tobytes() + times.data[row].tobytes(), []).append(channel)
    return list(alike.values())


def _classes(labels: int, united: list[Tensor]) -> Ids:
    """Return the equivalence class of each label, numbered by first occurrence."""
    pairs = torch.cat([torch.zeros(2, 0, dtype=torch.int64), *united], dim=1).numpy()
    graph = coo_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(labels, labels))
    _, classes = connected_components(graph, directed=False)
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def _free_name(layer: str, taken: Mapping[str, object]) -> str:
    names: Iterator[str] = (layer if n == 1 else f"{layer}#{n}" for n in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def layer_of(place: Place) -> str:
    """Return the layer that holds a tensor."""
    tensor, _ = place
    return tensor.rpartition(".")[0] or tensor


def _clash(trace: Trace, trial: Trace, remaining: Ids) -> tuple[str, Ids]:
    """Return the layer and labels that differ between the trial and the cut model.

    It also returns those that stopped the trial.

    Both runs assign labels in the same order: those of the trial correspond to the remaining ones of the first run.
    """
    for place, labels in trial.axes.items():
        whole = trace.axes[place].numpy() if place in trace.axes else remaining[:0]
        known = labels.numpy()[labels.numpy() < len(remaining)]
        if not np.array_equal(remaining[known], whole[np.isin(whole, remaining)]):
            return f"layer '{layer_of(place)}'", whole
    stuck = np.empty(0, np.int64) if trial.stuck is None else trial.stuck.numpy()
    return trial.layer, remaining[stuck[stuck < len(remaining)]]


def _refusal(trace: Trace, error: Exception | None, what: str) -> DriftlabError:
    if isinstance(error, DriftlabError):
        return error
    return RequestError(f"The model {what}" + (f": {trace.layer} says: {error}" if error is not None else ""))
