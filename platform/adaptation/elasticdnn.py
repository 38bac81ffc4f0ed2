"""ElasticDNN: retrains the filters with the largest gradients for the new domain, and no others.

A phase scores every filter of the network by one backward pass, trains the chosen ones, and undoes a result that
collapsed or is worse by a label-free measure. Scaling `surrogate` transfers the trained weights to the master network.

Differs from the paper: scores come from the entropy or the labels' loss whatever is minimised; gradients are clipped,
and a phase that left the predictions less certain or less diverse than before is undone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch, Phase
from driftlab.platform.adaptation.batches import NO_FRAMES, Rows, in_parts
from driftlab.platform.adaptation.estimating import Calibration, EstimatorState
from driftlab.platform.adaptation.learn import LearningAdaptation
from driftlab.platform.adaptation.memory import ElasticState
from driftlab.platform.adaptation.objectives import entropies, information, samples_of
from driftlab.platform.core.parameters import BEFORE, CHOOSING, Means
from driftlab.platform.core.records import AccuracyEstimates, Passes, Weights
from driftlab.platform.networks.training.descent import Momentum

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.filters import Wiring
    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.module_utils import NormRecord
    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.networks.vector import Layout
    from driftlab.platform.scaling.base import Scaling

COLLAPSED = 0.3  # of the diversity of the first step
WORSE = 1e-6  # rise of the label-free quality that undoes a phase
BOTH = 2  # passes over all samples: before a phase and after it
NO_LABEL, NOTHING_TO_TRAIN = "no label counts", "no filter matters: the loss has no gradient"


@dataclass(frozen=True)
class Elastic(LearningAdaptation):
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
    guard: Annotated[
        bool, Means("whether a phase is undone that collapsed or left predictions less certain or less diverse")
    ] = True
    bn_momentum: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms")
    ] = 0.1

    labels: ClassVar[Literal["none", "teacher"]] = "none"
    nothing, learns_on_stream = NO_LABEL, False

    @property
    def norms_only(self) -> bool:
        """Return whether only scales and shifts of the chosen filters are trained."""
        return False

    @abstractmethod
    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor | None:
        """Return the loss of some samples; None where nothing can be learned from them."""

    def score_loss(self, run: LearningRun, rows: Rows) -> torch.Tensor | None:
        """Return the loss by which filters are scored: the mean entropy."""
        return entropies(self.outputs(run, rows)).mean()

    def begin(self, run: LearningRun) -> None:
        """Compute the constants of a phase before its first step."""

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> ElasticState:
        """Copy the network; samples to replay stay."""
        from driftlab.platform.networks.predict import state_of

        model.eval()
        source = state_of(model)
        return ElasticState(source) if go_on is None else replace(go_on, source=source)

    def reset(self, model: nn.Module, state: Any) -> ElasticState:
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return self.prepare(model)

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if not len(batch.images):
            return NO_FRAMES
        return "detections are no distribution over classes" if batch.task.name == "detection" else ""

    def rule(self) -> Momentum:
        return Momentum(self.learning_rate, self.momentum)

    def outputs(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Run the network on some samples, and record the diversity of its predictions."""
        outputs = run.outputs(rows)
        if run.batch.task.name != "detection":
            run.notes.setdefault("diversities", []).append(prediction_diversity(samples_of(outputs.detach())))
        return outputs

    def start(self, run: LearningRun) -> str:
        """Choose the filters to train, and bind the parameters to which they belong."""
        import torch

        from driftlab.platform.adaptation import filters
        from driftlab.platform.networks.vector import layout_of

        run.trained, run.shares = (), ()
        model, layout = run.model, layout_of(run.model)
        wiring = filters.find_wiring(model, run.inputs(np.arange(1)))
        chosen = self._choose(run, wiring, layout)
        run.count(1)
        if isinstance(chosen, str):
            return chosen
        owners = {
            name: rows for name, rows in wiring.owners(chosen).items() if not self.norms_only or name not in chosen
        }
        rows_of = filters.parameters_of_rows(layout, owners)
        if not rows_of:
            return NOTHING_TO_TRAIN
        run.notes.update(chosen={} if self.norms_only else chosen, quality_outputs=[])
        run.notes["quality"] = self._quality(run)
        self.begin(run)
        run.notes["diversities"] = []
        run.bind([name for name in layout.names if name in rows_of])
        run.kept_bytes += run.weights().nbytes  # momentum, which ends with the phase
        run.notes["marks"] = torch.from_numpy(filters.mark_rows(layout_of(model), rows_of)).to(run.weights())
        run.moved = filters.mark_rows(layout, rows_of)
        order = [name for layer, norm in wiring.norms.items() for name in (layer, norm)]
        run.trained = tuple(name for name in order if name is not None and name in owners)
        run.shares = tuple(filters.computed_share(model.get_submodule(name), owners[name]) for name in run.trained)
        return ""

    def _choose(self, run: LearningRun, wiring: Wiring, layout: Layout) -> dict[str, Rows] | str:
        """Choose the filters to train, or return why there is none."""
        from driftlab.platform.adaptation import filters

        rows = np.arange(len(run.batch.images))

        def loss_of() -> torch.Tensor:
            if (loss := self.score_loss(run, rows)) is None:
                raise _NoLabel
            return loss

        try:
            scores = filters.score_filters(run.model, wiring, layout, loss_of)
        except _NoLabel:
            return NO_LABEL
        finally:
            run.count(len(rows))  # the gradients of all inputs cost as much as a pass
        if not all(np.isfinite(found).all() for found in scores.values()):
            return "the scores of its filters are not finite"
        return filters.select_filters(scores, self.select, self.share, run.batch.rng) or NOTHING_TO_TRAIN

    @contextmanager
    def normalising(self, run: LearningRun) -> Iterator[NormRecord]:
        """Normalise by the batch, and compute the gradients of the chosen filters only."""
        from driftlab.platform.adaptation.filters import row_gradients

        with row_gradients(run.model, run.notes["chosen"]), super().normalising(run) as norms:
            yield norms

    def train_step(self, run: LearningRun, rows: Rows) -> None:
        """Make a step: mask, clip, decay, momentum."""
        if self.collapsed(run):
            run.stop()
            return
        loss = self.loss(run, rows)
        if loss is None or not run.backward(loss):
            return
        marks = run.notes["marks"]
        gradient = run.gradient().mul_(marks)
        gradient.mul_((self.clip / (gradient.norm() + 1e-6)).clamp(max=1.0))
        run.step(gradient.addcmul_(marks * self.weight_decay, run.weights()))

    def collapsed(self, run: LearningRun) -> bool:
        """Return whether predictions are much less diverse than at the first step, where that counts."""
        seen = run.notes["diversities"]
        return self.guard and len(seen) > 1 and seen[-1] < COLLAPSED * seen[0]

    def _quality(self, run: LearningRun) -> float | None:
        """Return the negative mutual information of all samples in evaluation mode; None if unused."""
        if self.labels == "teacher" or not (self.guard or self.estimates):
            return None
        import torch

        with torch.no_grad():
            parts = [self.outputs(run, rows) for rows in in_parts(len(run.batch.images), self.batch)]
        outputs = torch.cat([samples_of(part) for part in parts])
        run.notes["quality_outputs"].append(outputs)
        return float(information(outputs))

    def fault(self, run: LearningRun) -> str:
        if self.collapsed(run):
            return f"its predictions collapsed after {len(run.losses)} iterations"
        before, after = run.notes["quality"], self._quality(run)
        if self.guard and before is not None and after is not None and not after <= before + WORSE:
            return f"the predictions on its samples got worse, {before:.4g} before and {after:.4g} after"
        return ""

    def next_state(self, run: LearningRun, *, carries: bool) -> Any:
        return run.state


