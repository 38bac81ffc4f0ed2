"""Two replicas on Ray Serve: each session has one of them, also after the loss of its process."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest
from ray import serve
from ray.serve.schema import LoggingConfig
from replica_fakes import ShardEcho

from driftlab.serve_apps.deployment import http_options, replicated
from driftlab.serve_apps.http_server import ServerAddress
from driftlab.serve_apps.shards import shard_of

LIMIT_S = 60
NAMES = [f"{number:016x}" for number in range(6)]


@pytest.fixture
def url(backend, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ServerAddress("127.0.0.1", port)
    serve.start(http_options=http_options(where), logging_config=LoggingConfig(log_level="ERROR"))
    serve.run(replicated(ShardEcho, 2).bind(str(tmp_path), 2), name="echo", route_prefix="/")
    yield where.url
    serve.shutdown()


def owners(url, names=NAMES):
    """Return the shard and the process that reply for each session; ask again while a replica is replaced."""
    found, deadline = {}, time.monotonic() + LIMIT_S
    for name in names:
        while name not in found:
            try:
                with urllib.request.urlopen(f"{url}/sessions/{name}/predict", timeout=LIMIT_S) as reply:
                    found[name] = tuple(json.load(reply))
            except urllib.error.HTTPError:
                assert time.monotonic() < deadline, "the replica is not replaced"
                time.sleep(0.1)
    return found


@pytest.mark.slow
def test_a_session_keeps_its_replica_and_a_lost_one_is_replaced(url):
    first = owners(url)
    assert {name: shard for name, (shard, _) in first.items()} == {name: shard_of(name, 2) for name in NAMES}
    processes = dict(set(first.values()))
    assert len(set(first.values())) == len(set(processes.values())) == 2
    assert owners(url) == first
    os.kill(processes[0], signal.SIGKILL)
    after = owners(url)
    for name, (shard, process) in first.items():
        assert after[name][0] == shard
        assert (after[name][1] == process) == (shard == 1)
    assert len(set(after.values())) == 2
