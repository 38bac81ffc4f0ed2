"""Measure messages of 1 MB from 50 devices to a learner against bare Ray; prints one JSON line.

Each device makes a payload and the learner receives it; the driver sees neither. The bare side has as many actors and
calls, without names, logs, racks and sessions. Both run in turn on the same Ray, with the scheduling policy of a run;
medians are compared. Goal: .9.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import numpy as np
import ray
from _shared import options_of, report

from driftlab.actors.backend import RayBackend
from driftlab.actors.cluster import ClusterConfig
from driftlab.platform.core.records import Reply
from driftlab.platform.sim import host
from driftlab.platform.sim.session import NodeId

DEVICES = 50
PAYLOAD_BYTES = 2**20
SETTLE_S = 3.0  # in which processes end: they would slow down the other side


class PayloadSource:
    """Makes payloads."""

    def make(self) -> Reply:
        return Reply(payload=np.zeros(PAYLOAD_BYTES, dtype=np.uint8))


class PayloadSink:
    """Takes payloads."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, payload: np.ndarray) -> Reply:
        self.taken += 1
        return Reply(len(payload))


def ours_per_s(backend: RayBackend, rounds: int) -> float:
    session = backend.open("messages")
    learner = NodeId("learner", "learner")
    devices = [NodeId("device", f"device-{index}") for index in range(DEVICES)]
    session.place(learner)
    for device in devices:
        session.place(device)
    session.result(session.call(learner, "take", session.call(devices[0], "make")))
    start_s = time.perf_counter()
    for _ in range(rounds):
        jobs = [session.call(learner, "take", session.call(device, "make")) for device in devices]
        for job in jobs:
            assert session.result(job).facts == PAYLOAD_BYTES
    rate = rounds * DEVICES / (time.perf_counter() - start_s)
    session.close()
    return rate


def bare_per_s(rounds: int, workers: int) -> float:
    @ray.remote(num_cpus=0)
    class Host:
        def make(self) -> np.ndarray:
            return np.zeros(PAYLOAD_BYTES, dtype=np.uint8)

        def take(self, payload: np.ndarray) -> int:
            return len(payload)

    hosts, learner = [Host.remote() for _ in range(workers)], Host.remote()
    ray.get([learner.take.remote(host.make.remote()) for host in hosts])
    start_s = time.perf_counter()
    for _ in range(rounds):
        taken = [learner.take.remote(hosts[index % workers].make.remote()) for index in range(DEVICES)]
        for reference in taken:
            assert ray.get(reference) == PAYLOAD_BYTES
    rate = rounds * DEVICES / (time.perf_counter() - start_s)
    for actor in (*hosts, learner):
        ray.kill(actor)
    time.sleep(SETTLE_S)
    return rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = options_of(parser, rounds=1, repeats=1, workers=1)
    nodes = {"device": "messages:PayloadSource", "learner": "messages:PayloadSink"}
    nodes |= dict.fromkeys(("application", "teacher", "builder", "recorder"), "messages:PayloadSource")
    with host.in_batch(), contextlib.closing(RayBackend(ClusterConfig(workers=options.workers), nodes)) as backend:
        ours_per_s(backend, options.rounds)  # warms up
        pairs = [
            (bare_per_s(options.rounds, options.workers), ours_per_s(backend, options.rounds))
            for _ in range(options.repeats)
        ]
    bare, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    line = {
        "benchmark": "messages",
        "devices": DEVICES,
        "payload_bytes": PAYLOAD_BYTES,
        "bare_per_s": round(bare),
        "messages_per_s": round(ours),
        "ratio": round(ours / bare, 3),
    }
    report(line)
