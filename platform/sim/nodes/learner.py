"""A learner: a copy of one application's model, its sample buffer, and updates for the application."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.agreement import agreement_of
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import (
    LayerCost,
    ModelCost,
    Passes,
    PhaseCheck,
    RecallResult,
    Reply,
    Rows,
    SampleDescription,
    Stored,
    Trained,
    TrialScores,
    Weights,
)
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks import named, state, vector
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import predict
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.taps import tap
from driftlab.platform.networks.tasks.tasks import TaskLabels
from driftlab.platform.scaling.base import Budget, ChannelMask
from driftlab.platform.scheduling.zoo import MAX_SCORED_SAMPLES, SOURCE, start_from
from driftlab.platform.sim.nodes import networks
from driftlab.platform.sim.nodes.guarded_training import LIMITED_HERE, adapt_guarded
from driftlab.platform.sim.nodes.metering import CallMeter
from driftlab.platform.sim.setting import StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Wire
from driftlab.platform.streaming.wire import channel_mask, delta
from driftlab.platform.streaming.wire.samples import UNKNOWN_SCENE, receive
from driftlab.platform.world.link import MessageDamage

if TYPE_CHECKING:
    from torch import nn

Mask = npt.NDArray[np.bool_]


class LearnerNode:
    """Follows one application: stores its samples, trains on them, and encodes updates."""

    def __init__(
        self,
        spec: StudentSpec,
        weights: Weights,
        limit_s: float = 600.0,
        domain_oracle: bool = False,
        pack: Weights = EMPTY_PACK,
    ) -> None:
        self._spec, self._task, self._weights = spec, named.task_of(spec.network), weights
        self._limit_s, self._domain_oracle, self._pack_of_source = limit_s, domain_oracle, pack
        self._adaptation = limited(spec.adaptation, limit_s, but=LIMITED_HERE)
        self._scaling = limited(spec.scaling, limit_s)
        self._family = networks.family_of(spec, self._scaling, weights)
        self._domain: int | None = None  # of the newest sample
        self._meter = CallMeter(spec.seed, {"node": "learner"})
        self._moved = False  # whether an adaptation ever changed a buffer of any network
        self._run(Budget())
        self._state = self._adaptation.prepare(self._model, pack)
        self._follow_weights()
        self._sends_all = False  # whether the next update must stand alone
        self._recalled = False  # whether it continues a stored network that the application has not received yet
        self._drafted: ChannelMask | None = None  # that the application has not received yet
        self._follows = True  # whether the application's family has all weights that were trained here
        self._version = 0
        self._phases = 0
        self._before: state.State | None = None  # before the newest phase, where `check` follows
        self._times_s = np.empty(0)
        self._trained_until_s = -np.inf  # time of the newest sample that a phase was trained on
        self._images = np.empty((0, spec.height, spec.width, 3), dtype=np.uint8)
        self._labels = self._task.blank(0, spec.height, spec.width)
        self._newest = self._labels  # the last labels, even when the buffer no longer holds them
        self._uses_labels = self._adaptation.labels == "teacher"

    def switch(self, variant: int) -> Reply:
        """Train another network of the family, with the learned weights of this one, like the application.

        The device may have switched before every update arrived, so the next update carries every weight.
        """
        self._read()
        self._family = self._scaling.absorb(self._family, self._model)
        budget = Budget(variant=variant)
        self._run(budget)
        source = networks.network_for(self._scaling, self._as_built, budget)
        self._state = networks.continue_from(self._adaptation, self._model, self._pack_of_source, source, self._state)
        self._follow_weights()
        self._sends_all, self._follows = True, False
        return Reply()

    def receive(
        self, payload: bytes, sampling: Sampling, size: tuple[int, int], damage: MessageDamage | None = None
    ) -> Reply:
        """Decode samples from the link."""
        return receive(payload, sampling, size, damage)

    def store(
        self,
        frames: Frames,
        labels: TaskLabels | None,
        stamp_s: float | None = None,
        detected: int | None = None,
        newest: int | None = None,
    ) -> Reply:
        """Store samples, and return the φ-scores between consecutive labels, if there are labels.

        Samples are stored under their capture times, or all under one `stamp_s`. `detected` is their domain where the
        device detects domains. Of the samples, the `newest` are stored; by default all.
        """
        spec = self._spec
        if newest is not None:
            frames, labels = frames[-newest:], None if labels is None else labels[-newest:]
        given = self._task.blank(len(frames), spec.height, spec.width) if labels is None else labels
        phis: tuple[float, ...] = ()
        if labels is not None:
            history = [*self._newest, *labels]
            self._newest = labels[-1:]
            phis = tuple(self._task.phi(after, before, spec.classes) for before, after in itertools.pairwise(history))
        times_s = frames.times_s if stamp_s is None else np.full(len(frames), stamp_s)
        self._times_s = np.concatenate([self._times_s, times_s])
        self._images = np.concatenate([self._images, frames.images])
        self._labels = np.concatenate([self._labels, given])
        has_domain = self._domain_oracle and frames.scenes[-1] != UNKNOWN_SCENE
        domain = int(frames.scenes[-1]) if has_domain else detected
        if domain is not None:
            self._on_domain(domain)
        return Reply(
            Stored(
                frames=len(frames),
                buffered=len(self._times_s),
                newest_s=float(self._times_s[-1]),
                usable_s=self._usable_s(),
                phis=phis,
                unlisted_labels=0 if labels is None else self._task.count_unlisted(labels, spec.classes),
                domain=self._domain,
            )
        )

    def drop_samples_before(self, oldest_s: float) -> Reply:
        """Drop samples older than a time; return the number that is left."""
        self._drop_before(oldest_s)
        return Reply(len(self._times_s))

    def run_trials(self, plan: DownlinkPlan, phases: Sequence[Phase], fresh: bool = True) -> Reply:
        """Run a trial per configuration: train a copy on every other sample, score it on the rest.

        Only `fresh` samples, on which the network was not trained before, count for scores where there are any.
        """
        before = state.read(self._model)
        rest = self._held_out(fresh=fresh, tried=bool(phases))
        after, passes, initial_scores, fixed = [], [], [], []
        for number, phase in enumerate(phases):
            samples = self._samples(rng_for(self._spec.seed, "try", self._phases, number), ~rest)
            model, memory, others = self._trial(phase, samples)
            forward: tuple[int, ...] = ()
            if phase.variant is not None:
                begin, scoring = self._score(model, rest)
                initial_scores.append(begin)
                forward = scoring.forward
            cost = self._cost if model is self._model else self._tapped(model)
            done = adapt_guarded(self._adaptation, model, memory, samples, phase, self._limit_s, self._meter, cost)
            score, scoring = self._score(model, rest)
            state.write(self._model, before)
            after.append(score)
            work = done.passes or Passes()
            forth = (*forward, *work.forward, *scoring.forward)
            passes.append(replace(work, forward=forth, others=(*others, *work.others)))
            fixed.append(Passes(forward=(*forward, *scoring.forward), others=others))
        score, scoring = self._score(self._model, rest)
        return Reply(TrialScores(score, tuple(after), tuple(passes), scoring, tuple(initial_scores), tuple(fixed)))

    def foresee(self, phases: Sequence[Phase], later: Frames) -> Reply:
        """Return the accuracy on later frames of the scene, now and after each phase."""
        shown = later[np.flatnonzero(later.scenes == later.scenes[0])]
        truth, before, after = self._task.truth(shown), state.read(self._model), list[float | None]()
        now = self._accuracy(self._model, shown.images, truth)
        for phase in phases:
            samples = self._samples(rng_for(self._spec.seed, "train", self._phases))
            model, memory, _ = self._trial(phase, samples)
            cost = self._cost if model is self._model else self._tapped(model)
            adapt_guarded(self._adaptation, model, memory, samples, phase, self._limit_s, self._meter, cost)
            after.append(self._accuracy(model, shown.images, truth))
            state.write(self._model, before)
        return Reply(TrialScores(now, tuple(after), (), Passes()))

    def describe_samples(self) -> Reply:
        """Score the network on its newest samples, and return their mean feature under the network as built."""
        from driftlab.platform.networks.features import mean_feature

        rows = self._newest_rows()
        now, scoring = self._score(self._model, rows)
        if now is None:
            return Reply(SampleDescription(None, (), scoring))
        signature = mean_feature(self._source(), self._images[rows], self._spec.torch_device)
        return Reply(SampleDescription(now, signature, Passes(forward=scoring.forward * 2)))

    def recall_expert(self, now: float, margin: float, numbers: Sequence[int], *stored: state.State) -> Reply:
        """Score stored networks and the one as built; continue with the best if it is better by the margin."""
        rows, before, scores = self._newest_rows(), state.read(self._model), {}
        known = dict(zip(numbers, stored, strict=True))
        if self._phases:
            known[SOURCE] = state.read(self._source())
        passes = Passes()
        for number, held in sorted(known.items()):
            state.write(self._model, held)
            score, scoring = self._score(self._model, rows)
            scores[number], passes = score or 0.0, Passes(forward=passes.forward + scoring.forward)
        begins = start_from(scores, now, margin)
        state.write(self._model, before if begins is None else known[begins])
        if begins is not None:
            self._state = self._adaptation.prepare(self._model, self._pack_of_source, go_on=self._state)
            self._sends_all = self._recalled = True
        return Reply(RecallResult(now if begins is None else scores[begins], begins, passes))

    def store_expert(self) -> Reply:
        """Return the network as the newest phase left it."""
        return Reply(payload=state.read(self._model))

    def _newest_rows(self) -> npt.NDArray[np.intp]:
        """Return the newest samples, on which no phase was trained where there are any."""
        return np.flatnonzero(self._held_out(fresh=True, tried=False))[-MAX_SCORED_SAMPLES:]

    def estimate(self, phase: Phase) -> Reply:
        """Estimate the accuracy of each network of the family; None if the adaptation has no estimator."""
        samples = self._samples(rng_for(self._spec.seed, "estimate", self._phases))
        source = self._source()
        with self._meter.call("estimate", self._tapped(source), len(samples.images)) as call:
            estimates, self._state = self._adaptation.estimate(source, self._state, samples, phase)
        if estimates is not None:
            estimates = replace(estimates, passes=self._meter.charge(call, estimates.passes))
        return Reply(estimates)

    @cached_property
    def _as_built(self) -> Any:
        """Return a second family that is never trained; restoring it for every switch takes long."""
        return networks.family_of(self._spec, self._scaling, self._weights)

    def _source(self) -> nn.Module:
        """Return the network as built."""
        source: nn.Module = self._scaling.source(networks.family_of(self._spec, self._scaling, self._weights))
        return make_safe(source)

    def _trial(self, phase: Phase, samples: Batch) -> tuple[nn.Module, Any, tuple[LayerCost, ...]]:
        """Return the network that a phase would train with its state, and the work of cutting it."""
        if phase.variant is None or not len(samples.images):
            return self._model, self._state, ()
        budget = Budget(variant=phase.variant)
        chosen = self._scaling.select_channels(self._family, budget, samples.images, self._task)
        family = self._family if chosen is None else self._scaling.apply_mask(self._family, budget, chosen)
        model = networks.network_for(self._scaling, family, budget)
        memory = self._adaptation.prepare(model, self._pack_of_source, go_on=self._state)
        return model, memory, () if chosen is None else (*chosen.work.others, *chosen.cutting)

    def _held_out(self, *, fresh: bool, tried: bool) -> Mask:
        """Choose the samples for scores: every other one where trials train on the rest, else all."""
        unseen = self._times_s > self._trained_until_s
        rows = unseen if fresh and unseen.sum() > 1 else np.ones(len(unseen), dtype=bool)
        if tried or not fresh:
            rows &= np.cumsum(rows) % 2 == 0
        return rows

    def _score(self, model: nn.Module, rows: Mask | npt.NDArray[np.intp]) -> tuple[float | None, Passes]:
        """Score a network on some samples; None without labels."""
        rest = self._images[rows]
        if not self._uses_labels or not len(rest):
            return None, Passes()
        return self._accuracy(model, rest, self._labels[rows]) or 0.0, Passes(forward=(len(rest),))

    def _accuracy(self, model: nn.Module, images: npt.NDArray[np.uint8], labels: TaskLabels | None) -> float | None:
        """Score a network on images; None where no label counts."""
        if labels is None or not len(images):
            return None
        predictions = predict(model, images, task=self._task, device=self._spec.torch_device)
        score = float(self._task.score(self._task.counts(predictions, labels, self._spec.classes).sum(axis=0)))
        return None if np.isnan(score) else score

    def finish(self) -> Reply:
        """Return a digest of the network and the adaptation's state."""
        return Reply(state.digest_of(state.read(self._model), self._built, self._state), self._audits())

    def train(self, plan: DownlinkPlan, watched: bool = False) -> Reply:
        """Train one phase on the buffer, and encode the update; `check` may follow if `watched`."""
        started = time.perf_counter()
        self._drop_before(plan.oldest_s)
        assert plan.phase is not None
        samples = self._samples(rng_for(self._spec.seed, "train", self._phases))
        chosen = self._draft(samples)
        self._before = state.read(self._model) if watched else None
        adapted = self._adapt(samples, plan.phase)
        self._state, self._phases = adapted.state, self._phases + 1
        self._trained_until_s = max(self._trained_until_s, float(self._times_s.max(initial=-np.inf)))
        skipped = "" if self._recalled else adapted.skipped
        update = None if skipped and chosen is None else self._pack(plan, adapted.changed)
        self._recalled = False
        message = self._message(update)
        facts = Trained(
            frames=len(self._times_s),
            iterations=adapted.iterations,
            bytes=len(message) if message else 0,
            values=update.values if update else 0,
            clamped=update.clamped if update else 0,
            loss_first=adapted.losses[0] if adapted.losses else None,
            loss_last=adapted.losses[-1] if adapted.losses else None,
            score=adapted.score,
            skipped=skipped,
            host_seconds=time.perf_counter() - started,
            passes=_total_passes(chosen, adapted),
            surgery=() if chosen is None else (*chosen.cutting, *chosen.feedback),
            selection=None if chosen is None else chosen.work,
        )
        place = {"phase": self._phases, "time_s": float(self._times_s.max(initial=-np.inf)), "domain": self._domain}
        channels = {} if chosen is None else {"channels": [chosen.rows(place)]}
        return Reply(facts, {**self._audits(), **channels}, payload=message)

    def check(self, frames: Frames) -> Reply:
        """Return the accuracy of the network before and after the newest phase, for a table and nothing else.

        The first frame is the newest sample; of the others, those of its scene count.
        """
        later = frames[np.flatnonzero((frames.scenes == frames.scenes[0]) & (np.arange(len(frames)) > 0))]

        def found() -> tuple[float | None, float | None]:
            true = self._accuracy(self._model, later.images, self._task.truth(later))
            rng = rng_for(self._spec.seed, "agreement", self._phases)
            return true, agreement_of(self._model, self._images, rng)

        after, now = found(), state.read(self._model)
        assert self._before is not None
        state.write(self._model, self._before)
        before = found()
        state.write(self._model, now)
        monitored = self._adaptation.monitored(self._state) or (None, None)
        return Reply(PhaseCheck((before[0], after[0]), monitored, (before[1], after[1])))

    def leave_domain(self, began_s: float) -> Reply:
        """Drop the samples from before a domain, return to the network as built, and encode every weight.

        The facts are None where no phase has changed the network.
        """
        self._drop_before(began_s)
        if not self._phases:
            return Reply()
        state.write(self._model, state.read(self._source()))
        self._state = self._adaptation.prepare(self._model, self._pack_of_source, go_on=self._state)
        return self.resend()

    def resend(self) -> Reply:
        """Encode every weight, for a device that cannot apply an update based on another one."""
        started = time.perf_counter()
        self._follows = False
        update = self._pack(DownlinkPlan(None, None, dense=True), None)
        facts = Trained(
            frames=len(self._times_s),
            iterations=0,
            bytes=len(update.data),
            values=update.values,
            clamped=update.clamped,
            loss_first=None,
            loss_last=None,
            score=None,
            skipped="",
            host_seconds=time.perf_counter() - started,
        )
        return Reply(facts, payload=update.data)

    def _run(self, budget: Budget) -> None:
        """Switch to a network of the family."""
        self._budget = budget
        self._model = networks.network_for(self._scaling, self._family, budget)
        self._cost = self._tapped(self._model)
        self._buffers = state.read_buffers(self._model)  # as on the device; `prepare` may change them
        self._built = state.NO_BUFFERS if self._moved else self._buffers  # before any training

    def _draft(self, samples: Batch) -> ChannelMask | None:
        """Cut the network for the samples again, where networks depend on them."""
        chosen: ChannelMask | None = None
        if len(samples.images):
            chosen = self._scaling.select_channels(self._family, self._budget, samples.images, self._task)
        if chosen is None:
            return None
        received = self._scaling.apply_mask(self._family, self._budget, ChannelMask(chosen.kept))
        self._family = self._scaling.apply_mask(self._family, self._budget, chosen)
        self._model = networks.network_for(self._scaling, self._family, self._budget)
        self._cost = self._tapped(self._model)
        self._state = self._adaptation.prepare(self._model, self._pack_of_source, go_on=self._state)
        self._follow_weights()
        self._buffers = state.read_buffers(networks.network_for(self._scaling, received, self._budget))
        self._sends_all, self._drafted = self._sends_all or not self._follows, chosen
        return chosen

    def _message(self, update: delta.Encoded | None) -> bytes | None:
        """Prepend the draft of an update, and absorb the weights into the family as on the device."""
        if update is None or self._drafted is None:
            return update.data if update else None
        self._family = self._scaling.absorb(self._family, self._model)
        kept, self._drafted = self._drafted.kept, None
        return channel_mask.encode(kept, update.data)

    def _follow_weights(self) -> None:
        """Start to track the device's weights; the previous network's are dropped."""
        self._layout = vector.layout_of(self._model)
        self._vector = vector.read(self._model)  # equal to the device's, bit for bit, once every update has arrived
        self._lost: vector.Vector | None = None  # by the number format of the last update

    def _read(self) -> state.State:
        """Read the network, and record whether any buffer differs from the last sent one."""
        now = state.read(self._model)
        self._moved = self._moved or bool(state.changed_buffers(self._buffers, now.buffers))
        return now

    def _adapt(self, samples: Batch, phase: Phase) -> Adapted:
        member, limit_s = self._adaptation, self._limit_s
        return adapt_guarded(member, self._model, self._state, samples, phase, limit_s, self._meter, self._cost)

    def _tapped(self, model: nn.Module) -> ModelCost:
        """Count the cost of a network, and its passes from now on."""
        cost = count_cost(model, self._spec.height, self._spec.width)
        tap(model, cost)
        return cost

    def _audits(self) -> Rows:
        """Return the rows of the audits since the last call."""
        audits = self._meter.take_rows()
        return {"audits": audits} if audits else {}

    def _samples(self, rng: np.random.Generator, rows: slice | Mask = slice(None)) -> Batch:
        """Return training samples, with labels if the adaptation uses labels."""
        labels = self._labels[rows] if self._uses_labels else None
        return Batch(self._images[rows], labels, rng, self._task, self._times_s[rows], self._domain)

    def _on_domain(self, domain: int) -> None:
        """Record the domain of the newest sample; reset at a new domain where the adaptation is episodic."""
        if self._adaptation.episodic is True and self._domain not in (None, domain):
            self._state = self._adaptation.reset(self._model, self._state)
        self._domain = domain

    def _usable_s(self) -> float | None:
        """Return the time of the newest sample with a usable label."""
        if not self._uses_labels:
            return float(self._times_s.max()) if len(self._times_s) else None
        counts = self._task.usable(self._labels, self._spec.classes)
        return float(self._times_s[counts].max()) if counts.any() else None

    def _drop_before(self, oldest_s: float) -> None:
        kept = self._times_s >= oldest_s
        self._times_s, self._images, self._labels = self._times_s[kept], self._images[kept], self._labels[kept]

    def _pack(self, plan: DownlinkPlan, changed: Mask | None) -> delta.Encoded:
        """Encode the change, and continue from exactly the weights that the device will have.

        Once a buffer was changed, an update that stands alone carries them all: the device may have missed the update
        that changed it.
        """
        alone = plan.dense or self._sends_all
        changed = np.zeros(self._layout.size, dtype=bool) if changed is None else changed
        now = self._read()
        change = delta.Change(
            before=self._vector,
            after=now.vector,
            changed=None if alone else changed,
            version=self._version + 1,
            base=None if alone else self._version,
            buffers_before=self._buffers,
            buffers_after=now.buffers if self._moved else state.NO_BUFFERS,
        )
        wire = Wire() if alone else plan.wire  # few bits suit changes, not full weights
        form = delta.Format(wire.values, wire.mask)
        update = delta.encode(change, self._layout, form, self._lost if wire.feedback else None)
        vector.write(self._model, update.vector)
        self._vector, self._lost, self._version = update.vector, update.residual, self._version + 1
        self._buffers = update.buffers
        self._sends_all = False
        return update


def _total_passes(chosen: ChannelMask | None, adapted: Adapted) -> Passes:
    """Return the passes of a phase with the cut of its network and the update of the family."""
    passes = adapted.passes or Passes()
    if chosen is None:
        return passes
    others = (*chosen.work.others, *chosen.cutting, *chosen.feedback, *passes.others)
    return replace(passes, others=others, kept_bytes=chosen.work.kept_bytes + passes.kept_bytes)
