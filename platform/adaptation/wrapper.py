"""Base of policies that wrap another adaptation: when it learns, and when it returns to the source.

A policy has the methods of an adaptation and holds the state of the wrapped one unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase, Predicted
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits

SAME = (
    "stream_batch",
    "training_runs",
    "predict_on",
    "episodic",
    "tasks",
    "needs",
    "only_on_stream",
    "has_source_summary",
)


@dataclass(frozen=True, eq=False)
class WrapperState:
    """The state of a policy and of the member that it wraps."""

    digest_name: ClassVar[str] = "PolicyMemory"

    inner: Any
    held: Weights = field(default_factory=dict)  # the policy's own arrays

    @property
    def kept_bytes(self) -> int:
        return sum(value.nbytes for value in self.held.values())


@dataclass(frozen=True)
class AdaptationWrapper(Adaptation):
    """Wrap a member that learns without labels; it keeps its settings of the stream."""

    member: Annotated[str, Means("the adaptation that is wrapped")] = "eata"
    member_params: Annotated[tuple[str, ...], Means("parameters of the wrapped member, each as name=value")] = ()

    labels = "none"

    def __post_init__(self) -> None:
        """Learn on the stream as the wrapped member does; a member that cannot be made is left to `faults`."""
        if not self._inner_faults():
            for name in SAME:
                object.__setattr__(self, name, getattr(self.inner, name))

    @cached_property
    def inner(self) -> Adaptation:
        """The wrapped member."""
        from driftlab.platform.core.registry import Member

        parted = [one.partition("=") for one in self.member_params]
        params = tuple((name.strip(), _value_of(text)) for name, _, text in parted)
        made: Adaptation = Member("adaptation", self.member, params).make()
        return made

    def faults(self) -> list[str]:
        """List the faults of the wrapped member and its parameters."""
        return self._inner_faults()

    def _inner_faults(self) -> list[str]:
        wrong = [one for one in self.member_params if "=" not in one]
        if wrong:
            return [f"'member_params' has '{wrong[0]}', expected name=value, such as entropy_margin=0.6"]
        try:
            inner = self.inner
        except RequestError as error:
            return [f"'member': {error}"]
        if inner.labels == "none" and inner.learns_on_stream:
            return []
        return [f"'member' is '{self.member}', must be one that learns on the stream without labels, such as eata"]

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        return self.inner.summarise_source(model, data)

    def begin(self, model: nn.Module) -> Weights:
        """Return the policy's first arrays."""
        return {}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> WrapperState:
        """Prepare the wrapped member; with another network the policy restarts."""
        inner = self.inner.prepare(model, pack, go_on=None if go_on is None else go_on.inner)
        return WrapperState(inner, self.begin(model))

    def reset(self, model: nn.Module, state: Any) -> WrapperState:
        return WrapperState(self.inner.reset(model, state.inner), self.begin(model))

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        predicted = self.inner.predict(model, state.inner, batch)
        return replace(predicted, state=replace(state, inner=predicted.state))

    def _wrapped(self, model: nn.Module, state: WrapperState, batch: Batch, phase: Phase) -> Adapted:
        """Train the wrapped member, and charge the memory that the policy keeps."""
        done = self.inner.adapt(model, state.inner, batch, phase)
        after = replace(done, state=replace(state, inner=done.state))
        return after if done.passes is None or not done.passes.forward else charge(after, kept_bytes=state.kept_bytes)


@contextmanager
def outputs_of(model: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Record the outputs of the first pass within this context."""
    seen: list[torch.Tensor] = []

    def hook(_: nn.Module, given: tuple[Any, ...], outputs: torch.Tensor) -> None:
        if not seen:
            seen.append(outputs.detach().clone())

    handle = model.register_forward_hook(hook)
    try:
        yield seen
    finally:
        handle.remove()


def moved_since(model: nn.Module, before: Any, done: Adapted) -> Adapted:
    """Return a result that says which weights differ from before the call, after a return to the source."""
    from driftlab.platform.networks.vector import read

    return replace(done, changed=read(model) != before, skipped="")


def charge(done: Adapted, *, before: int = 0, after: int = 0, kept_bytes: int = 0) -> Adapted:
    """Add the policy's own work to a result: frames of a pass before and after the member's, and bytes."""
    work = done.passes or Passes()
    forward = tuple(frames for frames in (before, *work.forward, after) if frames)
    return replace(done, passes=replace(work, forward=forward, kept_bytes=work.kept_bytes + kept_bytes))


@cache
def _value_of(text: str) -> Any:
    """Read a parameter's value; a plan makes each member many times."""
    import yaml

    return yaml.safe_load(text)
