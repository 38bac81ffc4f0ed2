"""Select the session of the next training round: first come, first served, or by a scheduler's shares.

A scheduling member that allocates the GPUs of a server (`joint`) divides a processor among the sessions that use it, by
the time and the gain of the newest round of each. One round runs at a time, so a share is a fraction of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftlab.platform.scheduling.base import SchedulerInput
from driftlab.platform.sim.server import demand_of
from driftlab.platform.world.processor import accelerator_share
from driftlab.serve_apps.hosting import HostedSession


@dataclass
class FairQueue:
    """The order of training rounds of one worker's sessions."""

    _credit: dict[HostedSession, float] = field(default_factory=dict)
    _states: dict[str, Any] = field(default_factory=dict)  # of scheduling members

    def next_of(self, ready: Sequence[HostedSession]) -> HostedSession:
        """Return the session that has waited longest.

        If its scheduler allocates the server, return the session with the most credit among those that share it.
        """
        first = min(ready, key=lambda session: session.waits_since_s)
        same = [one for one in ready if one.weighs and one.scheduling == first.scheduling] if first.weighs else []
        if len(same) < 2:
            return first
        for session, share in zip(same, self._shares(same), strict=True):
            self._credit[session] = self._credit.get(session, 0.0) + share
        chosen = max(same, key=lambda session: self._credit[session])
        self._credit[chosen] -= 1.0
        return chosen

    def drop(self, session: HostedSession) -> None:
        self._credit.pop(session, None)

    def _shares(self, sessions: Sequence[HostedSession]) -> list[float]:
        """Return the shares of the scheduling member, which add up to 1; equal ones if it allocates none."""
        runner = sessions[0].cell.runner
        rounds_s = [
            0.0 if one.app.learner.last_gain is None else one.app.learner.last_gain.isolated_s for one in sessions
        ]
        demands = [
            replace(demand_of(one.app, one.now_s(), work_s), app=one.folder.name)
            for one, work_s in zip(sessions, rounds_s, strict=True)
        ]
        window = SchedulerInput(
            time.monotonic(),
            runner.setup.window_s + 2 * sum(rounds_s),
            runner.setup.server.hardware.memory_bytes,
            tuple(demands),
            self._states.get(sessions[0].scheduling),
            "offer",
        )
        allocation = runner.scheduling.allocate(window)
        self._states[sessions[0].scheduling] = allocation.state
        shares = [float(accelerator_share(grant.training_share or 0.0)) for grant in allocation.grants]
        total = sum(shares)
        return [share / total if total else 1 / len(shares) for share in shares]
