"""A whole cell as one node: its own nodes are plain objects in the same process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from driftlab.errors import DriftlabError, RunError
from driftlab.platform.core.records import Reply
from driftlab.platform.sim.host import with_host
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.runner import CellProgress, Runner
from driftlab.platform.sim.session import NodeId, Session, describe
from driftlab.platform.sim.setting import Cell, WorkloadSetup

REPORTS = 20  # of its progress, at most: the calls of a cell are fewer than those between two checkpoints


def place_cell(session: Session, cell: Cell, setup: WorkloadSetup) -> NodeId:
    """Place a whole cell; the networks go from their builders to its process."""
    node, networks = NodeId("cell", cell.id), setup.networks
    numbered = setup.with_networks({job: number for number, job in enumerate(networks)})
    session.place(node, cell, numbered, *networks)
    return node


def report_times(cell: Cell, window_s: float) -> Iterator[float]:
    """Yield the virtual times at which a whole cell reports its progress; the last one is its end."""
    step_s = max(window_s, cell.duration_s / REPORTS)
    time_s = step_s
    while time_s < cell.duration_s:
        yield time_s
        time_s += step_s
    yield cell.duration_s


class CellNode:
    """Runs a cell; a restored simulation is repeated from its beginning.

    A running simulation cannot be pickled.
    """

    def __init__(self, cell: Cell, setup: WorkloadSetup, *networks: Any) -> None:
        builders = [NodeId("builder", f"builder-{number}") for number in range(len(networks))]
        jobs = [InlineJob(node, "build", Reply(payload=one)) for node, one in zip(builders, networks, strict=True)]
        self._cell, self._setup = cell, setup.with_networks(dict(enumerate(jobs)))
        self._session = InlineSession()
        self._runner: Runner | None = None
        self._windows: Iterator[CellProgress] = iter(())
        self._started_s = 0.0

    def __getstate__(self) -> Mapping[str, Any]:
        """Drop the simulation; the next call runs it from its beginning to the time of that call."""
        return {**vars(self), "_session": InlineSession(), "_runner": None, "_windows": iter(())}

    def advance(self, until_s: float) -> Reply:
        """Run to the end of the window with this virtual time; the last reply has the rows of the cell."""
        try:
            if self._runner is None:
                self._started_s = time.perf_counter()
                self._runner = Runner(self._cell, self._setup, self._session)
                self._windows = self._runner.windows()
            time_s = next(one.time_s for one in self._windows if one.time_s >= until_s)
        except (DriftlabError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the reason is that of a cell whose nodes are separate
            raise RunError(describe(error)) from error
        if time_s < self._cell.duration_s:
            return Reply(time_s)
        rows = with_host(self._runner.ledger.rows, self._started_s)
        self._session.close()
        return Reply(time_s, rows)
