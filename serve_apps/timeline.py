"""Events of a session on the clock of its device, for the live page.

They are kept in memory, so a restart removes them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from driftlab.platform.field.messages import REPORT_INTERVAL_S, DeviceStatus
from driftlab.platform.field.rounds import RoundFacts

KEPT = 2000  # newest events of each kind
SILENT_S = 3 * REPORT_INTERVAL_S  # without a report, the link counts as cut


@dataclass
class Timeline:
    """Uploads, resyncs and reports of a session; every method may be called from any thread."""

    uploads: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=KEPT))  # time and bytes
    resyncs: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    reports: deque[DeviceStatus] = field(default_factory=lambda: deque(maxlen=KEPT))
    heard_s: float | None = None  # monotonic clock at the newest report
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_upload(self, time_s: float, size: int) -> None:
        with self._lock:
            self.uploads.append((time_s, size))

    def add_resync(self, time_s: float) -> None:
        with self._lock:
            self.resyncs.append(time_s)

    def add_report(self, status: DeviceStatus) -> None:
        with self._lock:
            self.reports.append(status)
            self.heard_s = time.monotonic()

    @property
    def newest(self) -> DeviceStatus | None:
        """Return the newest report."""
        with self._lock:
            return self.reports[-1] if self.reports else None

    @property
    def is_silent(self) -> bool:
        """Return whether reports have ceased."""
        return self.heard_s is not None and time.monotonic() - self.heard_s > SILENT_S

    def document(self, rounds: Sequence[RoundFacts]) -> dict[str, Any]:
        """Return all events and scores as plain data; a link cut is the time between two distant reports."""
        with self._lock:
            reports, uploads, resyncs = list(self.reports), list(self.uploads), list(self.resyncs)
        pairs = itertools.pairwise(reports)
        return {
            "reports": [astuple(one)[:4] for one in reports],
            "switches": [switch for one in reports for switch in one.switches],
            "uploads": uploads,
            "resyncs": resyncs,
            "cuts": [(one.time_s, other.time_s) for one, other in pairs if other.time_s - one.time_s > SILENT_S],
            "updates": [(one.time_s, size) for one in rounds if (size := one.row.get("bytes"))],
            "scores": [(one.time_s, one.score) for one in rounds if one.score is not None],
        }
