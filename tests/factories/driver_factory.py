"""A driver in a separate process that reports each step and waits for a command; it can be killed."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.seal import run

IMPORTED = ["torch", "pyarrow.parquet", "cv2", "driftlab.platform.sim.inline", "driftlab.platform.lab.seal"]


class ReportingProgress(Progress):
    def __init__(self, wire: Connection) -> None:
        self.wire = wire

    def begins(self, *args: Any) -> None:
        self.tell("begins")

    def built(self, *args: Any) -> None:
        self.tell("built")

    def advanced(self, *args: Any) -> None:
        self.tell("advanced")

    def finished(self, *args: Any) -> None:
        self.tell("finished")

    def tell(self, event: str) -> None:
        self.wire.send(event)
        self.wire.recv()


def start(document: dict[str, Any], out: str) -> tuple[BaseProcess, Connection]:
    """Start a driver; all are forked from one process that has already done the imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    ours, theirs = context.Pipe()
    driver = context.Process(target=_drive, args=(document, out, theirs), daemon=True)
    driver.start()
    theirs.close()
    return driver, ours


def _drive(document: dict[str, Any], out: str, wire: Connection) -> None:
    run(document, out=out, progress=ReportingProgress(wire))
