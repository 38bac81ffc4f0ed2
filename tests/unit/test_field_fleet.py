"""A fleet of devices in one process, and short runs of the campaigns that disturb and fuzz a server."""

from __future__ import annotations

import random
import socket
import threading
import time

import pytest
from served_factory import ASKED, TOKEN, served

from benchmarks.field import attacks
from benchmarks.field.attacks import KINDS, Attacker
from benchmarks.field.fuzz import RequestDrawing
from benchmarks.field.proxy import Proxy
from driftlab.platform.field import fleet
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.client import Client, ServerUnavailable
from driftlab.platform.field.fleet import Fleet
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.ticket import join

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served")) as one:
        yield one


@pytest.mark.slow
def test_a_fleet_runs_its_devices_in_parallel(server, tmp_path):
    few_steps = {"name": "distill", "iterations": 10}
    system = {
        "name": "quick",
        "base": "ams",
        "streaming": {"name": "ams", "interval_s": 1.0},
        "adaptation": few_steps,
    }
    short = {**ASKED["workload"], "duration_s": 3}
    asked = [parse_session_request({**ASKED, "system": system, "workload": short, "seed": seed}) for seed in range(2)]
    report = Fleet(server.url, TOKEN, asked, tmp_path / "fleet").run(spread_s=0.5)
    assert (report.devices, report.failed, report.frames) == (2, 0, 24)
    assert report.uploads >= 2
    assert report.up_bytes > 0
    assert {path.name for path in (tmp_path / "fleet").iterdir()} == {"device-0000", "device-0001"}


@pytest.mark.slow
def test_a_fleet_counts_each_device_that_fails_and_runs_the_others(server, tmp_path, monkeypatch):
    short = {**ASKED["workload"], "duration_s": 3}
    asked = [parse_session_request({**ASKED, "workload": short, "seed": seed}) for seed in range(4)]

    def joined(url, token, one):
        if one.seed == 0:
            raise ServerUnavailable("the server is full")
        return join(url, token, one)

    def begun(agent, directory):
        if agent.ticket.asked["seed"] == 1:
            raise OSError("the disk is full")
        begin(agent, directory)
        if agent.ticket.asked["seed"] == 2:
            server.client().ask_json("DELETE", f"/sessions/{agent.ticket.id}")

    begin = Agent.begin
    monkeypatch.setattr(fleet, "join", joined)
    monkeypatch.setattr(Agent, "begin", begun)
    run = Fleet(server.url, TOKEN, asked, tmp_path / "fleet")
    report = run.run(spread_s=0.0)
    assert (report.devices, report.failed) == (4, 3)
    full, disk, dropped = sorted(run.faults)
    assert full == "device 0: the server is full"
    assert disk == "device 1: OSError: the disk is full"
    assert dropped.startswith("device 2: the session ended early: ")
    assert "journal" not in {file.name for file in (tmp_path / "fleet/device-0003").iterdir()}


@pytest.mark.slow
def test_no_drawn_request_breaks_the_server(server):
    client = server.client()
    session = client.ask_json("POST", "/sessions", ASKED)
    drawing = RequestDrawing(random.Random(3), client.ask_json("GET", "/openapi.json"), session, TOKEN)
    asked = [(drawn, drawn.ask(server.port)) for drawn in (drawing.draw() for _ in range(60))]
    assert [(drawn, status) for drawn, status in asked if status >= 500 and status != 503] == []
    without_token = [status for drawn, status in asked if drawn.token is None]
    assert set(without_token) == {401}
    assert client.ask_json("GET", f"/sessions/{session['id']}")["fault"] == ""


@pytest.fixture(scope="module")
def attacker(server):
    client = server.client()
    thief, victim = (client.ask_json("POST", "/sessions", ASKED) for _ in range(2))
    one = Attacker(random.Random(0), server.port, TOKEN, thief, victim)
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_is_refused_and_others_are_served(kind, server, attacker, capfd, monkeypatch):
    monkeypatch.setattr(attacks, "BOMB_FRAMES", 3)
    replies = [reply for _ in range(2) for reply in attacker.attack(kind)]
    assert [reply for reply in replies if reply.fault] == []
    client = server.client()
    assert client.ask_json("GET", "/healthz") == {"status": "ok"}
    assert client.ask_json("GET", f"/sessions/{attacker.victim['id']}")["fault"] == ""
    assert "Traceback" not in capfd.readouterr().err


def test_a_proxy_holds_bytes_while_it_is_cut(server):
    proxy = Proxy(server.port)
    client = Client(proxy.url, TOKEN)
    assert client.ask_json("GET", "/healthz") == {"status": "ok"}
    began_s = time.monotonic()
    cut = threading.Thread(target=proxy.cut, args=(0.3,))
    cut.start()
    time.sleep(0.05)
    client.ask("GET", "/healthz")
    assert time.monotonic() - began_s >= 0.3
    cut.join()
    proxy.drop()
    assert client.ask_json("GET", "/healthz") == {"status": "ok"}  # on another connection
    proxy.close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", proxy.port), 1.0):
        pass
