"""A server that changes honest replies in one of many ways, and devices that must survive it.

A device must predict every frame, end within its time, keep its memory, and raise nothing but an error of driftlab.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.field.fuzz import mutated
from benchmarks.field.processes import TOKEN, ServerProcess
from driftlab.errors import DriftlabError, first_line
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.messages import decode_results
from driftlab.platform.field.opening import dump_weights, load_weights
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.tables import write_run
from driftlab.platform.field.ticket import join
from driftlab.platform.lab.seal import create_run
from driftlab.platform.results.tables.read import open_run

FPS, SECONDS = 4.0, 3.0
ASKED = {
    "system": {"name": "quick", "base": "ams", "streaming": {"name": "ams", "interval_s": 0.5}},
    "workload": {"name": "streets/running", "duration_s": SECONDS, "fps": FPS, "height": 32, "width": 48},
    "student": {"network": "half", "pretrain_steps": 2},
}
ENDING = (  # modes that end the session, once a reply has been changed; the device goes on without it
    *("results without an end", "a plan that is not a number", "a plan of strings", "a plan out of range"),
    *("a deep plan", "a torn result", "a result of an unknown kind", "a result of another version", "a wrong token"),
)
LATE_S = 60.0  # after the end of the stream: connections may wait for their time limits
GROWTH_MB = 250.0  # of the process

Change = Callable[[bytes], "bytes | Endless | int"]  # of the body of a reply; a number is a status


@dataclass(frozen=True)
class Endless:
    """A body, or a head, that never ends."""

    head: bool = False


def _result(**changes: Any) -> Change:
    """Change the newest result of a reply."""

    def change(body: bytes) -> bytes:
        results = list(decode_results(body, FPS))
        return b"".join(one.encode(FPS) for one in [*results[:-1], replace(results[-1], **changes)]) if results else b""

    return change


def _weights(change: Callable[[dict[str, np.ndarray[Any, Any]]], None]) -> Change:
    def changed(body: bytes) -> bytes:
        weights = dict(load_weights(body))
        change(weights)
        return dump_weights(weights)

    return changed


def _first(name: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    def change(weights: dict[str, Any]) -> None:
        key = next(iter(weights))
        weights[key] = name(weights[key])

    return change


def _rounds(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda body: json.dumps([change(one) for one in json.loads(body)]).encode()


def _fields(**values: Any) -> Change:
    return lambda body: json.dumps(json.loads(body) | values).encode()


def _torn(body: bytes) -> bytes:
    return body[: len(body) // 2]


MODES: dict[str, tuple[str, Change]] = {  # name: the part of the path whose replies change, and how
    "weights without an end": ("weights", lambda body: Endless()),
    "headers without an end": ("weights", lambda body: Endless(head=True)),
    "weights that are not numbers": ("weights", _weights(_first(lambda array: array * np.float32("nan")))),
    "weights of another shape": ("weights", _weights(_first(lambda array: np.zeros((3, 3), np.float32)))),
    "weights of another network": ("weights", _weights(lambda weights: weights.clear())),
    "torn weights": ("weights", _torn),
    "a session without a token": ("sessions$", lambda body: b'{"id": "a"}'),
    "a session of another version": ("sessions$", _fields(format=99)),
    "results without an end": ("updates", lambda body: Endless()),
    "a plan that is not a number": ("updates", _result(plan=b"[NaN,0.5,false,[],0]")),
    "a plan of strings": ("updates", _result(plan=b'["a","b","c","d","e"]')),
    "a plan out of range": ("updates", _result(plan=b"[100,1e9,false,[],0]")),
    "a deep plan": ("updates", _result(plan=b"[" * 255)),  # the longest one that a message can have
    "a torn result": ("updates", _torn),
    "a result of an unknown kind": ("updates", lambda body: body[:5] + b"\xff" + body[6:]),
    "an update of random bytes": ("updates", _result(payload=bytes(range(256)) * 4)),
    "an empty update": ("updates", _result(payload=b"")),
    "a result of a far number": ("updates", _result(number=2**32 - 1)),
    "a result of another version": ("updates", lambda body: b"\x63" + body[1:]),
    "deleted results": ("updates", lambda body: 410),
    "a resync that is not a number": ("resync|updates", lambda body: b"abc" if body.isdigit() else 410),
    "rounds with a new column": ("rounds", _rounds(lambda one: {**one, "row": {**(one["row"] or {}), "new": 1}})),
    "rounds without a row": ("rounds", _rounds(lambda one: {"number": one["number"]})),
    "rounds of strings": ("rounds", _rounds(lambda one: {**one, "row": dict.fromkeys(one["row"] or {"loss": 0}, "x")})),
    "rounds that are no list": ("rounds", lambda body: b'{"a": [1]}'),
    "rounds without an end": ("rounds", lambda body: Endless()),
    "a wrong token": ("uploads|updates|report", lambda body: 401),
    "errors only": ("uploads|updates|report|rounds", lambda body: 500),
    "acknowledgements of random bytes": ("uploads", lambda body: b"\xff\xfe\x00"),
}

DRAWN = (
    "weights",
    "sessions$",
    "updates",
    "rounds",
    "resync|updates",
    "uploads|report",
    "uploads|updates|rounds|report",
)
STATUSES = (204, 301, 400, 401, 404, 410, 418, 429, 500, 503)


def drawn_mode(dice: random.Random) -> tuple[str, Change]:
    """Draw the replies that change; most of them get other bytes, some another status."""

    def change(body: bytes) -> bytes | int:
        return dice.choice(STATUSES) if dice.random() < 0.1 else mutated(dice, body)

    return dice.choice(DRAWN), change


@dataclass
class Hostile:
    """Forwards requests to an honest server, and changes the replies of a mode."""

    honest: int  # port of the honest server
    token: str
    path: str = ""  # part of the paths whose replies change
    change: Change = bytes
    changed: int = 0  # replies
    failed: list[str] = field(default_factory=list)  # changes that could not be made
    port: int = field(init=False)

    @contextlib.contextmanager
    def running(self) -> Iterator[Hostile]:
        """Listen until the block ends."""
        with ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) as server:
            server.daemon_threads = True
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield self
            finally:
                server.shutdown()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hostile = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.partition("?")[0].endswith("/live"):  # no WebSocket: HTTP carries everything
                    self._send(404, b"")
                    return
                status, reply = hostile.ask(self.command, self.path, body, dict(self.headers))
                if status < 300 and re.search(hostile.path, self.path.partition("?")[0]):
                    changed = hostile.changed_reply(reply)
                    if isinstance(changed, Endless):
                        self._send_endlessly(changed)
                        return
                    status, reply = (changed, b"no") if isinstance(changed, int) else (status, changed)
                self._send(status, reply)

            do_GET = do_POST = _reply

            def _send(self, status: int, reply: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(reply)))
                    self.end_headers()
                    self.wfile.write(reply)

            def _send_endlessly(self, body: Endless) -> None:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if body.head else b"\r\n"))
                    while True:
                        self.wfile.write((b"X: " + b"x" * 1000 + b"\r\n") if body.head else bytes(2**20))

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler

    def changed_reply(self, reply: bytes) -> bytes | Endless | int:
        """Return the reply that the device receives instead of an honest one."""
        try:
            changed = self.change(reply)
        except Exception as error:  # a fault of this program: the thread of a request would only print it
            self.failed.append(f"the change raised {type(error).__name__}: {error}")
            return reply
        self.changed += changed != reply
        return changed

    def ask(self, method: str, path: str, body: bytes, head: dict[str, str]) -> tuple[int, bytes]:
        """Return the honest reply."""
        line = http.client.HTTPConnection("127.0.0.1", self.honest, timeout=60)
        kept = {name: value for name, value in head.items() if name in ("Authorization", "Content-Type")}
        try:
            line.request(method, path, body or None, kept)
            reply = line.getresponse()
            return reply.status, reply.read()
        finally:
            line.close()


def play(hostile: Hostile, mode: str, folder: Path) -> list[str]:
    """Run a device with a hostile server in a mode, or with the present changes; return its faults."""
    if mode in MODES:
        hostile.path, hostile.change = MODES[mode]
    hostile.changed, hostile.failed = 0, []
    opening = hostile.path.startswith(("weights", "sessions"))  # replies before the stream
    faults: list[str] = []
    before, started_s = psutil.Process().memory_info().rss, time.monotonic()
    unseen = threading.excepthook
    threading.excepthook = lambda args: faults.append(f"thread {args.thread} ended unseen: {args.exc_value!r}")
    try:
        agent = Agent(join(f"http://127.0.0.1:{hostile.port}", hostile.token, parse_session_request(ASKED)))
        with create_run(agent.cell.experiment, folder) as directory:
            agent.begin(directory)
            agent.run()
            write_run(agent, directory)
            agent.seal()
    except DriftlabError as error:
        if len(str(error)) > 1000 or not opening:
            faults.append(f"it raised {type(error).__name__}: {first_line(error)}")
    except Exception as error:
        faults.append(f"it raised {type(error).__name__}: {first_line(error)}")
    else:
        frames = len(open_run(folder).table("frames"))
        if frames != SECONDS * FPS:
            faults.append(f"it has {frames} of {SECONDS * FPS:.0f} frames")
        if (mode in MODES and opening) or (mode in ENDING and hostile.changed and not agent.traffic.failed):
            faults.append("it accepted the reply")
    finally:
        threading.excepthook = unseen
    if time.monotonic() - started_s > SECONDS + LATE_S:
        faults.append(f"it took {time.monotonic() - started_s:.0f} s")
    if (grown := (psutil.Process().memory_info().rss - before) / 2**20) > GROWTH_MB:
        faults.append(f"its process grew by {grown:.0f} MB")
    return faults + hostile.failed


def run_hostile_servers(seed: int, count: int) -> tuple[dict[str, object], list[str]]:
    """Play all modes, then drawn ones until `count` replies were hostile; return totals and faults."""
    dice, broken, sessions, replies = random.Random(seed), list[str](), 0, 0
    unchanged: list[str] = []  # modes without a changed reply, as on a busy computer
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftlab-hostile-")))
        honest = ServerProcess(place)
        stack.callback(honest.stop)
        hostile = stack.enter_context(Hostile(honest.port, TOKEN).running())
        hostile.path = "(?!)"  # no reply: the first device imports all modules
        play(hostile, "honest", place / "honest")
        while sessions < len(MODES) or replies < count:
            mode = [*MODES][sessions] if sessions < len(MODES) else f"drawn {sessions}"
            if mode not in MODES:
                hostile.path, hostile.change = drawn_mode(dice)
            found = play(hostile, mode, place / str(sessions))
            sessions, replies = sessions + 1, replies + hostile.changed
            broken += [f"{mode} ({hostile.path}): {fault}" for fault in found]
            outcome = "; ".join(found) or ("holds" if hostile.changed else "no reply was changed")
            unchanged += [mode] if mode in MODES and not hostile.changed else []
            print(f"{replies:4d}  {mode}: {outcome}", file=sys.stderr, flush=True)
            shutil.rmtree(place / str(sessions - 1), ignore_errors=True)
        if "Traceback" in honest.log:
            broken.append("the honest server printed a traceback")
    totals = {"benchmark": "hostile-servers", "seed": seed, "sessions": sessions, "replies": replies}
    return {**totals, "unchanged": unchanged}, broken
