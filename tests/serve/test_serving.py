"""The walk-through of docs/serve.md on Ray Serve: one server, devices in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import cv2
import numpy as np
import psutil
import pytest
from served_factory import TOKEN
from sockets_factory import listening, on_network

from driftlab.errors import RequestError
from driftlab.platform.backend.inline import InlineBackend
from driftlab.platform.field.client import Client, ServerAway
from driftlab.platform.field.request import experiment_of, read_asked
from driftlab.platform.grid.progress import Progress
from driftlab.platform.grid.run import create_run, execute
from driftlab.platform.results.tables.read import open_run, read_info

START_S = 240  # on a busy machine
STREAM = ["--workload", "streets/running", "--fps", "4", "--size", "32x48", "--network", "half"]
OPENED = {
    "workload": {"name": "streets/running", "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}
SHORT = [*STREAM, "--pretrain-steps", "2", "--system", "just_in_time"]


def driftlab(*words, **options):
    environment = {**os.environ, "DRIFTLAB_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "driftlab", *map(str, words)]
    return subprocess.Popen(command, env=environment, text=True, **options)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("served")
    with (folder / "said.log").open("w") as said:
        process = driftlab("serve", "--port", port, "--folder", folder / "kept", stdout=subprocess.PIPE, stderr=said)
    line = next(line for line in process.stdout if line.startswith("server"))
    assert str(port) in line
    yield process, f"http://127.0.0.1:{port}", folder / "said.log"
    process.terminate()
    process.wait(60)


def device(url, out, seconds, *words):
    return driftlab("device", "--server", url, "--seconds", seconds, "--out", out, *words, stdout=subprocess.PIPE)


def unadapted_score(folder, seconds):
    """Run the same stream in the lab with the network as it was built."""
    workload = {"name": "streets/running", "duration_s": seconds, "fps": 4, "height": 32, "width": 48}
    student = {"network": "half", "pretrain_steps": 2}
    asked = read_asked({"system": "no_custom", "workload": workload, "student": student})
    spec = experiment_of(asked).model_copy(update={"clock": "virtual"})
    with create_run(spec, folder) as directory:
        execute(spec, directory, InlineBackend, Progress())
    return open_run(folder).frame("runs")["score"][0]


def test_a_device_learns_and_its_tables_are_those_of_a_run(served, tmp_path):
    process = device(served[1], tmp_path / "field", 8, *SHORT)
    told, _ = process.communicate(timeout=START_S)
    assert process.returncode == 0, told
    run = open_run(tmp_path / "field")
    (row,) = run.frame("runs").to_dict("records")
    assert (row["status"], row["frames"], row["streaming"]) == ("done", 32, "just_in_time")
    assert row["updates"] >= 2
    assert row["score"] > unadapted_score(tmp_path / "lab", 8)
    moved, info = run.frame("transfers"), read_info(run.path)
    up = moved[moved["direction"] == "up"]
    crossed = info["socket_bytes"]["up"] - info["opening_bytes"]["up"] - info["closing_bytes"]["up"]
    assert row["uplink_bytes"] == up["bytes"].sum() < up["wire_bytes"].sum() < crossed
    assert crossed - up["wire_bytes"].sum() < 300 + 40 * len(up)  # a WebSocket's: HTTP takes 250 for each upload
    assert subprocess.run([sys.executable, "-m", "driftlab", "report", run.path], check=False).returncode == 0


def test_a_killed_device_and_a_killed_replica_go_on(served, tmp_path):
    server, url, _ = served
    client = Client(url, TOKEN)
    older = sessions(client)
    first = device(url, tmp_path / "field", 25, *SHORT)
    name = waited(
        lambda: next((name for name, one in sessions(client).items() if name not in older and one["version"]), None)
    )
    first.kill()
    first.wait()
    before = sessions(client)[name]
    (replica,) = (one for one in psutil.Process(server.pid).children(recursive=True) if is_replica(one))
    os.kill(replica.pid, signal.SIGKILL)
    second = driftlab("device", "--resume", tmp_path / "field", stdout=subprocess.PIPE)
    after = waited(lambda: later_than(before, sessions(client).get(name)))
    told, _ = second.communicate(timeout=START_S)
    assert second.returncode == 0, told
    versions = open_run(tmp_path / "field").frame("frames")["version"]
    assert versions.is_monotonic_increasing
    assert versions.max() >= after["version"]


def later_than(before, after):
    """Return a session's state once it has taken and used another upload."""
    going_on = after is not None and all(after[name] > before[name] for name in ("uploads", "version"))
    return after if going_on else None


