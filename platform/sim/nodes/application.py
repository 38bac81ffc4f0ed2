"""An application: one vision task on one device, its model, and its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.errors import RequestError, WireError
from driftlab.platform.adaptation.base import EMPTY_PACK
from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Applied, Finished, ModelCost, Reply, StreamStatistics, Weights
from driftlab.platform.networks import named, state, vector
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.early_exit import EarlyExitNetwork, reached_cost, record_exits
from driftlab.platform.networks.predict import predict
from driftlab.platform.networks.state import State
from driftlab.platform.networks.taps import tap
from driftlab.platform.networks.tasks.tasks import TaskLabel, TaskLabels
from driftlab.platform.scaling.base import Budget, ChannelMask
from driftlab.platform.sim.nodes import networks
from driftlab.platform.sim.nodes.frame_results import FrameResult, FrameResults, Scorer
from driftlab.platform.sim.nodes.guarded_training import LIMITED_HERE
from driftlab.platform.sim.nodes.metering import CallMeter
from driftlab.platform.sim.nodes.observing import (
    MAX_FRAMES,
    DomainDetector,
    StreamObserver,
    mean_confidence,
    ready_images,
)
from driftlab.platform.sim.nodes.online_adapter import OnlineAdapter
from driftlab.platform.sim.nodes.share_timeline import ShareTimeline
from driftlab.platform.sim.nodes.tracker import Keyframe, Tracker
from driftlab.platform.sim.setting import AppNodeConfig
from driftlab.platform.streaming.wire import channel_mask, delta
from driftlab.platform.world.cost import flow_cost, inference_j, inference_s
from driftlab.platform.world.link import MessageDamage, damaged
from driftlab.platform.world.processor import ShareSchedule


@dataclass(frozen=True, eq=False)
class Version:
    """The state of the network in use since a time."""

    number: int
    since_s: float
    state: State


class AppNode:
    """Runs its model on every frame for which there is time; weights change only between two frames."""

    def __init__(self, spec: AppNodeConfig, weights: Weights, pack: Weights = EMPTY_PACK) -> None:
        self._spec, self._task, self._weights, self._pack = spec, named.task_of(spec.student.network), weights, pack
        self._adaptation = limited(spec.student.adaptation, spec.member_limit_s, but=LIMITED_HERE)
        self._scaling = limited(spec.student.scaling, spec.member_limit_s)
        self._family = networks.family_of(spec.student, self._scaling, weights)
        self._timeline = ShareTimeline()
        self._meter = CallMeter(spec.student.seed, {"device": spec.device, "app": spec.app, "node": "application"})
        self._results = FrameResults(spec, self._task, Scorer(spec.student.classes, self._task, spec.scored))
        self._observer = StreamObserver(self._task) if spec.uses_statistics else None
        self._unready: list[FrameResult] = []  # frames whose confidence is not known yet
        self._tracker = Tracker(self._task, chained=spec.chained)
        self._inference_s = 0.0  # of the newest inference, isolated
        self._first_s = 0.0  # frames before it are skipped
        self._newest: FrameResult | None = None  # the frame that the model runs on, or ran on last
        self._adapter: OnlineAdapter | None = None  # if it learns on the stream
        self._detector: DomainDetector | None = None  # if it detects domain boundaries
        self._built = state.NO_BUFFERS  # of the current network, before any training
        # By variant and number of weights: one that is cut for samples has other channels each time. Counting is slow.
        self._costs: dict[tuple[int | None, int], ModelCost] = {(None, spec.cost.parameters): spec.cost}
        self._run(Budget(), 0)

    def switch(self, variant: int) -> Reply:
        """Run another network of the family from now on, with the learned weights of this one.

        Updates on their way were made for the old network and will be refused.
        """
        newest = self._versions[-1]
        self._use(newest)
        moved = state.changed_buffers(self._built, state.read_buffers(self._model))
        self._family = self._scaling.absorb(self._family, self._model)
        if self._adapter is not None:
            self._adapter.cancel_training(self._timeline.until_s, "broken off: another network runs")
        self._run(Budget(variant=variant), newest.number)
        if moved:  # they may have been carried over: the original buffers of this network are then unknown
            self._built = state.NO_BUFFERS
        return Reply(Applied(newest.number, accepted=True))

    def apply(self, update: bytes, arrive_s: float, damage: MessageDamage | None = None) -> Reply:
        """Apply an update to the shadow copy; frames from its arrival on use it."""
        newest = self._versions[-1]
        try:
            kept, data = channel_mask.split(damaged(update, damage))
            family = self._family if kept is None else self._apply_mask(ChannelMask(kept))
            held = newest.state if kept is None else state.read(self._network_of(family))
            changed = delta.apply(data, held.vector, self._layout, base=newest.number, buffers=held.buffers)
        except WireError as error:
            return Reply(Applied(newest.number, accepted=False, reason=str(error)))
        now = State(changed.vector, changed.buffers)
        if newest.since_s >= arrive_s:  # no frame will be predicted with it
            self._versions.pop()
        self._versions.append(Version(changed.version, arrive_s, now))
        if kept is not None:
            network = self._network_of(family)
            state.write(network, now)
            self._family = self._scaling.absorb(family, network)
        if self._observer is not None:
            self._observer.renew_reference()
        return Reply(Applied(changed.version, accepted=True))

    def pack(self) -> Reply:
        """Return a self-contained update with the newest version in full precision."""
        newest = self._versions[-1]
        data = delta.encode_state(newest.state.vector, newest.state.buffers, self._layout, newest.number)
        return Reply(Applied(newest.number, accepted=True), payload=data)

    def run_stream(
        self,
        frames: Frames,
        labels: TaskLabels | None,
        until_s: float,
        inference_share: ShareSchedule,
        concurrent_share: ShareSchedule = (),
    ) -> Reply:
        """Run the model over the frames until a time, at the shares of the processor meanwhile.

        `labels` is the truth, if given; else the frames carry it. A row is returned by the first call that ends after
        its prediction is ready.
        """
        results = self._run_frames(frames, labels, until_s, inference_share, concurrent_share)
        reply = self.collect_rows()
        if not self._spec.reports_confidence:
            return reply
        return replace(reply, facts=replace(reply.facts, confidence=self._confidence(results)))

    def begin_at(self, frame: int) -> Reply:
        """Number the rows of frames from this one on; a device that was killed continues its stream."""
        self._results.reported = frame
        return Reply()

    def run_frames(self, frames: Frames, until_s: float, inference_share: ShareSchedule, first_s: float = 0.0) -> Reply:
        """Run the model from a time on; `collect_rows` returns the rows once predictions are used."""
        self._first_s = first_s
        self._run_frames(frames, None, until_s, inference_share, ())
        return Reply()

    def collect_rows(self) -> Reply:
        """Return the rows of the frames whose predictions are ready, and of the audits."""
        reply, audits = self._results.collect_rows(), self._meter.take_rows()
        return replace(reply, rows={**reply.rows, "audits": audits}) if audits else reply

    def _run_frames(
        self,
        frames: Frames,
        labels: TaskLabels | None,
        until_s: float,
        inference_share: ShareSchedule,
        concurrent_share: ShareSchedule,
    ) -> Sequence[FrameResult]:
        truth = self._task.truth(frames) if labels is None else labels
        self._timeline.extend(until_s, inference_share, concurrent_share)
        self._settle(until_s)
        results = self._results.add(frames, truth)
        if self._adapter is not None:
            self._adapter.run(results)
        elif self._spec.tracks:
            self._track(results)
        else:
            self._run_inference(results)
        self._settle(until_s)
        self._timeline.drop_before(min(until_s, self._since_s()))
        return results

    def track(self, packed: bytes, captured_s: float, arrive_s: float, damage: MessageDamage | None = None) -> Reply:
        """Take the labels of one frame; frames from their arrival on warp them."""
        spec = self._spec.student
        try:
            unpacked = self._task.unpack(damaged(packed, damage), spec.height, spec.width)
        except WireError as error:
            return Reply(Applied(self._versions[-1].number, accepted=False, reason=str(error)))
        self._tracker.add(Keyframe(captured_s, arrive_s, self._task.drop_unlisted(unpacked, spec.classes)))
        unlisted = self._task.count_unlisted(unpacked[None], spec.classes)
        return Reply(Applied(self._versions[-1].number, accepted=True, unlisted_labels=unlisted))

    def predict_images(self, images: npt.NDArray[np.uint8]) -> Reply:
        """Predict images outside the stream with the newest version, whose number is in the reply."""
        newest = self._versions[-1]
        self._use(newest)
        predictions = predict(self._model, images, task=self._task, device=self._spec.student.torch_device)
        return Reply(Applied(newest.number, accepted=True), payload=predictions)

    @property
    def version(self) -> int:
        """Return the number of the newest version."""
        return self._versions[-1].number

    @property
    def inference_s(self) -> float:
        """Return the isolated time of the newest inference on the device, by its hardware profile."""
        return self._inference_s

    def stream_statistics(self) -> Reply:
        """Summarise the frames since the last call."""
        assert self._observer is not None, "it is called only where the streaming member uses it"
        announced = self._observer.scene if self._spec.domain_oracle else None
        domain = announced if self._detector is None else self._detector.domain
        noticed: StreamStatistics = self._observer.summarise(self._model, domain)
        return Reply(noticed)

    def finish(self) -> Reply:
        """Settle open frames, and return a digest of the final state, with the state of the adaptation."""
        self._settle(float("inf"))
        if self._adapter is not None:
            self._adapter.finish()
        settled = self.collect_rows()
        newest = self._versions[-1]
        held = state.read(self._model) if newest.number == self._loaded else newest.state
        memory = None if self._adapter is None else self._adapter.memory
        return Reply(Finished(state.digest_of(held, self._built, memory), settled.facts), settled.rows)

    def _apply_mask(self, given: ChannelMask) -> Any:
        """Return the family with its network cut to a channel mask; refuse that of another family."""
        try:
            return self._scaling.apply_mask(self._family, self._budget, given)
        except RequestError as error:
            raise WireError(f"foreign: {error}") from error

    def _network_of(self, family: Any) -> Any:
        return networks.network_for(self._scaling, family, self._budget)

    def _run(self, budget: Budget, number: int) -> None:
        """Switch to a network of the family; its weights get this version number."""
        self._budget = budget
        self._model = self._network_of(self._family)
        self._built = state.read_buffers(self._model)
        self._layout = vector.layout_of(self._model)
        key = (self._counted_as(budget.variant), self._layout.size)
        if key not in self._costs:
            self._costs[key] = count_cost(self._model, self._spec.student.height, self._spec.student.width)
        self._cost = self._costs[key]
        self._ratios = self._spec.cost_ratios.get(budget.variant, (1.0, 1.0))
        self._frame_s, self._frame_j = self._price(self._cost)
        # Time and energy of a frame by the exit at which it leaves
        self._at_exits: dict[int, tuple[float, float]] = {}
        if self._spec.detects_domains and self._detector is None:  # of the network as built, whichever runs later
            self._detector = DomainDetector(self._model, self._task, self._cost, self._spec.hardware)
        if self._adaptation.learns_on_stream:
            self._prepare_adapter(budget)
        self._versions = [Version(number, float("-inf"), state.read(self._model))]
        self._loaded = number  # of the version in the model

    def _counted_as(self, variant: int | None) -> int | None:
        """Return the number under which the cost of the network is stored.

        The cost of a network that frames leave at confident exits is a mean in specs, so it is counted here. Such
        networks of one chain differ in thresholds only, and paths of a supernet in layers as well.
        """
        if not isinstance(self._model, EarlyExitNetwork):
            return variant
        return -1 if self._model.path is None else -2 if variant is None else -3 - variant

    @cached_property
    def _as_built(self) -> Any:
        """Return a second family that is never trained; restoring it for every switch takes long."""
        return networks.family_of(self._spec.student, self._scaling, self._weights)

    def _prepare_adapter(self, budget: Budget) -> None:
        """Prepare the adaptation with the source network, and continue from its state for the previous one."""
        before = self._adapter
        if before is None:
            memory = self._adaptation.prepare(self._model, self._pack)
        else:
            source = self._network_of(self._as_built)
            memory = networks.continue_from(self._adaptation, self._model, self._pack, source, before.memory)
        tap(self._model, self._cost)
        self._adapter = OnlineAdapter(
            self._adaptation, self._model, memory, self._cost, self._results, self._timeline, self._meter
        )
        self._adapter.detector = self._detector
        if before is not None:
            self._adapter.continue_from(before)

    def _run_inference(self, results: Sequence[FrameResult]) -> None:
        """Choose the frames for which there is time, and predict them version by version."""
        detection_s = 0.0 if self._detector is None else self._detector.frame_cost.isolated_s
        since = np.array([version.since_s for version in self._versions])
        places = np.searchsorted(since, [result.time_s for result in results], side="right") - 1
        costs, predicted = self._frame_costs(results, places)
        starts = [
            self._begin(result, isolated_s + detection_s)
            for result, (isolated_s, _) in zip(results, costs, strict=True)
        ]
        chosen = [result for result, own in zip(results, starts, strict=True) if own]
        self._results.spend("inference", fsum(joules for (_, joules), own in zip(costs, starts, strict=True) if own))
        self._detect(chosen)
        for place, result in zip(places, results, strict=True):
            result.version = self._versions[place].number
        for place in np.unique(places):
            mine = [result for at, result in zip(places, results, strict=True) if at == place and result.processed]
            if mine:
                self._use(self._versions[place])
                predictions = [predicted[result.time_s] for result in mine] if predicted else self._predict(mine)
                for result, answer in zip(mine, predictions, strict=True):
                    result.prediction = answer
        self._versions = self._versions[int(places[-1]) :] if len(places) else self._versions
        if self._observer is not None:
            self._observer.add(results)

    def _frame_costs(
        self, results: Sequence[FrameResult], places: npt.NDArray[np.intp]
    ) -> tuple[list[tuple[float, float]], dict[float, TaskLabel]]:
        """Return isolated time and energy of each frame by its exit, and the predictions by time.

        Only a network with exits has predicted the frames already; for others there are no predictions yet.
        """
        predicted: dict[float, TaskLabel] = {}
        if not isinstance(self._model, EarlyExitNetwork):
            return [(self._frame_s, self._frame_j)] * len(results), predicted
        costs: list[tuple[float, float]] = []
        for place in np.unique(places):
            self._use(self._versions[place])
            mine = [result for at, result in zip(places, results, strict=True) if at == place]
            predictions, priced = self._predict_priced(mine)
            predicted |= {result.time_s: answer for result, answer in zip(mine, predictions, strict=True)}
            costs += priced
        return costs, predicted

    def _predict_priced(self, results: Sequence[FrameResult]) -> tuple[TaskLabels, list[tuple[float, float]]]:
        """Predict frames, and return time and energy of each, by its exit where there are exits."""
        with record_exits(self._model) as exits:
            predictions = self._predict(results)
        for exit_ in set(exits) - self._at_exits.keys():
            self._at_exits[exit_] = self._price(reached_cost(self._cost, [exit_]))
        return predictions, [self._at_exits[exit_] for exit_ in exits] or [(self._frame_s, self._frame_j)] * len(
            results
        )

    def _price(self, cost: ModelCost) -> tuple[float, float]:
        """Return isolated time and energy of one frame, in proportion to those that were measured."""
        slower, hungrier = self._ratios
        return slower * inference_s(cost, self._spec.hardware), hungrier * inference_j(cost, self._spec.hardware)

    def _detect(self, chosen: Sequence[FrameResult]) -> None:
        """Pass frames to the detector, which charges its cost."""
        if self._detector is not None:
            for result in chosen:
                self._detector.add_frame(result, self._results)

    def _track(self, results: Sequence[FrameResult]) -> None:
        """Predict frame by frame by warping labels from the server; computing the flow takes time."""
        flow = flow_cost(self._spec.student.height, self._spec.student.width, self._spec.hardware)
        for result in results:
            self._tracker.add_frame(result.time_s, result.image)
            if not self._free(result):
                continue
            (predicted,), ((frame_s, frame_j),) = self._predict_priced([result])
            result.prediction, flows = self._tracker.follow(result.time_s, predicted)
            self._begin(result, frame_s + flows * flow.isolated_s)
            self._results.spend("inference", frame_j)
            self._results.spend("tracking", flows * flow.joules)

    def _free(self, result: FrameResult) -> bool:
        """Return whether the previous inference has ended when a frame is shown."""
        newest = self._newest
        return newest is None or result.time_s >= newest.time_s + newest.latency_s - 1e-9

    def _begin(self, result: FrameResult, isolated_s: float) -> bool:
        """Start the model on a frame if it is free; a frame that arrives while it is busy is skipped."""
        if not self._free(result) or result.time_s < self._first_s - 1e-9:
            return False
        result.processed = result.open = True
        self._newest, self._inference_s = result, isolated_s
        self._settle(self._timeline.until_s)
        return True

    def _settle(self, until_s: float) -> None:
        """Compute when the newest inference ends, given the shares until a time."""
        newest = self._newest
        if newest is None or not newest.open or self._adapter is not None:
            return
        newest.latency_s = newest.busy_s = self._timeline.inference_duration_s(newest.time_s, self._inference_s)
        newest.open = newest.time_s + newest.latency_s > until_s
        if newest.open and until_s == float("inf"):  # no share will ever come
            newest.open = newest.processed = False
            newest.latency_s, newest.busy_s, newest.prediction = float("nan"), 0.0, None

    def _since_s(self) -> float:
        """Return the start of the oldest unfinished inference."""
        if self._adapter is not None:
            return self._adapter.since_s
        return self._newest.time_s if self._newest is not None and self._newest.open else float("inf")

    def _confidence(self, results: Sequence[FrameResult]) -> float | None:
        """Return the mean confidence of the newest ready predictions; their inference was charged already."""
        predicted, self._unready = ready_images([*self._unready, *results])
        if not predicted:
            return None
        return mean_confidence(self._model, np.stack(predicted[-MAX_FRAMES:]), self._task)

    def _use(self, version: Version) -> None:
        if version.number != self._loaded:
            state.write(self._model, version.state)
            self._loaded = version.number

    def _predict(self, results: Sequence[FrameResult]) -> TaskLabels:
        images = np.stack([result.image for result in results])
        return predict(self._model, images, task=self._task, device=self._spec.student.torch_device)
