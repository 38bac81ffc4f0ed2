"""Draw requests from a server's description, and mutate binary bodies."""

from __future__ import annotations

import http.client
import json
import os
import random
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil

from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.field.websocket import Line
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack

REPLY_TIMEOUT_S = 45.0  # longer than the server holds a request
ASKED = {
    "system": {"name": "quick", "base": "ams", "streaming": {"name": "ams", "interval_s": 1.0}},
    "workload": {"name": "streets/running", "duration_s": 86_400, "fps": 4, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}
ODD: tuple[Any, ...] = (None, True, -1, 0, 1e308, float("nan"), 2**63, "", "x" * 5000, "\0", "../..", [], {}, [[]] * 50)
LEFT_OUT = {("post", "/demo")}  # starts a process
GROWTH_MB = 150.0  # of the server from the first tenth of the requests to their end


@dataclass(frozen=True)
class Drawn:
    """A random request."""

    method: str
    path: str
    body: bytes | None
    token: str | None
    kind: str

    def ask(self, port: int) -> int:
        """Return the status of the reply."""
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=REPLY_TIMEOUT_S)
        head = {"Content-Type": self.kind} | ({} if self.token is None else {"Authorization": f"Bearer {self.token}"})
        try:
            line.request(self.method, self.path, self.body, head)
            reply = line.getresponse()
            reply.read()
            return reply.status
        finally:
            line.close()


