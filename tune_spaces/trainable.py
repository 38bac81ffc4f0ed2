"""The one trainable: settings in, cells run window by window, what they measure out."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, fields
from typing import Any

from ray import tune

from driftlab.platform.tune.evaluation import WarmBackend
from driftlab.platform.tune.trial import RUNNING, Assignment, TrialOutcome, outcomes

OUTCOME = "outcome"  # where a result holds everything that the ledger takes


class TrialTrainable(tune.Trainable):
    """One trial after another in one process, which keeps the networks that it has loaded."""

    def setup(self, config: dict[str, Any], **shared: Any) -> None:
        """Begin the first trial of this process; what all trials share is no part of what loggers are told of each."""
        self._backend, self._experiment = WarmBackend(), shared["experiment"]
        self._outcomes = self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin the next trial here; the one before may have been stopped."""
        self._outcomes.close()
        self._outcomes = self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Run to the next report: one after each window where trials may be stopped, else the end."""
        found = next(self._outcomes)
        told = asdict(found) | {"host_worker": f"{socket.gethostname()}:{os.getpid()}"}
        return {**found.metrics, "time_s": found.time_s, OUTCOME: [told], "done": found.status != RUNNING}

    def cleanup(self) -> None:
        """Let go of the cells of a trial that was stopped."""
        self._outcomes.close()

    def _begin(self, config: dict[str, Any]) -> Any:
        assignment = Assignment(**{field.name: config[field.name] for field in fields(Assignment)})
        return outcomes(self._experiment, assignment, self._backend, every_window=config["every_window"])


def outcome_of(result: dict[str, Any]) -> TrialOutcome:
    """Read the outcome out of a result."""
    (told,) = result[OUTCOME]  # in a list: Tune flattens mappings
    return TrialOutcome(**told)
