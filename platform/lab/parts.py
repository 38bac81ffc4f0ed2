"""Divide the cells of large fleets whose devices share no server.

Parts run one after another or in parallel. One ends before the next one of its process begins, so memory does not grow
with the fleet. The parts follow from the request, and their rows come part by part, so tables depend neither on the
backend nor on the placement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from driftlab.platform.core.records import Reply, Rows
from driftlab.platform.core.systems import System
from driftlab.platform.results.tables.origin import Origin
from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.sim.ledger import Account, Ledger
from driftlab.platform.sim.nodes.cell import CellNode
from driftlab.platform.sim.rows import run_row
from driftlab.platform.sim.runner import CellProgress
from driftlab.platform.sim.setting import Cell, WorkloadSetup

PART_DEVICES = 100  # of a part: one process then works for seconds, in less than 200 MiB
JOINED = ("runs", "systems")  # tables with a row for the whole cell
PartResult = tuple[Rows, Sequence[Account]]


def part_count(system: System, devices: int) -> int:
    """Return the number of parts of a cell; devices that share a server cannot be separated."""
    return 1 if system.needs_server else math.ceil(devices / PART_DEVICES)


def parts_of(cell: Cell) -> list[Cell]:
    """Divide a cell; a small fleet, or one with a server, remains whole."""
    if part_count(cell.system, len(cell.devices)) == 1:
        return [cell]
    starts = range(0, len(cell.devices), PART_DEVICES)
    return [
        replace(cell, id=f"{cell.id}/part-{number}", devices=cell.devices[start : start + PART_DEVICES])
        for number, start in enumerate(starts)
    ]


def setup_of(number: int, setup: WorkloadSetup) -> WorkloadSetup:
    """Return the setup of a part; snapshots are those of the first device of the cell."""
    return setup if number == 0 else replace(setup, snapshots=0)


def joined(cell: Cell, setup: WorkloadSetup, parts: Sequence[PartResult]) -> Rows:
    """Put the rows of all parts one after another; the row of the cell comes from all accounts."""
    ledger = Ledger()
    for rows, _ in parts:
        ledger.take({table: chunks for table, chunks in rows.items() if table not in JOINED})
    ledger.take({"systems": parts[0][0]["systems"]})
    runs = [rows["runs"][0] for rows, _ in parts]
    accounts = [account for _, own in parts for account in own]
    digests = [run["weights_digest"][0] for run in runs if "weights_digest" in run]
    host = {
        "host_seconds": sum(run["host_seconds"][0] for run in runs),
        "host_peak_memory_bytes": max(run["host_peak_memory_bytes"][0] for run in runs),
    }
    ledger.row("runs", **run_row(cell, setup, accounts, digests), **host)
    return ledger.rows


class PartNode(CellNode):
    """A whole cell, or a part of one; its last advance has the accounts, and its simulation ends with it."""

    _rows: Rows = MappingProxyType({})

    def advance(self, until_s: float) -> Reply:
        """Run to the end of the window with this virtual time."""
        reply, runner = super().advance(until_s), self._runner
        if not reply.rows or runner is None:
            return Reply(CellProgress(reply.facts, {}))
        accounts = {name: app.account for name, app in runner.apps.items()}
        self._runner, self._rows = None, reply.rows
        return Reply(CellProgress(reply.facts, accounts))

    def rows(self) -> Reply:
        """Return the rows of the ended simulation."""
        rows, self._rows = self._rows, {}
        return Reply(rows=rows)

    def record(self, directory: str, origin: Origin) -> Reply:
        """Return the rows for the driver, whose folder may be on another computer."""
        return self.rows()


class RecordingNode(PartNode):
    """A whole cell on the driver's computer, which writes the tables in its own process."""

    def record(self, directory: str, origin: Origin) -> Reply:
        """Write the tables of the ended simulation; the reply has no rows."""
        Recorder(directory).write(self._cell.id, self.rows().rows, origin)
        return Reply()
