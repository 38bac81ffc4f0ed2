"""Rows of estimated accuracies, with the monitored and the true ones after a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from driftlab.platform.core.records import PhaseCheck, TaskCost
from driftlab.platform.scheduling.base import TrainingConfig

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim
    from driftlab.platform.sim.session import Job

Accuracies = Sequence[float | None]


@dataclass
class EstimateLog:
    """The estimates of one round, until it is known which network was trained and how accurate it is."""

    app: AppSim
    domain: int | None  # of the newest sample
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _configs: list[int] = field(default_factory=list)  # index of the configuration of each row

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(
        self,
        method: Literal["estimator", "trials"],
        time_s: float,
        cost: TaskCost,
        configs: Sequence[tuple[int, TrainingConfig]],
        accuracies: tuple[Accuracies, Accuracies],
    ) -> None:
        """Add the accuracies before and after a phase of configurations estimated together."""
        of_all = {
            "device": self.app.device.spec.name,
            "app": self.app.spec.name,
            "time_s": time_s,
            "domain": self.domain,
            "method": method,
            "isolated_s": cost.isolated_s,
            "memory_bytes": cost.memory_bytes,
        }
        for (index, config), before, after in zip(configs, *accuracies, strict=True):
            named = {"config": config.name, "variant": config.variant, "size": config.size}
            self._rows.append({**of_all, **named, "before": before, "after": after})
            self._configs.append(index)

    def later_frames(self, times_s: Sequence[float]) -> Job:
        """Request as many frames as a sample has, from its newest on, with their truth: for these rows only."""
        facts = self.app.facts
        first = round(times_s[-1] * facts.fps)
        later = [(first + k) / facts.fps for k in range(len(times_s) + 1)]
        inside = tuple(time_s for time_s in later if time_s < facts.duration_s)
        return self.app.runner.session.call(self.app.node("device"), "sample_with_truth", inside)

    def write(self, chosen: int | None, check: PhaseCheck | None = None) -> None:
        """Write the rows; only the chosen configuration has monitored and true accuracies."""
        for index, row in zip(self._configs, self._rows, strict=True):
            found = _checked(check if index == chosen else None)
            self.app.runner.ledger.row("estimates", **row, **found, chosen=index == chosen)


def _checked(check: PhaseCheck | None) -> dict[str, float | None]:
    nothing = (None, None)
    pairs = (nothing,) * 3 if check is None else (check.confident, check.agreeing, check.true)
    return {
        f"{name}_{when}": value
        for name, pair in zip(("observed", "agreement", "true"), pairs, strict=True)
        for when, value in zip(("before", "after"), pair, strict=True)
    }
