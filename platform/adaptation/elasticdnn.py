"""ElasticDNN: retrain the filters that matter for the new domain, and no others.

A phase scores every filter of the network by one backward pass, trains the chosen ones, and undoes a result that
collapsed or looks worse than before. What the network learned flows back into its master by scaling `surrogate`.

Differs from the paper: scores come from the entropy or the labels' loss whatever is minimised; gradients are clipped,
and a phase that left the predictions less certain or less varied than before is undone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation import stream
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase
from driftlab.platform.adaptation.estimating import DomainHistory
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Estimated, Passes, Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.filters import Wiring
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.networks.vector import Flat
    from driftlab.platform.scaling.base import Scaling

COLLAPSED = 0.3  # of the variety of the first step
WORSE = 1e-6  # rise of the label-free quality that undoes a phase
BOTH = 2  # looks at all samples: before a phase and after it
NOTHING_TO_TRAIN = "no filter matters: the loss has no gradient"


@dataclass(frozen=True, eq=False)
class ElasticMemory:
    """The state: the network as it was cut, and the samples that are replayed."""

    source: Weights
    images: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0, 0, 3), dtype=np.uint8))
    labels: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    of_source: int = 0  # of these samples, the first


@dataclass(frozen=True, eq=False)
class EstimatingMemory(ElasticMemory):
    """The state of a member that estimates accuracies: its estimator, and what was observed of earlier domains."""

    pack: Weights = field(default_factory=dict)
    history: DomainHistory = field(default_factory=DomainHistory)


@dataclass
class PhaseRun:
    """One phase while it runs."""

    model: nn.Module
    batch: Batch
    state: ElasticMemory
    done: stream.WorkLog = field(default_factory=stream.WorkLog)
    varieties: list[float] = field(default_factory=list)  # entropy of each step's mean prediction
    aside: Any = None  # what a member computed once at the start of the phase
    looks: list[torch.Tensor] = field(default_factory=list)  # outputs for all samples, in evaluation mode

    @property
    def collapsed(self) -> bool:
        return len(self.varieties) > 1 and self.varieties[-1] < COLLAPSED * self.varieties[0]

    def outputs(self, rows: stream.Rows) -> torch.Tensor:
        """Run the network on some samples, and record how varied its predictions are."""
        made: torch.Tensor = self.model(stream.device_inputs(self.model, self.batch, rows))
        if self.batch.task.name != "detection":
            self.varieties.append(variety(by_prediction(made.detach())))
        return made

    def steps(self, lessons: list[stream.Rows]) -> Iterator[stream.Rows]:
        """Yield the mini-batches until predictions collapse."""
        for rows in lessons:
            if self.collapsed:
                return
            yield rows


@dataclass(frozen=True)
class Elastic(Adaptation):
    """Base of the members: scores, choice and training of filters; a member has the loss."""

    select: Annotated[
        Literal["cumulative", "topfrac", "random", "inverse", "all"], Means("which filters are trained")
    ] = "cumulative"
    share: Annotated[
        float, Gt(0), Le(1), Means("of the sum of scores with cumulative, else of each layer's filters", "fraction")
    ] = 0.8
    iterations: Annotated[int, Ge(1), Means("steps of a phase")] = 50
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 64
    learning_rate: Annotated[float, Ge(0), Le(10), Means("step size")] = 6e-4
    momentum: Annotated[float, Ge(0), Lt(1), Means("momentum of the steps")] = 0.9
    weight_decay: Annotated[float, Ge(0), Le(1), Means("weight decay of the chosen filters")] = 1e-3
    clip: Annotated[float, Gt(0), Means("largest norm of a step's gradient")] = 5.0
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms")
    ] = 0.1

    labels: ClassVar[Literal["none", "teacher"]] = "none"

    @property
    def norms_only(self) -> bool:
        """Tell whether only scales and shifts of the chosen filters are trained."""
        return False

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> ElasticMemory:
        """Copy the network; samples to replay stay."""
        from driftlab.platform.networks.predict import state_of

        model.eval()
        source = state_of(model)
        return ElasticMemory(source) if go_on is None else replace(go_on, source=source)

    def reset(self, model: nn.Module, state: Any) -> ElasticMemory:
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return self.prepare(model)

    def unfit(self, batch: Batch) -> str:
        """Return why nothing can be learned from a batch; empty if something can."""
        if not len(batch.images):
            return stream.NO_FRAMES
        return "detections are no distribution over classes" if batch.task.name == "detection" else ""

    def begin(self, lesson: PhaseRun) -> None:
        """Compute what a phase needs once, before its first step."""

    @abstractmethod
    def loss(self, lesson: PhaseRun, rows: stream.Rows) -> torch.Tensor | None:
        """Return the loss of some samples; None where nothing can be learned from them."""

    def score_loss(self, lesson: PhaseRun, rows: stream.Rows) -> torch.Tensor | None:
        """Return the loss by which filters are scored: the mean entropy."""
        return stream.entropies(lesson.outputs(rows)).mean()

    def learned(self, lesson: PhaseRun) -> ElasticMemory:
        """Return the state after a phase that holds."""
        return lesson.state

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.adaptation.filters import find_wiring

        if why := self.unfit(batch):
            return Adapted(state, skipped=why, work=Passes())
        lessons = list(stream.mini_batches(batch, phase, self.batch, self.iterations))
        if not lessons:
            return Adapted(state, skipped=stream.NO_STEPS, work=Passes())
        model.eval()
        lesson = PhaseRun(model, batch, state)
        wiring = find_wiring(model, stream.device_inputs(model, batch, np.arange(1)))
        chosen = self._choose(lesson, wiring)
        lesson.done.forward.append(1)
        if isinstance(chosen, str):
            return Adapted(state, skipped=chosen, work=self._work(lesson, wiring, {}))
        return self._learn(lesson, wiring, chosen, lessons)

    def _choose(self, lesson: PhaseRun, wiring: Wiring) -> dict[str, npt.NDArray[np.int64]] | str:
        """Choose the filters to train, or say why there is none."""
        from driftlab.platform.adaptation import filters
        from driftlab.platform.networks.vector import layout_of

        rows = np.arange(len(lesson.batch.images))
        losses = list[Any]()

        def loss_of() -> torch.Tensor:
            losses.append(self.score_loss(lesson, rows))
            if losses[0] is None:
                raise _NoLabel
            result: torch.Tensor = losses[0]
            return result

        lesson.done.forward.extend([len(rows), len(rows)])  # the gradients of all inputs cost as much as a pass
        try:
            scores = filters.score_filters(lesson.model, wiring, layout_of(lesson.model), loss_of)
        except _NoLabel:
            return "no label counts"
        lesson.varieties.clear()
        if not all(np.isfinite(found).all() for found in scores.values()):
            return "the scores of its filters are not finite"
        return filters.select_filters(scores, self.select, self.share, lesson.batch.rng) or NOTHING_TO_TRAIN

    def _learn(
        self, lesson: PhaseRun, wiring: Wiring, chosen: dict[str, npt.NDArray[np.int64]], lessons: list[stream.Rows]
    ) -> Adapted:
        """Train the chosen filters; a phase that collapsed, or made things worse, is undone."""
        from driftlab.platform.adaptation import filters
        from driftlab.platform.networks.module_utils import restore_entries
        from driftlab.platform.networks.predict import state_of
        from driftlab.platform.networks.vector import layout_of

        model, state, done = lesson.model, lesson.state, lesson.done
        layout, owners = layout_of(model), wiring.owners(chosen)
        if self.norms_only:
            owners = {name: rows for name, rows in owners.items() if name not in chosen}
        trained = filters.parameters_of_rows(layout, owners)
        if not trained:
            return Adapted(state, skipped=NOTHING_TO_TRAIN, work=self._work(lesson, wiring, {}))
        before, quality = state_of(model), self._quality(lesson)
        self.begin(lesson)
        lesson.varieties.clear()
        with (
            stream.part_learning(model, list(trained), keeps=True, momentum=self.bn_momentum) as (flat, passed),
            filters.row_gradients(model, {} if self.norms_only else chosen),
        ):
            self._descend(lesson, flat, filters.mark_rows(flat.layout, trained), lessons)
        why = stream.invalid_reason(model, stream.StreamMemory(before), passed, done) or self._fault(lesson, quality)
        if why or not done.backward:
            restore_entries(model, before)
            return Adapted(state, skipped=why or "no label counts", work=self._work(lesson, wiring, owners))
        after, changed = self.learned(lesson), filters.mark_rows(layout, trained)
        work = self._work(lesson, wiring, owners)
        return Adapted(after, len(done.losses), tuple(done.losses), changed, work=work)

    def _descend(self, lesson: PhaseRun, flat: Flat, mask: npt.NDArray[np.bool_], lessons: list[stream.Rows]) -> None:
        """Make the steps: mask, clip, decay, momentum."""
        import torch

        done = lesson.done
        marks = torch.from_numpy(mask).to(flat.weights.device).to(flat.weights.dtype)
        speed, decay = torch.zeros_like(flat.weights), marks * self.weight_decay
        for rows in lesson.steps(lessons):
            loss = self.loss(lesson, rows)
            done.forward.append(len(rows))
            if loss is None:
                continue
            done.losses.append(float(loss.detach()))
            if not math.isfinite(done.losses[-1]):
                return
            torch.autograd.backward(loss)
            done.backward.append(len(rows))
            gradient = flat.gradients.mul_(marks)
            gradient.mul_((self.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)).addcmul_(decay, flat.weights)
            flat.weights.sub_(speed.mul_(self.momentum).add_(gradient), alpha=self.learning_rate)
            flat.gradients.zero_()

    def _quality(self, lesson: PhaseRun) -> float | None:
        """Return the negative mutual information of all samples in evaluation mode; None where labels judge."""
        if self.labels == "teacher":
            return None
        import torch

        from driftlab.platform.adaptation.objectives import information

        frames = np.arange(len(lesson.batch.images))
        parts = [frames[start : start + self.batch] for start in range(0, len(frames), self.batch)]
        with torch.no_grad():
            outputs = torch.cat([by_prediction(lesson.outputs(rows)) for rows in parts])
        lesson.done.forward.extend(len(rows) for rows in parts)
        lesson.looks.append(outputs)
        return float(information(outputs))

    def _fault(self, lesson: PhaseRun, quality: float | None) -> str:
        """Return why a phase must be undone; empty if it holds."""
        if lesson.collapsed:
            return f"its predictions collapsed after {len(lesson.done.losses)} iterations"
        after = self._quality(lesson)
        if quality is not None and after is not None and not after <= quality + WORSE:
            return f"the predictions on its samples got worse, {quality:.4g} before and {after:.4g} after"
        return ""

    def _work(self, lesson: PhaseRun, wiring: Wiring, owners: dict[str, npt.NDArray[np.int64]]) -> Passes:
        """Return the computation of a phase, with the share of each trained module's gradients that it computed."""
        from driftlab.platform.adaptation.filters import computed_share

        model, done = lesson.model, lesson.done
        order = [name for layer, norm in wiring.norms.items() for name in (layer, norm) if name in owners]
        trained = [name for name in order if name is not None]
        shares = tuple(computed_share(model.get_submodule(name), owners[name]) for name in trained)
        kept_bytes = sum(2 * value.nbytes for value in lesson.state.source.values())
        kept_bytes += lesson.state.images.nbytes
        backward = tuple(done.backward) if trained else ()
        return Passes(tuple(done.forward), backward, tuple(trained), kept_bytes, shares)


