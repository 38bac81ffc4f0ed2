"""Draw requests from a server's description, mutate binary bodies, and mix attacks into them."""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.field.attacks import KINDS, Attacker
from benchmarks.field.faults import server_faults, settled
from benchmarks.field.power import upload
from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.platform.field.client import ServerUnavailable
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
GROWTH_MB = 150.0  # of the server and its children after the first tenth of the requests
ATTACK_SHARE, HONEST_EVERY = 0.3, 50  # of the draws; requests between two uploads of the honest device


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
            return mutated(self.dice, self.upload()), "application/octet-stream"
        if path.endswith("/predict"):
            return mutated(self.dice, image(self.dice)), "image/png"
        if "requestBody" not in about:
            return None, "application/json"
        if self.dice.random() < 0.1:
            return mutated(self.dice, json.dumps(ASKED).encode()), "application/json"
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


def mutated(dice: random.Random, body: bytes) -> bytes:
    """Change, remove or insert bytes at some random places, or at none."""
    data = bytearray(body)
    for _ in range(dice.choice([0, 1, 2, 20])):
        kind, place = dice.randrange(3), dice.randrange(len(data) or 1)
        if kind == 0 and data:
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.randrange(1, 50)]
        else:
            data[place:place] = dice.randbytes(dice.randrange(1, 50))
    return bytes(data)


def image(dice: random.Random) -> bytes:
    picture = np.full((40, 60, 3), dice.randrange(256), np.uint8)
    return bytes(cv2.imencode(dice.choice([".png", ".jpg"]), picture)[1])


@dataclass
class HonestDevice:
    """A device whose uploads must be acknowledged and used, whatever other clients send."""

    server: ServerProcess
    session: Mapping[str, str]
    acknowledged: int = 0

    def send(self) -> None:
        """Send the next upload; one that the server refuses for now is sent again later."""
        client = self.server.client(self.session["token"])
        with contextlib.suppress(ServerUnavailable):
            client.ask("POST", f"/sessions/{self.session['id']}/uploads", upload(self.acknowledged + 1))
            self.acknowledged += 1
        client.close()

    def faults(self) -> Iterator[str]:
        """Yield a violation for acknowledged uploads that no round has used."""
        status, rounds = settled(self.server, self.session["id"])
        yield from server_faults(status, rounds)
        if status["uploads"] != self.acknowledged:
            yield f"{self.acknowledged} uploads of the other session were acknowledged, the server has {status}"


