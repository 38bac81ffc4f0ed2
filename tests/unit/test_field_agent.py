"""A device in real time with a server without Ray: inference survives outages, sessions resume."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from command_factory import run_command
from served_factory import ASKED, TOKEN, served

from benchmarks.fuzz.foreign import REPLIES, foreign_server, token_of
from driftlab.errors import DriftlabError, RequestError, WireError
from driftlab.platform.core.records import Applied
from driftlab.platform.field.agent import Agent, is_finished
from driftlab.platform.field.client import Backoff, Client, ServerUnavailable
from driftlab.platform.field.journal import Clocks
from driftlab.platform.field.lab import LAB
from driftlab.platform.field.messages import FORMAT
from driftlab.platform.field.network_cache import FOLDER, CachedNetwork
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.field.sending import Receiver, Uploader
from driftlab.platform.field.tables import write_run, write_update_rows
from driftlab.platform.field.ticket import Ticket, check_token, join, keep_ticket, read_ticket
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import load
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import open_run, read_info
from driftlab.platform.results.tables.schema import TABLES
from driftlab.serve_apps.tokens import enrolment_of

pytestmark = pytest.mark.real_time

FPS, DURATION_S = 4, 9
STREAMED = {
    **ASKED,
    "system": {
        "name": "ams",
        "streaming": {"name": "ams", "interval_s": 1.0},
        "adaptation": {"name": "distill", "iterations": 15},
    },
    "workload": {**ASKED["workload"], "duration_s": DURATION_S},
}
OUTAGE_S = (2.0, 4.0)  # stream times between which the server is stopped
REPORT_S = 2.5  # between two reports; the newest one comes at three times this time


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Run a stream during which the server is stopped and restarted from its folder."""
    folder = tmp_path_factory.mktemp("field")
    with served(folder / "served") as server:
        agent = Agent(join(server.url, TOKEN, parse_session_request(STREAMED)))

        def outage():
            time.sleep(OUTAGE_S[0])
            server.stop()
            time.sleep(OUTAGE_S[1] - OUTAGE_S[0])
            server.start()

        thread = threading.Thread(target=outage)
        with create_run(agent.cell.experiment, folder / "run") as directory:
            agent.begin(directory)
            thread.start()
            agent.run(every_s=REPORT_S)
            write_run(agent, directory)
        thread.join()
        client, path = server.client(), f"/sessions/{agent.ticket.id}"
        status, rounds = client.ask_json("GET", path), client.ask_json("GET", f"{path}/rounds")
    return open_run(folder / "run"), agent, status | {"rounds": rounds}


@pytest.mark.slow
def test_a_device_predicts_frames_during_an_outage(played):
    frames = played[0].frame("frames")
    assert frames["frame"].tolist() == list(range(DURATION_S * FPS))
    outage = frames[frames["time_s"].between(*OUTAGE_S)]
    assert len(outage) == (OUTAGE_S[1] - OUTAGE_S[0]) * FPS + 1
    assert outage["processed"].sum() >= 3  # of nine; the server's threads and other tests delay frames here
    assert frames["latency_ms"].min() > 0
    assert frames["latency_ms"].nunique() > 0.9 * len(frames)  # measured: a cost model would give one value


@pytest.mark.slow
def test_a_finished_device_has_nothing_left_to_do(played):
    run, agent, _ = played
    assert not is_finished(run.path)  # its journal is there, as after a kill
    agent.seal()
    tables = {file: file.read_bytes() for file in (run.path / "tables").rglob("*") if file.is_file()}
    for words in ([], ["--json"]):
        done = run_command(["device", "--resume", str(run.path), *words])
        assert done.exit_code == 0, done.output
        assert "Nothing is left to do" in done.output
    assert {file: file.read_bytes() for file in tables} == tables


@pytest.mark.slow
def test_the_simulation_spec_has_the_times_of_the_device(played):
    run, agent, _ = played
    (cell,) = cells_of(load(str(run.path / LAB)))
    (device,), share = cell.devices, median(agent.shares)
    assert device.hardware.overhead_s == pytest.approx(agent.cell.device.spec.hardware.overhead_s / share)
    assert len(device.link.down_flights_s) == (run.frame("transfers")["direction"] == "down").sum() > 0
    assert 0 <= min(device.link.down_flights_s) < max(device.link.down_flights_s)  # 0: it took less than the median


