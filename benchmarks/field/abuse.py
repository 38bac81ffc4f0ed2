"""Measure how abuse by one session, or without a token, slows down another session of a server.

A device sends images at a steady rate, alone and during each abuse; the times of its predictions, its refused requests,
and the memory of the server's processes are compared with the quiet ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.field.processes import ServerProcess
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.websocket import Line

MAX_SLOWER, MAX_LARGER = 3.0, 1.3  # p99 and memory during an abuse, compared with the quiet ones
INTERVAL_S, THREADS = 0.02, 40
ASKED = {
    "system": "ams",
    "workload": {"name": "streets/running", "duration_s": 86_400, "fps": 4, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}


def png(side: int) -> bytes:
    """Return an image of random blocks."""
    blocks = rng_for(0, "abuse").integers(0, 255, (side // 16, side // 16, 3)).astype(np.uint8)
    return bytes(cv2.imencode(".png", np.kron(blocks, np.ones((16, 16, 1), dtype=np.uint8)))[1])


def ask(port: int, opened: Mapping[str, Any], verb: str, body: bytes | None = None) -> int:
    """Send a request of a session over a new connection, and return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        path = f"/sessions/{opened['id']}/{verb}"
        connection.request("POST", path, body, {"Authorization": f"Bearer {opened['token']}"})
        reply = connection.getresponse()
        reply.read()
        return reply.status


def _send(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for _ in range(1000):
            connection.sendall(data)


def _idle(port: int, opened: Mapping[str, Any]) -> None:
    for _ in range(100):
        KEPT.append(socket.create_connection(("127.0.0.1", port), 60))
    time.sleep(1.0)


def _open_sockets(port: int, opened: Mapping[str, Any]) -> None:
    from driftlab.platform.field.client import Client

    line = Line(Client(f"http://127.0.0.1:{port}", opened["token"]), f"/sessions/{opened['id']}")
    if line.open(0):
        KEPT.append(line)


KEPT: list[Any] = []  # connections that stay open until the abuse ends
ABUSES: Mapping[str, Callable[[int, Mapping[str, Any]], object]] = {
    "large images": lambda port, opened: ask(port, opened, "predict", png(3200)),
    "many images": lambda port, opened: ask(port, opened, "predict", png(48)),
    "requests for all weights": lambda port, opened: ask(port, opened, "resync"),
    "WebSockets": _open_sockets,
    "uploads of random bytes": lambda port, opened: ask(port, opened, "uploads", os.urandom(2**20)),
    "wrong tokens": lambda port, opened: ask(port, {**opened, "token": "wrong"}, "predict", png(48)),
    "endless header": lambda port, opened: _send(port, b"GET / HTTP/1.1\r\nA: " + b"x" * 60_000),
    "endless headers": lambda port, opened: _send(port, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000),
    "idle connections": _idle,
}


def _abuse(kind: str, port: int, opened: Mapping[str, Any], attempts: Any) -> None:
    """Repeat an abuse from many threads until this process is killed, and count the attempts.

    It stands for another computer, so it takes only the processor time that the server and its device leave.
    """
    os.nice(19)

    def repeat() -> None:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                ABUSES[kind](port, opened)
            attempts.value += 1  # not exact, as threads share it

    for _ in range(THREADS):
        threading.Thread(target=repeat, daemon=True).start()
    time.sleep(3600)


class Victim:
    """A device that sends images at a steady rate."""

    def __init__(self, server: ServerProcess, opened: Mapping[str, Any]) -> None:
        self.server, self.opened, self.image = server, opened, png(48)

    def measure(self, seconds: float) -> dict[str, float]:
        """Return the times of its requests, the number of refused ones, and the largest memory of the server."""
        took_s, refused, peak, until_s = [], 0, 0.0, time.monotonic() + seconds
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            try:
                refused += ask(self.server.port, self.opened, "predict", self.image) != 200
            except (OSError, http.client.HTTPException):
                refused += 1
            took_s.append(time.perf_counter() - began_s)
            if len(took_s) % 20 == 1:
                peak = max(peak, self.server.memory_mb)
            time.sleep(INTERVAL_S)
        p50_s, p99_s = np.percentile(took_s, (50, 99))
        found = {"p50_ms": p50_s * 1e3, "p99_ms": p99_s * 1e3, "refused": refused, "memory_mb": peak}
        return {name: round(float(value), 1) for name, value in found.items()}


def run_abuses(seconds: float, kinds: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Measure some abuses, each for some seconds; return the measurements and the violations."""
    broken, found = [], {}
    with tempfile.TemporaryDirectory(prefix="driftlab-abuse-", ignore_cleanup_errors=True) as place:
        server = ServerProcess(Path(place))
        try:
            thief, other = (server.client().ask_json("POST", "/sessions", ASKED) for _ in range(2))
            victim = Victim(server, other)
            ask(server.port, thief, "predict", png(512))  # starts both decoders
            victim.measure(2.0)
            for kind in kinds:
                quiet = victim.measure(seconds)
                spawn = multiprocessing.get_context("spawn")
                attempts = spawn.Value("q", 0)
                attacker = spawn.Process(target=_abuse, args=(kind, server.port, thief, attempts))
                attacker.start()
                time.sleep(3.0)  # its imports
                found[kind] = abused = victim.measure(seconds)
                attacker.kill()
                attacker.join()
                if not attempts.value:
                    broken.append(f"{kind}: the attacker did nothing")
                if abused["refused"] or abused["p99_ms"] > MAX_SLOWER * quiet["p99_ms"]:
                    broken.append(f"{kind}: {abused}, quiet {quiet}")
                if abused["memory_mb"] > MAX_LARGER * quiet["memory_mb"]:
                    broken.append(f"{kind}: {abused['memory_mb']} MB, quiet {quiet['memory_mb']} MB")
                print(json.dumps({"abuse": kind, "quiet": quiet, "abused": abused}), flush=True)
                time.sleep(2.0)
            if "Traceback" in server.log:
                broken.append("the server printed a traceback")
        finally:
            server.kill()
    return {"benchmark": "field-abuse", **found}, broken
