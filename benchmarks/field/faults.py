"""Kill the server and the device of a session, cut its network, and check its results afterwards."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks.field.processes import START_S, ServerProcess, spawned
from benchmarks.field.proxy import Proxy
from driftlab.platform.field.client import ServerUnavailable
from driftlab.platform.field.journal import FILE, FLUSH_S, read_entries
from driftlab.platform.results.tables.read import Run, open_run

KINDS = ("server", "device", "cut", "drop")
STREAM = ["--workload", "streets/running", "--fps", "4", "--size", "32x48", "--network", "half"]
PAUSE_S = (2.0, 6.0)  # between two faults
CUT_S = (3.0, 20.0)
MIN_PROCESSED_SHARE = 0.8  # of the frames with a row
LATE_S = 3.0  # before the end of the stream; later results may miss it
MAX_GAP_S = 5.0  # between two predictions, unless the device was killed between them
MAX_LOST_S = FLUSH_S + 2.0  # of rows, at a kill


@dataclass
class Disturbed:
    """One session and the faults that it went through."""

    folder: Path
    server: ServerProcess
    dice: random.Random
    seconds: float
    kinds: Sequence[str] = KINDS
    done: list[str] = field(default_factory=list)
    kills: int = 0  # of the device, which then had a journal
    lost: list[str] = field(default_factory=list)  # violations at a kill

    def run(self, faults: int) -> list[str]:
        """Play a stream through faults; return the violations at its end."""
        proxy = Proxy(self.server.port)
        try:
            device = self._device("--server", proxy.url, "--out", str(self.folder / "run"), *STREAM)
            self._wait_for_session()
            until_s = time.monotonic() + self.seconds - max(CUT_S) - PAUSE_S[1]
            for _ in range(faults):
                if time.monotonic() > until_s:
                    break
                time.sleep(self.dice.uniform(*PAUSE_S))
                device = self._disturb(self.dice.choice([*self.kinds, *self.server.parts]), device, proxy)
            code = device.wait(self.seconds + START_S)
        finally:
            proxy.close()
        return [f"the device ended with {code}"] if code else list(self._faults())

    def _disturb(self, kind: str, device: Popen[str], proxy: Proxy) -> Popen[str]:
        description = kind
        if kind == "server":
            self.server.kill()
            time.sleep(self.dice.uniform(0.0, 4.0))
            self.server.start()
        elif kind in self.server.parts:
            if not self.server.kill_part(kind):
                return device
        elif kind == "device" and (self.folder / "run/field.json").exists() and device.poll() is None:
            device.send_signal(signal.SIGKILL)
            device.wait()
            killed_s = time.time()
            self._check_journal(killed_s)
            device = self._device("--resume", str(self.folder / "run"))
            self._wait_for_rows(device, killed_s)
        elif kind == "cut":
            seconds = self.dice.uniform(*CUT_S)
            proxy.cut(seconds)
            description = f"cut for {seconds:.1f} s"
        elif kind == "drop":
            proxy.drop()
        else:
            return device
        self.done.append(description)
        return device

    def _check_journal(self, killed_s: float) -> None:
        """Record a violation if the rows on disk end too long before the kill."""
        entries = read_entries(self.folder / "run" / FILE)
        if not entries or killed_s - entries[-1].clocks.wall_s > MAX_LOST_S:
            age = "no" if not entries else f"{killed_s - entries[-1].clocks.wall_s:.1f} s old"
            self.lost.append(f"{age} rows on disk at a kill")
        self.kills += 1

    def _wait_for_rows(self, device: Popen[str], since_s: float) -> None:
        """Wait until a resumed device has rows on disk: the next kill then meets one that is recording."""
        journal, until_s = self.folder / "run" / FILE, time.monotonic() + START_S
        while device.poll() is None and max((one.clocks.wall_s for one in read_entries(journal)), default=0) < since_s:
            if time.monotonic() > until_s:
                self.lost.append(f"no rows on disk {START_S:g} s after a restart")
                return
            time.sleep(0.2)

    def _device(self, *words: str) -> Popen[str]:
        system = ["--system", "ams", "--pretrain-steps", "2", "--seconds", f"{self.seconds:g}"]
        options = system if "--server" in words else []
        return spawned("-m", "driftlab", "device", "--json", *words, *options, log=self.folder / "device.log")

    def _wait_for_session(self) -> None:
        until_s = time.monotonic() + START_S
        while not (self.folder / "run/field.json").exists():
            if time.monotonic() > until_s:
                raise RuntimeError((self.folder / "device.log").read_text(encoding="utf-8")[-2000:])
            time.sleep(0.2)

    # At the end -----------------------------------------------------------------------------------------------------

    def _faults(self) -> Iterator[str]:
        ticket = json.loads((self.folder / "run/field.json").read_text(encoding="utf-8"))
        status, rounds = settled(self.server, ticket["id"])
        run = open_run(self.folder / "run")
        yield from self.lost
        yield from prediction_faults(run, self.kills)
        yield from server_faults(status, rounds)
        report = self._last_report()  # without a server at the end, any result may be missing
        late = sum(bool(report["away"]) or one["time_s"] > self.seconds - LATE_S for one in rounds)
        yield from version_faults(run, status["version"], report["version"], late)

    def _last_report(self) -> dict[str, Any]:
        lines = (self.folder / "device.log").read_text(encoding="utf-8")
        report: dict[str, Any] = json.loads(lines[lines.rindex("\n{") :] if "\n{" in lines else lines)
        return report


def settled(server: ServerProcess, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the status and the rounds of a session as soon as the server has used every upload."""
    client, until_s = server.client(), time.monotonic() + START_S
    while True:
        try:
            status = client.ask_json("GET", f"/sessions/{name}")
            rounds = client.ask_json("GET", f"/sessions/{name}/rounds")
            if used_of(rounds) == status["uploads"] or status["fault"] or time.monotonic() > until_s:
                return status, rounds
        except ServerUnavailable:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.2)


