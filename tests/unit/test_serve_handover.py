"""Replicas that listen on the same port: each request gets its reply from the replica of its session."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import socket
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from benchmarks.field.attacks import handshake
from driftlab.serve_apps import handover, http_server
from driftlab.serve_apps.handover import SharedPortServer
from driftlab.serve_apps.http_server import HttpServer, ServerAddress
from driftlab.serve_apps.shards import COUNT, HeldShards, shard_of

NAMES = [f"{number:016x}" for number in range(24)]  # with 12, one of two replicas had all in one of 2 200 pairs
BODY = os.urandom(2**20)
pytestmark = [
    pytest.mark.waits,
    pytest.mark.skipif(not handover.IS_SUPPORTED, reason="connections are handed over on Linux only"),
]


def ignore(shard):
    """Do nothing."""


class Replica:
    """A replica whose application replies with its name, the path and the length of the body."""

    def __init__(self, folder):
        self.shards, self.server, self.requests = HeldShards(folder), None, 0

    def listen(self, port):
        self.server = SharedPortServer(self.reply, ServerAddress("127.0.0.1", port), self.shards)
        return self.server.port

    async def reply(self, scope, receive, send):
        if scope["type"] == "websocket":
            await send({"type": "websocket.http.response.start", "status": 418, "headers": []})
            await send({"type": "websocket.http.response.body", "body": self.shards.name.encode()})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.requests += 1
        text = f"{self.shards.name} {scope['path']} {len(body)}".encode()
        assert body in (BODY[: len(body)], BODY)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    def step(self):
        self.shards.step(ignore, ignore)

    def close(self):
        self.server.close()
        self.shards.close()


@pytest.fixture
def replicas(tmp_path):
    """Two replicas that listen on one port and have divided the shards."""
    folder = tmp_path / ("long" * 30)  # than the path of a socket may be
    both = [Replica(folder), Replica(folder)]
    port = 0
    for one in both:
        port = one.listen(port)
    for one in (*both, *both):
        one.step()
    yield both
    for one in both:
        one.close()


def port_of(replicas):
    return replicas[0].server.port


def connect(replicas):
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port_of(replicas), timeout=20))


def ask(connection, path, method="POST", body=b""):
    connection.request(method, path, body)
    return connection.getresponse().read().decode().split()


def reply_to(connection):
    """Return status and words of the next reply, whose head and body may arrive one after the other."""
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return reply.status, reply.read().decode().split()


def owner_of(replicas, name):
    (owner,) = (one.shards.name for one in replicas if one.shards.holds(name))
    return owner


def path_of(name):
    return f"/sessions/{name}/predict"


def name_of(replica):
    """Return a session of a replica."""
    return next(name for name in NAMES if replica.shards.holds(name))


def test_each_connection_is_handed_over_to_the_replica_of_its_session(replicas):
    replied = Counter()
    for name in NAMES:
        with connect(replicas) as connection:
            found = ask(connection, path_of(name), body=BODY)
        assert found == [owner_of(replicas, name), path_of(name), str(len(BODY))]
        replied[found[0]] += 1
    assert len(replied) == 2


def test_a_connection_follows_its_requests(replicas):
    with connect(replicas) as connection:
        for name in NAMES:
            assert ask(connection, path_of(name), body=BODY) == [
                owner_of(replicas, name),
                path_of(name),
                str(len(BODY)),
            ]
            assert ask(connection, path_of(name), "GET")[0] == owner_of(replicas, name)


def test_a_request_for_a_new_session_is_handed_over_once(replicas, monkeypatch):
    drawn, draw = [], handover.secrets.randbelow
    monkeypatch.setattr(handover.secrets, "randbelow", lambda count: drawn.append(draw(count)) or drawn[-1])
    for _ in range(20):
        with connect(replicas) as connection:
            ask(connection, "/sessions")
    assert len(drawn) == 20  # by the replicas that accepted the connections


def test_other_requests_have_the_first_shard_and_new_sessions_any(replicas):
    (first,) = (one.shards.name for one in replicas if 0 in one.shards.held)
    with connect(replicas) as connection:
        assert {ask(connection, path, "GET")[0] for path in ("/", "/metrics", "/healthz") * 5} == {first}
        assert len({ask(connection, "/sessions")[0] for _ in range(40)}) == 2


@pytest.mark.parametrize("cut", [6, 60, -8])
def test_a_request_may_arrive_in_parts(replicas, cut):
    """A head without its first line cannot be handed over, so this replica replies itself."""
    name = name_of(replicas[0])
    sent = f"POST {path_of(name)} HTTP/1.1\r\nHost: driftlab\r\nContent-Length: 8\r\n\r\n".encode() + BODY[:8]
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(sent[:cut])
            time.sleep(0.02)
            connection.sendall(sent[cut:])
            _, found = reply_to(connection)
        assert found[1:] == [path_of(name), "8"]
        assert cut == 6 or found[0] == replicas[0].shards.name


def test_a_websocket_is_handed_over(replicas):
    for name in NAMES[:6]:
        with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
            connection.sendall(handshake(f"/sessions/{name}/live", "a token"))
            found = b""
            while part := connection.recv(1000):
                found += part
        assert found.startswith(b"HTTP/1.1 418")
        assert owner_of(replicas, name).encode() in found


def test_a_request_waits_until_its_shard_has_moved(replicas):
    second = replicas[1]
    name = name_of(second)
    second.shards.held -= {shard_of(name)}  # as while it closes the sessions of the shard
    done = []
    with connect(replicas) as connection:
        asking = threading.Thread(target=lambda: done.append(ask(connection, path_of(name))))
        asking.start()
        time.sleep(0.3)
        assert not done
        second.shards.held |= {shard_of(name)}
        asking.join()
    assert done[0][0] == second.shards.name


def test_a_request_whose_shard_does_not_move_gets_its_reply_where_it_is(replicas, monkeypatch):
    monkeypatch.setattr(handover, "MOVE_S", 0.2)
    name = name_of(replicas[1])
    replicas[1].shards.held = frozenset()
    with connect(replicas) as connection:
        began_s = time.monotonic()
        assert ask(connection, path_of(name), body=BODY)[1:] == [path_of(name), str(len(BODY))]
        assert time.monotonic() - began_s > 0.1
        replicas[1].step()  # takes the shards again
        assert ask(connection, path_of(name))[0] == replicas[1].shards.name


def test_the_connections_of_a_lost_replica_go_to_the_next_one(replicas):
    """A process that ends leaves its file, and its locks are free."""
    first, second = replicas
    name = name_of(second)
    file = second.shards.folder / f"replica-{second.shards.name}.sock"
    second.server._handover._listener.shutdown(socket.SHUT_RDWR)  # as the end of its process does
    second.server._handover._thread.join(20)
    HttpServer.close(second.server)
    second.shards.close()
    assert file.exists()
    done = []
    with connect(replicas) as connection:
        asking = threading.Thread(target=lambda: done.append(ask(connection, path_of(name), body=BODY)))
        asking.start()
        time.sleep(0.1)
        first.step()
        asking.join()
    assert done == [[first.shards.name, path_of(name), str(len(BODY))]]
    assert not file.exists()
    assert len(first.shards.held) == COUNT
    second.server._handover.close()
    second.server.close = second.shards.close = lambda: None


def test_a_client_that_leaves_while_it_waits_leaves_nothing(replicas, monkeypatch):
    monkeypatch.setattr(handover, "MOVE_S", 0.3)
    name = name_of(replicas[1])
    replicas[1].shards.held = frozenset()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
            connection.sendall(f"GET {path_of(name)} HTTP/1.1\r\nHost: driftlab\r\n\r\n".encode())
    until_s = time.monotonic() + 20
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < until_s, "connections stay open"
        time.sleep(0.05)


def test_a_head_that_is_handed_over_has_the_usual_limits(replicas, monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http_server, "REFUSED_S", 0.05)
    line = f"GET {path_of(name_of(replicas[1]))} HTTP/1.1\r\n".encode()
    for sent, reply in ((line + b"Slow: ", b""), (line + b"Many: x\r\n" * 100, http_server.HEAD_TOO_LARGE)):
        for _ in range(4):  # accepted by either replica
            with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
                connection.sendall(sent)
                assert connection.recv(1000) == reply


def send_to(replica, sent, descriptors=()):
    """Send bytes and descriptors to the file of a replica."""
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect(replica.server._handover._path(replica.shards.name))
        if descriptors:
            socket.send_fds(sender, [sent], descriptors)
        else:
            sender.sendall(sent)


def test_an_incomplete_handover_is_none(replicas):
    """Its sender keeps the connection, and may have sent a part of the bytes only."""
    replica = replicas[0]
    line = f"GET {path_of(name_of(replica))} HTTP/1.1\r\n\r\n".encode()
    ours, given = socket.socketpair()
    with ours, given, open(os.devnull) as other:
        whole = handover.HEAD.pack(len(line), 1.0) + line
        longer = handover.HEAD.pack(len(line) + 1, 1.0) + line
        for sent, one in ((b"", None), (whole, None), (longer, given), (whole, other), (whole[:3], given)):
            send_to(replica, sent, () if one is None else [one.fileno()])
        ours.settimeout(0.3)
        with pytest.raises(TimeoutError):
            ours.recv(1000)
        ours.settimeout(20)
        send_to(replica, whole, [given.fileno()])
        assert reply_to(ours)[0] == 200
    assert replica.requests == 1
    assert replica.server.is_working


def test_a_connection_that_is_handed_over_again_loses_no_byte(replicas):
    """The second replica does not hold the shard either, while the rest of the body arrives."""
    first, second = replicas
    name = name_of(second)
    second.shards.held -= {shard_of(name)}
    head = f"POST {path_of(name)} HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    for _ in range(4):  # accepted by either replica
        with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
            connection.sendall(head)
            sending = threading.Thread(target=connection.sendall, args=(BODY,))
            sending.start()
            time.sleep(0.1)
            assert max(sum(map(len, received_of(one))) for one in replicas) < len(BODY)  # the rest waits at the client
            first.shards._living = [first.shards.name]  # the second one then hands it over to the first
            first.shards.held |= {shard_of(name)}
            second.shards._living = first.shards._living
            _, found = reply_to(connection)
            sending.join()
        assert found == [first.shards.name, path_of(name), str(len(BODY))]
        first.shards.held -= {shard_of(name)}
        first.shards._living = second.shards._living = [first.shards.name, second.shards.name]


def received_of(replica):
    """Return the bytes of the connections that a replica hands over."""
    connections = replica.server._server.server_state.connections
    return [one._leaving for one in list(connections) if getattr(one, "_leaving", None)]


def test_a_camera_whose_session_moves_is_handed_over(replicas):
    """Its connection has a known head, of which the body comes later."""
    first, second = replicas
    name, shard = name_of(first), shard_of(name_of(first))
    head = f"POST {path_of(name)} HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
        connection.sendall(head + BODY)
        assert reply_to(connection)[1][0] == first.shards.name
        (known,) = first.server._server.server_state.connections
        known._learn(head, len(BODY), lambda body, respond: False)  # as the route of predictions does
        first.shards.held -= {shard}
        second.shards.held |= {shard}
        first.shards._living = [second.shards.name]
        connection.sendall(head)
        time.sleep(0.02)
        connection.sendall(BODY)
        assert reply_to(connection)[1] == [second.shards.name, path_of(name), str(len(BODY))]


def test_a_camera_whose_session_cannot_move_has_the_usual_time_limits(replicas, monkeypatch):
    monkeypatch.setattr(handover, "MOVE_S", 0.1)
    first, begun, begin = replicas[0], [], handover.HandoverProtocol._begin

    def counted(protocol, **named):
        begun.append(named)
        begin(protocol, **named)

    monkeypatch.setattr(handover.HandoverProtocol, "_begin", counted)
    name = name_of(first)
    head = f"POST {path_of(name)} HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port_of(replicas)), 20) as connection:
        connection.sendall(head + BODY)
        assert reply_to(connection)[0] == 200
        (known,) = first.server._server.server_state.connections
        known._learn(head, len(BODY), lambda body, respond: False)
        first.shards.held = frozenset()
        connection.sendall(head)
        until_s = time.monotonic() + 20
        while {"stays": True} not in begun:
            assert time.monotonic() < until_s, "the request does not stay"
            time.sleep(0.01)
        time.sleep(0.3)
        assert begun.count({"stays": True}) == 1  # a request that stays does not wait again
        connection.sendall(BODY)
        assert reply_to(connection)[0] == 200
        first.step()


def test_too_many_open_files_do_not_end_the_handovers(replicas, monkeypatch):
    replica, calls = replicas[0], []
    listener = replica.server._handover._listener

    def accept():
        calls.append(0)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return listener.accept()

    failing = SimpleNamespace(accept=accept, shutdown=listener.shutdown, close=listener.close)
    monkeypatch.setattr(replica.server._handover, "_listener", failing)
    send_to(replica, b"")  # the next call of `accept` fails
    for _ in range(8):
        with connect(replicas) as connection:
            assert ask(connection, path_of(name_of(replica)))[0] == replica.shards.name
    assert len(calls) > 1


def test_an_error_ends_the_connection_that_waits(replicas, monkeypatch):
    monkeypatch.setattr(handover.Handover, "hand_over", lambda *given: 1 / 0)
    ended = 0
    for _ in range(40):  # about half are accepted by the other replica
        with connect(replicas) as connection:
            try:
                ask(connection, path_of(name_of(replicas[0])))
            except (http.client.RemoteDisconnected, ConnectionResetError):
                ended += 1
    assert 0 < ended < 40


def test_a_port_is_shared_with_replicas_only(replicas, monkeypatch):
    monkeypatch.setattr(http_server, "PORT_TIMEOUT_S", 0.1)
    with pytest.raises(OSError, match="in use"):
        http_server.listener_of(ServerAddress("127.0.0.1", port_of(replicas)))


def test_a_server_whose_thread_of_handovers_has_ended_is_not_working(replicas):
    replica = replicas[0]
    assert replica.server.is_working
    replica.server._handover._listener.shutdown(socket.SHUT_RDWR)
    replica.server._handover._thread.join(20)
    assert not replica.server.is_working


def test_the_file_of_a_replica_is_private_and_ends_with_it(replicas):
    folder = replicas[0].shards.folder
    assert [oct(file.stat().st_mode & 0o777) for file in folder.glob("*.sock")] == ["0o600"] * 2
    for one in replicas:
        one.server.close()
    assert not list(folder.glob("*.sock"))
    for one in replicas:
        one.server.close = lambda: None
