"""Channel groups: channels of a network that must be removed or moved together."""

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
STAYS = -1  # the number of every channel without a group


@dataclass(frozen=True)
class Group:
    """Channels that occur in the same places, so that any of them can be removed and any two can be swapped."""

    name: str  # of the first layer that makes them
    size: int
    first: int  # channel 0 of the group has this number among the channels of all groups
    layers: tuple[str, ...]  # that make these channels, in running order

    @property
    def span(self) -> slice:
        """Return the slice of its channels among those of all groups."""
        return slice(self.first, self.first + self.size)

    def has(self, numbers: Ids) -> Bools:
        """Mark the numbers that are channels of this group."""
        return np.asarray((numbers >= self.first) & (numbers < self.first + self.size))


@dataclass(frozen=True, eq=False)
class Groups:
    """The channel groups of an architecture, valid for every model of it, whatever its weights."""

    members: Mapping[str, Group]
    fixed: Mapping[str, str]  # layers whose channels can be neither removed nor moved, and why
    axes: Mapping[Place, Tensor]  # [1 or 2, size]: the channels that a place along a tensor's dimension needs, or STAYS
    reads: frozenset[Place]  # the dimensions along which a tensor reads channels

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of channels of each group."""
        return {name: group.size for name, group in self.members.items()}

    @cached_property
    def dims(self) -> dict[str, list[int]]:
        """Return the dimensions of each tensor along which channels of groups lie."""
        dims: dict[str, list[int]] = {}
        for name, dim in self.axes:
            dims.setdefault(name, []).append(dim)
        return dims

    def home(self, layer: str) -> str | None:
        """Return a group that contains channels of a layer."""
        return next((group.name for group in self.members.values() if layer in group.layers), None)


def groups(
    model: nn.Module, example: Tensor, *, leaves: Leaves | None = None, branches: Sequence[Branch] = (call_model,)
) -> Groups:
    """Find the channel groups of a model by running it on one image of an example, in evaluation and in training mode.

    A model that can be called in several ways has a branch for each. Training mode is left out where it needs more
    than images, or is not deterministic. A module of a type among `leaves` is treated as one function with that rule.
    Then a trial runs with a third of every group cut away. Channels count as fixed where the code insists on their
    number, or where the trial computes something else than the masked model. A layer that never runs keeps its shape.
    """
    trace, passes = _first(
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
            if any(each.training for each in passes):  # such as one that skips layers at random
                trace, passes = _first(model, example, [each for each in passes if not each.training], leaves)
                ran = trace.labels
                continue
            raise _refusal(trial, error, "does not run with fewer channels as it does with all") from error
        reason = f"{layer} insists on their number"
        if not clashing:
            clashing = [found.members[name] for name in differing_groups(model, example, found, branches)]
            reason = "with fewer of them the model computes something else"
        if not clashing:
            return found
        insists = trace.pin(reason)
        for group in clashing:
            trace.unite(torch.from_numpy(np.flatnonzero(group.has(numbers).any(axis=0))), insists)


def _first(model: nn.Module, example: Tensor, passes: list[Pass], leaves: Leaves | None) -> tuple[Trace, list[Pass]]:
    """Run the model, and return the passes that it supports: evaluation is required, training on images is optional."""
    while True:
        trace, error = run(model, example, passes, leaves)
        if error is None:
            return trace, passes
        if trace.at_work is None or not trace.at_work.training:
            raise _refusal(trace, error, f"does not run on an example of shape {tuple(example.shape)}") from error
        passes = [each for each in passes if each != trace.at_work]


def _collect(trace: Trace) -> tuple[Groups, Ids]:
    """Sort the channels into groups and number them, label by label.

    A grouped convolution can lose whole blocks, and the same place in every block. Its channels are in a group for
    each, and stay while both do: what is left is again some blocks of equal size.
    """
    members: dict[str, Group] = {}
    ways = [_number(trace, trace.blocks, members)]
    if trace.evenly:
        ways.append(_number(trace, trace.evenly, members, torch.cat(trace.evenly, dim=1).unique().numpy()))
    numbers = np.stack([number for number, _ in ways])
    axes = {place: torch.from_numpy(numbers[:, labels.numpy()]) for place, labels in trace.axes.items()}
    axes = {place: _short(found) for place, found in axes.items() if bool((found != STAYS).any())}
    fixed = {layer: why for layer, why in ways[0][1].items() if all(layer in reasons for _, reasons in ways)}
    return Groups(members, fixed, axes, frozenset(trace.reads & axes.keys())), numbers


def _short(channels: Tensor) -> Tensor:
    """Drop a second row that says nothing."""
    return channels[:1] if bool((channels[1:] == STAYS).all()) else channels


def _number(
    trace: Trace, pairs: list[Tensor], members: dict[str, Group], only: Ids | None = None
) -> tuple[Ids, dict[str, str]]:
    """Number the channels in one way of cutting, after those of `members`, to which their groups are added.

    With `only` given, groups of other labels are left out, and those of one channel. Returns the number of each label,
    and the layers whose channels must stay, with the reason.
    """
    same = _classes(trace.labels, [*trace.united, *pairs])
    fixed = {int(same[label]): why for label, why in reversed(trace.fixed.items())}
    axes = {place: same[labels.numpy()] for place, labels in trace.axes.items()}
    makers = {place: axes[place] for place in trace.makes}
    made = np.unique(np.concatenate([np.empty(0, np.int64), *makers.values()]))
    made = made if only is None else np.intersect1d(made, same[only])
    number, first = np.full(len(same), STAYS), sum(group.size for group in members.values())
    for channels in _alike([channel for channel in made.tolist() if channel not in fixed], axes):
        if only is not None and len(channels) == 1:
            continue
        layers = tuple(dict.fromkeys(layer_of(place) for place, found in makers.items() if channels[0] in found))
        name = _free_name(layers[0], members)
        members[name] = Group(name, len(channels), first, layers)
        number[channels] = np.arange(first, first + len(channels))
        first += len(channels)
    reasons = {layer_of(place): fixed[c] for place, found in makers.items() for c in found.tolist() if c in fixed}
    return number[same], reasons


def _alike(channels: list[int], axes: Mapping[Place, Ids]) -> list[list[int]]:
    """Group the channels that occur equally often in the same places."""
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
    """Return the class of every label, numbered in the order of their first labels."""
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
    """Find the labels that are elsewhere in the trial than the cut put them, or that stopped it; none if all agree.

    Both runs label in the same order, so that the trial's labels are the remaining ones of the first run.
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
