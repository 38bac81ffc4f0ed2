"""The HTTP server: it closes connections without a request, and waits for its port after a restart."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from served_factory import FakeHub

from benchmarks.field.attacks import handshake
from driftlab.serve_apps import http_server
from driftlab.serve_apps.guard import AccessMiddleware
from driftlab.serve_apps.http_server import HttpServer, ServerAddress, UnknownConnections, listener_of

pytestmark = pytest.mark.waits


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port():
    server = HttpServer(app, ServerAddress("127.0.0.1", 0))
    yield server.port
    server.close()


def request_status(connection, **headers):
    connection.request("GET", "/", headers=headers)
    reply = connection.getresponse()
    reply.read()
    return reply.status


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nSlow: "])
def test_missing_headers_close_the_connection(monkeypatch, port, sent):
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(sent)
        began_s = time.monotonic()
        assert connection.recv(100) == b""
        assert time.monotonic() - began_s > 0.1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nEndless: " + b"x" * 400_000,
        b"GET / HTTP/1.1\r\n" + b"Many: x\r\n" * 100_000,
        b"GET /" + b"x" * 400_000,
        b"GET / HTTP/1.1\r\n" + b"Many: x\r\n" * 100 + b"\r\n",
        b"GET / HTTP/1.1\r\nLong: " + b"x" * 40_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nLong: " + b"x" * 40_000 + b"\r\n\r\n12345",
    ],
)
def test_long_heads_are_refused_before_their_end(monkeypatch, port, sent):
    monkeypatch.setattr(http_server, "REFUSED_S", 0.05)
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):  # the server closes the connection before it has read all
            connection.sendall(sent)
            while part := connection.recv(100):
                received += part
        assert received in (http_server.HEAD_TOO_LARGE, b"")
    assert request_status(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) == 204


def test_no_header_above_the_limit_is_parsed_and_the_rest_is_not_read(monkeypatch, port):
    parsed, on_header = [], http_server.LimitedProtocol.on_header
    monkeypatch.setattr(
        http_server.LimitedProtocol,
        "on_header",
        lambda self, *header: parsed.append(header) or on_header(self, *header),
    )
    monkeypatch.setattr(http_server, "REFUSED_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        begun_s = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"Many: x\r\n" * 1000)
        assert connection.recv(1000) == http_server.HEAD_TOO_LARGE
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1000) == b""
    assert time.monotonic() - begun_s > 0.15  # the client waits
    assert len(parsed) == http_server.MAX_HEADERS + 1


def test_connections_without_a_token_are_limited_and_those_with_one_stay(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_UNKNOWN_OF_ADDRESS", 5)
    known = AccessMiddleware(app, lambda: FakeHub())
    server = HttpServer(known, ServerAddress("127.0.0.1", 0))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    assert request_status(connection, Authorization="Bearer owner") == 204
    idle = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(20)]
    assert [one.recv(1) for one in idle[:15]] == [b""] * 15  # the oldest are closed
    assert request_status(connection, Authorization="Bearer owner") == 204
    assert request_status(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) == 401
    for one in (*idle, connection):
        one.close()
    server.close()


def test_a_refused_websocket_is_no_open_connection(monkeypatch):
    dropped = []
    monkeypatch.setattr(UnknownConnections, "drop", lambda self, client: dropped.append(client))
    server = HttpServer(AccessMiddleware(app, lambda: FakeHub()), ServerAddress("127.0.0.1", 0))
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(handshake("/sessions/device/live", "wrong"))
        assert connection.recv(100).startswith(b"HTTP/1.1 401")
        while connection.recv(1000):
            pass
        client = connection.getsockname()
    server.close()
    assert client in dropped


def test_the_oldest_connections_of_all_addresses_are_closed(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_UNKNOWN", 2)
    unknown, aborted = UnknownConnections(), []
    for number in range(4):
        unknown.add((f"10.0.0.{number}", 1), SimpleNamespace(abort=lambda number=number: aborted.append(number)))
        unknown.drop(("10.0.0.1", 1))
    assert aborted == [0]


def test_an_idle_connection_stays_open_after_a_request(monkeypatch, port):
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.2)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    first = request_status(connection)
    time.sleep(0.5)
    assert (first, request_status(connection)) == (204, 204)
    connection.close()


def test_a_server_waits_for_its_port_up_to_a_limit(monkeypatch):
    previous = socket.create_server(("127.0.0.1", 0))
    where = ServerAddress("127.0.0.1", previous.getsockname()[1])
    threading.Timer(0.3, previous.close).start()
    listener_of(where).close()
    monkeypatch.setattr(http_server, "PORT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", where.port)), pytest.raises(OSError):
        listener_of(where)
