"""The server's GPUs: rounds run by arrival, in short turns, or under a scheduling member by gain.

The first round of an application gets a fair share, since no gain is measured yet. A later round is expected to take
as long as the previous one, and to gain as much in proportion to the time since that one ended; the deviation of the
expected gain grows with that time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from driftlab.platform.core.records import Share, TaskCost, Variant
from driftlab.platform.scheduling.base import Demand, Reason, SchedulerInput, TrainingOffer
from driftlab.platform.scheduling.gain_model import positive_part
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.experts import Experts, ExpertStore
from driftlab.platform.world.processor import Processor, ProcessorTask, accelerator_share, first_come, round_robin

if TYPE_CHECKING:
    from driftlab.platform.sim.runner import Runner

UNSURE_GAIN = 0.02  # standard deviation of a gain after one interval: a round that gained nothing may gain again
MAX_GAIN_FACTOR = 2.0  # of the newest gain, that a round is expected to bring however long ago that was


class ServerSim:
    """The server of a cell; each application has one GPU at most."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        usual = {"arrival": first_come, "round_robin": round_robin}[runner.setup.server_order]
        policy = self.shares if runner.measures_gain else usual(runner.cell.gpus)
        self.processor = Processor(runner.clock, policy, capacity=runner.cell.gpus)
        self.experts: Experts = defaultdict(ExpertStore)  # of all its learners
        self.state: Any = None  # returned by the scheduler

    def shares(self, processor: Processor, reason: str) -> Mapping[str, Share]:
        """Call the scheduling member, and spread the training shares over the GPUs."""
        runner = self.runner
        demands = tuple(self._demand(runner.apps[name], work) for name, work in processor.tasks.items())
        if not demands:
            return {}
        left_s = sum(one.learning.left.isolated_s for one in demands if one.learning is not None)
        why: Reason = "end" if reason == "end" else "offer"
        window = SchedulerInput(
            processor.clock.now,
            runner.setup.window_s + 2 * left_s,  # every round may end within it
            runner.setup.server.hardware.memory_bytes,
            demands,
            self.state,
            why,
        )
        allocation = runner.scheduling.allocate(window)
        self.state = allocation.state
        wanted = [accelerator_share(grant.training_share or 0.0) for grant in allocation.grants]
        return dict(zip(processor.tasks, spread(wanted, runner.cell.gpus), strict=True))

    def _demand(self, app: AppSim, work: ProcessorTask) -> Demand:
        left_s, gained = self.processor.remaining_cost(work).isolated_s, app.learner.last_gain
        if gained is not None:
            done = self.runner.open_rounds.get(app.name)
            before_s = sum(cost.isolated_s for cost in done.costs) if done is not None else 0.0
            left_s += max(0.0, gained.isolated_s - before_s - work.cost.isolated_s)
        return demand_of(app, self.processor.clock.now, left_s)


def demand_of(app: AppSim, now_s: float, left_s: float) -> Demand:
    """Return the demand of an application's round: its remaining cost, and its expected gain."""
    past, now, then = app.learner.last_gain, None, None
    if past is not None:
        waited = (now_s - past.ended_s) / past.interval_s
        gain = positive_part(past.gain * min(MAX_GAIN_FACTOR, waited), UNSURE_GAIN * math.sqrt(max(0.0, waited)))
        now, then = past.after - gain, past.after
    none = Variant("predicts on its device", now, 0, 0.0)
    learning = TrainingOffer(
        "running", left=TaskCost({"accelerator": left_s}), config="round", accuracy_before=now, accuracy_after=then
    )
    return Demand(app.name, app.facts.fps, (none,), 0, learning=learning)


def spread(wanted: list[float], gpus: int) -> list[float]:
    """Scale shares of one GPU to `gpus` GPUs; none exceeds 1, and the rest goes to the next in order."""
    total = sum(wanted)
    given = [min(1.0, gpus * share / total) if total else 0.0 for share in wanted]
    left = min(gpus, len(wanted)) - sum(given)
    for place, share in enumerate(given):
        more = min(1.0 - share, max(0.0, left))
        given[place], left = share + more, left - more
    return given
