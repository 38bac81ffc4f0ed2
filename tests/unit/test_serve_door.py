"""The port of a server: clients whose request does not come are left, and a restarted server gets its port again."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from driftlab.serve_apps import http_server
from driftlab.serve_apps.http_server import Door, ServerAddress, listener_of


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port():
    one = Door(app, ServerAddress("127.0.0.1", 0))
    yield one.port
    one.close()


def status(port):
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    return asked(line), line


def asked(line):
    line.request("GET", "/")
    reply = line.getresponse()
    reply.read()
    return reply.status


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nSlow: "])
def test_a_head_that_does_not_come_closes_the_connection(monkeypatch, port, begun):
    monkeypatch.setattr(http_server, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(begun)
        began_s = time.monotonic()
        assert line.recv(100) == b""
        assert time.monotonic() - began_s > 0.1


def test_a_request_that_came_is_not_hurried(monkeypatch, port):
    monkeypatch.setattr(http_server, "HEAD_S", 0.2)
    found, line = status(port)
    time.sleep(0.5)
    assert (found, asked(line)) == (204, 204)  # on the same connection
    line.close()


def test_a_port_that_is_left_soon_is_taken_and_another_one_is_refused(monkeypatch):
    held = socket.create_server(("127.0.0.1", 0))
    where = ServerAddress("127.0.0.1", held.getsockname()[1])
    threading.Timer(0.3, held.close).start()
    listener_of(where).close()
    monkeypatch.setattr(http_server, "TAKE_S", 0.1)
    with socket.create_server(("127.0.0.1", where.port)), pytest.raises(OSError):
        listener_of(where)
