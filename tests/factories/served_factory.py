"""A server without Ray, on a port of the loopback interface, and requests to it."""

from __future__ import annotations

import contextlib
import threading
import time

import uvicorn

from driftlab.platform.field.client import Client
from driftlab.serve_apps.hub import Hub
from driftlab.serve_apps.routes import build_app

TOKEN = "a token of the tests"
ASKED = {
    "system": {"name": "ams", "streaming": {"name": "ams", "interval_s": 2.0}},
    "workload": {"name": "streets/running", "duration_s": 12, "fps": 4, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}


class Served:
    """A server's hub and address; it can be stopped and started again on the same port."""

    def __init__(self, folder, limits=None, tls=None):
        self.folder, self.limits, self.tls, self.port = folder, limits, tls, 0
        self.start()

    def start(self):
        self.hub = Hub(self.folder, TOKEN, self.limits)
        self.app = build_app(lambda: self.hub)
        options = {} if self.tls is None else dict(zip(("ssl_certfile", "ssl_keyfile"), self.tls, strict=True))
        config = uvicorn.Config(self.app, "127.0.0.1", self.port, log_level="error", lifespan="off", **options)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self):
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()
        self.hub.close()

    @property
    def url(self):
        return f"http{'' if self.tls is None else 's'}://127.0.0.1:{self.port}"

    def client(self, token=TOKEN):
        return Client(self.url, token)


@contextlib.contextmanager
def served(folder, limits=None, tls=None):
    one = Served(folder, limits, tls)
    try:
        yield one
    finally:
        one.stop()