@pytest.mark.slow
def test_a_resumed_session_continues_its_versions(played):
    run, agent, status = played
    assert agent.traffic.failed == ""
    versions = run.frame("frames")["version"]
    assert versions.is_monotonic_increasing
    assert agent.version >= versions.max() >= 1
    assert status["version"] >= agent.version >= 2
    updates = run.frame("updates")
    accepted = updates[updates["accepted"] == True]  # noqa: E712  null for updates that did not arrive
    assert accepted["version"].tolist() == list(range(1, len(accepted) + 1))
    assert (accepted["arrive_s"] > accepted["train_end_s"] - 0.5).all()  # two clocks, aligned by uploads


@pytest.mark.slow
def test_the_server_has_the_newest_report_of_the_device(played):
    run, _, status = played
    device, frames = status["device"], run.frame("frames")
    assert device["time_s"] == pytest.approx(3 * REPORT_S, abs=1.5)
    assert device["fps"] == pytest.approx(FPS, rel=0.3)
    assert 0 < device["latency_ms"] < 1000
    recent = frames[frames["time_s"].between(device["time_s"] - 5.5, device["time_s"])]["score_live"]
    assert recent.min() <= device["score"] <= recent.max()


@pytest.mark.slow
def test_tables_count_the_payloads_of_both_sides(played):
    run, agent, status = played
    moved = run.frame("transfers")
    accepted = moved[moved["refused"].isna()]
    assert accepted[accepted["direction"] == "up"]["bytes"].sum() == status["up_bytes"] > 0
    sent = sum(one["row"]["bytes"] for one in status["rounds"] if one["number"] <= agent.traffic.after)
    assert moved[moved["direction"] == "down"]["bytes"].sum() == sent > 0
    framing = (moved["wire_bytes"] - moved["bytes"]).tolist()
    assert all(20 <= size <= 90 for size in framing)
    assert read_info(run.path)["times"] == "wall clock of the device"
    up, info = moved[moved["direction"] == "up"], read_info(run.path)
    assert info["socket_bytes"]["up"] > up["wire_bytes"].sum() + info["opening_bytes"]["up"] > 0
    assert 0 < info["closing_bytes"]["up"] < 500 < info["closing_bytes"]["down"]
    assert info["field"]["missing"] == ""


def test_a_missing_server_gives_the_reason_of_an_empty_table():
    class MissingServer:
        def ask_json(self, method, path):
            raise ServerUnavailable("no response at /sessions/x")

    missing = SimpleNamespace(client=MissingServer(), path="/sessions/x")
    assert "no response" in write_update_rows(missing, {})


QUICK = {"name": "ams", "interval_s": 1.0}
HERE = {"name": "here", "base": "ams", "streaming": {"name": "on_device", "period_s": 1.0}}


def play(folder, system, source="", **others):
    """Run three seconds of a stream with a new server."""
    short = {**ASKED["workload"], "duration_s": 3, **({"name": "camera"} if source else {})}
    with served(folder / "served") as server:
        asked = parse_session_request({**ASKED, "system": system, "workload": short, **others})
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
def test_systems_of_other_kinds_run_in_the_field(system, sent, tmp_path):
    run, _ = play(tmp_path, system)
    assert set(run.frame("transfers")["kind"]) == sent
    assert ("profile" in read_info(run.path)["times"]) == (system == "tent")
    if system is HERE:
        assert set(run.frame("updates")["learner_site"]) == {"device"}
        assert run.frame("frames")["version"].max() >= 1


@pytest.mark.slow
def test_a_camera_keeps_its_address_from_the_server(tmp_path):
    teacher = {"kind": "network", "network": "half", "pretrain_steps": 2}
    camera = "camera:lavfi:testsrc=size=96x64:rate=10,realtime"
    run, agent = play(tmp_path, {"name": "quick", "base": "ams", "streaming": QUICK}, camera, teacher=teacher)
    assert run.frame("runs")["score"].isna().all()  # a camera has no ground truth
    assert "testsrc" not in json.dumps(agent.ticket.asked)
    assert "samples" in set(run.frame("transfers")["kind"])
    with pytest.raises(RequestError):
        experiment_of(parse_session_request(agent.ticket.asked | {"teacher": {"kind": "oracle"}}))


