"""Learning as one transaction: bind parameters, run the training steps, check, then keep or undo.

A member names the parameters that learn (`scope`) and their optimiser (`rule`), and has one `train_step`; the hooks
after it are for the few that need them. A `LearningRun` counts the passes that go through it, so no member counts.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Lt

from driftlab.platform.adaptation.base import (
    EMPTY_PACK,
    MAX_FRAMES,
    STREAM_BATCH,
    Adaptation,
    Adapted,
    Batch,
    Phase,
    Predicted,
)
from driftlab.platform.adaptation.batches import (
    NO_FRAMES,
    NO_STEPS,
    NormMomentum,
    PhaseSteps,
    PredictOn,
    Rows,
    StepSize,
    StreamBatch,
    in_parts,
    mini_batches,
    norm_entries,
    norms_reject,
    predict_with_statistics,
    scales_and_shifts,
    scales_reject,
    split_groups,
    without_entropy,
)
from driftlab.platform.adaptation.memory import MethodState, StreamState, own_arrays
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.networks.heads import names_below_head
from driftlab.platform.networks.training.descent import Adam, Momentum, StepRule

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.module_utils import NormRecord


class LearningAdaptation(Adaptation):
    """Base of members that learn by training batches; a state has the `source` values that they change."""

    iterations: int = 1  # training steps of a phase
    batch: int = MAX_FRAMES  # frames of a step in a phase
    bn_momentum: float | None = 0.1  # weight of the newest batch in the statistics of batch norms; None: as an average
    nothing: ClassVar[str] = "nothing in the batch was fit to learn from"  # why a call without a step is undone

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        """Return why nothing can be learned from a batch; empty if it can."""
        return "" if len(batch.images) else NO_FRAMES

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        """List the frames of each training step; by default mini-batches of `batch` frames."""
        return mini_batches(batch, phase, self.batch, self.iterations)

    def scope(self, model: nn.Module) -> list[str]:
        """Name the parameters that learn."""
        return []

    def rule(self) -> StepRule | None:
        """Return the optimiser; None where no parameter learns."""
        return None

    @abstractmethod
    def train_step(self, run: LearningRun, rows: Rows) -> None:
        """Learn from some frames of the batch: at most one step of the optimiser."""

    # Most members need none of these.

    def start(self, run: LearningRun) -> str:
        """Prepare a call, at least by binding the parameters that learn; return why none does."""
        run.bind(self.scope(run.model))
        return ""

    def by_batch(self) -> bool:
        """Return whether batch norms use the statistics of the batch for predictions too, and keep none."""
        return False

    def statistics(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Make batch norms normalise as predictions need it; None: by their stored statistics."""
        from driftlab.platform.networks.module_utils import normalise_by_batch

        return normalise_by_batch(model, keeps=False) if self.by_batch() else None

    def normalising(self, run: LearningRun) -> AbstractContextManager[NormRecord]:
        """Make batch norms normalise as the training steps need it; by default by the batch."""
        from driftlab.platform.networks.module_utils import normalise_by_batch

        return normalise_by_batch(run.model, keeps=not self.by_batch(), momentum=self.bn_momentum)

    def carries(self, phase: Phase) -> bool:
        """Return whether a call continues with the optimiser of the one before, and hands it on."""
        return True

    def fault(self, run: LearningRun) -> str:
        """Return why the result must be undone; empty if it holds."""
        return ""

    def end(self, run: LearningRun) -> None:
        """Finish a call whose result is kept."""

    def next_state(self, run: LearningRun, *, carries: bool) -> Any:
        """Return the state after a run, with its optimiser if the next call continues with it."""
        after = replace(run.state, moments=run.moments() if carries else (), steps=run.steps)
        return replace(after, held=own_arrays(run.held)) if isinstance(after, MethodState) else after

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Run the training steps. The network ends as they leave it or, with a reason, as it was before."""
        why = self.reject_reason(model, batch, state)
        batches = [] if why else self.training_batches(model, batch, phase)
        if not batches:
            return Adapted(state, skipped=why or NO_STEPS, passes=Passes())
        from driftlab.platform.adaptation.run import LearningRun

        model.eval()
        with LearningRun(self, model, state, batch, phase).opened() as run:
            if why := self.start(run):
                return Adapted(state, skipped=why, passes=run.passes(state))
            run.repeat(batches)
        after = self.next_state(run, carries=True)  # the state at the end, whether it is kept or not
        why = run.stopped or run.invalid_reason() or self.fault(run)
        if why or (run.names and not run.made and not run.waits):
            run.undo()
            return Adapted(state, skipped=why or self.nothing, passes=run.passes(after), **run.seen())
        work = run.passes(after)
        self.end(run)
        after = self.next_state(run, carries=self.carries(phase))
        work = replace(work, forward=tuple(run.forward))  # `end` replaces arrays: their bytes are those before it
        if run.waits:
            return Adapted(after, skipped=run.waits, passes=work, **run.seen())
        made = run.made if run.names else len(batches)
        return Adapted(after, made, tuple(run.losses), run.changed(), passes=work, **run.seen())


@dataclass(frozen=True)
class StreamAdaptation(Adaptation):
    """Base of members that can learn from the stream, without labels."""

    stream_batch: StreamBatch = STREAM_BATCH
    training_runs: Annotated[
        Literal["exclusive", "concurrent"], Means("whether training pauses inference or shares the processor with it")
    ] = "exclusive"
    predict_on: PredictOn = "frame"
    episodic: Annotated[
        bool | Literal["batch"],
        Means("whether an announced boundary between domains, or every batch of the stream, resets the member"),
    ] = False

    labels = "none"

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        """Return why nothing can be learned from a batch; empty if it can."""
        return "" if len(batch.images) else NO_FRAMES

    def changes(self, model: nn.Module) -> list[str]:
        """Name the entries of the state dict that the member may change; by default all."""
        return list(model.state_dict())

    def statistics(self, model: nn.Module) -> AbstractContextManager[Any] | None:
        """Make batch norms normalise as predictions need it; None: by their stored statistics."""
        return None

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> StreamState:
        """Copy the entries that may change; keep the previous moments that fit by name and shape."""
        from driftlab.platform.networks.module_utils import copy_entries

        model.eval()
        source = copy_entries(model, self.changes(model))
        if go_on is None:
            return StreamState(source)
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        moments = tuple(
            {name: value for name, value in moment.items() if shapes.get(name) == value.shape}
            for moment in go_on.moments
        )
        return StreamState(source, moments, go_on.steps if any(moments) else 0)

    def reset(self, model: nn.Module, state: Any) -> StreamState:
        """Return to the source network with a fresh optimiser."""
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return StreamAdaptation.prepare(self, model)

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict by `statistics` of the batch, or of each frame where `predict_on` is frame."""
        if (statistics := self.statistics(model)) is None:
            return super().predict(model, state, batch)
        return predict_with_statistics(statistics, model, state, batch, alone=self.predict_on == "frame")

    def only_predict(self, model: nn.Module, state: Any, batch: Batch, phase: Phase, why: str) -> Adapted:
        """Return predictions where `predict_on` is batch, and why a member keeps nothing of the frames."""
        parts = split_groups(len(batch.images), phase, self.stream_batch)
        reject = self.reject_reason(model, batch, state) or ("" if parts else NO_STEPS)
        if reject or not phase.on_stream or self.predict_on == "frame":
            return Adapted(state, skipped=reject or why, passes=Passes())
        predicted = self.predict(model, state, batch)
        return Adapted(state, skipped=why, passes=predicted.passes, predictions=predicted.predictions)


