"""Follow every channel of a network through its passes: evaluation, training, and each branch.

Each element of an activation has a label that identifies its channel. Functions that only move elements (flatten, cat,
permute) are also applied to the labels, so that torch itself computes their positions. Functions that compute have a
rule for labels in `rules`. A function without a rule fixes the channels of its arguments, which is always correct: a
network in which all channels stay is the same network.

Operations of the model on its own tensors before their use (views, casts, element-wise functions) are recorded too, so
that a reshaped scale is still the scale of a channel.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from driftlab.errors import RequestError
from driftlab.platform.networks.cost_counter import tensors_in
from driftlab.platform.networks.module_utils import copy_model
from driftlab.platform.networks.pruning.surgery import contract, rules

Place = tuple[str, int]  # a tensor of the model by name, and one of its dimensions
Branch = Callable[[nn.Module, Tensor], object]  # calls the model on images in one of its call modes
Leaves = Mapping[type[nn.Module], rules.Rule]
RULES = rules.RULES | contract.RULES
NEW = frozenset(("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"))  # use only type and device


@dataclass(frozen=True)
class Pass:
    """One pass of a model: a branch, in training or evaluation mode."""

    branch: Branch
    training: bool

    def images(self, example: Tensor) -> Tensor:
        """Return one image; in training mode two, as batch norm requires several values per channel."""
        return example[:1].repeat([1 + self.training, *[1] * (example.dim() - 1)])


@dataclass(frozen=True)
class TensorView:
    """A view of one of the model's tensors, with the original dimension of each dimension.

    Copies have None instead.
    """

    name: str
    dims: tuple[int | None, ...]
    tensor: Tensor  # keeps the id unique


@dataclass
class Trace:
    """The results of the passes: labels per tensor, pairs of labels for the same channel, fixed labels."""

    names: Mapping[int, str]  # names of the model's tensors, by id
    labels: int = 0  # number of labels
    fixed: dict[int, str] = field(default_factory=dict)  # labels of channels that must stay, with the reason
    united: list[Tensor] = field(default_factory=list)  # pairs of labels, each [2, n]
    blocks: list[Tensor] = field(default_factory=list)  # pairs if grouped convolutions lose whole blocks,
    evenly: list[Tensor] = field(default_factory=list)  # and if they lose the same place in every block
    axes: dict[Place, Tensor] = field(default_factory=dict)
    reads: set[Place] = field(default_factory=set)  # dimensions along which a tensor reads channels
    makes: list[Place] = field(default_factory=list)  # dimensions along which a tensor makes channels, in running order
    running: list[str] = field(default_factory=list)  # running layers, innermost last
    stuck: Tensor | None = None  # labels of the arguments of the function that failed
    views: dict[int, TensorView] = field(default_factory=dict)  # views of the model's tensors, by id
    current: Pass | None = None  # the pass that runs or failed

    @property
    def layer(self) -> str:
        """Return the innermost running layer, for messages."""
        return f"layer '{self.running[-1]}'" if self.running and self.running[-1] else "the model's own forward"

    def fresh(self, count: int) -> Tensor:
        """Return new labels."""
        self.labels += count
        return torch.arange(self.labels - count, self.labels)

    def pin(self, why: str) -> Tensor:
        """Return a label for channels that must stay."""
        label = self.fresh(1)
        self.fixed[int(label)] = why
        return label

    def unite(self, some: Tensor, others: Tensor) -> None:
        """Record that two sets of labels are the same channels."""
        self.united.append(rules.pairs(some, others))

    def view(self, tensor: Tensor) -> TensorView | None:
        """Return a tensor as a view of one of the model's; None for a computed tensor."""
        name = self.names.get(id(tensor))
        return self.views.get(id(tensor)) if name is None else TensorView(name, tuple(range(tensor.dim())), tensor)

    def bind(self, tensor: Any, dim: int, labels: Tensor) -> Place | None:
        """Record the channels along a dimension of one of the model's tensors."""
        if not isinstance(tensor, Tensor):
            return None
        view = self.view(tensor)
        if view is None:
            raise rules.Lost("uses a tensor that it computes and the model does not hold")
        own = view.dims[dim]
        if own is None:
            return None  # all channels use the same numbers
        place = view.name, own
        if (known := self.axes.setdefault(place, labels)) is not labels:
            self.unite(known, labels)
        return place

    def read(self, tensor: Tensor, dim: int, labels: Tensor) -> None:
        """Record the channels that a tensor reads."""
        self.reads |= {place for place in (self.bind(tensor, dim, labels),) if place}

    def make(self, tensor: Tensor, dim: int) -> Tensor:
        """Label the channels that a tensor makes."""
        labels = self.fresh(tensor.shape[dim])
        self.makes += [place for place in (self.bind(tensor, dim, labels),) if place]
        return labels

    def follow(self, call: rules.TorchCall, rule: rules.Rule) -> list[Tensor]:
        """Return the labels of a function's results; without a rule, fix the channels of its arguments."""
        before = [given.labels for given in tensors_in((call.args, call.kwargs)) if rules.follows(given)]
        try:
            return rule(call)
        except rules.Lost as lost:
            label = self.pin(f"{self.layer} {lost}")
        for labels in before:
            self.unite(rules.compact(labels), label)
        for held in tensors_in((call.args, call.kwargs)):
            for dim in range(held.dim()) if self.view(held) else ():
                self.bind(held, dim, label.expand(held.shape[dim]))
        return [label[0].expand(made.shape) for made in call.made]

    def watch(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """Record a view if the function returns the elements of one of the model's tensors, unmixed."""
        views = [view for tensor in tensors_in((args, kwargs)) if (view := self.view(tensor)) is not None]
        rule = RULES.get(rules.TorchCall(self, func, args, kwargs, []).name)
        if len(views) != 1 or not isinstance(made, Tensor) or id(made) in self.names:
            return
        (view,) = views
        if rule in (rules.keep, rules.combine) and made.shape == view.tensor.shape:
            self.views[id(made)] = TensorView(view.name, view.dims, made)
        elif rule is rules.move and args and args[0] is view.tensor:
            numbers = torch.arange(view.tensor.numel()).view(view.tensor.shape)
            dims = _moved(numbers, func(numbers, *args[1:], **kwargs))
            if dims is not None:
                self.views[id(made)] = TensorView(
                    view.name, tuple(d if d is None else view.dims[d] for d in dims), made
                )


def _moved(numbers: Tensor, moved: Tensor) -> list[int | None] | None:
    """Return the original dimension of each dimension of a moved tensor.

    It is None if dimensions were split or merged.
    """
    dims: list[int | None] = []
    for size, dim in zip(moved.shape, range(moved.dim()), strict=True):
        steps = (moved.narrow(dim, 1, size - 1) - moved.narrow(dim, 0, size - 1)).unique().tolist() if size > 1 else [0]
        along = [d for d, whole in enumerate(numbers.shape) if whole == size and [numbers.stride(d)] == steps]
        if steps != [0] and not along:
            return None
        dims.append(None if steps == [0] else along[0])
    return dims


class _ViewRecorder(TorchFunctionMode):
    """Record the model's operations on its own tensors in a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if not any(map(rules.follows, tensors_in((args, kwargs or {})))):
            self._trace.watch(func, args, kwargs or {}, made)
        return made


class Followed(Tensor):
    """A tensor with a label per element."""

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
        call = rules.TorchCall(trace, func, args, kwargs, made)
        rule = RULES.get(call.name, rules.refuse)
        with torch._C.DisableTorchFunctionSubclass():  # reading labels is no step of the model
            if call.name in NEW or (
                rule in (rules.keep, rules.move) and not rules.follows(args[0] if args else given[0])
            ):
                result = _plain(result)  # only its type or shape was used
                trace.watch(func, tuple(map(_plain, args)), kwargs, result)
            elif made or result is None:  # without a result it changes its argument, as x[0] = 1 does
                for tensor, labels in zip(made, trace.follow(call, rule), strict=True):
                    tensor.record, tensor.labels = trace, labels
        return result


def _plain(value: Any) -> Any:
    """Return a tensor without labels."""
    return value.as_subclass(Tensor) if isinstance(value, Followed) else value


def _followed(value: Tensor, trace: Trace, labels: Tensor) -> Followed:
    followed = value.as_subclass(Followed)
    followed.record, followed.labels = trace, labels
    return followed


def call_model(model: nn.Module, images: Tensor) -> object:
    """Call a model on images only."""
    return model(images)


def run(
    model: nn.Module, example: Tensor, passes: Sequence[Pass], leaves: Leaves | None = None
) -> tuple[Trace, Exception | None]:
    """Run the model once per pass and follow its channels; on an error, return it with the results so far."""
    copied = _shallow_copy(model)
    trace = Trace({id(tensor): name for name, tensors in group_by_storage(copied).items() for tensor in tensors})
    for name, module in copied.named_modules():
        _track_layer(module, name, trace)
        for kind, rule in (leaves or {}).items():
            if isinstance(module, kind):
                _replace_forward(module, rule, trace)
                break
    given, returned = trace.pin("they belong to the model's input"), list[Tensor]()
    for each in passes:
        trace.current, images = each, each.images(example.detach())
        copied.train(each.training)
        trace.running.clear()
        try:
            with torch.no_grad(), isolated_rng(), _ViewRecorder(trace):
                result = each.branch(copied, _followed(images, trace, given.expand(images.shape)))
        except Exception as error:
            return trace, error
        returned += [rules.compact(tensor.labels) for tensor in tensors_in(result) if isinstance(tensor, Followed)]
    output = trace.pin("they are outputs of the model")
    for labels in returned:
        trace.unite(labels, output)
    return trace, None


def _shallow_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the modules with the same parameters and separate statistics."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for tensors in group_by_storage(model).values():
        if others := [tensor for tensor in tensors if id(tensor) not in memo]:
            memo |= dict.fromkeys(map(id, others), tensors[0].detach().clone())
    return copy_model(model, memo)


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Use equal random numbers in every run within this context; other generators are unchanged."""
    before = random.getstate()
    try:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(0)
            random.seed(0)
            yield
    finally:
        random.setstate(before)


def _replace_forward(module: nn.Module, rule: rules.Rule, trace: Trace) -> None:
    """Treat the call of a module as one function with a rule."""
    forward = module.forward

    def act(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            result = forward(*tree_map(_plain, args), **tree_map(_plain, kwargs))
            result = tree_map(lambda value: value.as_subclass(Followed) if isinstance(value, Tensor) else value, result)
            made = [tensor for tensor in tensors_in(result) if isinstance(tensor, Followed)]
            call = rules.TorchCall(trace, module, args, kwargs, made)
            for tensor, labels in zip(made, trace.follow(call, rule), strict=True):
                tensor.record, tensor.labels = trace, labels
        return result

    module.forward = act


def group_by_storage(model: nn.Module) -> dict[str, list[Tensor]]:
    """Group parameters and buffers by storage, under the first name."""
    groups: dict[str, list[Tensor]] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        key = first.setdefault((tensor.data_ptr() or id(tensor), tensor.shape), name)
        groups.setdefault(key, []).append(tensor)
    return groups


def _track_layer(module: nn.Module, name: str, trace: Trace) -> None:
    def begin(*_: Any) -> None:
        trace.running.append(name)

    def end(_: nn.Module, given: Any, made: Any) -> None:
        trace.running.pop()
        plain = [tensor for tensor in tensors_in(made) if not rules.follows(tensor)]
        if plain and not any(map(rules.follows, tensors_in(made))) and any(map(rules.follows, tensors_in(given))):
            raise RequestError(
                f"The channels of layer '{name}' ({type(module).__name__}) cannot be followed: "
                "its output was not computed from its input by functions of torch."
            )

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
