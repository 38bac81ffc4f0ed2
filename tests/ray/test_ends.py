"""The end of a Ray run that is killed or interrupted: no process remains, and the run can resume."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from driftlab.actors import watchdog
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.actors.folders import MARKER
from driftlab.platform.lab.seal import resume, run
from driftlab.platform.results.tables.diff import differences

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LIMIT_S = 120
GONE_S = 5.0  # limit for all processes to end after the driver was killed
SAID_S = 2.0  # limit for the message about a signal; it is immediate unless the computer is busy
STOPPED_S = 10.0  # limit for the run to end after a signal
LOST_S = 30.0  # limit for the message about the loss of Ray, half of the time that Ray gets for its start
HELD = """
import time
from dataclasses import dataclass
from pathlib import Path

from driftlab.platform.streaming.ams import Ams


@dataclass(frozen=True)
class Held(Ams):
    while_there: str = ""

    def plan_uplink(self, state, session, now_s, seen):
        while Path(self.while_there).exists():
            time.sleep(0.01)
        return super().plan_uplink(state, session, now_s, seen)
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Create a file; while it exists, half of the cells wait, so that the driver still runs when killed."""
    return tmp_path_factory.mktemp("held") / "held"


@pytest.fixture(scope="module")
def experiment(held):
    member = held.with_suffix(".py")
    member.write_text(HELD)
    streaming = {"name": f"{member}:Held", "while_there": str(held)}
    return {
        "name": "ended",
        "systems": [
            "no_custom",
            {"name": "held", "streaming": streaming, "adaptation": {"name": "distill", "iterations": 3}},
        ],
        "workloads": [{"name": "streets/running", "duration_s": 12, "fps": 2, "height": 32, "width": 48}],
        "seeds": [0, 1],
        "snapshots": 0,
        "bounds": False,
        "student": {"network": "half", "pretrain_steps": 2},
    }


@pytest.fixture(scope="module")
def alone(experiment, tmp_path_factory):
    """A finished run in one process."""
    return run(experiment, out=tmp_path_factory.mktemp("inline")).directory


@pytest.fixture
def started(no_ray, experiment, held, tmp_path):
    """A driver on Ray in a separate process group, as a terminal starts it."""
    held.touch()
    file = tmp_path / "ended.yaml"
    file.write_text(yaml.safe_dump(experiment))
    command = [sys.executable, "-m", "driftlab", "run", str(file), "--workers", "1", "--out", str(tmp_path / "run")]
    as_usual = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background ignores it
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=as_usual,
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()
            held.unlink(missing_ok=True)


@pytest.fixture
def at_work(started, alone):
    """A driver that has finished some of its cells."""
    while "cell 1/" not in (line := started.stderr.readline()):
        assert line, "it ended before a cell was done"
    return started


def heads_of(driver):
    """Return the processes of Ray that a driver has started directly, by their names."""
    heads = {}
    for child in psutil.Process(driver.pid).children():
        with contextlib.suppress(psutil.Error):
            if watchdog.MARK in child.environ():  # empty for a moment while a process starts
                heads[child.name()] = child
    return heads


def folder_of(driver):
    """Return the folder of a driver's Ray."""
    return Path(heads_of(driver)["raylet"].environ()[watchdog.MARK])


def processes_of(folder):
    return watchdog.processes_of(str(folder))