class StatefulAdaptation(StreamAdaptation):
    """Base of members that keep a summary of the source or other arrays."""

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Return the member's first arrays."""
        return {}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> MethodState:
        """Copy the source, and begin with the member's own arrays; those of another network do not apply."""
        first = super().prepare(model, go_on=go_on)
        kept, own = dict(pack), dict(self.begin(model, pack))
        return MethodState(first.source, first.moments, first.steps, None, kept, own)

    def reset(self, model: nn.Module, state: Any) -> MethodState:
        """Return to the source network with a fresh optimiser and first arrays."""
        super().reset(model, state)
        return self.prepare(model, state.pack)


class NormStatistics(LearningAdaptation, StreamAdaptation):
    """Base of members that only move the statistics of batch norms, group by group (AdaBN, ONDA)."""

    momentum: float
    needs = "batch norms"

    @property
    def bn_momentum(self) -> float | None:  # type: ignore[override]
        return self.momentum

    def changes(self, model: nn.Module) -> list[str]:
        return norm_entries(model)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return norms_reject(model, batch)

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        return split_groups(len(batch.images), phase, self.stream_batch)

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        run.watch(rows)

    def passes_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the forward passes of a network with batch norms."""
        parts = split_groups(frames, phase, self.stream_batch)
        return Passes(tuple(len(rows) for rows in parts if len(rows)), trained=())


@dataclass(frozen=True)
class NormAffine(LearningAdaptation, StreamAdaptation):
    """Base of members that step along the scales and shifts of norms (Tent, EATA, SAR)."""

    predict_on: PredictOn = "batch"
    variant: Annotated[
        Literal["original", "run"],
        Means("statistics of batch norms: of the batch alone, or stored ones that follow it"),
    ] = "original"
    optimiser: Annotated[Literal["adam", "sgd"], Means("rule of the steps")] = "adam"
    learning_rate: StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of sgd")] = 0.9
    steps: Annotated[int, Ge(1), Means("steps on a batch of the stream; the pass of the last one predicts it")] = 1
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms, in variant run")
    ] = 0.1
    iterations: PhaseSteps = 10
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 50

    tasks, needs = ("segmentation", "classification"), "norms"

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        """Repeat a batch of the stream for each of its steps."""
        return super().training_batches(model, batch, phase) * (self.steps if phase.on_stream else 1)

    def scope(self, model: nn.Module) -> list[str]:
        return scales_and_shifts(model)

    def rule(self) -> StepRule:
        if self.optimiser == "sgd":
            return Momentum(self.learning_rate, self.momentum)
        return Adam(self.learning_rate)

    def changes(self, model: nn.Module) -> list[str]:
        return norm_entries(model, batch_only=False)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        return scales_reject(model, batch) or without_entropy(batch.task)

    def by_batch(self) -> bool:
        return self.variant == "original"


@dataclass(frozen=True)
class LossDescent(LearningAdaptation, StatefulAdaptation):
    """Base of members that descend a loss with all weights below the head, in phases (ACE, CUA, IADA)."""

    iterations: PhaseSteps = 50
    batch: Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")] = 32
    learning_rate: StepSize = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    bn_momentum: NormMomentum = 0.1

    def scope(self, model: nn.Module) -> list[str]:
        """Train all weights below the head."""
        return names_below_head(model)

    def rule(self) -> StepRule:
        return Momentum(self.learning_rate, self.momentum)

    def carries(self, phase: Phase) -> bool:
        """Begin every phase without momentum."""
        return phase.on_stream

    @abstractmethod
    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Return the loss of some frames."""

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        run.learn(self.loss(run, rows))


