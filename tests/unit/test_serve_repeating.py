"""Requests that repeat an earlier one of their connection: the same replies, and all checks again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
import ssl
import threading
import time

import numpy as np
import pytest
import uvicorn
from served_factory import ASKED, TOKEN, certificate, served
from uvicorn.server import ServerState

from driftlab.platform.field.request import parse_session_request
from driftlab.serve_apps import repeating
from driftlab.serve_apps.predicting import PredictionRoute
from driftlab.serve_apps.quotas import Limits

pytestmark = pytest.mark.waits

SIZE = 3 * 32 * 48  # bytes of an image


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served"), Limits(max_sessions=8, openings=100.0, rate_limit=1e4)) as one:
        yield one


@pytest.fixture
def opened(server):
    client = server.client()
    session = client.ask_json("POST", "/sessions", ASKED)
    client.close()
    yield session
    server.hub.drop(session["id"])


@pytest.fixture
def routed(monkeypatch):
    """Return a list that grows by one with each request that is parsed and reaches the route."""
    found, call = [], PredictionRoute.__call__

    async def counted(self, scope, receive, send):
        found.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(PredictionRoute, "__call__", counted)
    return found


def body_of(number):
    return np.random.default_rng(number).integers(0, 255, SIZE, dtype=np.uint8).tobytes()


def head_of(session, token=None, size=SIZE, **headers):
    named = {"Host": "server", "Content-Length": str(size), "Authorization": f"Bearer {token or session['token']}"}
    named |= {"Content-Type": "application/x-rgb", "Accept": "application/octet-stream"} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    return f"POST /sessions/{session['id']}/predict HTTP/1.1\r\n{lines}\r\n".encode()


@contextlib.contextmanager
def connected(server):
    with contextlib.ExitStack() as ending:
        connection = ending.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.tls is not None:
            context = ssl.create_default_context(cafile=server.tls[0])
            connection = ending.enter_context(context.wrap_socket(connection, server_hostname="127.0.0.1"))
        yield connection, ending.enter_context(connection.makefile("rb"))


def reply(replies):
    """Return status, headers without the date, and body of the next reply."""
    status = int(replies.readline().split()[1])
    lines = dict(iter(lambda: replies.readline().rstrip().partition(b": ")[::2], (b"", b"")))
    lines.pop(b"date")
    return status, lines, replies.read(int(lines[b"content-length"]))


def ask(connection, replies, *parts):
    for part in parts:
        connection.sendall(part)
    return reply(replies)


@pytest.mark.parametrize("accept", ["application/octet-stream", "application/json"])
def test_a_repeated_request_has_the_reply_of_a_first_one(server, opened, routed, accept):
    head = head_of(opened, Accept=accept)
    first = []
    for number in range(4):
        with connected(server) as line:
            first.append(ask(*line, head + body_of(number)))
    assert len(routed) == 4
    with connected(server) as line:
        again = [ask(*line, head + body_of(number)) for number in range(4)]
    assert len(routed) == 5
    assert again == first
    assert len({one[2] for one in first}) == 4  # each image has its own prediction


def test_requests_over_tls_are_repeated_too(tmp_path, routed):
    with served(tmp_path / "served", Limits(), certificate(tmp_path)) as server:
        session = server.hub.open(parse_session_request(ASKED))
        head = head_of(dict(zip(("id", "token"), session, strict=True)))
        with connected(server) as line:
            alone = [ask(*line, head + body_of(number)) for number in range(3)]
            assert len(routed) == 1
            line[0].sendall(b"".join(head + body_of(number) for number in range(3)))
            assert [reply(line[1]) for _ in range(3)] == alone


def test_head_and_body_may_come_apart(server, opened, routed, monkeypatch):
    monkeypatch.setattr(repeating, "HOLD_S", 10.0)
    head = head_of(opened)
    with connected(server) as line:
        first = ask(*line, head + body_of(0))
        line[0].sendall(head)
        time.sleep(0.01)
        assert ask(*line, body_of(0)) == first
    assert len(routed) == 1


def test_a_late_or_divided_body_has_the_same_reply(server, opened):
    head, body = head_of(opened), body_of(0)
    with connected(server) as line:
        first = ask(*line, head + body)
        line[0].sendall(head)
        time.sleep(4 * repeating.HOLD_S)
        assert ask(*line, body) == first
        for divided in ((head + body[:100], body[100:]), (head[:50], head[50:] + body), (head, body[:9], body[9:])):
            for part in divided:
                line[0].sendall(part)
                time.sleep(0.02)
            assert reply(line[1]) == first


def test_requests_without_a_pause_get_their_replies_in_order(server, opened, routed):
    head = head_of(opened)
    with connected(server) as line:
        alone = [ask(*line, head + body_of(number)) for number in range(6)]
        line[0].sendall(head + body_of(0))
        line[0].sendall(b"".join(head + body_of(number) for number in range(1, 6)))
        assert [reply(line[1]) for _ in range(6)] == alone
        with server.hub.sessions[opened["id"]]._using:  # the first one waits in a thread
            for number in range(3):
                line[0].sendall(head + body_of(number))
                time.sleep(0.02)
            line[0].sendall(b"GET /healthz HTTP/1.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n")
        assert [reply(line[1]) for _ in range(3)] == alone[:3]
        assert json.loads(reply(line[1])[2]) == {"status": "ok"}


def test_other_heads_on_the_same_connection_are_parsed(server, opened, routed):
    with connected(server) as line:
        first = ask(*line, head_of(opened) + body_of(0))
        assert ask(*line, head_of(opened, opened["token"][::-1]) + body_of(0))[0] == 401
    with connected(server) as line:
        assert ask(*line, head_of(opened) + body_of(0)) == first
        two = ask(*line, head_of(opened, size=2 * SIZE) + 2 * body_of(0))
        assert (two[0], two[2]) == (200, 2 * first[2])
        assert ask(*line, head_of(opened) + body_of(0)) == first


def test_bytes_of_a_body_are_no_head(server, opened):
    """An image whose bytes contain the end of a head, or a request, is an image."""
    inner = head_of(opened, TOKEN) + b"\r\n\r\n"
    body = (inner + body_of(0))[:SIZE]
    with connected(server) as line:
        plain = [ask(*line, head_of(opened) + body) for _ in range(2)]
        for cut in (10, len(inner) // 2, len(inner) + 1):
            line[0].sendall(head_of(opened) + body[:cut])
            time.sleep(0.02)
            plain.append(ask(*line, body[cut:]))
    assert plain == plain[:1] * 5
    assert plain[0][0] == 200


def test_a_request_within_a_body_is_no_request(server, opened):
    head, whole = head_of(opened), head_of(opened) + body_of(0)
    with connected(server) as line:
        ask(*line, whole)
        line[0].sendall(head_of(opened, size=3 * SIZE))
        for part in (whole, bytes(3 * SIZE - len(whole))):
            time.sleep(4 * repeating.HOLD_S)
            line[0].sendall(part)
        assert reply(line[1])[1][b"driftlab-shape"] == b"3,32,48"
        assert ask(*line, whole)[0] == 200
    with connected(server) as line:  # the end of one body and the next request arrive together
        line[0].sendall(head + body_of(0)[:-3])
        time.sleep(0.05)
        line[0].sendall(b"end" + whole)
        assert [reply(line[1])[0] for _ in range(2)] == [200, 200]
        line[0].sendall(b"end" + whole)
        assert line[1].readline() == b"HTTP/1.1 400 Bad Request\r\n"


def test_the_first_of_two_images_is_not_the_whole_body(server, opened):
    head = head_of(opened, size=2 * SIZE)
    with connected(server) as line:
        first = ask(*line, head + body_of(0) + body_of(1))
        line[0].sendall(head + body_of(0))
        time.sleep(0.05)
        assert ask(*line, body_of(1)) == first


def _revoke(server, session):
    server.client().ask("DELETE", f"/sessions/{session['id']}/token")


def _drop(server, session):
    server.client().ask("DELETE", f"/sessions/{session['id']}")


def _decode(server, session):
    server.hub.quotas._decoded.charge(session["id"], 1e12)


def _receive(server, session):
    server.hub.quotas.received.charge(session["id"], 1e12)


def _compute(server, session):
    server.hub.quotas.charge_processor(session["id"], 1e6)


def _ask_often(server, session):
    server.hub.rates.charge(session["token"], 1e9)


def _have_many_requests(server, session):
    server.hub.quotas.requests[session["id"]] = server.hub.limits.requests


def _move(server, session):
    server.hub.sessions[session["id"]].moved = True


def _drain(server, session):
    server.hub.draining = True


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (_revoke, 401),
        (_drop, 401),
        (_decode, 429),
        (_receive, 429),
        (_compute, 429),
        (_ask_often, 429),
        (_have_many_requests, 429),
        (_move, 503),
        (_drain, 503),
    ],
)
def test_a_repeated_request_passes_every_check_again(server, opened, monkeypatch, change, status):
    monkeypatch.setattr(server.hub, "draining", False)
    monkeypatch.setattr("driftlab.serve_apps.guard.SLOW_S", 0.0)
    with connected(server) as line:
        assert [ask(*line, head_of(opened) + body_of(0))[0] for _ in range(2)] == [200, 200]
        change(server, opened)
        refused, _, reason = ask(*line, head_of(opened) + body_of(0))
    assert (refused, list(json.loads(reason))) == (status, ["detail"])
    assert opened["id"] not in server.hub.quotas.pending


def test_a_network_that_fails_gives_the_usual_reply_and_the_connection_stays(server, opened, monkeypatch, caplog):
    hosted = server.hub.sessions[opened["id"]]
    with connected(server) as line:
        good = [ask(*line, head_of(opened) + body_of(0)) for _ in range(2)]
        with monkeypatch.context() as broken:
            broken.setattr(hosted, "predict", lambda images: 1 / 0)
            status, headers, body = ask(*line, head_of(opened) + body_of(0))
        assert (status, json.loads(body)) == (500, {"detail": "the prediction has failed"})
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert ask(*line, head_of(opened) + body_of(0)) == good[0]
    assert "division by zero" in caplog.text


def test_a_reply_that_fails_loses_no_other_one_of_its_batch(server, opened, monkeypatch, caplog):
    with connected(server) as broken, connected(server) as line:
        good = [ask(*one, head_of(opened) + body_of(0)) for one in (broken, line)]
        respond, port = repeating.RepeatingProtocol._respond, broken[0].getsockname()[1]
        monkeypatch.setattr(
            repeating.RepeatingProtocol,
            "_respond",
            lambda self, *reply: 1 / 0 if self.client[1] == port else respond(self, *reply),
        )
        with server.hub.sessions[opened["id"]]._using:
            for one in (broken, line):
                one[0].sendall(head_of(opened) + body_of(0))
            time.sleep(0.05)
        assert reply(line[1]) == good[1]
        assert ask(*line, head_of(opened) + body_of(0)) == good[1]
    assert "could not be passed on" in caplog.text


def test_the_requests_of_a_lost_connection_are_not_counted_for_ever(server, opened):
    hosted, quotas = server.hub.sessions[opened["id"]], server.hub.quotas
    with connected(server) as line:
        ask(*line, head_of(opened) + body_of(0))
        with hosted._using:
            line[0].sendall(head_of(opened) + body_of(0))
            until_s = time.monotonic() + 10
            while not quotas.requests[opened["id"]] and time.monotonic() < until_s:
                time.sleep(0.01)
            line[0].close()
            line[1].close()
    until_s = time.monotonic() + 10
    while opened["id"] in quotas.requests and time.monotonic() < until_s:
        time.sleep(0.01)
    assert opened["id"] not in quotas.requests
    assert opened["id"] not in quotas.pending


def test_a_long_head_is_not_kept(server, opened, routed):
    """Spaces before a value do not count as its bytes."""
    padded = head_of(opened).replace(b"Host: ", b"Host:" + b" " * repeating.MAX_HEAD_BYTES)
    with connected(server) as line:
        assert [ask(*line, padded + body_of(0))[0] for _ in range(3)] == [200] * 3
    assert len(routed) == 3


class Transport:
    """A transport that keeps written bytes."""

    def __init__(self):
        self.written, self.is_closed = b"", False

    def get_extra_info(self, name, default=None):
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def is_closing(self):
        return self.is_closed

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    abort = close

    def pause_reading(self):
        """Do nothing."""

    resume_reading = pause_reading


@pytest.fixture
def protocol():
    """A connection whose application replies with 204, and whose replier keeps the function to respond."""

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        repeating.offer_replier(scope, lambda body, respond: kept.append(respond) or True)

    kept, loop = [], asyncio.new_event_loop()
    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_level="error")
    made = repeating.RepeatingProtocol(config, ServerState(), {}, _loop=loop)
    made.kept, made.run = kept, lambda: loop.run_until_complete(asyncio.sleep(0.02))
    made.connection_made(Transport())
    made.data_received(PLAIN)
    made.run()
    yield made
    loop.close()


PLAIN = b"POST / HTTP/1.1\r\nHost: server\r\nContent-Length: 3\r\n\r\nabc"


def test_a_reply_that_is_due_is_sent_before_the_server_closes_a_connection(protocol):
    protocol.data_received(PLAIN)
    protocol.shutdown()
    assert not protocol.transport.is_closed
    protocol.kept[0](200, b"content-length: 2\r\n", b"ok")
    assert protocol.transport.written.endswith(b"content-length: 2\r\nconnection: close\r\n\r\nok")
    assert protocol.transport.is_closed


@pytest.mark.parametrize("count", [0, 1])
def test_a_server_closes_connections_without_a_request_at_once(protocol, count):
    for _ in range(count):
        protocol.data_received(PLAIN)
        protocol.kept.pop()(200, b"", b"")
    protocol.shutdown()
    assert protocol.transport.is_closed


def test_a_known_head_that_waits_for_its_body_gets_a_reply_at_the_end(protocol):
    head, body = PLAIN[:-3], PLAIN[-3:]
    protocol.data_received(head)
    protocol.shutdown()
    protocol.data_received(body)
    protocol.run()
    assert protocol.transport.written.count(b"204 No Content") == 2
    assert protocol.transport.is_closed


@pytest.mark.parametrize("parts", [(-1,), (10,), (-3, -1), (10, -3, -1)])
def test_a_divided_request_is_parsed(protocol, parts):
    stops = [0, *(part % len(PLAIN) for part in parts), len(PLAIN)]
    for start, stop in itertools.pairwise(stops):
        protocol.data_received(PLAIN[start:stop])
    protocol.run()
    assert (protocol.kept, protocol.transport.written.count(b"204 No Content")) == ([], 2)


@pytest.mark.parametrize("hold_s", [0.0, 10.0])
def test_a_head_waits_for_its_body_up_to_a_limit(protocol, monkeypatch, hold_s):
    monkeypatch.setattr(repeating, "HOLD_S", hold_s)
    protocol.data_received(PLAIN[:-3])
    protocol.run()
    protocol.data_received(PLAIN[-3:])
    protocol.run()
    assert len(protocol.kept) == (1 if hold_s else 0)
    assert protocol.transport.written.count(b"204 No Content") == (1 if hold_s else 2)


def test_an_idle_connection_has_a_time_limit_after_every_reply_and_an_empty_line(protocol):
    assert protocol.timeout_keep_alive_task is not None
    protocol.data_received(PLAIN)
    assert protocol.timeout_keep_alive_task is None
    protocol.kept[0](200, b"", b"")
    assert protocol.timeout_keep_alive_task is not None
    protocol.data_received(b"\r\n")
    assert protocol.timeout_keep_alive_task is not None


def test_a_fault_in_what_follows_a_reply_closes_the_connection(protocol, monkeypatch):
    protocol.data_received(PLAIN)
    protocol.data_received(PLAIN)
    monkeypatch.setattr(protocol, "data_received", lambda data: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        protocol.kept[0](200, b"", b"")
    assert protocol.transport.is_closed


def test_a_lost_connection_is_not_kept_until_a_search_for_garbage(protocol):
    protocol.data_received(PLAIN)
    protocol.data_received(PLAIN)
    protocol.connection_lost(None)
    assert (protocol._known, protocol._later, protocol.scope.get("extensions")) == (None, b"", None)


def test_the_token_of_the_owner_is_parsed_each_time(server, opened, routed):
    with connected(server) as line:
        assert [ask(*line, head_of(opened, TOKEN) + body_of(0))[0] for _ in range(3)] == [200] * 3
    assert len(routed) == 3


def test_repeated_requests_appear_in_the_metrics_and_as_contact_with_the_device(server, opened):
    def counted():
        found = re.search(r'driftlab_replies_total{status="200"} (\d+)', server.hub.meters.text().decode())
        return int(found[1])

    with connected(server) as line:
        ask(*line, head_of(opened) + body_of(0))
        before, server.hub.devices[opened["id"]].seen = counted(), None
        for _ in range(5):
            ask(*line, head_of(opened) + body_of(0))
        assert counted() == before + 5
    assert server.hub.devices[opened["id"]].seen is not None


def test_many_connections_get_their_own_predictions(server, opened):
    """Their images share batches."""
    with connected(server) as line:
        alone = [ask(*line, head_of(opened) + body_of(number))[2] for number in range(12)]
    found = {}

    def send(number):
        with connected(server) as line:
            found[number] = {ask(*line, head_of(opened) + body_of(number))[2] for _ in range(20)}

    threads = [threading.Thread(target=send, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[number] for number in range(12)] == [{one} for one in alone]
