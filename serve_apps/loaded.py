"""The networks that a replica keeps in memory: those of the sessions that predicted last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftlab.serve_apps.hosting import HostedSession


class LoadedNetworks:
    """Unloads the networks of the sessions that were used least recently; any thread may call it."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._sessions: OrderedDict[HostedSession, None] = OrderedDict()

    def use(self, session: HostedSession) -> None:
        """Note that a session needs its network, and unload others above the limit unless they predict."""
        if session.closed:
            return
        with self._lock:
            self._sessions[session] = None
            self._sessions.move_to_end(session)
            oldest = [self._sessions.popitem(last=False)[0] for _ in range(len(self._sessions) - self._most)]
        for one in oldest:
            if not one.unload():
                with self._lock:
                    self._sessions[one] = None
                    self._sessions.move_to_end(one, last=False)

    def drop(self, session: HostedSession) -> None:
        """Remove a session."""
        with self._lock:
            self._sessions.pop(session, None)
