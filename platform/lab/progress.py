"""Reports of a run's progress to its listeners."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, TextIO


class Progress:
    """Hears what happens and says nothing; every listener is one of these."""

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        """The grid begins: so many cells to run, so many already there, so many seconds of work to do, as estimated."""

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        """Cells that the folder holds run again, for this reason."""

    def building(self, network: str, number: int, of: int) -> None:
        """A network is being built, or waited for."""

    def built(self, network: str, done: int, of: int) -> None:
        """A network is ready."""

    def advanced(self, work_s: float) -> None:
        """Some cell has done this many of the estimated seconds of work."""

    def finished(self, cell: str, reason: str) -> None:
        """A cell has ended; the reason is empty unless it failed."""


class Log(Progress):
    """Writes what happened into the run's log and passes it on."""

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
    """Tell the host's time; it stands in logs and provenance only."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
