"""The networks that learners store after their phases (RECL's model zoo).

Learners at one site, a device or the server, whose networks are built equally share a zoo, so that one may continue
with the network of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from driftlab.platform.core.records import RecallResult, SampleDescription
from driftlab.platform.scheduling.zoo import MARGIN, Zoo
from driftlab.platform.sim.session import Job

if TYPE_CHECKING:
    from driftlab.platform.sim.rounds import Steps, WeightRound


@dataclass
class ExpertStore:
    """Stored networks of one architecture, which a zoo ranks by the mean features of their samples."""

    zoo: Zoo = field(default_factory=Zoo)
    jobs: Mapping[int, Job] = field(default_factory=dict)  # by number: the payload is the network
    stored: int = 0  # so far

    def rank(self, signature: Sequence[float]) -> dict[int, Job]:
        """Return the stored networks that suit samples best."""
        return {number: self.jobs[number] for number in self.zoo.rank(np.array(signature))}

    def select(self, number: int) -> None:
        """Record that a learner continues a stored network."""
        self.zoo = self.zoo.select(number)

    def store(self, signature: Sequence[float], network: Job) -> None:
        """Store a network that was trained on samples with this signature."""
        self.stored += 1
        self.zoo = self.zoo.remember(self.stored, np.array(signature))
        kept = {one.number for one in self.zoo.experts}
        self.jobs = {number: job for number, job in {**self.jobs, self.stored: network}.items() if number in kept}


Experts = dict[tuple[str, str, int | None, str], ExpertStore]  # by the network as built, and its owner if it has one


class Recall:
    """The stored networks of one round: from which it continues, and which one it adds."""

    def __init__(self, done: WeightRound) -> None:
        self.round, self.app = done, done.app
        self.signature: tuple[float, ...] = ()  # of the newest samples

    def start(self) -> Steps:
        """Continue from a stored network where that is better; return the accuracy now."""
        app, done = self.app, self.round
        fall = app.runner.scheduling.recall_drop or 0.0
        last = None if app.observed is None else app.observed.accuracy
        described: SampleDescription = yield from done.facts_of(done.call("describe_samples"))
        now, passes, resumed = described.accuracy, described.passes, None
        if now is not None:
            self.signature = described.signature
            known = app.experts.rank(described.signature)
            if (known or app.learner.trained) and (last is None or last - now >= fall):
                recalling = done.call("recall_expert", now, max(MARGIN, fall / 2), tuple(known), *known.values())
                recalled: RecallResult = yield from done.facts_of(recalling)
                now, resumed = recalled.accuracy, recalled.resumed_network
                passes = replace(passes, forward=passes.forward + recalled.passes.forward)
        yield from done.do("training", app.learner.site.training_cost(app.cost_of(), passes))
        if now is not None and not done.outdated:
            app.observe(now, "teacher", done.now_s)
        if resumed is not None:
            app.experts.select(resumed)
            done.stored_network, done.training_config = resumed, f"stored network {resumed}"
        return now

    def store(self) -> None:
        """Store the network of the newest phase for later samples of the same kind."""
        if self.signature:
            self.app.experts.store(self.signature, self.round.call("store_expert"))
