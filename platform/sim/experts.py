"""The networks that the learners of a device store after their phases (RECL's model zoo).

Applications whose networks are built equally share a zoo, so that one may continue with the network of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from driftlab.platform.scheduling.zoo import Zoo
from driftlab.platform.sim.session import Job


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
