"""The HTTP routes: tokens, limits, and predictions with the version of the network."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from dataclasses import replace

import cv2
import numpy as np
import pytest
from served_factory import ASKED, TOKEN, served

from driftlab.errors import RequestError
from driftlab.platform.field.client import ServerUnavailable
from driftlab.platform.field.messages import FORMAT, MAX_REPORT_BYTES, SampleMessage, decode_results
from driftlab.platform.field.opening import load_weights
from driftlab.platform.field.websocket import Line
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.tokens import enrolment_of

pytestmark = pytest.mark.waits

JSON = {"Content-Type": "application/json"}
LIMITS = Limits(
    max_sessions=2, body_bytes=160_000, image_bytes=160_000, wrong_tokens=1e6, resyncs=0.01, sockets=1, openings=0.01
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served"), LIMITS) as one:
        yield one


@pytest.fixture(scope="module")
def session(server):
    client = server.client()
    opened = client.ask_json("POST", "/sessions", ASKED)
    client.close()
    return opened


def raw(server, method, path, token=None, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    head = headers | ({} if token is None else {"Authorization": f"Bearer {token}"})
    connection.request(method, path, body, head)
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    return reply.status, data, reply


def routes(server):
    paths = server.client().ask_json("GET", "/openapi.json")["paths"]
    return [(verb.upper(), path) for path, verbs in paths.items() for verb in verbs]


def test_every_route_requires_a_token(server, session):
    listed = routes(server)
    assert len(listed) >= 15
    for method, path in listed:
        here = path.replace("{name}", session["id"]).replace("{kind}", "frame")
        for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
            status, data, _ = raw(server, method, here, token)
            assert status == 401, (method, path, token)
            assert TOKEN.encode() not in data
    assert raw(server, "GET", "/nothing")[0] == 401
    assert raw(server, "GET", "/nothing", TOKEN)[0] == 404
    assert session["id"] in server.hub.sessions  # no DELETE was accepted


def test_requests_use_one_connection(server):
    client = server.client()
    client.ask("GET", "/sessions")
    first = client._connection.sock
    client.ask("GET", "/sessions")
    assert client._connection.sock is first is not None


def test_a_device_of_another_version_is_refused_when_it_opens_a_session(server):
    with pytest.raises(RequestError, match=f"version {FORMAT - 1} of the protocol and this program version {FORMAT}"):
        server.client().ask_json("POST", f"/sessions?format={FORMAT - 1}", ASKED)


def test_the_enrolment_token_only_opens_sessions(server, session):
    token = enrolment_of(TOKEN)
    for method, path in routes(server):
        here = path.replace("{name}", session["id"]).replace("{kind}", "frame")
        status, _, _ = raw(server, method, here, token)
        allowed = {("POST", "/sessions"): 422, ("GET", "/healthz"): 200}
        assert status == allowed.get((method, path), 401), (method, path)
    assert not Line(server.client(token), f"/sessions/{session['id']}").open(0)
    opened = server.client(token).ask_json("POST", "/sessions", ASKED)
    assert raw(server, "GET", f"/sessions/{opened['id']}", opened["token"])[0] == 200
    assert raw(server, "DELETE", f"/sessions/{opened['id']}", token)[0] == 401
    assert raw(server, "DELETE", f"/sessions/{opened['id']}", TOKEN)[0] == 200
    server.hub.openings.charge("", 1e6)
    assert raw(server, "POST", "/sessions", token)[0] == 429
    assert raw(server, "POST", "/sessions", TOKEN)[0] == 422
    server.hub.openings.left.clear()


def test_a_revoked_device_is_refused_also_after_a_restart(server):
    opened, path = server.client(enrolment_of(TOKEN)).ask_json("POST", "/sessions", ASKED), "/sessions/"
    line = Line(server.client(opened["token"]), path + opened["id"])
    assert line.open(0)
    assert raw(server, "DELETE", f"{path}{opened['id']}/token", opened["token"])[0] == 401
    assert raw(server, "DELETE", f"{path}{opened['id']}/token", TOKEN)[0] == 200
    assert raw(server, "GET", path + opened["id"], opened["token"])[0] == 401
    until_s = time.monotonic() + 20
    while line.receive(0.1) is not None:
        assert time.monotonic() < until_s  # its WebSocket is closed
    server.stop()
    server.start()
    assert raw(server, "GET", path + opened["id"], opened["token"])[0] == 401
    listed = server.client().ask_json("GET", "/sessions")[opened["id"]]
    assert (listed["revoked"], listed["ended"]) == (True, True)
    assert raw(server, "DELETE", path + opened["id"], TOKEN)[0] == 200


def test_the_token_of_another_session_returns_not_found(server, session):
    other = server.client().ask_json("POST", "/sessions", ASKED)
    for method, path in routes(server):
        if "{name}" in path:
            here = path.replace("{name}", session["id"]).replace("{kind}", "frame")
            assert raw(server, method, here, other["token"])[0] == 404, (method, path)
    assert raw(server, "GET", "/sessions", other["token"])[0] == 401
    assert raw(server, "GET", f"/sessions/{other['id']}", other["token"])[0] == 200
    with pytest.raises(ServerUnavailable) as full:  # two sessions are the limit
        server.client().ask_json("POST", "/sessions", ASKED)
    assert full.value.after_s == 2
    assert raw(server, "DELETE", f"/sessions/{other['id']}", other["token"])[0] == 200
    assert raw(server, "GET", f"/sessions/{other['id']}", TOKEN)[0] == 404
    assert not (server.folder / other["id"]).exists()


def test_a_browser_sends_the_token_as_a_password(server):
    head = {"Authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}
    status, data, reply = raw(server, "GET", "/", **head)
    assert status == 200
    assert b"<main>" in data
    assert b"http://" not in data.replace(b"http://www.w3.org/2000/svg", b"")  # no resources of other sites
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    refused, _, reply = raw(server, "GET", "/")
    assert (refused, reply.headers["WWW-Authenticate"].split()[0]) == (401, "Basic")
    cross_site = {**head, "Sec-Fetch-Site": "cross-site"}
    assert raw(server, "DELETE", "/demo", **cross_site)[0] == 403


def test_large_and_invalid_bodies_are_refused(server, session):
    path = f"/sessions/{session['id']}"
    assert raw(server, "POST", f"{path}/uploads", TOKEN, b"x" * 200_000)[0] == 413
    assert raw(server, "POST", f"{path}/predict", TOKEN, b"x" * 200_000)[0] == 413
    assert raw(server, "POST", f"{path}/uploads", TOKEN, b"torn")[0] == 422
    assert raw(server, "POST", f"{path}/predict", TOKEN, b"no image")[0] == 422
    large = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\x80\0" * 2  # refused by its header
    assert b"at most" in raw(server, "POST", f"{path}/predict", TOKEN, large)[1]
    assert raw(server, "POST", "/sessions", TOKEN, b'{"workload": 1}')[0] == 422
    assert raw(server, "POST", "/sessions", TOKEN, b'{"workload": {"name": "a", "fps": NaN}}')[0] == 422
    many = SampleMessage(1, 0.0, Sampling(tuple(n / 4 for n in range(4000)), 0.0, codec="h264", scale=8), b"")
    assert raw(server, "POST", f"{path}/uploads", TOKEN, many.encode(4.0))[0] == 422
    assert server.hub.sessions[session["id"]].received == 0


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/sessions", b"{", "the body is no JSON: Expecting property name"),
        ("/sessions", b"[1]", "body is [1]: give a mapping"),
        ("/sessions", b'{"sistem": "ams"}', "workload is missing; sistem is not known here. Did you mean 'system'?"),
        ("/sessions", b'{"workload": "\\ud800"}', "workload is '\\ud800': give a mapping"),
        ("/sessions", b'{"system": {"adaptaton": 1}}', "adaptaton is not known here. Did you mean 'adaptation'?"),
        ("/sessions?format=x", b'{"workload": {"name": "city/drift"}}', "format is 'x'"),
        ("/demo", b'{"seconds": 5000}', "seconds is 5000"),
    ],
)
def test_a_refusal_names_the_place_and_the_fault(server, path, body, reason):
    head = {"Content-Type": "application/json"}
    status, data, _ = raw(server, "POST", path, TOKEN, body, **head)
    assert status == 422 and reason in json.loads(data)["detail"]


def test_a_report_needs_the_token_of_its_session_and_is_bounded(server, session):
    path = f"/sessions/{session['id']}"
    assert raw(server, "POST", f"{path}/report", session["token"], b"[1,4,12.5,null]")[0] == 200
    assert raw(server, "POST", f"{path}/report", session["token"], b"no report")[0] == 422
    assert raw(server, "POST", f"{path}/report", session["token"], b"[1,1,1,1]" + b" " * MAX_REPORT_BYTES)[0] == 413
    status, events = (json.loads(raw(server, "GET", one, TOKEN)[1]) for one in (path, f"{path}/timeline"))
    reported = {"time_s": 1.0, "fps": 4.0, "latency_ms": 12.5, "score": None, "network": None, "switches": []}
    assert status["device"] == reported
    assert (status["state"], status["name"]) == ("running", "seed 0")
    assert events["reports"] == [[1.0, 4.0, 12.5, None]]
    assert events["classes"][0] == ["road", "#804080"]


def test_results_after_an_unknown_number_are_gone(server, session):
    path = f"/sessions/{session['id']}/updates"
    assert raw(server, "GET", f"{path}?after=0", TOKEN)[:2] == (200, b"")
    assert raw(server, "GET", f"{path}?after=7", TOKEN)[0] == 410


def test_a_session_above_its_quota_is_refused_alone(server, session, monkeypatch):
    other, path = server.client().ask_json("POST", "/sessions", ASKED), f"/sessions/{session['id']}"
    quotas = server.hub.quotas
    image = cv2.imencode(".png", np.zeros((40, 60, 3), dtype=np.uint8))[1].tobytes()

    def predict(opened):
        return raw(server, "POST", f"/sessions/{opened['id']}/predict", opened["token"], image)[0]

    quotas.charge_processor(session["id"], 1e6)
    assert (predict(session), predict(other)) == (429, 200)
    quotas.charge_processor(session["id"], -1e6)
    quotas._decoded.charge(session["id"], 1e12)
    status, reason, reply = raw(server, "POST", f"{path}/predict", session["token"], image)
    assert (status, reply.headers["Retry-After"], predict(other)) == (429, "2", 200)
    assert b"bytes per second" in reason
    quotas._decoded.charge(session["id"], -1e12)
    monkeypatch.setattr(server.hub.sessions[session["id"]], "ask_all", lambda: 7)
    assert [raw(server, "POST", f"{path}/resync", session["token"])[0] for _ in range(3)] == [200, 429, 429]
    client = server.client(session["token"])
    lines = [Line(client, path) for _ in range(3)]
    assert [line.open(0) for line in lines] == [True, False, False]
    lines[0].close()
    assert raw(server, "DELETE", f"/sessions/{other['id']}", TOKEN)[0] == 200


def sent(server, opened, body, **headers):
    """Send images; return status, body and headers of the reply."""
    path = f"/sessions/{opened['id']}/predict"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, data, reply = raw(server, "POST", path, opened["token"], body, **named)
    return status, data, reply.headers


def test_pixels_of_several_images_have_the_predictions_of_encoded_ones(server, session):
    images = np.random.default_rng(0).integers(0, 255, (3, 32, 48, 3), dtype=np.uint8)
    encoded = [cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))[1].tobytes() for image in images]
    single = [json.loads(sent(server, session, one)[1]) for one in encoded]
    binary = {"Content_Type": "application/x-rgb"}
    assert json.loads(sent(server, session, images.tobytes(), **binary)[1]) == single
    status, body, headers = sent(server, session, images.tobytes(), **binary, Accept="application/octet-stream")
    shape = tuple(map(int, headers["driftlab-shape"].split(",")))
    found = np.frombuffer(body, headers["driftlab-type"]).reshape(shape)
    assert (status, headers["driftlab-version"], shape) == (200, "0", (3, 32, 48))
    assert found.tolist() == [one["prediction"] for one in single]
    one = sent(server, session, encoded[0], Accept="application/octet-stream")[1]
    assert np.array_equal(np.frombuffer(one, np.uint8), found[0].ravel())


@pytest.mark.parametrize("count", [0, 1, 33 * 32 * 48 * 3])
def test_bytes_that_are_no_images_of_the_network_are_refused(server, session, count):
    status, reason, _ = sent(server, session, bytes(count), Content_Type="application/x-rgb")
    assert (status, b"are not 1 to 32 images of 32 x 48 RGB pixels" in reason) == (422, True)


@pytest.mark.slow
def test_an_upload_gives_an_update_and_a_new_version(server, session):
    client, path = server.client(session["token"]), f"/sessions/{session['id']}"
    assert load_weights(client.ask("GET", f"{path}/weights"))
    image = cv2.imencode(".png", np.full((40, 60, 3), 90, dtype=np.uint8))[1].tobytes()
    before = json.loads(client.ask("POST", f"{path}/predict", image))
    assert (before["version"], np.shape(before["prediction"])) == (0, (32, 48))
    payload = pack(np.full((2, 32, 48, 3), 90, dtype=np.uint8), "h264").payload
    body = SampleMessage(1, 2.0, Sampling((0.75, 1.75), 2.0, codec="h264"), payload).encode(4.0)
    assert client.ask("POST", f"{path}/uploads", body) == b"1"
    assert client.ask("POST", f"{path}/uploads", body) == b"1"  # repeated, as after a lost acknowledgement
    (update,) = decode_results(client.ask("GET", f"{path}/updates?after=0&hold_s=20"), 4.0)
    assert (update.number, update.kind) == (1, "update")
    after = json.loads(client.ask("POST", f"{path}/predict", image))
    assert after["version"] == 1
    status = client.ask_json("GET", path)
    assert (status["uploads"], status["up_bytes"], status["fault"]) == (1, len(payload), "")
    assert status["down_bytes"] == len(update.payload)
    for kind in ("frame", "prediction", "truth"):
        data = client.ask("GET", f"{path}/images/{kind}")
        assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape == (32, 48, 3)
    with pytest.raises(RequestError):
        client.ask("GET", f"{path}/images/other")


def test_a_prediction_that_fails_has_a_reply_in_the_usual_form(server, session, monkeypatch):
    def fail(images):
        raise RuntimeError("a secret of the server")

    hosted = server.hub.sessions[session["id"]]
    monkeypatch.setattr(hosted, "predict", fail)
    pixels = np.zeros((1, *hosted.app.size, 3), np.uint8).tobytes()
    status, body, headers = sent(server, session, pixels, Content_Type="application/x-rgb")
    assert (status, json.loads(body)) == (500, {"detail": "the prediction has failed"})
    assert headers["x-content-type-options"] == "nosniff"


def test_a_decoder_that_does_not_start_fails_its_images_and_no_later_ones(server, session, monkeypatch):
    image = cv2.imencode(".png", np.zeros((40, 60, 3), dtype=np.uint8))[1].tobytes()
    with monkeypatch.context() as broken:
        broken.setattr("driftlab.platform.field.media.MediaDecoder.images", lambda *_: 1 / 0)
        assert sent(server, session, image)[0] == 500
    assert sent(server, session, image)[0] == 200


def test_only_the_path_of_a_session_predicts(server, session):
    for path in (f"/sessions/{session['id']}/x/predict", "/sessions//predict", "/predict"):
        assert raw(server, "POST", path, TOKEN, b"")[0] in (404, 405)


@pytest.mark.slow
def test_predictions_that_wait_for_a_new_network_delay_no_other_request(server, session):
    """The event loop predicts small batches itself, unless it would wait."""
    hosted, found = server.hub.sessions[session["id"]], []
    pixels = np.zeros((2, *hosted.app.size, 3), np.uint8).tobytes()
    with hosted._using:
        asking = threading.Thread(
            target=lambda: found.append(sent(server, session, pixels, Content_Type="application/x-rgb")[0])
        )
        asking.start()
        time.sleep(0.2)  # the request is in its batch
        assert raw(server, "GET", f"/sessions/{session['id']}", session["token"])[0] == 200
        assert not found
    asking.join(20)
    assert found == [200]


@pytest.mark.slow
def test_devices_that_wait_for_their_training_delay_no_other_request(server, session, monkeypatch):
    """More of them than the event loop has threads; they also wait for the place of a session that trains."""
    training, opened = threading.Event(), []
    monkeypatch.setattr(server.hub, "_open", lambda *_: training.wait(30))
    monkeypatch.setattr(server.hub, "limits", replace(server.hub.limits, max_sessions=100))
    body = json.dumps(ASKED).encode()
    clients = [
        threading.Thread(target=lambda: opened.append(raw(server, "POST", "/sessions", TOKEN, body, **JSON)))
        for _ in range(50)
    ]
    for client in clients:
        client.start()
    until_s = time.monotonic() + 20
    while server.hub.opening < len(clients):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert raw(server, "GET", f"/sessions/{session['id']}/updates", session["token"])[0] == 200
    training.set()
    for client in clients:
        client.join(20)
    assert [status for status, _, _ in opened] == [200] * len(clients)
    assert server.hub.opening == 0


def test_the_demo_device_is_sent_to_the_port_of_the_server(server, monkeypatch):
    demo = server.app.api.state.demo
    monkeypatch.setattr(demo, "start", lambda url, *_: url)
    for host in ("127.0.0.1", "elsewhere:9"):
        body = raw(server, "POST", "/demo", TOKEN, b'{"seconds": 9}', Host=host, **JSON)[1]
        assert json.loads(body) == {"running": f"http://127.0.0.1:{server.port}"}
