"""The effect of torch's functions on channels: one rule per kind of function.

A rule returns the labels of the outputs and records in the trace how the weights of the function use channels. It
raises `Lost` if the function would differ on fewer channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from driftlab.platform.networks.cost_counter import tensors_in

if TYPE_CHECKING:
    from driftlab.platform.networks.pruning.surgery.trace import Followed, Trace


class Lost(Exception):
    """Channels cannot be followed through a function; the message continues the name of a layer."""


@dataclass(frozen=True, eq=False)
class TorchCall:
    """A call of a torch function."""

    trace: Trace
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Followed]

    @property
    def name(self) -> str:
        """Return the name of the function: `add` for add, add_ and +=, `T` for the attribute."""
        owner: Any = self.func
        if getattr(owner, "__name__", "") == "__get__":
            owner = owner.__self__
        return str(getattr(owner, "__name__", type(owner).__name__)).strip("_")

    @property
    def main(self) -> Followed:
        """Return the first argument with labels."""
        return next(tensor for tensor in tensors_in((self.args, self.kwargs)) if follows(tensor))

    def given(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


Rule = Callable[[TorchCall], list[Tensor]]


def follows(value: Any) -> TypeGuard[Followed]:
    """Return whether a value has labels."""
    return hasattr(value, "labels")


def compact(labels: Tensor) -> Tensor:
    """Return the labels without copies along expanded dimensions."""
    return labels[tuple(slice(None) if stride else slice(0, 1) for stride in labels.stride())]


def varying(labels: Tensor) -> list[int]:
    """Return the dimensions along which labels differ."""
    small = compact(labels)
    return [dim for dim in range(small.dim()) if bool((small != small.narrow(dim, 0, 1)).any())]


def along(labels: Tensor, dim: int) -> Tensor:
    """Return the labels along one dimension; raises `Lost` if they differ along another."""
    dim %= labels.dim()
    if set(varying(labels)) - {dim}:
        raise Lost("spreads its channels over more than one dimension")
    return labels.movedim(dim, 0).reshape(labels.shape[dim], -1)[:, 0]


def spread(labels: Tensor, dim: int, shape: torch.Size) -> Tensor:
    """Return the labels expanded to a shape, along one dimension."""
    return labels.view([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)


def pairs(some: Tensor, others: Tensor) -> Tensor:
    """Return pairs of labels that meet under broadcasting, [2, n]."""
    return torch.stack([side.reshape(-1) for side in torch.broadcast_tensors(some, others)])


def convolve(call: TorchCall) -> list[Tensor]:
    """Read the channels of the input and make new ones."""
    x, weight, bias = call.given(0, "input"), call.given(1, "weight"), call.given(2, "bias")
    transposed = "transpose" in call.name
    groups = call.given(6, "groups", 1)
    channel = x.dim() - weight.dim() + 1
    inputs = along(x.labels, channel)
    if groups > 1:
        call.trace.bind(weight, 0, inputs) if transposed else None
        outputs = call.trace.fresh(call.made[0].shape[channel]) if transposed else call.trace.make(weight, 0)
        _divide_blocks(call, weight, inputs.view(groups, -1), outputs.view(groups, -1), transposed)
    else:
        call.trace.read(weight, 0 if transposed else 1, inputs)
        outputs = call.trace.make(weight, 1 if transposed else 0)
    call.trace.bind(bias, 0, outputs)
    return [spread(outputs, channel, call.made[0].shape)]


def _divide_blocks(call: TorchCall, weight: Tensor, inputs: Tensor, outputs: Tensor, transposed: bool) -> None:
    """Record which channels a grouped convolution can lose: whole blocks, or the same place in each.

    The labels are [blocks, places].

    A transposed convolution can only lose whole blocks.
    """
    both = torch.cat([inputs, outputs], dim=1)
    if transposed or both.shape[1] == 2:
        call.trace.unite(both[:, :1], both[:, 1:])
        return
    places = call.trace.fresh(inputs.shape[1])
    call.trace.read(weight, 1, places)
    call.trace.blocks.append(pairs(both[:, :1], both[:, 1:]))
    call.trace.evenly += [pairs(places, inputs), pairs(outputs[:1], outputs)]


def project(call: TorchCall) -> list[Tensor]:
    """Read channels along the last dimension and make new ones (linear)."""
    x, weight, bias = call.given(0, "input"), call.given(1, "weight"), call.given(2, "bias")
    call.trace.read(weight, 1, along(x.labels, -1))
    outputs = call.trace.make(weight, 0)
    call.trace.bind(bias, 0, outputs)
    return [spread(outputs, call.made[0].dim() - 1, call.made[0].shape)]


def normalise(call: TorchCall) -> list[Tensor]:
    """Process each channel separately with one number per channel (batch norm, instance norm, PReLU)."""
    x = call.main
    labels = along(x.labels, min(1, x.dim() - 1))
    for tensor in (*call.args, *call.kwargs.values()):
        if isinstance(tensor, Tensor) and tensor is not x and tensor.numel() > 1:
            call.trace.bind(tensor, 0, labels)
    return [x.labels]


def keep(call: TorchCall) -> list[Tensor]:
    """Keep the channels in place; other arguments do not matter."""
    return [call.main.labels for _ in call.made]


def combine(call: TorchCall) -> list[Tensor]:
    """Compute element by element.

    Elements that meet are the same channel, except if one tensor is broadcast.
    """
    shape = call.made[0].shape
    tensors = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
    followed = [tensor for tensor in tensors if follows(tensor)]
    main = max(followed, key=lambda tensor: compact(tensor.labels).numel()).labels.expand(shape)
    dims = varying(main)
    for tensor in tensors:
        meets = [dim - len(shape) for dim in dims if _size(tensor, dim - len(shape)) > 1]
        if follows(tensor):
            if meets == [dim - len(shape) for dim in dims]:
                call.trace.unite(*map(compact, _drop_copies(main, tensor.labels.expand(shape))))
        elif meets:
            call.trace.bind(tensor, meets[0] + tensor.dim(), along(main, meets[0]))
    return [main for _ in call.made]


def _size(tensor: Tensor, dim: int) -> int:
    return tensor.shape[dim] if -dim <= tensor.dim() else 1


def _drop_copies(some: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors without the dimensions along which both are copies."""
    keep = tuple(slice(None) if a or b else slice(0, 1) for a, b in zip(some.stride(), others.stride(), strict=True))
    return some[keep].contiguous(), others[keep].contiguous()