def eventually(condition, within_s):
    """Wait for a condition and return its value; a false one if it is not met in time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def hung(folder):
    """A process with a name of Ray's that does not notice the end of the others.

    Stopping a real actor is no such process: its group loses its last parent with the raylet, and then the kernel
    hangs up on stopped members.
    """
    command = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    with subprocess.Popen(command, env=os.environ | {watchdog.MARK: str(folder)}, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_the_processes_of_a_killed_driver_end_and_the_next_run_deletes_its_folder(at_work, alone, held, tmp_path):
    folder = folder_of(at_work)
    with hung(folder) as stuck:
        assert stuck in processes_of(folder)
        at_work.kill()
        assert at_work.wait(LIMIT_S) == -signal.SIGKILL
        killed_s = time.monotonic()
        assert eventually(lambda: not processes_of(folder), GONE_S)
    printed = at_work.stderr.read()  # ends when the watchdog, which has it open too, has ended
    assert time.monotonic() - killed_s < GONE_S
    assert f"To go on: driftlab run --resume {tmp_path / 'run'}" in printed.splitlines()[-1]
    held.unlink()
    assert (folder / MARKER).is_file()
    outcome = resume(tmp_path / "run", open_backend=lambda: RayBackend(ClusterConfig(workers=1, placement="cells")))
    assert outcome.failed == ()
    assert outcome.kept > 0
    assert outcome.done > 1
    assert not folder.exists()
    assert differences(alone, tmp_path / "run") == []


@pytest.mark.parametrize(("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)])
def test_a_stopped_run_ends_its_processes_and_prints_how_to_resume(at_work, alone, held, tmp_path, send, number):
    """Ctrl-C reaches the driver and its children, the signal of a job manager the driver only."""
    folder = folder_of(at_work)
    assert processes_of(folder)
    sent_s = time.monotonic()
    send(at_work.pid, number)
    printed = at_work.stderr.readline()
    while printed and not printed.startswith("Stopping: "):
        printed = at_work.stderr.readline()
    assert printed, "it never said that it was about to stop"
    assert time.monotonic() - sent_s < SAID_S
    held.unlink()
    printed = at_work.communicate(timeout=LIMIT_S)[1]
    assert at_work.returncode == 128 + number
    assert printed.endswith(f"To go on: driftlab run --resume {tmp_path / 'run'}\nInterrupted.\n")
    assert processes_of(folder) == []
    assert not folder.exists()
    outcome = resume(tmp_path / "run")
    assert outcome.failed == ()
    assert outcome.done > 0
    assert differences(alone, tmp_path / "run") == []


@pytest.mark.parametrize(("head", "number"), [("gcs_server", signal.SIGINT), ("raylet", signal.SIGTERM)])
def test_a_run_that_is_stopped_while_ray_starts_ends_its_processes(started, tmp_path, head, number):
    assert eventually(lambda: head in heads_of(started), LIMIT_S)
    folder = Path(heads_of(started)[head].environ()[watchdog.MARK])
    sent_s = time.monotonic()
    started.send_signal(number)
    assert started.stderr.readline().startswith("Stopping: ")
    assert time.monotonic() - sent_s < SAID_S
    printed = started.communicate(timeout=LIMIT_S)[1]
    assert time.monotonic() - sent_s < STOPPED_S
    assert (started.returncode, printed) == (
        128 + number,
        f"To go on: driftlab run --resume {tmp_path / 'run'}\nInterrupted.\n",
    )
    assert processes_of(folder) == []
    assert not folder.exists()


@pytest.mark.parametrize("head", ["gcs_server", "raylet"])
def test_a_run_that_loses_ray_prints_one_error_and_ends(at_work, tmp_path, head):
    folder = folder_of(at_work)
    heads_of(at_work)[head].kill()
    killed_s = time.monotonic()
    printed = at_work.communicate(timeout=LIMIT_S)[1]
    assert time.monotonic() - killed_s < LOST_S
    assert at_work.returncode == 1
    lines = [line for line in printed.splitlines() if not line.startswith("cell ") and "% done" not in line]
    assert len(lines) == 1, printed
    (line,) = lines
    assert line.startswith("Error: Ray's ")
    assert f"({head}) has ended" in line
    assert line.endswith(f"To go on: driftlab run --resume {tmp_path / 'run'}")
    assert processes_of(folder) == []


@pytest.mark.parametrize("head", ["gcs_server", "raylet"])
def test_a_run_whose_ray_ends_during_its_start_prints_one_error(started, head):
    assert eventually(lambda: head in heads_of(started), LIMIT_S)
    time.sleep(0.3)
    heads_of(started)[head].kill()
    killed_s = time.monotonic()
    printed = started.communicate(timeout=LIMIT_S)[1]
    assert time.monotonic() - killed_s < LOST_S
    assert started.returncode == 1
    (line,) = printed.splitlines()
    assert line.startswith("Error: Ray did not start on this machine: ")
    assert "--resume" in line


def test_a_start_of_ray_times_out(no_ray, tmp_path):
    program = (
        "from driftlab.actors import cluster\nfrom driftlab.cli.app import main\n"
        "cluster.START_TIMEOUT_S = 0.5\nmain()\n"
    )
    words = ["run", "quick", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        assert eventually(lambda: "gcs_server" in heads_of(driver), LIMIT_S)
        folder = Path(heads_of(driver)["gcs_server"].environ()[watchdog.MARK])
        seen_s = time.monotonic()
        printed = driver.communicate(timeout=LIMIT_S)[1].splitlines()
    assert time.monotonic() - seen_s < LOST_S
    assert driver.returncode == 1
    assert printed[0] == f"To go on: driftlab run --resume {tmp_path / 'run'}"
    assert printed[1].startswith("Error: Ray did not start on this machine: no reply within 0.5 s. Try again")
    assert len(printed) == 2
    assert processes_of(folder) == []
