"""Filters of a network: their scores for a loss, the choice of some, and gradients of these only.

A filter is a row of a layer's weights with its bias, and the scale and the shift of its channel in the batch norm
behind the layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from driftlab.platform.networks.features import features
from driftlab.platform.networks.module_utils import batch_norms, normalise_by_batch, train_only
from driftlab.platform.networks.predict import device_of, evaluating
from driftlab.platform.networks.strided import Conv1x1Strided
from driftlab.platform.networks.vector import Layout

Selection = Literal["cumulative", "topfrac", "random", "inverse", "all"]
Rows = npt.NDArray[np.int64]
CONFIDENT = 1e-12  # a sum of scores below this: the loss has no gradient
BLOCK = 16  # rows that libraries compute at once: a part of a block takes as long as all of it


@dataclass(frozen=True)
class Wiring:
    """The layers of filters in running order, each with the batch norm behind it or None; the head."""

    norms: Mapping[str, str | None]
    head: str

    def owners(self, chosen: Mapping[str, Rows]) -> dict[str, Rows]:
        """Return the chosen rows of layers and of their batch norms, by module."""
        pairs = [(module, rows) for layer, rows in chosen.items() for module in (layer, self.norms[layer])]
        return {module: rows for module, rows in pairs if module is not None}


def find_wiring(model: nn.Module, inputs: Tensor) -> Wiring:
    """Find which batch norm normalises the output of which layer, by one pass."""
    made, norms, hooks = dict[int, tuple[str, Tensor]](), dict[str, str | None](), []

    def note_made(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, given: object, output: Tensor) -> None:
            made[id(output)] = name, output  # held, so that its id is not reused
            norms.setdefault(name, None)

        return hook

    def note_norm(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            if id(given[0]) in made:
                norms[made[id(given[0])][0]] = name

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            hooks.append(module.register_forward_hook(note_made(name)))
    hooks += [norm.register_forward_pre_hook(note_norm(name)) for name, norm in batch_norms(model).items()]
    try:
        with evaluating(model), torch.no_grad():
            head = features(model, inputs).head
    finally:
        for hook in hooks:
            hook.remove()
    return Wiring({name: norm for name, norm in norms.items() if name != head}, head)


def score_filters(
    model: nn.Module, wiring: Wiring, layout: Layout, loss_of: Callable[[], Tensor]
) -> dict[str, npt.NDArray[np.float64]]:
    """Score the filters of each layer by one backward pass, with batch norms normalising by the batch.

    With a batch norm the score is s of the paper (Step 1): the absolute gradients of its scale gamma and shift beta;
    otherwise the sum over the weights. Frozen layers have no scores.
    """
    scored = {layer: _scored(layer, norm, layout) for layer, norm in wiring.norms.items()}
    names = [name for found in scored.values() for name in found]
    if not names:
        return {}
    with train_only(model, names), normalise_by_batch(model, keeps=False):
        parameters = [model.get_parameter(name) for name in names]
        found = torch.autograd.grad(loss_of(), parameters, allow_unused=True)
    sums = {
        name: np.zeros(len(parameter)) if gradient is None else _row_sums(gradient)
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }
    totals = {layer: [sums[name] for name in parts] for layer, parts in scored.items() if parts}
    return {layer: np.sum(parts, axis=0) for layer, parts in totals.items()}


def _row_sums(gradient: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(gradient.abs().reshape(len(gradient), -1).sum(dim=1).double().cpu().numpy())


def _scored(layer: str, norm: str | None, layout: Layout) -> list[str]:
    """Name the parameters by which the filters of a layer are scored."""
    names = [f"{norm}.weight", f"{norm}.bias"] if norm is not None else [f"{layer}.weight"]
    return [name for name in names if name in layout.spans]


def select_filters(
    scores: Mapping[str, npt.NDArray[np.float64]],
    how: Selection,
    share: float,
    rng: np.random.Generator,
) -> dict[str, Rows]:
    """Choose the filters to train, by layer; without a score above 0 there is none.

    `cumulative` takes the highest scores of the network until they make the share of the sum; the others take the
    share of each layer's filters: the highest scores, the lowest, or any.
    """
    if not scores or sum(float(found.sum()) for found in scores.values()) < CONFIDENT:
        return {}
    if how == "all":
        return {layer: np.arange(len(found)) for layer, found in scores.items()}
    if how == "cumulative":
        return _by_sum(scores, share)
    return {
        layer: np.sort(_ordered(found, how, rng)[: math.ceil(share * len(found))]) for layer, found in scores.items()
    }


def _ordered(scores: npt.NDArray[np.float64], how: Selection, rng: np.random.Generator) -> Rows:
    """List the filters of a layer, those to train first."""
    if how == "random":
        return rng.permutation(len(scores))
    return np.argsort(scores if how == "inverse" else -scores, kind="stable")


def _by_sum(scores: Mapping[str, npt.NDArray[np.float64]], share: float) -> dict[str, Rows]:
    """Take the shortest list of the highest scores whose sum reaches a share of the whole."""
    flat = np.concatenate([*scores.values()])
    order = np.argsort(-flat, kind="stable")
    sums = np.cumsum(flat[order])
    taken = np.zeros(len(flat), dtype=bool)
    taken[order[: int(np.searchsorted(sums, share * flat.sum() * (1 - 1e-9))) + 1]] = True
    ends = np.cumsum([len(found) for found in scores.values()])
    parts = zip(scores, np.split(taken, ends[:-1]), strict=True)
    return {layer: np.flatnonzero(part) for layer, part in parts if part.any()}


def parameters_of_rows(layout: Layout, owners: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return the trainable parameters of some filters, each with its rows."""
    names = [(f"{module}.{own}", rows) for module, rows in owners.items() for own in ("weight", "bias")]
    return {name: rows for name, rows in names if name in layout.spans}


