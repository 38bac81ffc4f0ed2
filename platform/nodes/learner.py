"""A learner: a copy of one device's model on the server, what it may learn from, and what goes back."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import Batch
from driftlab.platform.core.records import Reply, Stored, Trained, Weights
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.models import delta, state, vector, zoo
from driftlab.platform.models.tasks import Answers
from driftlab.platform.nodes import student
from driftlab.platform.nodes.specs import StudentSpec
from driftlab.platform.scaling.base import Budget
from driftlab.platform.streaming.base import DownlinkPlan, Wire

Mask = npt.NDArray[np.bool_]


class Learner:
    """Follows one device: stores what its teacher labelled, trains on it, packs what changed."""

    def __init__(self, spec: StudentSpec, weights: Weights) -> None:
        self._spec, self._task = spec, zoo.task_of(spec.network)
        self._adaptation, self._scaling = spec.adaptation.make(), spec.scaling.make()
        self._family = student.family_of(spec, weights)
        self._state: Any = None  # of the adaptation
        self._run(Budget())
        self._moved = False  # whether an adaptation ever moved a buffer, of whichever network
        self._alone = False  # whether the next update must build on no other
        self._version = 0
        self._phases = 0
        self._times_s = np.empty(0)
        self._images = np.empty((0, spec.height, spec.width, 3), dtype=np.uint8)
        self._labels = self._task.blank(0, spec.height, spec.width)
        self._newest = self._labels  # the last that came, even when the buffer holds it no longer

    def switch(self, variant: int) -> Reply:
        """Train another network of the family, with what this one has learned, as the application now runs it.

        The device may have switched before it had every update. So the next one carries every weight.
        """
        self._read()
        self._family = self._scaling.absorb(self._family, self._model)
        self._run(Budget(variant=variant))
        self._alone = True
        return Reply()

    def store(self, frames: Frames, labels: Answers, stamp_s: float | None = None) -> Reply:
        """Put labelled frames into the buffer, and tell how much the labels changed from each to the next.

        Frames are filed under the time of their capture, or all under one `stamp_s`.
        """
        history = [*self._newest, *labels]
        self._newest = labels[-1:]
        phis = tuple(self._task.phi(after, before, self._spec.classes) for before, after in itertools.pairwise(history))
        times_s = frames.times_s if stamp_s is None else np.full(len(frames), stamp_s)
        self._times_s = np.concatenate([self._times_s, times_s])
        self._images = np.concatenate([self._images, frames.images])
        self._labels = np.concatenate([self._labels, labels])
        return Reply(
            Stored(
                frames=len(frames),
                buffered=len(self._times_s),
                newest_s=float(self._times_s[-1]),
                usable_s=self._usable_s(),
                phis=phis,
                unknown=self._task.unknown(labels, self._spec.classes),
            )
        )

    def train(self, answer: DownlinkPlan) -> Reply:
        """Train one phase over what the buffer still holds, and pack the change for the device."""
        started = time.perf_counter()
        self._drop_before(answer.oldest_s)
        assert answer.phase is not None
        rng = rng_for(self._spec.seed, "train", self._phases)
        batch = Batch(self._images, self._labels, rng, self._task)
        adapted = self._adaptation.adapt(self._model, self._state, batch, answer.phase)
        self._state, self._phases = adapted.state, self._phases + 1
        update = None if adapted.skipped else self._pack(answer, adapted.changed)
        facts = Trained(
            frames=len(self._times_s),
            iterations=adapted.iterations,
            bytes=len(update.data) if update else 0,
            values=update.values if update else 0,
            clamped=update.clamped if update else 0,
            loss_first=adapted.losses[0] if adapted.losses else None,
            loss_last=adapted.losses[-1] if adapted.losses else None,
            score=adapted.score,
            skipped=adapted.skipped,
            host_seconds=time.perf_counter() - started,
        )
        return Reply(facts, payload=update.data if update else None)

    def resend(self) -> Reply:
        """Pack every weight as it is, for a device that can take nothing that builds on another update."""
        started = time.perf_counter()
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
        """Take a network of the family; what was known of the path of another one's weights is forgotten."""
        self._model = self._scaling.select(self._family, budget)
        self._buffers = state.read_buffers(self._model)  # as the device has them; `prepare` may move them
        self._state = self._adaptation.prepare(self._model)
        self._layout = vector.layout_of(self._model)
        self._vector = vector.read(self._model)  # bit for bit what the device holds once every update has arrived
        self._lost: vector.Vector | None = None  # by the codec of the last update

    def _read(self) -> state.State:
        """Read the network, and note whether any buffer differs from what was last sent."""
        now = state.read(self._model)
        self._moved = self._moved or bool(state.moved(self._buffers, now.buffers))
        return now

    def _usable_s(self) -> float | None:
        """Tell when the newest sample with a label that counts was taken."""
        counts = self._task.usable(self._labels, self._spec.classes)
        return float(self._times_s[counts].max()) if counts.any() else None

    def _drop_before(self, oldest_s: float) -> None:
        kept = self._times_s >= oldest_s
        self._times_s, self._images, self._labels = self._times_s[kept], self._images[kept], self._labels[kept]

    def _pack(self, answer: DownlinkPlan, changed: Mask | None) -> delta.Encoded:
        """Encode the change, and go on from exactly the weights that the device will have.

        Once a buffer was moved, an update that stands alone carries them all: the device may have missed the update
        that moved it.
        """
        alone = answer.dense or self._alone
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
        wire = Wire() if alone else answer.wire  # few bits suit changes, not whole weights
        form = delta.Format(wire.values, wire.mask)
        update = delta.encode(change, self._layout, form, self._lost if wire.feedback else None)
        vector.write(self._model, update.vector)
        self._vector, self._lost, self._version = update.vector, update.residual, self._version + 1
        self._buffers = update.buffers
        self._alone = False
        return update
