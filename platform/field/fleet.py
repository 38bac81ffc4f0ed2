"""Many devices against one server, for load: each with a session and a stream of its own, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from driftlab.errors import DriftlabError, first_line
from driftlab.platform.field.agent import Agent, join
from driftlab.platform.field.request import SessionAsked
from driftlab.platform.field.tables import write_run
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.beside import update_waits
from driftlab.platform.results.tables.read import Run, open_run

MOST_DEVICES = 1000


@dataclass(frozen=True)
class FleetReport:
    """What became of a fleet."""

    devices: int
    failed: int
    frames: int
    answered: float | None  # share of the frames that were processed
    uploads: int
    updates: int
    up_bytes: int
    down_bytes: int
    score: float | None  # mean of the devices
    wait_p50_s: float | None  # from an upload to the update that was trained on it
    wait_p95_s: float | None


class Fleet:
    """Devices that join one after another and begin at even distances within a spread of time."""

    def __init__(self, server: str, token: str, asked: Sequence[SessionAsked], folder: Path) -> None:
        self.server, self.token, self.asked, self.folder = server, token, asked, folder
        self.faults: list[str] = []
        self._stop = threading.Event()

    def run(self, spread_s: float, tell: Callable[[str], None] = lambda line: None) -> FleetReport:
        """Open every session, play every stream, and summarise the tables."""
        agents = []
        for number, asked in enumerate(self.asked):
            agents.append(Agent(join(self.server, self.token, asked)))
            tell(f"{number + 1} of {len(self.asked)} devices have a session")
        delays = np.linspace(0.0, spread_s, len(agents), endpoint=False)
        threads = [
            threading.Thread(target=self._play, args=(number, agent, delay), daemon=True)
            for number, (agent, delay) in enumerate(zip(agents, delays.tolist(), strict=True))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
        return report_of([self._place(number) for number in range(len(agents))], len(self.faults))

    def _place(self, number: int) -> Path:
        return self.folder / f"device-{number:04d}"

    def _play(self, number: int, agent: Agent, delay_s: float) -> None:
        if self._stop.wait(delay_s):
            return
        try:
            with create_run(agent.cell.experiment, self._place(number)) as directory:
                agent.begin(directory)
                agent.run()
                write_run(agent, directory)
        except DriftlabError as error:
            self.faults.append(f"device {number}: {first_line(error)}")


def report_of(folders: Sequence[Path], failed: int) -> FleetReport:
    """Summarise the tables of some devices."""
    runs = [open_run(folder) for folder in folders if (folder / "tables").is_dir()]
    rows = [row for run in runs for row in run.table("runs").to_pylist()]
    processed = [flag for run in runs for flag in run.table("frames")["processed"].to_pylist()]
    waits = [
        wait_s for run in runs for row in run.table("runs").to_pylist() for wait_s in update_waits(run, row["cell"])
    ]
    scores = [row["score"] for row in rows if row["score"] is not None]
    return FleetReport(
        devices=len(folders),
        failed=failed,
        frames=len(processed),
        answered=float(np.mean(processed)) if processed else None,
        uploads=sum(len(_queued(run)) for run in runs),
        updates=sum(row["updates"] for row in rows),
        up_bytes=sum(row["uplink_bytes"] for row in rows),
        down_bytes=sum(row["downlink_bytes"] for row in rows),
        score=float(np.mean(scores)) if scores else None,
        wait_p50_s=float(np.percentile(waits, 50)) if waits else None,
        wait_p95_s=float(np.percentile(waits, 95)) if waits else None,
    )


def _queued(run: Run) -> list[float]:
    """List when the uploads of a device were handed over."""
    rows = run.table("transfers").select(["direction", "kind", "queued_s"]).to_pylist()
    return [row["queued_s"] for row in rows if row["direction"] == "up" and row["kind"] == "samples"]