@pytest.mark.slow
def test_a_resumed_device_runs_its_newest_network_during_an_outage(tmp_path, monkeypatch):
    monkeypatch.setattr(CachedNetwork, "is_long", True)  # every update is replaced by one with all weights
    with served(tmp_path / "served") as server:
        first = Agent(join(server.url, TOKEN, parse_session_request(STREAMED)))
        first.begin(tmp_path)
        thread = threading.Thread(target=first.run, daemon=True)
        thread.start()
        while first.version < 1 and thread.is_alive():
            time.sleep(0.1)
        server.stop()
        before = first.version  # it goes on, as if it had not been killed
        second = Agent(read_ticket(tmp_path), tmp_path)
        second.begin(tmp_path)
        assert second.now() == pytest.approx(first.now(), abs=0.2)
        assert second.version >= before >= 1
        assert len(list((tmp_path / FOLDER).glob("0*"))) == 1
        states = [one._node._versions[-1] for one in (first, second)]
        if states[0].number == states[1].number:  # else the first one has received another update
            assert np.array_equal(states[0].state.vector, states[1].state.vector)
        kept = len(second.cell.runner.ledger.rows.get("frames", []))
        monkeypatch.setattr(first.kept, "add", lambda *_: None)  # two processes would not have drafts of the same name
        server.start()
        Uploader(second.traffic)._find_number()
        assert second.traffic.number >= 1
        Receiver(second.traffic).receive()
        second.apply_results()
        assert second.traffic.failed == ""
        second._run_stream(lambda report: None, 5.0)
        thread.join()
    chunks = second.cell.runner.ledger.rows["frames"]
    assert chunks[kept]["version"][0] >= before
    numbers = np.concatenate([chunk["frame"] for chunk in chunks])
    assert numbers[-1] == DURATION_S * FPS - 1
    assert np.concatenate([chunk["time_s"] for chunk in chunks]) == pytest.approx(numbers / FPS)


def test_the_rows_of_a_round_do_not_depend_on_the_version_of_the_server():
    written = []
    ledger = SimpleNamespace(row=lambda table, **row: written.append((table, row)))
    runner = SimpleNamespace(ledger=ledger, cell=SimpleNamespace(id="a/b/c/seed-0"))
    row = {field.name: "x" if field.type == "string" else 0 for field in TABLES["updates"] if not field.nullable}
    del row["cell"]
    reply = [
        {"number": 1, "row": {**row, "colour": "red"}},
        {"number": 2, "row": {**row, "samples": "x"}},
        {"number": 3, "row": None},
        {"number": 4, "row": row},
    ]
    traffic = SimpleNamespace(
        client=SimpleNamespace(ask_json=lambda *request: reply),
        path="/sessions/x",
        cell=SimpleNamespace(runner=runner),
    )
    missing = write_update_rows(traffic, {4: (2.5, Applied(2, accepted=True))})
    assert "colour" in missing
    arrived = {"version": 2, "arrive_s": 2.5, "accepted": True, "reason": None}
    assert written == [("updates", row), ("updates", row | arrived)]


TICKET = {"server": "http://127.0.0.1:9", "id": "a", "token": "b", "asked": {}, "began": 1}