@dataclass(frozen=True)
class HeadAdaptation(LearningAdaptation, StreamAdaptation):
    """Base of members that work on the head's input without gradients, group by group (T3A, NEO, LAME)."""

    predict_on: PredictOn = "batch"

    needs_batch: ClassVar[bool] = False  # whether the network as it is predicts single frames

    @abstractmethod
    def follow(self, run: LearningRun, rows: Rows) -> tuple[dict[str, Any], torch.Tensor]:
        """Run some frames; return the member's arrays, updated by them, and the outputs."""

    def training_batches(self, model: nn.Module, batch: Batch, phase: Phase) -> list[Rows]:
        return split_groups(len(batch.images), phase, self.stream_batch)

    def normalising(self, run: LearningRun) -> AbstractContextManager[NormRecord]:
        """Leave batch norms as they are."""
        from driftlab.platform.networks.module_utils import NormRecord

        return nullcontext(NormRecord())

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        import torch

        with torch.no_grad():
            held, outputs = self.follow(run, rows)
        if bool(outputs.isfinite().all()):
            run.held, run.steps = held, run.steps + 1
            run.show(outputs)
        else:
            run.held = dict(run.state.held)
            run.stop("its features are not finite")

    def predict(self, model: nn.Module, state: Any, batch: Batch) -> Predicted:
        """Predict by arrays that the batch has updated, or each frame where `predict_on` is frame."""
        import torch

        from driftlab.platform.adaptation.run import LearningRun
        from driftlab.platform.networks.predict import evaluating

        alone = self.predict_on == "frame"
        if (alone and self.needs_batch) or self.reject_reason(model, batch, state):
            return super().predict(model, state, batch)
        frames, size = batch.images.shape[:3], 1 if alone else len(batch.images)
        run, predictions = LearningRun(self, model, state, batch, Phase(on_stream=True)), batch.task.blank(*frames)
        with evaluating(model), torch.no_grad():
            for rows in in_parts(len(batch.images), size):
                predictions[rows] = batch.task.predictions(self.follow(run, rows)[1], *frames[1:])
        return Predicted(predictions, state, Passes(tuple(run.forward)))
