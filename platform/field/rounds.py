"""Training rounds in real time: the work itself takes the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from driftlab.platform.sim.messages import Delivery
from driftlab.platform.sim.rounds import Await, Step, Steps
from driftlab.platform.sim.session import Session

POLL_S = 0.01


def drive(
    steps: Steps, session: Session, now: Callable[[], float], done: Callable[[Step], None] = lambda step: None
) -> Sequence[Delivery]:
    """Run the steps of a round, and tell of each; ways that it offers are chosen as `learner.way` says."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Await) and not session.ready(step.job):
                time.sleep(POLL_S)
                continue
            if isinstance(step, Step):
                done(step)
            step = steps.send(now())
    except StopIteration as end:
        deliveries: Sequence[Delivery] = end.value
        return deliveries
