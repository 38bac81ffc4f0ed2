"""Load test of a server: many devices in one process, each with its own session and stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from driftlab.errors import DriftlabError, RunError, first_line
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.request import SessionRequest
from driftlab.platform.field.tables import write_run
from driftlab.platform.field.ticket import join
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.results.tables.run_pair import update_waits


@dataclass(frozen=True)
class FleetReport:
    """The result of a fleet: totals, mean live score and percentiles of the update delay."""

    devices: int
    failed: int
    frames: int
    answered: float | None  # share of the frames on which a network ran
    uploads: int
    updates: int
    up_bytes: int
    down_bytes: int
    score_live: float | None  # mean of the devices
    wait_p50_s: float | None  # from an upload to the update that was trained on it
    wait_p95_s: float | None


class Fleet:
    """Devices that open their sessions sequentially and start their streams evenly over an interval."""

    def __init__(self, server: str, token: str, asked: Sequence[SessionRequest], folder: Path) -> None:
        self.server, self.token, self.asked, self.folder = server, token, asked, folder
        self.faults: list[str] = []
        self._stop = threading.Event()

    def run(self, spread_s: float, tell: Callable[[str], None] = lambda line: None) -> FleetReport:
        """Open every session, run every stream, and summarise the tables.

        A device that fails does not stop the others; its error is added to `faults`.
        """
        agents: dict[int, Agent] = {}
        for number, asked in enumerate(self.asked):
            with self._noting_faults(number):
                agents[number] = Agent(join(self.server, self.token, asked))
                tell(f"{len(agents)} of {len(self.asked)} sessions are open")
        delays = np.linspace(0.0, spread_s, len(self.asked), endpoint=False).tolist()
        threads = [
            threading.Thread(target=self._run_device, args=(number, agent, delays[number]), daemon=True)
            for number, agent in agents.items()
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
        return report_of([self._folder_of(number) for number in range(len(self.asked))], len(self.faults))

    def _folder_of(self, number: int) -> Path:
        return self.folder / f"device-{number:04d}"

    def _run_device(self, number: int, agent: Agent, delay_s: float) -> None:
        if self._stop.wait(delay_s):
            return
        with (
            self._noting_faults(number),
            create_run(agent.cell.experiment, self._folder_of(number)) as directory,
        ):
            agent.begin(directory)
            agent.run()
            write_run(agent, directory)
            agent.seal()
            if agent.traffic.failed:
                raise RunError(f"the session ended early: {agent.traffic.failed}")

    @contextmanager
    def _noting_faults(self, number: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a full disk or a fault of one device: the others go on
            kind = "" if isinstance(error, DriftlabError) else f"{type(error).__name__}: "
            self.faults.append(f"device {number}: {kind}{first_line(error)}")


def report_of(folders: Sequence[Path], failed: int) -> FleetReport:
    """Summarise the tables of devices; folders without tables count as devices only."""
    runs = [open_run(folder) for folder in folders if (folder / "tables").is_dir()]
    rows = [row for run in runs for row in run.table("runs").to_pylist()]
    flags = [flag for run in runs for flag in run.table("frames")["processed"].to_pylist()]
    waits = [
        wait_s for run in runs for row in run.table("runs").to_pylist() for wait_s in update_waits(run, row["cell"])
    ]
    scores = [row["score_live"] for row in rows if row["score_live"] is not None]
    return FleetReport(
        devices=len(folders),
        failed=failed,
        frames=len(flags),
        answered=float(np.mean(flags)) if flags else None,
        uploads=sum(_count_uploads(run) for run in runs),
        updates=sum(row["updates"] for row in rows),
        up_bytes=sum(row["uplink_bytes"] for row in rows),
        down_bytes=sum(row["downlink_bytes"] for row in rows),
        score_live=float(np.mean(scores)) if scores else None,
        wait_p50_s=float(np.percentile(waits, 50)) if waits else None,
        wait_p95_s=float(np.percentile(waits, 95)) if waits else None,
    )


def _count_uploads(run: Run) -> int:
    rows = run.table("transfers").select(["direction", "kind"]).to_pylist()
    return sum(row["direction"] == "up" and row["kind"] == "samples" for row in rows)