@dataclass(frozen=True)
class ElasticDnn(Elastic):
    """Retrain the filters that matter without labels."""

    tasks = ("segmentation", "classification")

    objective: Annotated[
        Literal["information", "entropy"], Means("what is minimised: as SHOT, or as Tent by scales and shifts alone")
    ] = "information"
    div_weight: Annotated[float, Ge(0), Le(100), Means("weight of the variety of answers in the loss")] = 1.0

    estimates: Annotated[
        int, Ge(0), Le(100), Means("shifted source domains from which it learns to estimate accuracies; 0: it does not")
    ] = 0

    def __post_init__(self) -> None:
        """Ask for a pack where accuracies are estimated."""
        object.__setattr__(self, "packs", self.estimates > 0)

    @property
    def norms_only(self) -> bool:
        return self.objective == "entropy"

    def pack_family(self, scaling: Scaling, family: Any, data: Data) -> Weights:
        """Fit the estimator of accuracies, where there are networks to choose from or to cut for samples."""
        from driftlab.platform.adaptation.estimating import learn_estimator

        if not self.estimates or data.task.name not in self.tasks:
            return EMPTY_PACK
        if not scaling.drafts and len(scaling.profile(family, data.size)) < 2:
            return EMPTY_PACK
        return learn_estimator(self, scaling, family, data, self.estimates).store()

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> ElasticMemory:
        state = super().prepare(model, pack, go_on=go_on)
        return EstimatingMemory(state.source, pack=dict(pack)) if pack and go_on is None else state

    def reset(self, model: nn.Module, state: Any) -> ElasticMemory:
        """Return to the network as it was cut; nothing observed stays."""
        kept = super().reset(model, state)
        return EstimatingMemory(kept.source, pack=state.pack) if isinstance(state, EstimatingMemory) else kept

    def estimate(self, source: nn.Module, state: Any, batch: Batch, phase: Phase) -> tuple[Estimated | None, Any]:
        from driftlab.platform.adaptation import estimating

        known = estimating.restore(state.pack) if isinstance(state, EstimatingMemory) else None
        if known is None or self.unfit(batch):
            return None, state
        frames = len(batch.images)
        found, history = known.predict(state.history, estimating.source_features(source, batch))
        steps = (min(self.batch, frames),) * (self.iterations if phase.iterations is None else phase.iterations)
        likely = Passes((1, frames, frames, frames, frames, *steps), steps)
        before, after = (tuple(map(float, column)) for column in found.T)
        estimated = Estimated(tuple(map(float, known.sizes)), before, after, Passes((frames,)), likely)
        return estimated, replace(state, history=history)

    def learned(self, lesson: PhaseRun) -> ElasticMemory:
        """Note the shares of sure predictions before and after the phase, where its accuracy was estimated."""
        from driftlab.platform.adaptation import estimating

        state = lesson.state
        known = estimating.restore(state.pack) if isinstance(state, EstimatingMemory) else None
        if known is None or not isinstance(state, EstimatingMemory) or len(lesson.looks) != BOTH:
            return state
        seen = estimating.observed_shares(known, lesson.model, lesson.looks)
        return replace(state, history=state.history.observe(*seen))

    def loss(self, lesson: PhaseRun, rows: stream.Rows) -> torch.Tensor:
        from driftlab.platform.adaptation.objectives import information

        outputs = lesson.outputs(rows)
        if self.objective == "entropy":
            return stream.entropies(outputs).mean()
        return information(by_prediction(outputs), self.div_weight)


class _NoLabel(Exception):
    """No label of the samples counts."""


def by_prediction(outputs: torch.Tensor) -> torch.Tensor:
    """Return one row of outputs per prediction: per frame, or per pixel."""
    return outputs if outputs.dim() == 2 else outputs.movedim(1, -1).reshape(-1, outputs.shape[1])


def variety(outputs: torch.Tensor) -> float:
    """Return the entropy of the mean prediction in nats."""
    shares = outputs.softmax(dim=1).mean(dim=0)
    return float(-(shares * shares.clamp_min(1e-30).log()).sum())
