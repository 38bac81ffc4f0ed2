"""Disturb a run on Ray: kill actors, raylet, control store and driver, or stop them for a while.

On a busy machine a run may also fail without a fault. A run that ends with exit code 1 and one message is no
difference: it is counted, its logs of Ray are stored, and the resumed run must have the same tables.
"""

from __future__ import annotations

import contextlib
import os
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
from driftlab.platform.lab.read import Experiment

RUN_S, GONE_S, LOST_S = 600.0, 15.0, 60.0
LOOK_S, FAILED = 0.2, 1
ACTOR_FAULTS = 8
STOPS = {"stop": signal.SIGTERM, "interrupt": signal.SIGINT}
HEADS = ("raylet", "gcs_server")
ENDS = ("driver", *HEADS, *STOPS, "none")
Say = Callable[[str], None]


def disturb_on_ray(spec: Experiment, run: Path, logs: Path, dice: random.Random, say: Say) -> Iterator[str]:
    """Start or resume a run on Ray, disturb it, and yield each violation.

    Actors are killed and stopped, then perhaps Ray or the driver. The driver's output and Ray's logs are linked into a
    folder, where they outlive the session.
    """
    words = ["run", "--resume", str(run)]
    if not (run / "spec.yaml").exists():
        file = run.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
        words = ["run", str(file), "--out", str(run)]
    logs.mkdir()
    with driven([*words, "--workers", "1", "--devices-per-actor", "1"], run) as driver:
        os.link(log_of(run), logs / log_of(run).name)
        mark = _await_actors(driver, logs)
        for _ in range(dice.randint(1, ACTOR_FAULTS)):
            time.sleep(dice.uniform(0, 2.0))
            keep_logs(mark, logs)
            if driver.poll() is None and (fault := _actor_fault(dice)):
                say(f"  actor: {fault}")
        end = dice.choice(ENDS)
        if driver.poll() is not None:
            end = "none"
        wrong = list(end_driver(driver, end, say))
    if driver.returncode == FAILED:
        reason = clean_failure(log_of(run).read_text(encoding="utf-8", errors="replace"))
        wrong = [] if reason else [f"it failed without one message that names `--resume`, after {end}"]
        if reason and end not in HEADS:
            say(f"failed: {reason}")
    yield from wrong
    yield from left_running(mark, end)


def log_of(run: Path) -> Path:
    """Return the file with the output of the last driver of a run."""
    return run.with_suffix(".log")


@contextlib.contextmanager
def driven(words: Sequence[str], run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start driftlab in a child process, which is killed at the end of the block if it still runs."""
    log_of(run).unlink(missing_ok=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    with log_of(run).open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-m", "driftlab", *words], stdout=log, stderr=log)
        signal.signal(signal.SIGINT, before)
        try:
            yield driver
        finally:
            driver.kill()
            driver.wait()


def clean_failure(output: str) -> str | None:
    """Return the only message of a failed run that names a reason and `--resume`; otherwise None."""
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    if len(errors) != 1 or "Traceback (most recent call last)" in output or " --resume " not in output:
        return None
    return errors[0].removeprefix("Error: ")


def left_running(mark: str | None, end: str) -> Iterator[str]:
    """Name the processes of a Ray that outlive their driver."""
    deadline = time.monotonic() + GONE_S
    while mark and watchdog.processes_of(mark) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    yield from (f"left running after {end}: {process}" for process in (watchdog.processes_of(mark) if mark else ()))


def _await_actors(driver: subprocess.Popen[bytes], logs: Path) -> str | None:
    """Wait for the first actor, or the end; return the folder of the driver's Ray."""
    mark, deadline = None, time.monotonic() + RUN_S
    while driver.poll() is None and time.monotonic() < deadline:
        mark = mark or mark_of(driver)
        keep_logs(mark, logs)
        if faults.actor_processes():
            break
        time.sleep(LOOK_S)
    return mark


def keep_logs(mark: str | None, kept: Path) -> None:
    """Link the existing logs of a Ray into a folder on the same disk."""
    for file in Path(mark).glob("session_2*/logs/*") if mark else ():
        with contextlib.suppress(OSError):  # a folder, linked before, or just removed
            os.link(file, kept / file.name)


def mark_of(driver: subprocess.Popen[bytes]) -> str | None:
    """Return the folder of the Ray that the driver has started; None if there is none."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(driver.pid).children():
            with contextlib.suppress(psutil.Error):
                if mark := child.environ().get(watchdog.MARK):
                    return str(mark)
    return None


def _actor_fault(dice: random.Random) -> str | None:
    """Kill an actor, or stop it for a while, as on a machine that is short of memory."""
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
    """End the run by a fault, or let it end; yield a line if its end is not allowed."""
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
        allowed = (0, FAILED)
    if end != "none":
        say(f"  head: {end}")
    try:
        code = driver.wait(RUN_S if end == "none" else LOST_S)
    except subprocess.TimeoutExpired:
        yield f"it did not end after {end}"
        return
    if code not in allowed:
        yield f"it ended with {code} after {end}"
