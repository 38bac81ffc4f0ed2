"""How a run on Ray ends when its driver is killed or interrupted: nothing stays behind, and the run can go on."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import yaml

from driftlab.actors import cluster
from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.lab.run import resume, run
from driftlab.platform.results.diff import differences

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LIMIT_S = 120
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
    """A file; while it is there, half of the cells cannot end, however long the test takes to end their driver."""
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
        "pictures": 0,
        "bounds": False,
        "student": {"network": "half", "pretrain_steps": 2},
    }


@pytest.fixture(scope="module")
def alone(experiment, tmp_path_factory):
    """Run in one process, to its end."""
    return run(experiment, out=tmp_path_factory.mktemp("inline")).directory


@pytest.fixture
def at_work(no_ray, alone, experiment, held, tmp_path):
    """A driver on Ray in a process group of its own, as a terminal starts it; some of its cells are done."""
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
            while "cell 1/" not in (line := driver.stderr.readline()):
                assert line, "it ended before a cell was done"
            yield driver
        finally:
            driver.kill()
            held.unlink(missing_ok=True)


def folder_of(driver):
    """Find where the Ray of a driver has its files."""
    (folder,) = Path(tempfile.gettempdir()).glob(f"{cluster.PREFIX}{driver.pid}-*")
    return folder


def processes_of(folder):
    return [process for process in psutil.process_iter() if cluster._belongs(process, folder)]


@contextlib.contextmanager
def hung(folder):
    """A process that looks like one of a Ray's and does not notice that the others are gone.

    Stopping a real actor is no such process: its group loses its last parent with the raylet, and then the kernel
    hangs up on stopped members.
    """
    command = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    with subprocess.Popen(command, env=os.environ | {cluster.MARK: str(folder)}, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_a_killed_driver_leaves_nothing_that_the_next_run_would_not_clear_up(at_work, alone, held, tmp_path):
    folder = folder_of(at_work)
    at_work.kill()
    assert at_work.wait(LIMIT_S) == -signal.SIGKILL
    held.unlink()
    with hung(folder) as stuck:
        assert stuck in processes_of(folder)
        outcome = resume(tmp_path / "run", open_backend=lambda: RayBackend(ClusterConfig(workers=1)))
        assert processes_of(folder) == []
    assert outcome.failed == ()
    assert outcome.kept > 0
    assert outcome.done > 1
    assert not folder.exists()
    assert differences(alone, tmp_path / "run") == []


@pytest.mark.parametrize(("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)])
def test_a_stopped_run_ends_all_that_it_started_and_says_how_to_go_on(at_work, alone, held, tmp_path, send, number):
    """Ctrl-C reaches the driver and all that it has started, what a job manager sends the driver alone."""
    folder = folder_of(at_work)
    assert processes_of(folder)
    send(at_work.pid, number)
    held.unlink()
    said = at_work.communicate(timeout=LIMIT_S)[1]
    assert at_work.returncode == 128 + number
    assert said.endswith(f"To go on: driftlab run --resume {tmp_path / 'run'}\nInterrupted.\n")
    assert processes_of(folder) == []
    assert not folder.exists()
    outcome = resume(tmp_path / "run")
    assert outcome.failed == ()
    assert outcome.done > 0
    assert differences(alone, tmp_path / "run") == []