def is_replica(process):
    return "ServeReplica" in " ".join(process.cmdline())


def sessions(client):
    try:
        return client.ask_json("GET", "/sessions")
    except ServerAway:
        return {}


def waited(look):
    """Wait until there is something."""
    until = time.monotonic() + START_S
    while (found := look()) is None:
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.2)
    return found


def test_answers_come_in_batches_of_one_version(served):
    client = Client(served[1], TOKEN)
    opened = client.ask_json("POST", "/sessions", OPENED)
    pictures = [np.full((32, 48, 3), 10 * number, dtype=np.uint8) for number in range(12)]
    images = [cv2.imencode(".png", picture)[1].tobytes() for picture in pictures]

    def ask(image):
        return json.loads(Client(served[1], opened["token"]).ask("POST", f"/sessions/{opened['id']}/answer", image))

    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, images))
    assert {one["version"] for one in together} == {0}
    assert [one["answer"] for one in together] == [ask(image)["answer"] for image in images]
    client.ask("DELETE", f"/sessions/{opened['id']}")


def test_only_health_is_open(served):
    for path, allowed in (("/healthz", True), ("/", False), ("/sessions", False), ("/openapi.json", False)):
        try:
            Client(served[1], "wrong").ask("GET", path)
        except RequestError as error:
            assert not allowed and " 401 " in str(error)
        else:
            assert allowed, path
    assert b"<main>" in Client(served[1], TOKEN).ask("GET", "/")


def test_every_socket_is_on_the_loopback_interface(served):
    found = listening([psutil.Process(served[0].pid), *psutil.Process(served[0].pid).children(recursive=True)])
    assert int(served[1].rpartition(":")[2]) in {where.port for _, where in found}
    assert on_network(found) == []


def test_a_demo_device_starts_and_stops(served):
    client = Client(served[1], TOKEN)
    assert client.ask_json("POST", "/demo", {"seconds": 30}) == {"running": True}
    (device,) = (one for one in psutil.Process(served[0].pid).children(recursive=True) if "device" in one.cmdline())
    assert TOKEN not in " ".join(device.cmdline())
    assert client.ask_json("DELETE", "/demo") == {"running": False}
    assert not device.is_running()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_the_page_shows_a_session_in_a_browser(served, tmp_path):
    client = Client(served[1], TOKEN)
    opened = client.ask_json("POST", "/sessions", OPENED)
    address = served[1].replace("://", f"://me:{quote(TOKEN)}@")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=4000",
        f"--user-data-dir={tmp_path}",
    ]
    command = ["chromium", *options, "--dump-dom", address]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert f'data-name="{opened["id"]}"' in shown
    assert "ams on streets/running" in shown
    client.ask("DELETE", f"/sessions/{opened['id']}")


def test_a_stopped_server_says_so_in_two_lines(served):
    """The last test: the server is gone afterwards."""
    server, _, said = served
    below = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    assert server.wait(START_S) == 128 + signal.SIGTERM
    assert said.read_text().endswith("Stopping: ending what was started; what is finished is kept.\nInterrupted.\n")
    assert "SIGTERM" not in said.read_text()
    assert not psutil.wait_procs(below, timeout=10)[1]
