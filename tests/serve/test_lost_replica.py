"""A server on Ray Serve loses one of its two replicas while devices predict."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from served_factory import ASKED, TOKEN, driftlab, upload
from sockets_factory import free_ports

from driftlab.platform.field.client import Client, ServerUnavailable
from driftlab.serve_apps.shards import session_of, shard_of

SESSIONS, REPEATS, LIMIT_S, PAUSE_S = 8, 5, 240, 0.05
EVERY_S = 0.2  # between predictions of a device while a replica is replaced
REPLICA = "ray::ServeReplica"  # begins the title of its process
IMAGE = cv2.imencode(".png", np.arange(32 * 48 * 3, dtype=np.uint8).reshape(32, 48, 3))[1].tobytes()
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def replicated(tmp_path):
    """A server with two replicas, and its URL."""
    words = ["serve", "--replicas", "2", "--port", *free_ports(1), "--state-dir", tmp_path / "kept"]
    with (tmp_path / "said.log").open("w") as log:
        server = driftlab(*words, stdout=subprocess.PIPE, stderr=log)
    try:
        line = server.stdout.readline().split()
        assert line, (tmp_path / "said.log").read_text()
        yield server, line[1]
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def patiently(ask, refused=None):
    """Return a reply; repeat a request while the server is not available, and list its refusals."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except ServerUnavailable as error:
            assert time.monotonic() < until_s, error
            if refused is not None:
                refused.append(error)
            time.sleep(PAUSE_S)


class Device:
    """A session that has sent one upload, and its client."""

    def __init__(self, url, seed):
        owner, asked = Client(url, TOKEN), {**ASKED, "seed": seed}
        asked["system"] = {**ASKED["system"], "adaptation": {"name": "distill", "iterations": 3}}
        opened = patiently(lambda: owner.ask_json("POST", "/sessions", asked))
        self.path, self.client = f"/sessions/{opened['id']}", Client(url, opened["token"])
        self.refused = []
        patiently(lambda: self.client.ask("POST", f"{self.path}/uploads", upload(1)))
        until_s = time.monotonic() + LIMIT_S
        while patiently(lambda: self.client.ask_json("GET", self.path))["version"] < 1:
            assert time.monotonic() < until_s, "no round has ended"
            time.sleep(PAUSE_S)

    def predict(self):
        return patiently(lambda: self.client.ask("POST", f"{self.path}/predict", IMAGE), self.refused)


def replicas_of(server):
    """Return the processes of the replicas."""
    found = set()
    for process in psutil.Process(server.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {process} if "".join(process.cmdline()[:1]).startswith(REPLICA) else set()
    return found


def holds(replica, device):
    """Return whether a replica has locked the shard of a session."""
    lock = f"shard-{shard_of(session_of(device.path))}.lock"
    return lock in {Path(file.path).name for file in replica.open_files()}


def test_sessions_predict_the_same_after_the_loss_of_a_replica(replicated):
    """Before it no request is refused, as each goes to the replica of its session.

    After it some may be, unless Ray Serve notices the loss first and holds them back.
    """
    server, url = replicated
    with ThreadPoolExecutor(SESSIONS) as pool:
        devices = list(pool.map(lambda seed: Device(url, seed), range(SESSIONS)))
        before = list(pool.map(Device.predict, devices))
        assert len(set(before)) == SESSIONS, "the states of the sessions do not differ"
        for device in devices:
            device.refused.clear()
        assert [list(pool.map(Device.predict, devices)) for _ in range(REPEATS)] == REPEATS * [before]
        assert not any(device.refused for device in devices)
        (lost,) = (replica for replica in replicas_of(server) if holds(replica, devices[0]))
        over = threading.Event()

        def keep_predicting(device):
            return {device.predict() for _ in iter(partial(over.wait, EVERY_S), True)}

        during = [pool.submit(keep_predicting, device) for device in devices]
        try:
            lost.kill()
            until_s = time.monotonic() + LIMIT_S
            while lost in (found := replicas_of(server)) or len(found) < 2:
                assert time.monotonic() < until_s, "the replica is not replaced"
                time.sleep(PAUSE_S)
        finally:
            over.set()
        assert [one.result() for one in during] == [{reply} for reply in before]
        assert list(pool.map(Device.predict, devices)) == before
    until_s = time.monotonic() + LIMIT_S
    while [replica != lost for replica in replicas_of(server) if holds(replica, devices[0])] != [True]:
        assert time.monotonic() < until_s, "no replica, or more than one, holds the session"
        assert devices[0].predict() == before[0]  # a shard that goes to a new replica is free for a moment
        time.sleep(PAUSE_S)