def resample(call: TorchCall) -> list[Tensor]:
    """Change only the spatial size (pooling, resizing, padding)."""
    x, shape = call.main, call.made[0].shape
    if max(varying(x.labels), default=0) > 1 or shape[:2] != x.shape[:2] or len(call.made) > 1:
        raise Lost(f"applies {call.name} across channels")
    first = (slice(None), slice(None)) + (slice(0, 1),) * len(shape[2:])
    return [x.labels[first].expand(shape)]


def reduce(call: TorchCall) -> list[Tensor]:
    """Reduce dimensions without channels (sum, mean, maximum)."""
    x, dims = call.main, call.given(1, "dim")
    if isinstance(dims, Tensor):
        return combine(call)  # maximum or minimum of two tensors
    if dims is None or isinstance(dims, bool):  # std(False) reduces all dimensions
        dims = list(range(x.dim()))
    _stay_within(call, x, dims)
    dims = [dim % max(1, x.dim()) for dim in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    return [x.labels.amax(dims, keepdim=made.dim() == x.dim()) for made in call.made]


def normalise_within(call: TorchCall) -> list[Tensor]:
    """Normalise along dimensions without channels (layer norm, softmax)."""
    x = call.main
    last = range(-len(call.given(1, "normalized_shape")), 0) if call.name == "layer_norm" else call.given(1, "dim")
    _stay_within(call, x, list(range(x.dim())) if last is None else last)
    return [x.labels]


def _stay_within(call: TorchCall, x: Followed, dims: Any) -> None:
    """Raise `Lost` if the function computes over dimensions with channels."""
    dims = [dims] if isinstance(dims, int) else dims or range(x.dim())
    if set(varying(x.labels)) & {dim % max(1, x.dim()) for dim in dims}:
        raise Lost(f"takes the {call.name.replace('_', ' and ')} over channels, which fewer channels would change")


def move(call: TorchCall) -> list[Tensor]:
    """Apply the function to the labels; raises `Lost` unless each output has all channels in order."""
    x, *rest = call.args
    if any(map(follows, tensors_in((rest, call.kwargs)))):
        raise Lost(f"applies {call.name} with a computed index")
    moved = call.func(x.labels.contiguous(), *rest, **call.kwargs)
    results = []
    for result in [moved] if isinstance(moved, Tensor) else moved:
        if len(varying(result)) > 1 or not _repeats(result, x.labels):
            raise Lost(f"divides its channels by position ({call.name})")
        dim, after = _single_dimension(result)
        results.append(spread(after, dim, result.shape))
    return results


def _repeats(labels: Tensor, others: Tensor) -> bool:
    """Return whether labels repeat the others in order, once or several times."""
    runs, whole = (torch.unique_consecutive(_single_dimension(each)[1]) for each in (labels, others))
    return len(runs) % len(whole) == 0 and bool((runs.view(-1, len(whole)) == whole).all())


def _single_dimension(labels: Tensor) -> tuple[int, Tensor]:
    """Return the one dimension along which labels differ, and the labels along it."""
    dims = [*varying(labels), 0]
    return (dims[0], along(labels, dims[0])) if labels.dim() else (0, labels.reshape(1))


def join(call: TorchCall) -> list[Tensor]:
    """Concatenate channels (cat), or frames, whose channels are then the same."""
    tensors, dim, shape = call.args[0], call.given(1, "dim", 0), call.made[0].shape
    dim %= len(shape)
    labels = [tensor.labels if follows(tensor) else _constant(call, tensor) for tensor in tensors]
    if call.name == "stack":
        labels = [each.unsqueeze(dim) for each in labels]
    dims = {d for each in labels for d in varying(each)}
    if dims == {dim} or (not dims and dim == 1 and call.name != "stack"):
        return [spread(torch.cat([along(each, dim) for each in labels]), dim, shape)]
    if dim in dims:
        raise Lost("joins tensors whose channels lie along different dimensions")
    main = max(labels, key=lambda each: compact(each).numel())
    for each in labels:
        call.trace.unite(*(side.narrow(dim, 0, 1) for side in (main, each)))
    return [main.narrow(dim, 0, 1).expand(shape)]


def _constant(call: TorchCall, tensor: Tensor) -> Tensor:
    return call.trace.pin(f"{call.trace.layer} joins them to a constant").expand(tensor.shape)


def refuse(call: TorchCall) -> list[Tensor]:
    raise Lost(f"calls {call.name}, through which channels cannot be followed")


NAMES: dict[Rule, str] = {
    convolve: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    project: "linear",
    normalise: "batch_norm instance_norm prelu",
    keep: (
        "alpha_dropout bernoulli bfloat16 clone contiguous cpu data detach double dropout dropout1d dropout2d "
        "dropout3d empty_like feature_alpha_dropout float full_like half ones_like rand_like randn_like requires_grad "
        "to type_as zeros_like"
    ),
    combine: (
        "abs add celu clamp clamp_max clamp_min cos div elu eq exp ge gelu gt hardsigmoid hardswish hardtanh iadd "
        "imul isub itruediv le leaky_relu lerp log log1p logsigmoid lt masked_fill maximum minimum mish mul "
        "multiply ne neg pow radd rdiv reciprocal relu relu6 rmul rpow rrelu rsqrt rsub rtruediv selu sigmoid "
        "sign silu sin softplus softshrink softsign sqrt square sub subtract tanh tanhshrink threshold "
        "true_divide truediv where"
    ),
    resample: (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d interpolate lp_pool1d lp_pool2d max_pool1d max_pool2d "
        "max_pool3d pad upsample"
    ),
    reduce: "amax amin logsumexp max mean min std std_mean sum var var_mean",
    normalise_within: "layer_norm log_softmax softmax softmin",
    move: (
        "T chunk expand expand_as flatten flip getitem mT moveaxis movedim narrow permute repeat reshape roll select "
        "split squeeze swapaxes t tile transpose unbind unflatten unsqueeze view view_as"
    ),
    join: "cat concat concatenate stack",
}
RULES: dict[str, Rule] = {name: rule for rule, names in NAMES.items() for name in names.split()}
