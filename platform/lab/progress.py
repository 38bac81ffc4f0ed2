"""Reports of a run's progress to its listeners."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TextIO


class Progress:
    """Base of progress listeners; its methods do nothing."""

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        """Receive the start of a grid: cells to run, cells kept, and the estimated work in seconds."""

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        """Receive stored cells that run again, and the reason."""

    def building(self, network: str, number: int, of: int) -> None:
        """Receive the start of a build, or of the wait for it."""

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        """Receive the state of a training on this computer, several times a minute; called in another thread."""

    def built(self, network: str, done: int, of: int) -> None:
        """Receive the end of a build."""

    def advanced(self, work_s: float) -> None:
        """Receive the estimated seconds of work that a cell has done since its last report."""

    def finished(self, cell: str, reason: str) -> None:
        """Receive the end of a cell; `reason` is empty unless it failed."""


class Log(Progress):
    """Write events to the run's log and pass them to another listener."""

    def __init__(self, file: TextIO, listener: Progress) -> None:
        self._file, self._listener = file, listener

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self._write("begins", cells=cells, kept=kept, work_s=work_s)
        self._listener.begins(cells, kept, work_s)

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        self._write("repeats", cells=list(cells), reason=reason)
        self._listener.repeats(cells, reason)

    def building(self, network: str, number: int, of: int) -> None:
        self._listener.building(network, number, of)

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        self._listener.training(network, step, of, loss)

    def built(self, network: str, done: int, of: int) -> None:
        self._write("built", network=network, done=done, of=of)
        self._listener.built(network, done, of)

    def advanced(self, work_s: float) -> None:
        self._listener.advanced(work_s)

    def finished(self, cell: str, reason: str) -> None:
        self._write("finished", cell=cell, reason=reason)
        self._listener.finished(cell, reason)

    def _write(self, event: str, **facts: Any) -> None:
        self._file.write(json.dumps({"time": now(), "event": event, **facts}) + "\n")
        self._file.flush()


def now() -> str:
    """Return the host's time, for logs and provenance only."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
