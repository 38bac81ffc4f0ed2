"""Metrics of a run for Prometheus, through Ray: frames, updates, bytes and seconds of each cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

from driftlab.platform.core.records import Rows

BYTES = {"uplink_bytes": "up", "downlink_bytes": "down"}  # column of `devices` -> direction


class RunMetrics:
    """Counters with the names of run, cell and device; Ray adds the prefix `ray_`.

    They count a cell when its tables are written, so a failed or repeated cell is not counted twice.
    """

    def __init__(self, run: str) -> None:
        cell = ("run", "cell")
        self._run = run
        self._frames = Counter("driftlab_frames", "Frames of a device.", (*cell, "device"))
        self._bytes = Counter("driftlab_bytes", "Bytes that a device sent or received.", (*cell, "device", "direction"))
        self._updates = Counter("driftlab_updates", "Updates of networks in a cell.", cell)
        self._seconds = Gauge("driftlab_cell_seconds", "Time that a cell took on the host.", cell)

    def count(self, cell: str, rows: Rows) -> None:
        """Add the rows of a finished cell."""
        own = {"run": self._run, "cell": cell}
        for device in _records(rows, "devices"):
            named = {**own, "device": str(device["device"])}
            _add(self._frames, device.get("frames"), named)
            for column, direction in BYTES.items():
                _add(self._bytes, device.get(column), {**named, "direction": direction})
        for whole in _records(rows, "runs"):
            _add(self._updates, whole.get("updates"), own)
            self._seconds.set(whole.get("host_seconds") or 0.0, own)


def _add(counter: Counter, value: float | None, tags: Mapping[str, str]) -> None:
    """Add a value; Ray refuses zero."""
    if value:
        counter.inc(value, dict(tags))


def _records(rows: Rows, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table one by one."""
    found = []
    for columns in rows.get(table, ()):
        length = max((len(value) for value in columns.values() if _is_list(value)), default=1)
        found += [
            {name: value[place] if _is_list(value) else value for name, value in columns.items()}
            for place in range(length)
        ]
    return found


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str)
