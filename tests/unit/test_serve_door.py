"""The HTTP server: it closes connections without a request, and waits for its port after a restart."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from driftlab.serve_apps import http_server
from driftlab.serve_apps.http_server import HttpServer, ServerAddress, listener_of


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port():
    server = HttpServer(app, ServerAddress("127.0.0.1", 0))
    yield server.port
    server.close()


def request_status(connection):
    connection.request("GET", "/")
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