class RequestDrawing:
    """Draws requests to a server with one session."""

    def __init__(
        self, dice: random.Random, described: Mapping[str, Any], session: Mapping[str, str], token: str = TOKEN
    ) -> None:
        self.dice, self.described, self.session, self.token = dice, described, session, token
        self.places = [
            (method, path)
            for path, methods in described["paths"].items()
            for method in methods
            if (method, path) not in LEFT_OUT
        ]
        self.number = 0

    def draws(self, count: int) -> Iterator[Drawn]:
        return (self.draw() for _ in range(count))

    def draw(self) -> Drawn:
        method, path = self.dice.choice(self.places)
        about = self.described["paths"][path][method]
        known = method != "delete" and self.dice.random() < 0.8
        names = {"name": self.session["id"] if known else self.word(), "kind": self.dice.choice(["frame", self.word()])}
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        token = self.dice.choices([self.token, self.session["token"], None, self.word()], [10, 6, 1, 1])[0]
        body, kind = self.body(path, about)
        return Drawn(method.upper(), path + self.query(about), body, token, kind)

    def word(self) -> str:
        letters = string.ascii_letters + string.digits + "%._-~+"
        return "".join(self.dice.choices(letters, k=self.dice.randint(1, 30)))

    def query(self, about: Mapping[str, Any]) -> str:
        parameters = [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
        given = [f"{name}={self.dice.choice(['0', '1', '-1', '1e9', 'nan', self.word()])}" for name in parameters]
        given = [one for one in given if self.dice.random() < 0.7 and "hold_s=1e9" not in one]
        return f"?{'&'.join(given)}" if given else ""

    def body(self, path: str, about: Mapping[str, Any]) -> tuple[bytes | None, str]:
        """Draw a body: by its schema where there is one, else mutated uploads and images."""
        if path.endswith("/uploads"):
            return self.mutated(self.upload()), "application/octet-stream"
        if path.endswith("/predict"):
            return self.mutated(image(self.dice)), "image/png"
        if "requestBody" not in about:
            return None, "application/json"
        if self.dice.random() < 0.1:
            return self.mutated(json.dumps(ASKED).encode()), "application/json"
        schema = about["requestBody"]["content"]["application/json"]["schema"]
        return json.dumps(self.value(schema)).encode(), "application/json"

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """Draw a value of a schema; one in eight may break it."""
        if self.dice.random() < 0.125 or depth > 6:
            return self.dice.choice(ODD)
        if "$ref" in schema:
            return self.value(self.described["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self.value(self.dice.choice(schema["anyOf"]), depth + 1)
        if "enum" in schema:
            return self.dice.choice(schema["enum"])
        if schema.get("type") == "object":
            properties = schema.get("properties", {})
            drawn = {name: self.value(one, depth + 1) for name, one in properties.items() if self.dice.random() < 0.8}
            return drawn | ({"pretrain_steps": 1} if "pretrain_steps" in properties else {})
        if schema.get("type") in ("number", "integer"):
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 100)
            return self.dice.choice([low, high, self.dice.uniform(low, high), self.dice.randint(int(low), int(high))])
        return self.dice.choice(["ams", "half", "streets/running", self.word()])

    def upload(self) -> bytes:
        """Make an upload that is valid if its number is the next one."""
        self.number += self.dice.random() < 0.3
        images = np.frombuffer(self.dice.randbytes(2 * 32 * 48 * 3), np.uint8).reshape(2, 32, 48, 3)
        times_s = (self.number + 0.25, self.number + 0.5)
        sampling = Sampling(times_s, self.number + 1.0, codec="h264")
        return SampleMessage(max(1, self.number), self.number + 1.0, sampling, pack(images, "h264").payload).encode(4.0)

    def mutated(self, body: bytes) -> bytes:
        data = bytearray(body)
        for _ in range(self.dice.choice([0, 1, 2, 20])):
            kind, place = self.dice.randrange(3), self.dice.randrange(len(data) or 1)
            if kind == 0 and data:
                data[place] = self.dice.randrange(256)
            elif kind == 1:
                del data[place : place + self.dice.randrange(1, 50)]
            else:
                data[place:place] = self.dice.randbytes(self.dice.randrange(1, 50))
        return bytes(data)


def image(dice: random.Random) -> bytes:
    picture = np.full((40, 60, 3), dice.randrange(256), np.uint8)
    return bytes(cv2.imencode(dice.choice([".png", ".jpg"]), picture)[1])


def run_fuzzing(seed: int, count: int, *, by_schema: bool = False) -> tuple[dict[str, object], list[str]]:
    """Send `count` random requests, by schemathesis if chosen; return the totals and the violations."""
    statuses: Counter[str] = Counter()
    broken: list[str] = []
    slowest_s, resident_mb = 0.0, [0.0, 0.0]
    with tempfile.TemporaryDirectory(prefix="driftlab-fuzz-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        server = ServerProcess(Path(place), "5000")
        try:
            client = server.client()
            session = client.ask_json("POST", "/sessions", ASKED)
            described = client.ask_json("GET", "/openapi.json")
            drawing = RequestDrawing(random.Random(seed), described, session)
            draws = drawing.draws(count)
            if by_schema:
                from benchmarks.field.schema import drawn_by_schema

                draws = iter(drawn_by_schema(described, session, TOKEN, seed, count))
            held = psutil.Process(server.process.pid)
            for number, drawn in enumerate(draws):
                began_s = time.monotonic()
                for fault, status in _send(drawn, server, drawing):
                    statuses[str(status)] += 1
                    if fault:
                        request = f"{drawn.method} {drawn.path[:200]} {(drawn.body or b'')[:200]!r}"
                        broken.append(f"{number}: {fault}: {request}")
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                if number == count // 10:
                    resident_mb[0] = held.memory_info().rss / 2**20
                if number % 500 == 499:
                    print(f"{number + 1} requests, {len(broken)} broken", file=sys.stderr, flush=True)
            resident_mb[1] = held.memory_info().rss / 2**20
            if resident_mb[1] - resident_mb[0] > GROWTH_MB:
                broken.append(f"the server grew from {resident_mb[0]:.0f} to {resident_mb[1]:.0f} MB")
            if client.ask_json("GET", f"/sessions/{session['id']}")["fault"]:
                broken.append(f"the session failed: {client.ask_json('GET', '/sessions')}")
        finally:
            server.kill()
    summary = {"benchmark": "field-fuzz", "seed": seed, "requests": count, "statuses": dict(sorted(statuses.items()))}
    return {**summary, "slowest_s": round(slowest_s, 2), "resident_mb": [round(one) for one in resident_mb]}, broken


def _send(drawn: Drawn, server: ServerProcess, drawing: RequestDrawing) -> Iterator[tuple[str, int]]:
    """Send a request, one in five uploads by WebSocket; yield its violation (or "") and its status."""
    if drawn.path.endswith("/uploads") and drawing.dice.random() < 0.2:
        line = Line(server.client(drawing.session["token"]), f"/sessions/{drawing.session['id']}")
        if line.open(0) and line._open is not None:
            line._open.send(drawn.body or b"")
            line.receive(REPLY_TIMEOUT_S)
        line.close()
        yield "", 101
        return
    try:
        status = drawn.ask(server.port)
    except (OSError, http.client.HTTPException) as error:
        yield f"no reply ({type(error).__name__}: {error})", 0
        return
    wrong = status >= 500 and status != 503
    if drawn.token not in (TOKEN, drawing.session["token"]):
        wrong = wrong or status != 401
    yield (f"{status}" if wrong else ""), status