@dataclass(frozen=True)
class ElasticDnn(Elastic):
    """Retrain the filters with the largest gradients, without labels."""

    tasks = ("segmentation", "classification")

    objective: Annotated[
        Literal["information", "entropy"],
        Means("loss: information as SHOT, or entropy as Tent by scales and shifts only"),
    ] = "information"
    div_weight: Annotated[float, Ge(0), Le(100), Means("weight of the diversity of predictions in the loss")] = 1.0

    estimates: Annotated[
        int, Ge(0), Le(100), Means("shifted source domains on which its accuracy estimator is fitted; 0: none")
    ] = 0
    calibration: Annotated[
        Calibration,
        Means(
            "correction by observed accuracies: their difference from the estimate at that size, the accuracies "
            "themselves as printed in Eq. 5 to 7, or none"
        ),
    ] = field(default="difference", metadata={BEFORE: "difference", CHOOSING: True})
    estimator: Annotated[
        Literal["fitted", "drawn"], Means("estimator of accuracies: fitted, or as a control drawn at random")
    ] = field(default="fitted", metadata={BEFORE: "fitted", CHOOSING: True})

    def __post_init__(self) -> None:
        """Require a pack where accuracies are estimated."""
        object.__setattr__(self, "has_source_summary", self.estimates > 0)

    @property
    def norms_only(self) -> bool:
        return self.objective == "entropy"

    def summarise_source_family(self, scaling: Scaling, family: Any, data: DataSplits) -> Weights:
        """Fit the estimator of accuracies, where there are networks to choose from or to cut for samples."""
        from driftlab.platform.adaptation.estimating import learn_estimator

        if not self.estimates or data.task.name not in self.tasks:
            return EMPTY_PACK
        if not scaling.cuts_per_domain and len(scaling.profile(family, data.size)) < 2:
            return EMPTY_PACK
        return learn_estimator(self, scaling, family, data, self.estimates).store()

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> ElasticState:
        state = super().prepare(model, pack, go_on=go_on)
        return EstimatorState(state.source, pack=dict(pack)) if pack and go_on is None else state

    def reset(self, model: nn.Module, state: Any) -> ElasticState:
        """Return to the network as it was cut; nothing observed stays."""
        kept = super().reset(model, state)
        return EstimatorState(kept.source, pack=state.pack) if isinstance(state, EstimatorState) else kept

    def estimate(
        self, source: nn.Module, state: Any, batch: Batch, phase: Phase
    ) -> tuple[AccuracyEstimates | None, Any]:
        from driftlab.platform.adaptation import estimating

        known = estimating.restore(state.pack) if isinstance(state, EstimatorState) else None
        if known is None or self.reject_reason(source, batch, state):
            return None, state
        frames = len(batch.images)
        features = estimating.source_features(source, batch)
        found, history = known.predict(state.history, features, self.calibration)
        if self.estimator == "drawn":
            found = batch.rng.random(found.shape)
        steps = (min(self.batch, frames),) * (self.iterations if phase.iterations is None else phase.iterations)
        likely = Passes((1, frames, frames, frames, frames, *steps), steps)
        before, after = (tuple(map(float, column)) for column in found.T)
        estimated = AccuracyEstimates(tuple(map(float, known.sizes)), before, after, Passes((frames,)), likely)
        return estimated, replace(state, history=history)

    def monitored(self, state: Any) -> tuple[float, float] | None:
        """Return the newest observation; None where the newest estimate has none yet."""
        if not isinstance(state, EstimatorState) or len(state.history.here) or not len(state.history.seen):
            return None
        before, after = state.history.seen[-1][:2]
        return float(before), float(after)

    def end(self, run: LearningRun) -> None:
        """Store the shares of confident predictions around the phase, where its accuracy was estimated."""
        from driftlab.platform.adaptation import estimating

        state, outputs = run.state, run.notes["quality_outputs"]
        known = estimating.restore(state.pack) if isinstance(state, EstimatorState) else None
        if known is not None and len(outputs) == BOTH:
            history = state.history.observe(*estimating.observed_shares(known, run.model, outputs))
            run.state = replace(state, history=history)

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        outputs = self.outputs(run, rows)
        if self.objective == "entropy":
            return entropies(outputs).mean()
        return information(samples_of(outputs), self.div_weight)


class _NoLabel(Exception):
    """No label of the samples counts."""


def prediction_diversity(outputs: torch.Tensor) -> float:
    """Return the entropy of the mean prediction in nats."""
    shares = outputs.softmax(dim=1).mean(dim=0)
    return float(-(shares * shares.clamp_min(1e-30).log()).sum())
