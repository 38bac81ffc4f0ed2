"""Follow every channel of a network through one run.

Each element of an activation carries a label that says which channel it belongs to. Functions that only move elements
(flatten, cat, permute) are applied to the labels as well, so that torch itself says where the channels go. Functions
that compute say by a rule what becomes of the labels: see `rules`. A function without a rule fixes the channels that it
sees, which is always right: a network whose channels all stay is the same network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.errors import RequestError
from driftlab.platform.models.account import tensors_in
from driftlab.platform.models.surgery import rules

Place = tuple[str, int]  # a tensor of the model by name, and one of its dimensions


@dataclass
class Trace:
    """What one run taught: which label lies where in which tensor, which are the same channel, which must stay."""

    names: Mapping[int, str]  # of the model's tensors, by id
    labels: int = 0  # how many there are
    fixed: dict[int, str] = field(default_factory=dict)  # labels of what can neither go nor move, and why
    united: list[Tensor] = field(default_factory=list)  # pairs of labels, each [2, n]
    axes: dict[Place, Tensor] = field(default_factory=dict)
    reads: set[Place] = field(default_factory=set)  # dimensions along which a tensor reads channels
    makes: list[Place] = field(default_factory=list)  # dimensions along which a tensor makes new ones, as they run
    running: list[str] = field(default_factory=list)  # the layers that are at work, innermost last
    stuck: Tensor | None = None  # labels of what the function that failed was given

    @property
    def layer(self) -> str:
        """The innermost layer at work, as a message names it."""
        return f"layer '{self.running[-1]}'" if self.running and self.running[-1] else "the model's own forward"

    def fresh(self, count: int) -> Tensor:
        """Make new labels."""
        self.labels += count
        return torch.arange(self.labels - count, self.labels)

    def pin(self, why: str) -> Tensor:
        """Make one label for whatever must stay as it is."""
        label = self.fresh(1)
        self.fixed[int(label)] = why
        return label

    def unite(self, some: Tensor, others: Tensor) -> None:
        """Note that these are the same channels."""
        self.united.append(torch.stack([side.reshape(-1) for side in torch.broadcast_tensors(some, others)]))

    def bind(self, tensor: Any, dim: int, labels: Tensor) -> None:
        """Note which channels lie along a dimension of one of the model's tensors."""
        name = self.names.get(id(tensor))
        if name is None:
            if isinstance(tensor, Tensor):
                raise rules.Lost("uses a tensor that it computes and the model does not hold")
        elif (known := self.axes.setdefault((name, dim), labels)) is not labels:
            self.unite(known, labels)

    def read(self, tensor: Tensor, dim: int, labels: Tensor) -> None:
        """Note which channels a tensor reads."""
        self.bind(tensor, dim, labels)
        self.reads.add((self.names[id(tensor)], dim))

    def make(self, tensor: Tensor, dim: int) -> Tensor:
        """Label the channels that a tensor makes."""
        labels = self.fresh(tensor.shape[dim])
        self.bind(tensor, dim, labels)
        self.makes.append((self.names[id(tensor)], dim))
        return labels

    def follow(self, call: rules.Call) -> list[Tensor]:
        """Say what the labels of a function's results are; where no rule can, fix what the function was given."""
        before = [given.labels for given in tensors_in((call.args, call.kwargs)) if rules.follows(given)]
        try:
            return rules.rule_of(call.name)(call)
        except rules.Lost as lost:
            label = self.pin(f"{self.layer} {lost}")
        for labels in before:
            self.unite(rules.compact(labels), label)
        for held in tensors_in((call.args, call.kwargs)):
            for dim in range(held.dim()) if id(held) in self.names else ():
                self.bind(held, dim, label.expand(held.shape[dim]))
        return [label.expand(made.shape) for made in call.made]


class Followed(Tensor):
    """A tensor that knows the label of each of its elements."""

    labels: Tensor
    record: Trace

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [tensor for tensor in tensors_in((args, kwargs)) if isinstance(tensor, Followed)]
        trace = given[0].record
        try:
            result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        except Exception:
            trace.stuck = torch.cat([rules.compact(tensor.labels).reshape(-1) for tensor in given])
            raise
        made = [tensor for tensor in tensors_in(result) if isinstance(tensor, Followed)]
        call = rules.Call(trace, func, args, kwargs, made)
        if made or result is None:  # what returns nothing changes what it was given, as x[0] = 1 does
            with torch._C.DisableTorchFunctionSubclass():  # looking at a tensor is not a step of the model
                for tensor, labels in zip(made, trace.follow(call), strict=True):
                    tensor.record, tensor.labels = trace, labels
        return result


def run(model: nn.Module, example: Tensor) -> tuple[Trace, Exception | None]:
    """Run the model once and follow its channels; an error of the model comes back beside what was learnt so far."""
    shared = {id(tensor): tensor for tensors in stored(model).values() for tensor in tensors}
    trace = Trace({id(tensor): name for name, tensors in stored(model).items() for tensor in tensors})
    ghost = copy.deepcopy(model, dict(shared)).eval()  # other modules, the same tensors
    for name, module in ghost.named_modules():
        _announce(module, name, trace)
    image = example[:1].detach().clone()
    labels = trace.pin("they belong to the model's input").expand(image.shape)
    followed = image.as_subclass(Followed)
    followed.record, followed.labels = trace, labels
    try:
        with torch.no_grad():
            result = ghost(followed)
    except Exception as error:
        return trace, error
    output = trace.pin("they are what the model returns")
    for tensor in tensors_in(result):
        if isinstance(tensor, Followed):
            trace.unite(rules.compact(tensor.labels), output)
    return trace, None


def stored(model: nn.Module) -> dict[str, list[Tensor]]:
    """Group parameters and buffers by what they share, under the name that comes first."""
    groups: dict[str, list[Tensor]] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        key = first.setdefault((tensor.data_ptr() or id(tensor), tensor.shape), name)
        groups.setdefault(key, []).append(tensor)
    return groups


def _announce(module: nn.Module, name: str, trace: Trace) -> None:
    def begin(*_: Any) -> None:
        trace.running.append(name)

    def end(_: nn.Module, given: Any, made: Any) -> None:
        trace.running.pop()
        plain = [tensor for tensor in tensors_in(made) if not rules.follows(tensor)]
        if plain and not any(map(rules.follows, tensors_in(made))) and any(map(rules.follows, tensors_in(given))):
            raise RequestError(
                f"The channels of layer '{name}' ({type(module).__name__}) cannot be followed: "
                "what it returns was not made by torch's functions from what it was given."
            )

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
