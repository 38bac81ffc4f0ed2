"""A job on a local cluster, by the command of the deploy file."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml
from documents_factory import TINY
from sockets_factory import free_ports, listening, on_network

from driftlab.actors import deploy
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run

START_S, JOB_S, STOP_S = 120, 240, 30
EVERY_TASK = "api/v0/tasks?limit=10000"  # as `ray list tasks` asks, which takes seconds to start
LOOPBACK = Path(__file__).parent / "loopback"
BIN = Path(sys.executable).parent
DOCUMENT = {**TINY, "systems": ["no_custom", TINY["systems"][2]], "seeds": [0, 1]}


def entrypoint() -> list[str]:
    """Return the words of the command in the file for KubeRay."""
    job, *_ = yaml.safe_load_all((Path(deploy.__file__).parent / "rayjob.yaml").read_text())
    return shlex.split(job["spec"]["entrypoint"])


def is_listening(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=5):
            return True
    except urllib.error.HTTPError:  # the request has no token
        return True
    except OSError:
        return False


def names_of_tasks(address: str) -> set[str]:
    """Return the names of a cluster's tasks."""
    token = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    asked = urllib.request.Request(f"{address}/{EVERY_TASK}", headers=token)
    with urllib.request.urlopen(asked, timeout=START_S) as reply:
        return {task["name"] for task in json.load(reply)["data"]["result"]["result"]}


@pytest.fixture
def head(no_ray, tmp_path, monkeypatch):
    """The address of the job server of a new cluster with a token."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")  # of jobs too
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(LOOPBACK), os.environ["PYTHONPATH"]]))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    port, dashboard, agent, client = free_ports(4)
    folder = tempfile.mkdtemp(prefix="job-")  # that of pytest is too long for sockets
    command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=1", f"--port={port}", "--include-dashboard=true"]
    command += ["--no-monitor", "--include-log-monitor=false"]  # no test uses them
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += [f"--temp-dir={folder}", "--object-store-memory=100000000", "--disable-usage-stats"]
    log = (tmp_path / "head.log").open("w")
    started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    address, deadline = f"http://127.0.0.1:{dashboard}", time.monotonic() + START_S
    try:
        while not is_listening(address):
            assert started.poll() is None, (tmp_path / "head.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "head.log").read_text()
            time.sleep(0.5)
        processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
        assert not on_network(listening(processes))
        yield address
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(STOP_S)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            log.close()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_submitted_job_has_the_tables_of_one_process_and_names_its_cells(head, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(DOCUMENT))
    words = entrypoint()
    words[words.index("demo-streaming")] = str(tmp_path / "tiny.yaml")
    words[words.index("/runs/demo")] = str(tmp_path / "job")
    submit = [BIN / "ray", "job", "submit", "--address", head, "--", *words]
    deadline = time.monotonic() + START_S
    done = subprocess.run(submit, capture_output=True, text=True, timeout=JOB_S, check=False)
    while "No available agent" in done.stderr and time.monotonic() < deadline:  # it starts after the job server
        time.sleep(1)
        done = subprocess.run(submit, capture_output=True, text=True, timeout=JOB_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    alone = run(DOCUMENT, out=tmp_path / "alone")
    assert differences(alone.directory, tmp_path / "job") == []
    cells = open_run(alone.directory).table("runs")["cell"].to_pylist()
    assert {f"Cell {cell}" for cell in cells} <= names_of_tasks(head)
