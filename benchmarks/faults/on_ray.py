"""Faults of a run on Ray: actors, raylet, control store and driver are killed, or stopped for a while."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import yaml

from driftlab.actors import faults, watchdog
from driftlab.platform.request.experiment import Experiment

RUN_S, GONE_S, LOST_S = 600.0, 15.0, 60.0
ACTOR_FAULTS = 8
NOT_STARTED = "Ray did not start on this machine"
STOPS = {"stop": signal.SIGTERM, "interrupt": signal.SIGINT}
ENDS = ("driver", "raylet", "gcs_server", *STOPS, "none")
Say = Callable[[str], None]


def disturb_on_ray(spec: Experiment, run: Path, dice: random.Random, say: Say) -> Iterator[str]:
    """Run on Ray, or go on; kill and stop its actors, then perhaps Ray or the driver. Yield what should not be."""
    words = ["run", "--resume", str(run)]
    if not (run / "spec.yaml").exists():
        file = run.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
        words = ["run", str(file), "--out", str(run)]
    end, mark = "none", None
    with driven([*words, "--workers", "1", "--rack", "1"], run) as driver:
        _await_actors(driver)
        mark = mark_of(driver)
        for _ in range(dice.randint(1, ACTOR_FAULTS)):
            time.sleep(dice.uniform(0, 2.0))
            if driver.poll() is None and (told := _actor_fault(dice)):
                say(f"  actor: {told}")
        end = dice.choice(ENDS)
        wrong = list(end_driver(driver, end, say))
        if NOT_STARTED not in log_of(run).read_text(encoding="utf-8"):  # it says why, and the next one goes on
            yield from wrong
    yield from left_running(mark, end)


def log_of(run: Path) -> Path:
    """Name the file with what the last driver of a run has said."""
    return run.with_suffix(".log")


@contextlib.contextmanager
def driven(words: Sequence[str], run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start driftlab in a process of its own, which ends with the block at the latest."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    with log_of(run).open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-m", "driftlab", *words], stdout=log, stderr=log)
        signal.signal(signal.SIGINT, before)
        try:
            yield driver
        finally:
            driver.kill()
            driver.wait()


def left_running(mark: str | None, end: str) -> Iterator[str]:
    """Name the processes of a Ray that outlive their driver."""
    deadline = time.monotonic() + GONE_S
    while mark and watchdog.processes_of(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    yield from (f"left running after {end}: {process}" for process in (watchdog.processes_of(mark) if mark else ()))


def _await_actors(driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + RUN_S
    while driver.poll() is None and not faults.actor_processes() and time.monotonic() < deadline:
        time.sleep(0.05)


def mark_of(driver: subprocess.Popen[bytes]) -> str | None:
    """Find the folder of the Ray that the driver has started."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(driver.pid).children():
            with contextlib.suppress(psutil.Error):
                if mark := child.environ().get(watchdog.MARK):
                    return str(mark)
    return None


def _actor_fault(dice: random.Random) -> str | None:
    """Kill an actor, or let it stand still for a while, as on a machine that is short of memory."""
    if dice.random() < 0.7:
        title = faults.kill_one(dice)
        return title and f"SIGKILL {title}"
    actors = faults.actor_processes()
    if not actors:
        return None
    victim, pause_s = dice.choice(actors), dice.uniform(0.1, 2.0)
    with contextlib.suppress(psutil.Error):
        title = (victim.cmdline() or ["?"])[0]
        victim.suspend()
        time.sleep(pause_s)
        victim.resume()
        return f"SIGSTOP {title} for {pause_s:.1f} s"
    return None


def end_driver(driver: subprocess.Popen[bytes], end: str, say: Say) -> Iterator[str]:
    """End the run by a fault, or let it end; yield what is wrong with how it ends."""
    if driver.poll() is not None:
        end = "none"
    allowed: tuple[int, ...] = (0,)
    if end == "driver":
        driver.kill()
        allowed = (-signal.SIGKILL,)
    elif end in STOPS:
        driver.send_signal(STOPS[end])
        allowed = (0, 128 + STOPS[end])
    elif end != "none":
        heads = [child for child in psutil.Process(driver.pid).children() if child.name() == end]
        for head in heads:
            head.kill()
        allowed = (0, 1)
    if end != "none":
        say(f"  {end}: signalled")
    try:
        code = driver.wait(RUN_S if end == "none" else LOST_S)
    except subprocess.TimeoutExpired:
        yield f"it did not end after {end}"
        return
    if code not in allowed:
        yield f"it ended with {code} after {end}"