def mark_rows(layout: Layout, rows: Mapping[str, Rows]) -> npt.NDArray[np.bool_]:
    """Mark the coordinates of some rows of parameters in a vector of this layout."""
    mask = np.zeros(layout.size, dtype=bool)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    for name, chosen in rows.items():
        part = np.zeros(shapes[name], dtype=bool)
        part[chosen] = True
        mask[layout.spans[name]] = part.reshape(-1)
    return mask


def splits(module: nn.Module, rows: Rows) -> bool:
    """Return whether the gradient of these rows is computed separately, which must save two blocks."""
    dense = isinstance(module, nn.Conv2d) and module.groups == 1 and not isinstance(module.padding, str)
    if not dense and not isinstance(module, nn.Linear):
        return False
    return math.ceil(len(rows) / BLOCK) + 1 < math.ceil(len(module.get_parameter("weight")) / BLOCK)


def computed_share(module: nn.Module, rows: Rows) -> float:
    """Return the share of a weight gradient that is computed for these rows, in whole blocks."""
    whole = BLOCK * math.ceil(len(rows) / BLOCK) / len(module.get_parameter("weight"))
    return whole if splits(module, rows) else 1.0


@contextmanager
def row_gradients(model: nn.Module, chosen: Mapping[str, Rows]) -> Iterator[None]:
    """Compute the weight gradients of the chosen rows only, within this context; others are zero."""
    patched = []
    for layer, rows in chosen.items():
        module = model.get_submodule(layer)
        if splits(module, rows):
            vars(module)["forward"] = _row_forward(module, torch.from_numpy(rows).to(device_of(module)))
            patched.append(module)
    try:
        yield
    finally:
        for module in patched:
            del vars(module)["forward"]


def _row_forward(module: Any, rows: Tensor) -> Callable[[Tensor], Tensor]:
    function: Any = _RowConvolution if isinstance(module, nn.Conv2d) else _RowLinear
    shape = (module.stride, module.padding, module.dilation) if isinstance(module, nn.Conv2d) else ()
    strided = isinstance(module, Conv1x1Strided)
    if strided:
        shape = (1, 1), (0, 0), (1, 1)

    def forward(x: Tensor) -> Tensor:
        given = module.take(x) if strided else x
        made: Tensor = function.apply(given, module.weight, module.bias, rows, *shape)
        return made

    return forward


class _RowConvolution(torch.autograd.Function):
    """A convolution whose backward pass computes the weight gradient of some rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, *shape: Any) -> Tensor:
        ctx.save_for_backward(x, weight, rows)
        ctx.shape = shape  # stride, padding, dilation
        return nn.functional.conv2d(x, weight, bias, *shape)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        (slope,), (x, weight, rows) = given, ctx.saved_tensors

        def back(slope: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
            return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
                slope, x, weight, None, *ctx.shape, False, [0, 0], 1, mask
            )

        of_input = back(slope, weight, [True, False, False])[0] if ctx.needs_input_grad[0] else None
        of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            part = back(slope[:, rows], weight[rows], [False, True, False])[1]
            of_weight = torch.zeros_like(weight).index_copy_(0, rows, part)
        if ctx.needs_input_grad[2]:
            of_bias = slope.sum(dim=(0, 2, 3))
        return of_input, of_weight, of_bias, None, None, None, None


class _RowLinear(torch.autograd.Function):
    """A linear layer whose backward pass computes the weight gradient of some rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, rows)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        (slope,), (x, weight, rows) = given, ctx.saved_tensors
        of_input = slope @ weight if ctx.needs_input_grad[0] else None
        of_weight = of_bias = None
        flat = slope.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            part = flat[:, rows].T @ x.flatten(0, -2)
            of_weight = torch.zeros_like(weight).index_copy_(0, rows, part)
        if ctx.needs_input_grad[2]:
            of_bias = flat.sum(dim=0)
        return of_input, of_weight, of_bias, None
