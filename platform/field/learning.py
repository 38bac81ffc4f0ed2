"""A learner on the device: the lab's training rounds in a thread beside the answers."""

from __future__ import annotations

from driftlab.platform.core.records import Uploaded
from driftlab.platform.field.rounds import drive
from driftlab.platform.field.sending import CAMERA, Sender
from driftlab.platform.sim.inline import InlineJob
from driftlab.platform.sim.messages import Delivery, Upload
from driftlab.platform.sim.rounds import Step
from driftlab.platform.sim.rows import update_row
from driftlab.platform.streaming.base import Sampling


class LocalLearner(Sender):
    """Samples as planned by the streaming member, and trains on this device."""

    def _find_number(self) -> None:
        """Do without a number: nothing is uploaded."""

    def _send(self, sampling: Sampling) -> None:
        """Train on new samples; the answering thread applies what comes out between two frames."""
        session, app, runner = self.runner.session, self.app, self.runner
        if not app.learner.placed:
            runner.place_teachers()
            runner.place_learner(app)
        frames = session.call(CAMERA, "sample", sampling)
        sent: Uploaded = session.result(frames).facts
        truth = session.call(CAMERA, "reveal", sampling.times_s) if app.learner.reads_truth else frames
        stamp_s = self.traffic.now() if sampling.stamp == "receipt" else None
        upload = Upload(sent, sampling, frames, truth, stamp_s)
        steps = app.learner.round([upload], self.traffic.now()).steps()
        for delivery in drive(steps, session, self.traffic.now, self._spend):
            self.traffic.inbox.put(lambda delivery=delivery: self._take(delivery))  # type: ignore[misc]

    def _spend(self, step: Step) -> None:
        """Count the energy of a step, as the hardware's profile says."""
        self.traffic.inbox.put(lambda: self.app.account.spend(step.purpose, step.need.joules))

    def _take(self, delivery: Delivery) -> None:
        """Apply an update between two frames, and write its row."""
        message = self.app.message("down", delivery.kind)
        message.arrive_s = self.traffic.now()
        with self.traffic.turn:
            taking = delivery.take(message)
        applied = None
        if taking is not None:
            assert isinstance(taking, InlineJob)
            applied = taking.reply.facts
            message.refused = applied.reason
        row = delivery.settle(message, applied)
        if row is not None:
            self.runner.ledger.row("updates", **update_row(**row))
