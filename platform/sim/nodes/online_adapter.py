"""Adaptation on the stream: predict a frame, pool it, and train when the pool is full.

During a training batch, a member whose training is `exclusive` misses frames; one whose training is `concurrent`
continues with its current weights on the rest of the share. Trained weights are in use from the end of the batch on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.adaptation.base import Adaptation, Adapted, Batch, Phase, Predicted
from driftlab.platform.core.limits import TookTooLong, time_limit
from driftlab.platform.core.records import NO_END, PREDICTION_FAILED, ModelCost, Passes, TaskCost
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks import state
from driftlab.platform.networks.early_exit import reached_cost, reached_work, record_exits
from driftlab.platform.networks.predict import predict
from driftlab.platform.networks.state import State
from driftlab.platform.sim.nodes.frame_results import FrameResult, FrameResults
from driftlab.platform.sim.nodes.guarded_training import adapt_guarded, check_predictions
from driftlab.platform.sim.nodes.metering import CallMeter
from driftlab.platform.sim.nodes.share_timeline import INFINITE_S, ShareTimeline
from driftlab.platform.world.cost import task_cost

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.sim.nodes.observing import DomainDetector


@dataclass(eq=False)
class PendingInference:
    """An inference in progress: of one frame, or of a batch."""

    results: list[FrameResult]
    start_s: float
    isolated_s: float

    def took_s(self, timeline: ShareTimeline) -> float:
        return timeline.inference_duration_s(self.start_s, self.isolated_s)

    def ready_s(self, timeline: ShareTimeline) -> float:
        return self.start_s + self.took_s(timeline)


@dataclass(eq=False)
class TrainingBatch:
    """A batch in training."""

    frames: int
    cost: TaskCost
    adapted: Adapted
    trained: State | None  # the network from the end of the batch on; None: unchanged
    start_s: float | None = None  # None: when the inference before it ends


class OnlineAdapter:
    """The adaptation of one application on the stream."""

    def __init__(
        self,
        member: Adaptation,
        model: nn.Module,
        memory: Any,
        cost: ModelCost,
        results: FrameResults,
        timeline: ShareTimeline,
        meter: CallMeter,
    ) -> None:
        self._member, self._model, self.memory, self._cost = member, model, memory, cost
        self._results, self._timeline, self._spec, self._task = results, timeline, results.spec, results.task
        self._rng = rng_for(
            self._spec.student.seed, "answer", self._spec.app
        )  # for all predictions: creating one is slow
        self._pool: list[FrameResult] = []
        self._inference: PendingInference | None = None
        self._training: TrainingBatch | None = None
        self._costed = Passes(), TaskCost()  # the newest passes and their cost: those of all frames are mostly equal
        self._batches = self._version = 0
        self._domain: int | None = None
        self.detector: DomainDetector | None = None
        self._meter = meter
        self._timed_out = False  # a training batch exceeded the limit of host time
        self._member_failed = False  # the member failed to predict; the network predicts without it

    @property
    def since_s(self) -> float:
        """Return the start of the inference in progress."""
        return INFINITE_S if self._inference is None else self._inference.start_s

    def continue_from(self, before: OnlineAdapter) -> None:
        """Continue with another network of the family, after `cancel_training` of the previous one."""
        self._pool, self._batches, self._version = before._pool, before._batches, before._version
        self._domain, self._inference = before._domain, before._inference
        self._timed_out, self._member_failed, self._rng = (
            before._timed_out,
            before._member_failed,
            before._rng,
        )

    def cancel_training(self, now_s: float, why: str, *, ended: bool = True) -> None:
        """Cancel the current training batch, if any; its energy until now is counted.

        At the end of the session (`ended=False`) the row of the batch has no end.
        """
        batch = self._training
        if batch is None:
            return
        part = 0.0
        if batch.start_s is not None:
            part = self._timeline.batch_fraction(now_s)
            self._results.busy_s += now_s - batch.start_s if self._member.training_runs == "exclusive" else 0.0
        self._training = None
        self._timeline.end_batch(now_s)
        end_s = now_s if ended and batch.start_s is not None else None
        self._write(replace(batch, cost=_part_of(batch.cost, part)), end_s, why)

    def run(self, results: Sequence[FrameResult]) -> None:
        """Process frames one by one."""
        for result in results:
            self._settle(result.time_s)
            self._check_domain(result)
            result.version = self._version
            if self._busy(result.time_s):
                continue
            if self.detector is not None:
                self.detector.add_frame(result, self._results)
            self._pool.append(result)
            if self._member.predict_on == "frame":
                self._start_inference([result], result.time_s)
            else:
                result.open = True
            if len(self._pool) >= self._member.stream_batch:
                self._use_pool(result.time_s)
        self._settle(self._timeline.until_s)

    def finish(self) -> None:
        """End with the session: unfinished inferences and training batches stay unfinished."""
        self._settle(self._timeline.until_s)
        if self._inference is not None:
            self._finish_inference(self._inference)
            self._inference = None
        for result in self._pool:
            result.open = False
        self.cancel_training(self._timeline.until_s, "the session ended before it was done", ended=False)

    def _busy(self, now_s: float) -> bool:
        """Return whether the model is busy when a frame is shown."""
        if self._inference is not None:
            return self._inference.ready_s(self._timeline) > now_s + 1e-9
        return self._training is not None and self._member.training_runs == "exclusive"

    def _check_domain(self, result: FrameResult) -> None:
        """Reset at an announced boundary between domains, where the member is episodic."""
        domain = self._known_domain(result)
        if self._member.episodic is True and None not in (domain, self._domain) and domain != self._domain:
            self.memory = self._member.reset(self._model, self.memory)
            self.cancel_training(result.time_s, "broken off: another domain has begun")
            for pooled in self._pool:
                pooled.open = pooled.processed and pooled.open
            self._pool = []
        self._domain = domain

    def _known_domain(self, result: FrameResult) -> int | None:
        """Return the domain of a frame: the announced one, or as detected in the frames before it."""
        if self.detector is not None:
            return self.detector.domain
        return result.scene if self._spec.domain_oracle else None

    def _settle(self, now_s: float) -> None:
        """Finish the inference and the training that end by this time."""
        if self._inference is not None:
            ready_s = self._inference.ready_s(self._timeline)
            if ready_s <= now_s + 1e-9:
                self._finish_inference(self._inference)
                self._inference = None
                if self._training is not None and self._training.start_s is None:
                    self._training.start_s = ready_s
                    self._timeline.begin_batch(ready_s, self._training.cost.isolated_s)
        if self._training is not None and self._training.start_s is not None:
            end_s = self._timeline.batch_end_s()
            if end_s <= now_s + 1e-9:
                self._finish_training(self._training, end_s)

    def _finish_inference(self, inference: PendingInference) -> None:
        """Finish an inference; without any later share its frames have no prediction."""
        took_s = inference.took_s(self._timeline)
        inference.results[-1].busy_s = took_s if took_s < INFINITE_S else 0.0
        for result in inference.results:
            result.open, result.processed = False, took_s < INFINITE_S
            result.latency_s = inference.start_s - result.time_s + took_s if result.processed else float("nan")
            result.prediction = result.prediction if result.processed else None

    def _start_inference(self, results: list[FrameResult], now_s: float) -> None:
        """Predict frames; after a member's failure the network predicts without it."""
        batch, predicted = self._batch(results, self._rng), None
        with record_exits(self._model) as exits:
            try:
                if not self._member_failed:
                    stated = Passes(forward=(len(results),))
                    with (
                        time_limit(self._spec.member_limit_s),
                        self._meter.call("predict", self._cost, len(results)) as call,
                    ):
                        predicted = check_predictions(self._member.predict(self._model, self.memory, batch), batch)
                    predicted = replace(predicted, passes=self._meter.charge(call, predicted.passes or stated))
            except (Exception, TookTooLong) as error:
                self._member_failed = True
                why = f"{PREDICTION_FAILED}: {type(error).__name__}: {error}"
                self._write(
                    TrainingBatch(len(results), TaskCost(), Adapted(self.memory, skipped=why), None, now_s), now_s
                )
            if predicted is None:
                exits.clear()
                predictions = predict(self._model, batch.images, task=self._task, device=None)
                predicted = Predicted(predictions, self.memory, Passes(forward=(len(results),)))
        self.memory = predicted.state
        assert predicted.passes is not None
        cost = self._cost_of(predicted.passes, exits)
        self._charge_inference(results, predicted.predictions, now_s, cost)

    def _charge_inference(self, results: list[FrameResult], predictions: Any, now_s: float, cost: TaskCost) -> None:
        for result, answer in zip(results, predictions, strict=True):
            result.prediction, result.open, result.processed = answer, True, True
        self._results.spend("inference", cost.joules)
        detection_s = 0.0 if self.detector is None else len(results) * self.detector.frame_cost.isolated_s
        self._inference = PendingInference(results, now_s, cost.isolated_s + detection_s)

    def _use_pool(self, now_s: float) -> None:
        """Train on the pool; while a training batch runs during inference, the newest frames wait."""
        pool, self._pool = self._pool, []
        if self._training is None and not self._timed_out:
            self._start_training(pool, now_s)
        elif self._member.predict_on == "batch":
            self._start_inference(pool, now_s)
        else:
            self._pool = pool[1:]

    def _start_training(self, pool: list[FrameResult], now_s: float) -> None:
        """Train at once; in virtual time the batch begins when the inference before it ends."""
        if self._member.episodic == "batch":
            self.memory = self._member.reset(self._model, self.memory)
        before = state.read(self._model)
        with record_exits(self._model) as exits:
            done = self._adapt(pool)
        after = state.read(self._model)
        state.write(self._model, before)
        passes = done.passes or Passes()
        if self._member.predict_on == "batch":
            if done.predictions is None:
                self._start_inference(pool, now_s)
            else:  # the first passes of training have computed them, mostly the first forward pass
                ahead, back = done.predicted_by
                first = replace(passes, forward=passes.forward[:ahead], backward=passes.backward[:back])
                first = first if back else Passes(forward=first.forward)
                self._charge_inference(pool, done.predictions, now_s, self._cost_of(first, exits[: ahead * len(pool)]))
                passes = replace(passes, forward=passes.forward[ahead:], backward=passes.backward[back:])
        self._training = self._limited(
            TrainingBatch(len(pool), self._cost_of(passes, exits), done, None if done.skipped else after)
        )
        copy_bytes = 0 if self.detector is None else self.detector.frame_cost.memory_bytes
        self._results.memory_bytes = max(self._results.memory_bytes, self._training.cost.memory_bytes + copy_bytes)

    def _adapt(self, pool: Sequence[FrameResult]) -> Adapted:
        self._batches += 1
        rng = rng_for(self._spec.student.seed, "adapt", self._spec.app, self._batches)
        batch, phase = self._batch(pool, rng), Phase(on_stream=True)
        limit_s = self._spec.member_limit_s
        done = adapt_guarded(self._member, self._model, self.memory, batch, phase, limit_s, self._meter, self._cost)
        self._timed_out = done.skipped.startswith(NO_END)
        return done

    def _limited(self, batch: TrainingBatch) -> TrainingBatch:
        """Cancel a training batch that exceeds the time limit; its energy until then is counted."""
        limit_s, cost = self._spec.training_batch_limit_s, batch.cost
        if cost.isolated_s <= limit_s:
            return batch
        why = f"learning was broken off: it takes {cost.isolated_s:g} s alone on the device, {limit_s:g} s are allowed"
        cut = _part_of(cost, limit_s / cost.isolated_s)
        return TrainingBatch(batch.frames, cut, Adapted(self.memory, skipped=why), None)

    def _finish_training(self, batch: TrainingBatch, end_s: float) -> None:
        """Use the trained weights from now on."""
        self._training = None
        self._timeline.end_batch(end_s)
        if batch.trained is not None:
            state.write(self._model, batch.trained)
            self._version += 1
        self.memory = batch.adapted.state
        if self._member.training_runs == "exclusive":
            self._results.busy_s += end_s - (batch.start_s or 0.0)
        self._write(batch, end_s)

    def _write(self, batch: TrainingBatch, end_s: float | None, why: str = "") -> None:
        self._results.spend("training", batch.cost.joules)
        self._results.adaptation_rows.append(
            {
                "device": [self._spec.device],
                "app": [self._spec.app],
                "version": [self._version],
                "frames": [batch.frames],
                "start_s": [batch.start_s],
                "end_s": [end_s],
                "isolated_s": [batch.cost.isolated_s],
                "energy_j": [batch.cost.joules],
                "memory_bytes": [batch.cost.memory_bytes],
                "iterations": [batch.adapted.iterations],
                "loss": [batch.adapted.losses[-1] if batch.adapted.losses else None],
                "accepted": [batch.adapted.accepted],
                "skipped": [why or batch.adapted.skipped or None],
            }
        )

    def _batch(self, results: Sequence[FrameResult], rng: np.random.Generator) -> Batch:
        images = np.stack([result.image for result in results])
        times_s = np.array([result.time_s for result in results])
        return Batch(images, None, rng, self._task, times_s, self._known_domain(results[-1]))

    def _cost_of(self, passes: Passes, exits: Sequence[int]) -> TaskCost:
        """Return the cost of passes; a frame is charged for the layers up to its exit."""
        if not exits:
            if passes != self._costed[0]:
                self._costed = passes, task_cost(self._cost, self._spec.hardware, passes)
            return self._costed[1]
        reached = reached_cost(self._cost, exits)
        return task_cost(reached, self._spec.hardware, reached_work(passes, self._cost, reached))


def _part_of(cost: TaskCost, part: float) -> TaskCost:
    """Return a part of a cost in time and energy; its memory is the full one."""
    seconds = {engine: part * seconds for engine, seconds in cost.seconds.items()}
    return TaskCost(seconds, cost.memory_bytes, part * cost.joules)