@pytest.mark.parametrize(
    "kept",
    [None, "[]", "[" * 10**5, json.dumps({**TICKET, "id": "../a b"}), json.dumps({**TICKET, "began": "x"}), "a pipe"],
    ids=["missing", "a list", "deep", "an invalid id", "no time", "a pipe"],
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


HERE_NOW = Clocks(stream_s=30.0, wall_s=1000.0, boot="a", boot_s=50.0, server_s=7000.0)


@pytest.mark.parametrize(
    ("changes", "elapsed_s", "by"),
    [
        ({"boot_s": 54.0, "wall_s": -2600.0}, 4.0, "this computer"),  # its date was set back by an hour
        ({"boot_s": 54.0, "wall_s": 87400.0}, 4.0, "this computer"),  # or on by a day
        ({"boot": "b", "boot_s": 3.0, "wall_s": -2600.0, "server_s": 7040.0}, 40.0, "the server"),
        ({"boot": "b", "boot_s": 3.0, "wall_s": 1040.0, "server_s": None}, 40.0, "the date of this computer"),
        ({"boot": "b", "boot_s": 3.0, "wall_s": -2600.0, "server_s": None}, 0.0, "the date of this computer"),
    ],
    ids=["set back", "set on", "restarted", "restarted without a server", "neither"],
)
def test_a_killed_device_finds_its_position_by_a_clock_that_was_not_set(changes, elapsed_s, by):
    assert HERE_NOW.elapsed_s(replace(HERE_NOW, **changes)) == (elapsed_s, by)


@pytest.mark.parametrize("version", [{}, {"format": FORMAT + 1}], ids=["the first", "a later one"])
def test_a_server_of_another_version_is_refused_with_one_sentence(monkeypatch, version):
    reply = {"id": "a", "token": TOKEN, "weights": "/sessions/a/weights", **version}
    monkeypatch.setattr(Client, "ask_json", lambda *request: reply)
    with pytest.raises(WireError, match="use the same driftlab on the devices and the server"):
        join("http://127.0.0.1:1", TOKEN, parse_session_request(ASKED))


@pytest.mark.slow
def test_a_wrong_token_is_refused_before_the_wait_is_announced(tmp_path, capsys):
    with served(tmp_path) as server:
        for token in (TOKEN, enrolment_of(TOKEN)):
            check_token(server.url, token)
        for command in ("device", "fleet"):
            result = run_command([command, "--server", server.url, "--token", "wrong" * 4])
            assert isinstance(result.exception, RequestError)
            assert "the token is wrong" in str(result.exception)
            assert "a minute or more" not in result.output


@pytest.fixture(scope="module")
def foreign_port():
    with foreign_server() as port:
        yield port


@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_a_foreign_server_gives_one_message(foreign_port, number):
    with pytest.raises(DriftlabError) as caught:
        Agent(join(f"http://127.0.0.1:{foreign_port}", token_of(number), parse_session_request(ASKED)))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("server", "token"),
    [
        *(
            (f"http://{place}", "token")
            for place in ("[::1", "h:99999", "h:x", ":9", "x" * 300, "é" * 300, "h:9/sessions", "h:9?a=1", "a@h:9")
        ),
        *(("http://h:9", token) for token in ("", "a\nb", "\N{SNOWMAN}", "x" * 20 + "é")),
    ],
    ids=range(13),
)
def test_a_client_refuses_invalid_addresses_and_tokens(server, token):
    with pytest.raises(RequestError):
        Client(server, token)


def test_waiting_times_double_with_jitter_up_to_a_limit():
    backoff = Backoff()
    waits = [backoff.next_s(ServerUnavailable("away")) for _ in range(10)]
    for number, wait_s in enumerate(waits):
        nominal_s = min(15.0, 0.5 * 2**number)
        assert 0.75 * nominal_s <= wait_s <= 1.25 * nominal_s


def test_a_waiting_time_follows_the_server():
    assert Backoff().next_s(ServerUnavailable("full", 8.0)) >= 6.0


@pytest.mark.parametrize(
    ("header", "after_s"), [("8", 8.0), ("86400", 120.0), ("9" * 4000, None), ("²", None)], ids=range(4)
)
def test_a_server_chooses_the_waiting_time_within_a_limit(header, after_s):
    reply = SimpleNamespace(status=429, getheader=lambda name: header)
    with pytest.raises(ServerUnavailable) as caught:
        Client("http://127.0.0.1:9", "token")._checked_body(reply, b"full", "/")
    assert caught.value.after_s == after_s


def test_a_client_raises_for_an_unreachable_server():
    with pytest.raises(ServerUnavailable):
        Client("http://127.0.0.1:9", "token").ask("GET", "/")


def test_a_client_refuses_other_protocols():
    with pytest.raises(RequestError):
        Client("ftp://127.0.0.1", "token")