@dataclass
class FuzzCampaign:
    """Random requests and attacks on one server, and their violations."""

    server: ServerProcess
    drawing: RequestDrawing
    attacker: Attacker
    honest: HonestDevice
    drawn: Iterator[Drawn] | None = None  # instead of `drawing`, and without attacks
    statuses: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)  # requests, by kind
    broken: list[str] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=lambda: [0.0, 0.0])  # most in the first tenth, and after it
    slowest_s: float = 0.0

    def run(self, count: int) -> None:
        """Send `count` requests, first one attack of each kind; then check the server and the honest device."""
        dice, first = self.drawing.dice, list(KINDS) if self.drawn is None else []
        while (done := self.statuses.total()) < count or first:
            began_s = time.monotonic()
            if first or (self.drawn is None and dice.random() < ATTACK_SHARE):
                self._attack(first.pop() if first else dice.choice(KINDS))
            else:
                self._send(self.drawing.draw() if self.drawn is None else next(self.drawn))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            if self._passed(done, HONEST_EVERY):
                self.honest.send()
                part = int(self.statuses.total() > count // 10)
                self.memory_mb[part] = max(self.memory_mb[part], self.server.memory_mb)
            if self._passed(done, 500):
                print(f"{self.statuses.total()} requests, {len(self.broken)} broken", file=sys.stderr, flush=True)
            if self.server.process.poll() is not None:
                self.broken.append(f"the server died: {self.server.log[-2000:]}")
                return
        self.broken += self._final_faults()

    def _passed(self, done: int, every: int) -> bool:
        """Return whether the requests since `done` have reached another multiple of a number."""
        return self.statuses.total() // max(1, every) > done // max(1, every)

    def _attack(self, kind: str) -> None:
        number = self.statuses.total()
        for reply in self.attacker.attack(kind):
            self.statuses[str(reply.status)] += 1
            self.attacks[kind] += 1
            if reply.fault:
                self.broken.append(f"{number}: {kind}: {reply.fault}")

    def _send(self, drawn: Drawn) -> None:
        for fault, status in _send(drawn, self.server, self.drawing):
            if fault:
                request = f"{drawn.method} {drawn.path[:200]} {(drawn.body or b'')[:200]!r}"
                self.broken.append(f"{self.statuses.total()}: {fault}: {request}")
            self.statuses[str(status)] += 1

    def _final_faults(self) -> Iterator[str]:
        """Check threads, tracebacks and memory, then the acknowledged uploads after another start."""
        client, stolen = self.server.client(), self.attacker.thief["id"]
        if client.ask_json("GET", "/healthz") != {"status": "ok"}:
            yield "a thread of the server died"
        if fault := client.ask_json("GET", f"/sessions/{stolen}")["fault"]:
            yield f"the stolen session failed: {fault}"
        if self.memory_mb[1] - self.memory_mb[0] > GROWTH_MB:
            yield f"the server grew from {self.memory_mb[0]:.0f} to {self.memory_mb[1]:.0f} MB"
        yield from self.honest.faults()
        self.server.kill()
        self.server.start()
        yield from self.honest.faults()
        if (start := self.server.log.find("Traceback")) >= 0:
            yield f"the server printed a traceback: {self.server.log[max(0, start - 500) : start + 3000]}"


def run_fuzzing(seed: int, count: int, *, by_schema: bool = False) -> tuple[dict[str, object], list[str]]:
    """Send `count` random requests, by schemathesis if chosen; return the totals and the violations."""
    with tempfile.TemporaryDirectory(prefix="driftlab-fuzz-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        server = ServerProcess(Path(place), *(["5000"] if by_schema else []))
        try:
            client = server.client()
            stolen, other = (client.ask_json("POST", "/sessions", ASKED) for _ in range(2))
            described, dice = client.ask_json("GET", "/openapi.json"), random.Random(seed)
            attacker = Attacker(random.Random(f"{seed}/attacks"), server.port, TOKEN, stolen, other)
            campaign = FuzzCampaign(
                server, RequestDrawing(dice, described, stolen), attacker, HonestDevice(server, other)
            )
            if by_schema:
                from benchmarks.field.schema import drawn_by_schema

                campaign.drawn = iter(drawn_by_schema(described, stolen, TOKEN, seed, count))
            campaign.run(count)
            attacker.close()
        finally:
            server.kill()
    return {
        "benchmark": "field-fuzz",
        "seed": seed,
        "requests": campaign.statuses.total(),
        "attacks": dict(sorted(campaign.attacks.items())),
        "statuses": dict(sorted(campaign.statuses.items())),
        "acknowledged": campaign.honest.acknowledged,
        "slowest_s": round(campaign.slowest_s, 2),
        "memory_mb": [round(one) for one in campaign.memory_mb],
    }, campaign.broken


def _send(drawn: Drawn, server: ServerProcess, drawing: RequestDrawing) -> Iterator[tuple[str, int]]:
    """Send a request, one in five uploads by WebSocket; yield its violation (or "") and its status."""
    if drawn.path.endswith("/uploads") and drawing.dice.random() < 0.2:
        line = Line(server.client(drawing.session["token"]), f"/sessions/{drawing.session['id']}")
        is_open = line.open(0)
        if is_open and line._open is not None:
            line._open.send(drawn.body or b"")
            line.receive(REPLY_TIMEOUT_S)
        line.close()
        yield ("", 101) if is_open else ("its WebSocket is refused", 0)
        return
    try:
        status = drawn.ask(server.port)
    except (OSError, http.client.HTTPException) as error:
        yield f"no reply ({type(error).__name__}: {error})", 0
        return
    wrong = status >= 500 and status != 503
    if drawn.token not in (TOKEN, drawing.session["token"]):
        wrong = wrong or status not in (401, 429)
    yield (f"{status}" if wrong else ""), status
