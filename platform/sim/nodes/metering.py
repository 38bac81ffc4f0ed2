"""Charge a member for the work that it does, whether or not its passes state it.

Taps count the passes of the node's networks at every call. Neighbours, solvers, layers of the member's own and other
work that they cannot see is found by audits: the first call of each kind, and others drawn by the cell's seed, run with
every operator counted. The operations of the other calls are estimated from the audited ones.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from driftlab.platform.core.records import Columns, LayerCost, LayerPasses, ModelCost, Passes
from driftlab.platform.core.seeding import seed_for
from driftlab.platform.core.work import in_the_lab, reported
from driftlab.platform.networks.cost_counter import tensors_in
from driftlab.platform.networks.taps import LayerCounts, counting, is_tapped
from driftlab.platform.world.cost import frames_by_layer, macs_of

AUDITED = 64  # one of so many calls is audited, besides the first of each kind
TOLERANCE = 0.01  # work that is ignored, as a share of the stated passes, or of the network's operations
# Operators that make, read or move tensors and compute nothing; sorting; distances; solvers of matrices.
MOVES = frozenset(
    re.findall(
        r"\w+",
        """alias as_strided cat clone contiguous copy detach empty empty_like empty_strided expand fill full gather
        index index_select lift_fresh new_empty new_zeros ones ones_like permute scalar_tensor select slice split
        split_with_sizes squeeze stack t transpose unbind unfold unsqueeze view zero zeros zeros_like
        _local_scalar_dense _reshape_alias _to_copy _unsafe_view""",
    )
)
SORTS = frozenset({"argsort", "kthvalue", "median", "quantile", "sort", "topk"})
DISTANCES = frozenset({"_cdist_forward", "_euclidean_dist", "cdist"})
CUBIC = frozenset(
    re.findall(
        r"\w+",
        """cholesky cholesky_solve linalg_cholesky_ex linalg_eig linalg_inv_ex linalg_lstsq linalg_lu linalg_qr
        triangular_solve _linalg_det _linalg_eigh _linalg_solve_ex _linalg_svd""",
    )
)
OUTSIDE = "outside the network"

Verb = Literal["adapt", "predict", "estimate"]


class OperatorCount(TorchDispatchMode):
    """Count multiply-accumulates everywhere, and other operators outside the node's networks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = self.operations = self._depth = 0
        self._thread = threading.get_ident()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch.compile as it is: disabling it here would import it, which takes 1.5 s of processor time."""
        return False

    def __enter__(self) -> OperatorCount:
        self._hooks = [
            torch_module.register_module_forward_pre_hook(lambda module, _: self._move(module, 1)),
            torch_module.register_module_forward_hook(lambda module, *_: self._move(module, -1), always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _move(self, module: nn.Module, levels: int) -> None:
        """Enter or leave a module of the node's network; the operators of a member's own module count."""
        self._depth += levels if is_tapped(module) and threading.get_ident() == self._thread else 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func.overloadpacket):
            self.macs += int(count(*args, **(kwargs or {}), out_val=made)) // 2
        elif not (self._depth or in_the_lab()) and torch._C._current_graph_task_id() == -1:  # there is no public way
            self.operations += operations_of(func.overloadpacket.__name__, args, made)
        return made


def operations_of(name: str, args: Any, made: Any) -> int:
    """Return the operations of an operator: one per number, more for sorting, distances, solvers."""
    if (name := name.rstrip("_")) in MOVES:
        return 0
    first = next(tensors_in(list(args)), None)
    results = sum(one.numel() for one in tensors_in(made))
    if first is None or not results:
        return results
    if name in SORTS:
        return round(first.numel() * math.log2(first.numel() + 1))
    if name in DISTANCES:
        return results * first.shape[-1]
    if name in CUBIC:
        return first.numel() * first.shape[-1]
    return max(results, first.numel())


@dataclass
class Call:
    """One call of a member, and the work that ran."""

    verb: Verb
    frames: int
    cost: ModelCost  # of the network that it was given
    counts: LayerCounts = field(default_factory=LayerCounts)
    operators: OperatorCount | None = None  # where it is audited
    reported: int = 0  # operations that the member reports, as functions of `counted` do
    host_seconds: float = 0.0

    def beyond(self, passes: Passes) -> tuple[LayerPasses, ...]:
        """Return the layers that ran more often than passes state; empty within the tolerance."""
        if self.counts.macs <= (1 + TOLERANCE) * stated_macs(self.cost, passes):
            return ()
        stated, ran = frames_by_layer(self.cost, passes), self.counts.frames()
        more = {name: frames - stated[name] for name, frames in ran.items() if frames > stated[name]}
        batches = {name: self.counts.usual_batch(name) for name in more}
        return tuple((name, batches[name], frames / batches[name]) for name, frames in more.items())


def stated_macs(cost: ModelCost, passes: Passes) -> float:
    """Return the multiply-accumulates of passes."""
    if not passes.backward:
        return float(sum(passes.forward) * cost.macs)
    return macs_of(cost, frames_by_layer(cost, passes))


@dataclass
class Audited:
    """The audits of one kind of call."""

    macs: float = 0.0  # of the network, and one for each frame
    operations: int = 0  # outside the network


@dataclass
class CallMeter:
    """Meters the calls of a node's adaptation member."""

    seed: int
    columns: Mapping[str, str]  # of every row: where the node is
    rows: list[Columns] = field(default_factory=list)  # of the table of audits, until they are collected
    _audited: dict[tuple[Verb, bool], Audited] = field(default_factory=dict)  # by verb, and whether the call learned
    _due: set[Verb] = field(default_factory=lambda: {"adapt", "predict", "estimate"})  # whose next call is audited
    _calls: int = 0

    @contextmanager
    def call(self, verb: Verb, cost: ModelCost, frames: int) -> Iterator[Call]:
        """Run a call of the member within this context."""
        self._calls += 1
        made = Call(verb, frames, cost)
        drawn = seed_for(self.seed, "audit", *self.columns.values(), self._calls)
        if verb in self._due or not drawn % AUDITED:
            made.operators = OperatorCount()
        started, before = time.process_time(), reported()
        try:
            with counting() as made.counts, made.operators or nullcontext():
                yield made
        finally:
            made.reported = reported() - before
            made.host_seconds = time.process_time() - started

    def charge(self, call: Call, passes: Passes, *, learned: bool = False) -> Passes:
        """Add to passes the layers that ran beyond them, and the operations outside the network."""
        beyond, macs, kind = call.beyond(passes), call.counts.macs, (call.verb, learned)
        if call.operators is not None:
            operations = max(0, call.operators.macs - round(macs)) + call.operators.operations
            operations *= operations > TOLERANCE * macs
            before = self._audited.get(kind, Audited())
            self._audited[kind] = Audited(before.macs + macs + call.frames, before.operations + operations)
            self._due.discard(call.verb)
            self._write(call, passes, round(macs), operations + call.reported, beyond)
        elif kind in self._audited:
            like = self._audited[kind]
            operations = round(like.operations * (macs + call.frames) / max(1.0, like.macs))
        else:
            operations, self._due = 0, {*self._due, call.verb}
        operations += call.reported
        outside = (LayerCost(OUTSIDE, "operations", operations, 0, 0, 0, 0),) if operations else ()
        return replace(passes, beyond=beyond, others=(*passes.others, *outside))

    def take_rows(self) -> list[Columns]:
        """Return the rows of the audits since the last call."""
        rows, self.rows = self.rows, []
        return rows

    def _write(self, call: Call, passes: Passes, macs: int, operations: int, beyond: Sequence[LayerPasses]) -> None:
        more = {name: batch * times for name, batch, times in beyond}
        self.rows.append(
            {
                **{name: [value] for name, value in self.columns.items()},
                "call": [call.verb],
                "number": [self._calls],
                "frames": [call.frames],
                "stated_macs": [round(stated_macs(call.cost, passes))],
                "network_macs": [macs],
                "operations": [operations],
                "beyond_macs": [round(macs_of(call.cost, more))],
                "host_seconds": [call.host_seconds],
            }
        )
