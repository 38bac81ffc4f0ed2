"""A device in wall time against a server without Ray: it never stops answering, and goes on from its version."""

from __future__ import annotations

import json
import os
import threading
import time
from statistics import median
from types import SimpleNamespace

import pytest
from served_factory import ASKED, TOKEN, served

from benchmarks.fuzz.foreign import REPLIES, foreign_server, token_of
from driftlab.errors import DriftlabError, RequestError
from driftlab.platform.field.agent import Agent, Ticket, join, keep_ticket, read_ticket
from driftlab.platform.field.client import Backoff, Client, ServerAway
from driftlab.platform.field.lab import LAB
from driftlab.platform.field.network_cache import KeptNetwork
from driftlab.platform.field.request import experiment_of, read_asked
from driftlab.platform.field.sending import Receiver, Sender
from driftlab.platform.field.tables import write_run, write_update_rows
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import load
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import open_run, read_info

FPS = 4
AWAY_S = (3.0, 5.0)  # while the server is down


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Play a stream of 12 s; meanwhile the server is stopped, and started again from its folder."""
    folder = tmp_path_factory.mktemp("field")
    with served(folder / "served") as server:
        agent = Agent(join(server.url, TOKEN, read_asked(ASKED)))

        def outage():
            time.sleep(AWAY_S[0])
            server.stop()
            time.sleep(AWAY_S[1] - AWAY_S[0])
            server.start()

        thread = threading.Thread(target=outage)
        with create_run(agent.cell.experiment, folder / "run") as directory:
            agent.begin(directory)
            thread.start()
            agent.run()
            write_run(agent, directory)
        thread.join()
        client, path = server.client(), f"/sessions/{agent.ticket.id}"
        status, rounds = client.ask_json("GET", path), client.ask_json("GET", f"{path}/rounds")
    return open_run(folder / "run"), agent, status | {"rounds": rounds}


@pytest.mark.slow
def test_the_device_answers_while_the_server_is_away(played):
    frames = played[0].frame("frames")
    assert frames["frame"].tolist() == list(range(12 * FPS))
    away = frames[frames["time_s"].between(*AWAY_S)]
    assert len(away) == (AWAY_S[1] - AWAY_S[0]) * FPS + 1
    assert away["processed"].mean() > 0.5
    assert frames["latency_ms"].min() > 0
    assert frames["latency_ms"].nunique() > 0.9 * len(frames)  # measured here: a cost model gives one value


@pytest.mark.slow
def test_the_laboratory_has_the_times_of_this_device(played):
    run, agent, _ = played
    (cell,) = cells_of(load(str(run.path / LAB)))
    (device,), share = cell.devices, median(agent.shares)
    assert device.hardware.overhead_s == pytest.approx(agent.cell.device.spec.hardware.overhead_s / share)
    assert len(device.link.down_flights_s) == (run.frame("transfers")["direction"] == "down").sum() > 0
    assert 0 <= min(device.link.down_flights_s) < max(device.link.down_flights_s)  # 0: it took less than the median


@pytest.mark.slow
def test_it_goes_on_from_its_version(played):
    run, agent, status = played
    assert agent.traffic.failed == ""
    versions = run.frame("frames")["version"]
    assert versions.is_monotonic_increasing
    assert agent.version >= versions.max() >= 1
    assert status["version"] >= agent.version >= 2
    updates = run.frame("updates")
    taken = updates[updates["accepted"] == True]  # noqa: E712  null where it did not arrive
    assert taken["version"].tolist() == list(range(1, len(taken) + 1))
    assert (taken["arrive_s"] > taken["train_end_s"] - 0.5).all()  # two clocks, which uploads align


@pytest.mark.slow
def test_tables_count_the_payloads_of_both_sides(played):
    run, agent, status = played
    moved = run.frame("transfers")
    taken = moved[moved["refused"].isna()]
    assert taken[taken["direction"] == "up"]["bytes"].sum() == status["up_bytes"] > 0
    sent = sum(one["row"]["bytes"] for one in status["rounds"] if one["number"] <= agent.traffic.after)
    assert moved[moved["direction"] == "down"]["bytes"].sum() == sent > 0
    framing = (moved["wire_bytes"] - moved["bytes"]).tolist()
    assert all(20 <= one <= 90 for one in framing)
    assert read_info(run.path)["times"] == "wall clock of the device"
    up, info = moved[moved["direction"] == "up"], read_info(run.path)
    assert info["socket_bytes"]["up"] > up["wire_bytes"].sum() + info["opening_bytes"]["up"] > 0
    assert 0 < info["closing_bytes"]["up"] < 500 < info["closing_bytes"]["down"]
    assert info["field"]["missing"] == ""


def test_tables_without_the_rounds_of_a_server_that_is_gone_say_so():
    class Away:
        def ask_json(self, method, path):
            raise ServerAway("nobody answers at /sessions/x")

    assert "nobody answers" in write_update_rows(SimpleNamespace(client=Away(), path="/sessions/x"), {})


QUICK = {"name": "ams", "interval_s": 1.0}
HERE = {"name": "here", "base": "ams", "streaming": {"name": "on_device", "period_s": 1.0}}


def play(folder, system, source="", **others):
    """Play three seconds of a stream against a server of its own."""
    short = {**ASKED["workload"], "duration_s": 3, **({"name": "camera"} if source else {})}
    with served(folder / "served") as server:
        asked = read_asked({**ASKED, "system": system, "workload": short, **others})
        agent = Agent(join(server.url, TOKEN, asked, source))
        with create_run(agent.cell.experiment, folder / "run") as directory:
            agent.begin(directory)
            agent.run()
            write_run(agent, directory)
    run = open_run(folder / "run")
    assert len(run.frame("frames")) == 3 * FPS
    assert agent.traffic.failed == ""
    return run, agent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "sent"),
    [("remote_tracking", {"samples", "labels"}), ("tent", set()), (HERE, set())],
    ids=["remote_tracking", "tent", "on_device"],
)
def test_other_systems_need_no_line_of_their_own(system, sent, tmp_path):
    run, _ = play(tmp_path, system)
    assert set(run.frame("transfers")["kind"]) == sent
    assert ("profile" in read_info(run.path)["times"]) == (system == "tent")
    if system is HERE:
        assert set(run.frame("updates")["place"]) == {"device"}
        assert run.frame("frames")["version"].max() >= 1


@pytest.mark.slow
def test_a_camera_teaches_over_a_server_that_never_sees_its_address(tmp_path):
    teacher = {"kind": "network", "network": "half", "pretrain_steps": 2}
    camera = "camera:lavfi:testsrc=size=96x64:rate=10,realtime"
    run, agent = play(tmp_path, {"name": "quick", "base": "ams", "streaming": QUICK}, camera, teacher=teacher)
    assert run.frame("runs")["score"].isna().all()  # the truth is unknown
    assert "testsrc" not in json.dumps(agent.ticket.asked)
    assert "samples" in set(run.frame("transfers")["kind"])
    with pytest.raises(RequestError):
        experiment_of(read_asked(agent.ticket.asked | {"teacher": {"kind": "oracle"}}))


@pytest.mark.slow
def test_a_device_that_goes_on_answers_with_its_newest_network_before_its_server_is_back(tmp_path):
    with served(tmp_path / "served") as server:
        first = Agent(join(server.url, TOKEN, read_asked(ASKED)))
        first.begin(tmp_path)
        thread = threading.Thread(target=first.run, daemon=True)
        thread.start()
        while first.version < 1 and thread.is_alive():
            time.sleep(0.1)
        server.stop()
        second = Agent(read_ticket(tmp_path), tmp_path)
        second.begin(tmp_path)
        assert second.now() == pytest.approx(first.now(), abs=0.2)
        assert second.version >= first.version >= 1
        second._see(0, second.now() + 1.0, ((0.0, 1.0),))
        second._tell_rows()
        (rows,) = second.cell.runner.ledger.rows["frames"]
        assert rows["version"][-1] == second.version
        server.start()
        sender = Sender(second.traffic)
        sender._find_number()
        assert second.traffic.number >= 1
        Receiver(second.traffic).receive()
        second.apply_results()
        assert second.traffic.failed == ""
        thread.join()


TICKET = {"server": "http://127.0.0.1:9", "id": "a", "token": "b", "asked": {}, "began": 1}


@pytest.mark.parametrize(
    "kept",
    [None, "[]", "[" * 10**5, json.dumps({**TICKET, "id": "../a b"}), json.dumps({**TICKET, "began": "x"}), "a pipe"],
    ids=["missing", "a list", "deep", "another name", "no time", "a pipe"],
)
def test_a_folder_without_a_ticket_is_refused(tmp_path, kept):
    file = tmp_path / "field.json"
    if kept == "a pipe":
        os.mkfifo(file)
    elif kept is not None:
        file.write_text(kept)
    with pytest.raises(RequestError):
        read_ticket(tmp_path)


def test_a_ticket_reads_back(tmp_path):
    keep_ticket(Ticket(**TICKET), tmp_path)
    assert read_ticket(tmp_path) == Ticket(**TICKET)
    assert (tmp_path / "field.json").stat().st_mode & 0o777 == 0o600


def test_a_clock_that_was_set_back_keeps_no_device_waiting(tmp_path):
    agent = Agent.__new__(Agent)
    agent.ticket, agent.kept, agent._replay = Ticket(**{**TICKET, "began": time.time() + 1e6}), KeptNetwork(), list
    agent.begin(tmp_path)
    assert 0 <= agent.now() < 10


@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_a_server_of_another_kind_is_one_message(number):
    with foreign_server() as port, pytest.raises(DriftlabError) as caught:
        Agent(join(f"http://127.0.0.1:{port}", token_of(number), read_asked(ASKED)))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("server", "token"),
    [
        *((f"http://{place}", "token") for place in ("[::1", "h:99999", "h:x", ":9", "x" * 300, "é" * 300)),
        *(("http://h:9", token) for token in ("", "a\nb", "\N{SNOWMAN}", "x" * 20 + "é")),
    ],
    ids=range(10),
)
def test_what_no_socket_accepts_is_refused(server, token):
    with pytest.raises(RequestError):
        Client(server, token)


def test_waiting_times_double_with_jitter_and_obey_the_server():
    waiting = Backoff()
    waits = [waiting.next_s(ServerAway("away")) for _ in range(10)]
    for number, wait_s in enumerate(waits):
        usual_s = min(15.0, 0.5 * 2**number)
        assert 0.75 * usual_s <= wait_s <= 1.25 * usual_s
    assert Backoff().next_s(ServerAway("full", 8.0)) >= 6.0


def test_a_server_that_is_not_there_is_away():
    with pytest.raises(ServerAway):
        Client("http://127.0.0.1:9", "token").ask("GET", "/")
    with pytest.raises(RequestError):
        Client("ftp://127.0.0.1", "token")
