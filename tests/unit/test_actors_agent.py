"""The stand-in for the dashboard agent of Ray has no ports, and ends with its parent."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
from ray import _raylet
from ray._private import services

from driftlab.actors import agent, cluster

STARTER = '"$@" & echo $!; read line'  # ends with its input
LIMIT_S = 60


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_writes_its_ports_and_ends_with_its_parent(tmp_path):
    command = [sys.executable, agent.__file__, f"--session-dir={tmp_path}", "--node-id=ab", "--head"]
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", STARTER, "sh", *command], stdin=pipe, stdout=pipe, text=True) as raylet:
        started = psutil.Process(int(raylet.stdout.readline()))
        wait_until(lambda: len([*tmp_path.glob("*_ab")]) == len(agent.PORTS))
        assert started.is_running()
        raylet.stdin.close()
    started.wait(LIMIT_S)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {f"{name}_ab": "-1" for name in agent.PORTS}


def test_its_files_are_those_of_ray():
    names = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")
    assert tuple(getattr(_raylet, name) for name in names) == agent.PORTS


def test_only_clusters_without_a_dashboard_have_it(monkeypatch):
    started = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, *args, **named: started.append(command))
    command = ["raylet", f"--dashboard_agent_command=python -u {services.RAY_PATH}/dashboard/agent.py --head"]
    with cluster.unwatched():
        services.start_ray_process(command, "raylet", fate_share=True)
    services.start_ray_process(command, "raylet", fate_share=True)
    assert started == [["raylet", f"--dashboard_agent_command=python -u {agent.__file__} --head"], command]
