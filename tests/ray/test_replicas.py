"""Replicas on Ray Serve: each session has one, a lost one is replaced, and requests set their number."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
import ray_fakes
from ray import serve
from ray.serve.schema import LoggingConfig
from replica_fakes import ShardEcho
from sockets_factory import free_ports

from driftlab.serve_apps import deployment
from driftlab.serve_apps.deployment import ServerArgs, http_options, replicated
from driftlab.serve_apps.http_server import ServerAddress
from driftlab.serve_apps.shards import COUNT

LIMIT_S = 60
NAMES = [f"{number:016x}" for number in range(24)]  # with 12, one of two replicas had all in one of 2 200 pairs


@pytest.fixture(scope="module")
def where(one_ray):
    """The address of Ray Serve, which starts once."""
    one_ray.share(ray_fakes.CLASSES, workers=2)
    (port,) = free_ports(1)
    where = ServerAddress("127.0.0.1", port)
    serve.start(http_options=http_options(where), logging_config=LoggingConfig(log_level="ERROR"))
    yield where
    serve.shutdown()


@pytest.fixture
def run(backend, where, tmp_path):
    """Return a function that runs replicas and returns their URL."""

    def with_args(**named):
        args = ServerArgs(state_dir=str(tmp_path), token=16 * "x", cpus=0, **named)
        serve.run(replicated(ShardEcho, args).bind(str(tmp_path)), name="echo", route_prefix="/")
        return where.url

    yield with_args
    serve.delete("echo")


def ask(url, name, hold_s=0):
    """Return the name of a session's replica, its process, and its shards; ask again while it is replaced."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/sessions/{name}/predict?hold_s={hold_s}", timeout=LIMIT_S) as reply:
                return tuple(json.load(reply))
        except (urllib.error.HTTPError, ConnectionError):
            assert time.monotonic() < deadline, "the replica is not replaced"
            time.sleep(0.1)


def opener(url):
    """Return the name of the replica that opens a new session, while no request is open."""
    time.sleep(0.1)  # a proxy counts a request for some time after its reply
    with urllib.request.urlopen(f"{url}/sessions", data=b"", timeout=LIMIT_S) as reply:
        return json.load(reply)[0]


def settled(url, count):
    """Return the reply for each session, once so many replicas hold all shards."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = {name: ask(url, name) for name in NAMES}
        shards = {replica: held for replica, _, held in found.values()}
        if len(shards) == len(set(found.values())) == count and sum(shards.values()) == COUNT:
            return found
        assert time.monotonic() < deadline, sorted(found.values())


@pytest.mark.slow
def test_a_session_keeps_its_replica_and_a_lost_one_is_replaced(run):
    url = run(replicas=2)
    first = settled(url, 2)
    assert {name: ask(url, name) for name in NAMES} == first
    assert {opener(url) for _ in NAMES} == {replica for replica, _, _ in first.values()}
    lost = first[NAMES[0]][1]
    os.kill(lost, signal.SIGKILL)
    while (after := settled(url, 2)) == first:
        time.sleep(0.1)
    processes = {process for _, process, _ in after.values()}
    assert lost not in processes
    assert len(processes & {process for _, process, _ in first.values()}) == 1


@pytest.mark.slow
def test_replicas_follow_the_number_of_requests(run, monkeypatch):
    """While requests are held there are two; afterwards one holds all shards again."""
    soon = {"upscale_delay_s": 0.2, "downscale_delay_s": 0.5, "metrics_interval_s": 0.2, "look_back_period_s": 0.5}
    monkeypatch.setattr(deployment, "SCALING", soon)
    url = run(replicas=1, max_replicas=2, requests_per_replica=2)
    (alone,) = set(settled(url, 1).values())
    ended = threading.Event()

    def hold():
        while not ended.is_set():
            ask(url, NAMES[0], hold_s=0.5)

    held = [threading.Thread(target=hold) for _ in range(8)]
    for one in held:
        one.start()
    try:
        both = settled(url, 2)
    finally:
        ended.set()
        for one in held:
            one.join()
    assert alone[0] in {name for name, _, _ in both.values()}
    settled(url, 1)