def prediction_faults(run: Run, kills: int = 0) -> Iterator[str]:
    """Yield a violation if the device stopped predicting, other than at a kill."""
    frames = run.frame("frames")
    share, gaps_s = frames["processed"].mean(), frames[frames["processed"]]["time_s"].diff()
    if frames["frame"].duplicated().any():
        yield "frames have several rows"
    if share < MIN_PROCESSED_SHARE:
        yield f"only {share:.0%} of the frames were processed"
    if (gaps_s > MAX_GAP_S).sum() > kills:
        yield f"no prediction for {gaps_s.max():.1f} s"


def used_of(rounds: list[dict[str, Any]]) -> int:
    """Count the uploads that rounds have used."""
    return sum(one["row"]["uploads"] for one in rounds)


def server_faults(status: dict[str, Any], rounds: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a violation if an acknowledged upload was lost or used twice."""
    used = used_of(rounds)
    if status["fault"]:
        yield f"the session failed: {status['fault']}"
    if used != status["uploads"]:
        yield f"{status['uploads']} uploads were acknowledged and {used} used"
    if [one["number"] for one in rounds] != list(range(1, len(rounds) + 1)):
        yield f"results are numbered {[one['number'] for one in rounds]}"


def version_faults(run: Run, served: int, ended: int, late: int) -> Iterator[str]:
    """Yield a violation if versions went back, an update was applied twice, or the last versions differ.

    The device may end as many versions behind the server as there were late results.
    """
    versions, updates = run.frame("frames")["version"], run.frame("updates")
    taken = updates[updates["version"].notna()]["version"].astype(int).tolist()
    if not versions.is_monotonic_increasing:
        yield "versions went back"
    if len(set(taken)) != len(taken):
        yield f"updates were applied twice: {taken}"
    if not served - late <= ended <= served:
        yield f"the device ended on version {ended}, the server on {served}, {late} of them late"
