"""Which session has its round next: in order of arrival, as on a server of the lab, unless their scheduler says more.

A scheduling member that shares the GPUs of a server (`joint`) gives the sessions that have it shares of a processor, by
what the newest round of each took and gained. One round runs at a time, so a share is how often a session has its turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftlab.platform.scheduling.base import Window
from driftlab.platform.sim.server import demand_of
from driftlab.platform.world.machine import accelerator_share
from driftlab.serve_apps.hosting import HostedSession


@dataclass
class Turns:
    """The turns of the sessions of one worker."""

    _credit: dict[HostedSession, float] = field(default_factory=dict)
    _states: dict[str, Any] = field(default_factory=dict)  # of scheduling members

    def next_of(self, ready: Sequence[HostedSession]) -> HostedSession:
        """Return the session that waits longest, or of those under its scheduler the one with the most credit."""
        first = min(ready, key=lambda session: session.waits_since_s)
        mine = [one for one in ready if one.weighs and one.scheduling == first.scheduling] if first.weighs else []
        if len(mine) < 2:
            return first
        for session, share in zip(mine, self._shares(mine), strict=True):
            self._credit[session] = self._credit.get(session, 0.0) + share
        chosen = max(mine, key=lambda session: self._credit[session])
        self._credit[chosen] -= 1.0
        return chosen

    def forget(self, session: HostedSession) -> None:
        self._credit.pop(session, None)

    def _shares(self, sessions: Sequence[HostedSession]) -> list[float]:
        """Ask the scheduling member; equal shares where it gives none."""
        runner = sessions[0].cell.runner
        left_s = [0.0 if one.app.learner.gained is None else one.app.learner.gained.work_s for one in sessions]
        demands = [
            replace(demand_of(one.app, one.now_s(), work_s), app=one.folder.name)
            for one, work_s in zip(sessions, left_s, strict=True)
        ]
        window = Window(
            time.monotonic(),
            runner.setup.window_s + 2 * sum(left_s),
            runner.setup.server.hardware.memory_bytes,
            tuple(demands),
            self._states.get(sessions[0].scheduling),
            "offer",
        )
        allocation = runner.scheduling.allocate(window)
        self._states[sessions[0].scheduling] = allocation.state
        wanted = [float(accelerator_share(grant.learn or 0.0)) for grant in allocation.grants]
        total = sum(wanted)
        return [share / total if total else 1 / len(wanted) for share in wanted]
