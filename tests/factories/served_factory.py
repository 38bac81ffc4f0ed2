"""A server without Ray, on a port of the loopback interface, and requests to it."""

from __future__ import annotations

import contextlib

from driftlab.platform.field.client import Client
from driftlab.serve_apps.http_server import HttpServer, ServerAddress
from driftlab.serve_apps.quotas import Limits, SessionQuotas, TokenBuckets
from driftlab.serve_apps.routes import ServerApp
from driftlab.serve_apps.server_metrics import ServerMetrics
from driftlab.serve_apps.sessions import SessionRegistry

TOKEN = "a token of the tests"
ASKED = {
    "system": {"name": "ams", "streaming": {"name": "ams", "interval_s": 2.0}},
    "workload": {"name": "streets/running", "duration_s": 12, "fps": 4, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}


class FakeHub:
    """A hub that accepts the token `owner` and that of the session `device`."""

    def __init__(self, **limits):
        self.limits, self.draining, self.sessions = Limits(**limits), False, {}
        self.rates, self.meters = TokenBuckets(self.limits.rate_limit), ServerMetrics(self)
        self.wrong_tokens = TokenBuckets(self.limits.wrong_tokens)
        self.quotas = SessionQuotas(self.limits)

    def is_owner(self, token):
        return token == "owner"

    def is_enrolment(self, token):
        return token == "enrolment"

    def seen(self, name, address):
        """Record nothing."""

    def session_of(self, token):
        return token if token == "device" else None


class Served:
    """A server that can be stopped and restarted on the same port."""

    def __init__(self, folder, limits=None, tls=None):
        self.folder, self.limits, self.tls, self.port = folder, limits, tls, 0
        self.start()

    def start(self):
        self.hub = SessionRegistry(self.folder, TOKEN, self.limits)
        self.app = ServerApp(lambda: self.hub)
        self.door = HttpServer(self.app, ServerAddress("127.0.0.1", self.port, *map(str, self.tls or ())))
        self.port = self.door.port

    def stop(self):
        self.door.close()
        self.hub.close()

    @property
    def url(self):
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self.port}"

    def client(self, token=TOKEN):
        return Client(self.url, token)


@contextlib.contextmanager
def served(folder, limits=None, tls=None):
    server = Served(folder, limits, tls)
    try:
        yield server
    finally:
        server.stop()
