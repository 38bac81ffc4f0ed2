"""The WebSocket of a session over TLS: acknowledgements, results and tokens."""

from __future__ import annotations

import time

import pytest
from served_factory import ASKED, TOKEN, certificate, served
from websockets.exceptions import InvalidMessage, InvalidStatus
from websockets.sync.client import connect

from driftlab.errors import RequestError
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.client import Client, ServerUnavailable
from driftlab.platform.field.messages import SampleMessage, decode_results
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.ticket import join
from driftlab.platform.field.websocket import Line
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.quotas import Limits


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    tls = certificate(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(tls[0]))
        with served(folder / "served", Limits(max_sessions=2, rate_limit=50.0), tls) as one:
            yield one


@pytest.fixture(scope="module")
def ticket(server):
    return join(server.url, TOKEN, parse_session_request(ASKED))


def test_reports_go_over_the_socket_or_are_left_to_http(server, ticket):
    line, session = line_of(server, ticket), server.hub.sessions[ticket.id]
    assert not line.report("[1,4,12,0.5]")
    assert opens(line)
    assert line.report("[2,4,12,0.5]")
    until_s = time.monotonic() + 20
    while session.timeline.newest is None and time.monotonic() < until_s:
        time.sleep(0.05)
    assert [one.time_s for one in session.timeline.reports] == [2.0]
    line.close()


def line_of(server, ticket):
    return Line(server.client(ticket.token), f"/sessions/{ticket.id}")


def opens(line):
    """Return whether a line opens; an agent also tries again while the server is slow."""
    return any(line.open(0) for _ in range(6))


def upload(number):
    images = rng_for(0, "line", number).integers(0, 255, (2, 32, 48, 3)).astype("uint8")
    sampling = Sampling((number - 0.5, number - 0.25), float(number), codec="h264")
    return SampleMessage(number, float(number), sampling, pack(images, "h264").payload).encode(4.0)


@pytest.mark.slow
def test_a_websocket_transfers_acknowledgements_and_results(server, ticket):
    line = line_of(server, ticket)
    assert opens(line)
    opened = line.client.counted.both
    body, results, acknowledged = upload(1), b"", None
    line._open.send(body)
    while not results:
        results = line.receive(20.0)
        acknowledged = acknowledged or (None if line._acks.empty() else line._acks.get())
    (update,) = decode_results(results, 4.0)
    assert (acknowledged, update.number, update.kind) == (b"1", 1, "update")
    up, down = (now - then for now, then in zip(line.client.counted.both, opened, strict=True))
    assert up - len(body) in range(5, 15)  # a WebSocket's frame
    assert down - len(results) in range(4, 16)
    line.close()
    again = line_of(server, ticket)
    assert again.open(0)
    assert again.receive(20.0) == results  # resumed from its number
    again.close()


def test_a_refusal_closes_the_websocket(server, ticket):
    line = line_of(server, ticket)
    assert any(line.open(9) for _ in range(6))  # the number of no result; a busy process may close a handshake
    assert line.receive(20.0) is None
    assert not line.is_open
    assert line.post(upload(2)) is None


@pytest.mark.parametrize(("token", "status"), [("wrong", 401), ("", 401), ("other session", 404)])
def test_a_websocket_requires_the_token_of_its_session(server, ticket, token, status):
    other = join(server.url, TOKEN, parse_session_request(ASKED)) if token == "other session" else None
    head = {"Authorization": f"Bearer {token if other is None else other.token}"}
    assert refusal(f"{server.url.replace('https', 'wss')}/sessions/{ticket.id}/live", head) == status


def refusal(address, head):
    """Return the status; uvicorn closes a handshake without one if its process was busy for ten seconds."""
    for _ in range(6):
        try:
            connect(address, additional_headers=head, proxy=None, open_timeout=60.0).close()
        except InvalidStatus as refused:
            return refused.response.status_code
        except InvalidMessage:
            continue
    return None


def test_an_untrusted_certificate_prevents_connections(server, ticket, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ServerUnavailable):
        server.client().ask("GET", "/sessions")
    assert not line_of(server, ticket).open(0)
    with pytest.raises((ServerUnavailable, RequestError)):
        Client(server.url.replace("https", "http"), TOKEN).ask("GET", "/healthz")
