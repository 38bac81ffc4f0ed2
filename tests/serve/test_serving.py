"""The walk-through of docs/serve.md on Ray Serve: one server, and each device in a separate process."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from pages_factory import invoke
from served_factory import TOKEN, driftlab
from sockets_factory import free_ports, listening, on_network

from driftlab.errors import RequestError
from driftlab.platform.field.client import Client, ServerUnavailable
from driftlab.platform.results.tables.read import open_run, read_info
from driftlab.serve_apps.tokens import enrolment_of

START_S = 240  # on a busy machine
PAGE = Path(__file__).resolve().parents[2] / "docs/serve.md"
SMALL = ["--fps", "4", "--size", "32x48", "--network", "half", "--pretrain-steps", "2"]
OPENED = {
    "workload": {"name": "streets/running", "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}
pytestmark = pytest.mark.timeout(900)  # the first test includes the start of Ray
LEARNER, REPLICA = "ray::SessionRack", "ray::ServeReplica"  # titles of processes


def walk_through():
    """Return the commands of the page's walk-through in order."""
    (section,) = re.findall(r"^## Walk-through$(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for line in section.splitlines() if line.startswith("driftlab ")]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("served")
    with (folder / "said.log").open("w") as log:
        process = driftlab("serve", "--port", port, "--state-dir", folder / "kept", stdout=subprocess.PIPE, stderr=log)
    url, token = (process.stdout.readline().split()[1] for _ in range(2))
    assert (url, token) == (f"http://127.0.0.1:{port}", enrolment_of(TOKEN))
    yield process, f"http://127.0.0.1:{port}", folder / "said.log"
    process.terminate()
    process.wait(60)


def score_at_the_end(folder):
    """Return the mean score of the last quarter of the frames."""
    frames = open_run(folder).frame("frames")
    return frames["score_frame"].tail(len(frames) // 4).mean()


@pytest.mark.usefixtures("few_claims", "few_figures")
def test_the_walk_through_works_as_written(served, tmp_path):
    """Run every command of the page with another folder, length, network size and frame size."""
    here = {"http://127.0.0.1:8700": served[1], "TOKEN": enrolment_of(TOKEN), "120": "30"}
    here |= {name: str(tmp_path / Path(name).name) for name in ("runs/field", "runs/lab")}
    here["runs/field/lab.yaml"] = str(tmp_path / "field/lab.yaml")
    names = []
    for words in walk_through():
        names.append(words[0])
        if words[0] == "serve":
            continue  # the fixture's
        replaced = [here.get(word, word) for word in words]
        if words[0] == "device":
            assert driftlab(*replaced, *SMALL).wait(START_S) == 0, words
        else:
            invoke(replaced, codes=(0, 1) if words[0] == "diff" else (0,))
    assert names == ["serve", "serve", "device", "report", "run", "diff", "report"]
    run = open_run(tmp_path / "field")
    (row,) = run.frame("runs").to_dict("records")
    assert (row["status"], row["frames"], row["streaming"]) == ("done", 120, "ams")
    assert row["updates"] >= 1
    spec, alone = str(tmp_path / "field/spec.yaml"), tmp_path / "unadapted"
    options = ["--system", "no_custom", "--set", "clock=virtual", "--backend", "inline", "--out", str(alone)]
    invoke(["run", spec, *options])
    assert score_at_the_end(run.path) > score_at_the_end(alone)
    moved, info = run.frame("transfers"), read_info(run.path)
    up = moved[moved["direction"] == "up"]
    sent = info["socket_bytes"]["up"] - info["opening_bytes"]["up"] - info["closing_bytes"]["up"]
    assert row["uplink_bytes"] == up["bytes"].sum() < up["wire_bytes"].sum() < sent
    messages = len(up) + row["duration_s"] / 5 + 1  # a report every five seconds, and one at the end
    assert sent - up["wire_bytes"].sum() < 300 + 40 * messages  # over a WebSocket; HTTP adds 250 bytes per upload


def test_a_session_survives_killed_processes(served, tmp_path):
    server, url, _ = served
    client = Client(url, TOKEN)
    older, out = sessions(client), tmp_path / "field"
    asked = ["--seconds", "600", "--system", "just_in_time", "--workload", "streets/running", *SMALL]
    device = driftlab("device", "--server", url, "--out", out, *asked)

    def ours():
        return next((one for name, one in sessions(client).items() if name not in older), None)

    before = waited(lambda: later_than({"uploads": 0, "version": 0}, ours()))
    for title in (LEARNER, REPLICA):
        for process in psutil.Process(server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since, or is a zombie
                if "".join(process.cmdline()[:1]).startswith(title):
                    process.kill()
        after = waited(lambda: later_than(before, ours()))  # noqa: B023  it is called here
        assert after["fault"] == ""
        before = after
    device.kill()
    device.wait()
    with (tmp_path / "said.log").open("w") as log:
        device = driftlab("device", "--resume", out, stderr=log)
    waited(lambda: later_than(before, ours()))
    versions = waited(lambda: versions_of(tmp_path / "said.log", before["version"]))
    device.kill()
    device.wait()
    assert versions == sorted(versions)
    assert versions[0] >= 1  # from its disk


def versions_of(log, wanted):
    """Return the versions in a device's log; None until the wanted version is in it."""
    versions = [int(number) for number in re.findall(r"version +(\d+)", log.read_text())]
    return versions if versions and versions[-1] >= wanted else None


def later_than(before, after):
    """Return a session's state once it has received and used another upload; None before."""
    going_on = after is not None and all(after[name] > before[name] for name in ("uploads", "version"))
    return after if going_on else None


def sessions(client):
    try:
        return client.ask_json("GET", "/sessions")
    except ServerUnavailable:
        return {}


def waited(look):
    """Wait until a function returns a value other than None."""
    until = time.monotonic() + START_S
    while (value := look()) is None:
        assert time.monotonic() < until, f"no value within {START_S} s"
        time.sleep(0.2)
    return value


def test_parallel_requests_get_predictions_of_one_version(served):
    client = Client(served[1], TOKEN)
    opened = client.ask_json("POST", "/sessions", OPENED)
    levels = [np.full((32, 48, 3), 10 * number, dtype=np.uint8) for number in range(12)]
    images = [cv2.imencode(".png", image)[1].tobytes() for image in levels]

    def ask(image):
        return json.loads(Client(served[1], opened["token"]).ask("POST", f"/sessions/{opened['id']}/predict", image))

    with ThreadPoolExecutor(12) as pool:
        parallel = list(pool.map(ask, images))
    assert {reply["version"] for reply in parallel} == {0}
    assert [reply["prediction"] for reply in parallel] == [ask(image)["prediction"] for image in images]
    client.ask("DELETE", f"/sessions/{opened['id']}")


def test_all_routes_require_a_token(served):
    for path in ("/healthz", "/", "/sessions", "/openapi.json"):
        with pytest.raises(RequestError, match=" 401 "):
            Client(served[1], "wrong").ask("GET", path)
    assert b"<main>" in Client(served[1], TOKEN).ask("GET", "/")


def test_every_socket_is_on_the_loopback_interface(served):
    sockets = listening([psutil.Process(served[0].pid), *psutil.Process(served[0].pid).children(recursive=True)])
    assert int(served[1].rpartition(":")[2]) in {where.port for _, where in sockets}
    assert on_network(sockets) == []


def devices_of(server: int) -> list[psutil.Process]:
    """Return the demo devices that a server has started; skip processes that end meanwhile."""
    devices = []
    for process in psutil.Process(server).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            devices += [process] if "device" in process.cmdline() else []
    return devices


def test_a_demo_device_starts_and_stops(served):
    client = Client(served[1], TOKEN)
    assert client.ask_json("POST", "/demo", {"seconds": 30}) == {"running": True}
    (device,) = waited(lambda: devices_of(served[0].pid) or None)
    assert TOKEN not in " ".join(device.cmdline())
    assert client.ask_json("DELETE", "/demo") == {"running": False}
    assert not device.is_running()


def test_a_stopped_server_prints_two_lines(served):
    """This must be the last test: the server has ended afterwards."""
    server, _, log = served
    below = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    assert server.wait(START_S) == 128 + signal.SIGTERM
    assert log.read_text().endswith("Stopping: ending all processes; finished results are kept.\nInterrupted.\n")
    assert "SIGTERM" not in log.read_text()
    assert not psutil.wait_procs(below, timeout=10)[1]
