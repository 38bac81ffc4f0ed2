"""A server without Ray, on a port of the loopback interface, and requests to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.client import Client
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.http_server import HttpServer, ServerAddress
from driftlab.serve_apps.quotas import Limits, SessionQuotas, TokenBuckets
from driftlab.serve_apps.routes import ServerApp
from driftlab.serve_apps.server_metrics import ServerMetrics
from driftlab.serve_apps.sessions import SessionRegistry, digest_of
from driftlab.serve_apps.shards import AllShards

TOKEN = "a token of the tests"
FPS = 4.0
ASKED = {
    "system": {
        "name": "ams",
        "streaming": {"name": "ams", "interval_s": 2.0},
        "adaptation": {"name": "distill", "iterations": 6},  # a tenth of the usual steps, to save time
    },
    "workload": {"name": "streets/running", "duration_s": 12, "fps": 4, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}


def driftlab(*words, **options):
    """Start a command in another process."""
    environment = {**os.environ, "DRIFTLAB_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "driftlab", *map(str, words)]
    return subprocess.Popen(command, env=environment, text=True, **options)


def upload(number, codec="h264"):
    """Return the bytes of an upload of two frames of noise."""
    images = rng_for(0, "upload", number).integers(0, 255, (2, 32, 48, 3)).astype(np.uint8)
    sampling = Sampling((number - 0.5, number - 0.25), float(number), codec=codec)
    return SampleMessage(number, float(number), sampling, pack(images, codec).payload).encode(FPS)


def certificate(folder):
    """Make a self-signed certificate for the loopback interface; skip the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, cert = folder / "key.pem", folder / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    about = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *about, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


class FakeHub:
    """A hub that accepts the token `owner` and that of the session `device`."""

    def __init__(self, **limits):
        self.limits, self.draining, self.sessions, self.shards = Limits(**limits), False, {}, AllShards()
        self.max_sessions = self.limits.max_sessions
        self.rates, self.meters = TokenBuckets(self.limits.rate_limit), ServerMetrics(self)
        self.wrong_tokens = TokenBuckets(self.limits.wrong_tokens)
        self.quotas = SessionQuotas(self.limits)

    def is_owner(self, token):
        return token == "owner"

    def is_enrolment(self, token):
        return token == "enrolment"

    def seen(self, name, address):
        """Record nothing."""

    def session_of(self, digest):
        return "device" if digest == digest_of("device") else None


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
