"""Attack a server with bombs, endless heads, floods and stolen tokens."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from driftlab.platform.core.wire import seal
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import codec_of
from driftlab.serve_apps.tokens import enrolment_of

TIMEOUT_S = 45.0  # longer than the server waits for a head
KINDS = (
    "video bomb",
    "image bomb",
    "endless head",
    "no HTTP",
    "torn body",
    "flood",
    "WebSockets",
    "stolen",
    "enrolment",
)
FLOODS = {"resync": b"", "report": b"[1,4,2,null]", "predict": b"no image", "uploads": b"no upload"}
MAX_FLOOD, MAX_SOCKETS = 40, 8
REFUSED = (401, 404, 429)
BOMB_FRAMES, BOMB_SIDE = 60, 1024  # black ones, declared as one of 32 x 48
IMAGE_SIDES = (6_000, 32_000, 2**31 - 1)
OWNERS = (("GET", "/sessions"), ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/"), ("DELETE", "/demo"))
HEADS = (
    b"GET / HTTP/1.1\r\nA: %s",
    b"GET /%s",
    b"GET / HTTP/1.1\r\n%s: b\r\n",
    b"POST / HTTP/1.1\r\nCookie: %s\r\n\r\n",
)
NO_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


@dataclass(frozen=True)
class AttackReply:
    """The end of a hostile request."""

    status: int  # 0: the server closed the connection
    fault: str = ""  # violation of a promise


@dataclass
class Attacker:
    """A thief of one device's token, who also has the token for devices."""

    dice: random.Random
    port: int
    owner: str  # the server's token, from which that of devices is derived
    thief: Mapping[str, str]  # the stolen session
    victim: Mapping[str, str]  # another session
    uploads: int = 0  # number of the newest one of the stolen session
    sockets: list[socket.socket] = field(default_factory=list)  # WebSockets that stay open

    def attack(self, kind: str) -> Iterator[AttackReply]:
        """Send the requests of one attack."""
        return {
            "video bomb": self._video_bomb,
            "image bomb": self._image_bomb,
            "endless head": self._endless_head,
            "no HTTP": self._no_http,
            "torn body": self._torn_body,
            "flood": self._flood,
            "WebSockets": self._open_sockets,
            "stolen": self._steal,
            "enrolment": self._enrol,
        }[kind]()

    # A device's token -----------------------------------------------------------------------------------------------

    def _video_bomb(self) -> Iterator[AttackReply]:
        number = self.uploads + 1
        sampling = Sampling((number + 0.25,), number + 1.0, codec="h264")
        body = SampleMessage(number, number + 1.0, sampling, video_bomb()).encode(4.0)
        reply = self._as_thief("POST", "uploads", body)
        self.uploads += reply.status == 200
        yield self._checked(reply, (200, 422, 429))

    def _image_bomb(self) -> Iterator[AttackReply]:
        yield self._checked(self._as_thief("POST", "predict", image_bomb(self.dice.choice(IMAGE_SIDES))), (422, 429))

    def _torn_body(self) -> Iterator[AttackReply]:
        """Announce a body, and close the connection before its end."""
        path, announced = f"/sessions/{self.thief['id']}/uploads", self.dice.choice([10, 10**6, 2**25 + 1])
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.thief['token']}\r\n"
        sent = self.dice.randbytes(min(announced - 1, self.dice.choice([1, 10**5])))
        yield self._raw(f"{head}Content-Length: {announced}\r\n\r\n".encode() + sent, wait=False)

    def _flood(self) -> Iterator[AttackReply]:
        verb, token = self.dice.choice(sorted(FLOODS)), self.dice.choice([self.thief["token"], "wrong", ""])
        path = f"/sessions/{self.thief['id']}/{verb}"
        with self._connection() as line:
            for _ in range(self.dice.randint(5, MAX_FLOOD)):
                allowed = (200, 422, 429) if token == self.thief["token"] else (401, 429)
                yield self._checked(self._ask(line, "POST", path, FLOODS[verb], token), allowed)

    def _open_sockets(self) -> Iterator[AttackReply]:
        """Open WebSockets with the stolen token, up to a number that stays open, and with a wrong one."""
        while len(self.sockets) > MAX_SOCKETS:
            self.sockets.pop(0).close()
        for token, allowed in ((self.thief["token"], (101, 429)), ("wrong", REFUSED)):
            path = f"/sessions/{self.thief['id']}/live"
            yield self._checked(self._raw(handshake(path, token), wait=True, keep=True), allowed)

    def _steal(self) -> Iterator[AttackReply]:
        """Use every route of another session, and those of the owner."""
        other = f"/sessions/{self.victim['id']}"
        routes = [
            ("GET", f"{other}{end}") for end in ("", "/weights", "/rounds", "/timeline", "/updates", "/images/frame")
        ]
        routes += [("POST", f"{other}/{end}") for end in FLOODS] + [("DELETE", other), ("DELETE", f"{other}/token")]
        routes += [*OWNERS, ("POST", "/sessions"), ("POST", "/demo")]
        method, path = self.dice.choice(routes)
        with self._connection() as line:
            yield self._checked(self._ask(line, method, path, b"{}", self.thief["token"]), REFUSED)

    def _enrol(self) -> Iterator[AttackReply]:
        """Use the token for devices for anything but a new session."""
        routes = [*OWNERS, ("GET", f"/sessions/{self.victim['id']}"), ("DELETE", f"/sessions/{self.victim['id']}")]
        method, path = self.dice.choice([*routes, ("GET", "/healthz"), ("POST", "/demo")])
        allowed = (200, 429) if path == "/healthz" else (401, 429)
        with self._connection() as line:
            yield self._checked(self._ask(line, method, path, b"", enrolment_of(self.owner)), allowed)

    # No token -------------------------------------------------------------------------------------------------------

    def _endless_head(self) -> Iterator[AttackReply]:
        head = self.dice.choice(HEADS) % (b"x" * self.dice.choice([20_000, 200_000]))
        yield self._checked(self._raw(head, wait=len(head) > 100_000), (0, 400, 401, 429, 431))

    def _no_http(self) -> Iterator[AttackReply]:
        sent = self.dice.choice([*NO_HTTP, self.dice.randbytes(self.dice.randint(1, 3000))])
        yield self._checked(self._raw(sent, wait=False), (0, *range(400, 500)))

    # Connections ----------------------------------------------------------------------------------------------------

    def _as_thief(self, method: str, verb: str, body: bytes) -> AttackReply:
        with self._connection() as line:
            return self._ask(line, method, f"/sessions/{self.thief['id']}/{verb}", body, self.thief["token"])

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(line):
            yield line

    @staticmethod
    def _ask(line: http.client.HTTPConnection, method: str, path: str, body: bytes, token: str) -> AttackReply:
        try:
            line.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
            reply = line.getresponse()
            reply.read()
            return AttackReply(reply.status)
        except (OSError, http.client.HTTPException) as error:
            return AttackReply(0, f"no reply ({type(error).__name__}: {error})")

    def _raw(self, sent: bytes, *, wait: bool, keep: bool = False) -> AttackReply:
        """Send bytes and return the status of the reply.

        Without `wait`, the connection is closed unless the reply arrives at once.
        """
        line = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
        received = b""
        try:
            line.sendall(sent)
            line.settimeout(TIMEOUT_S if wait else 0.01)
            received = line.recv(100)
        except TimeoutError:
            return AttackReply(0, "no reply, and the connection is still open" if wait else "")
        except OSError:  # closed before it had read all
            pass
        finally:
            if keep and received.startswith(b"HTTP/1.1 101"):
                self.sockets.append(line)
            else:
                line.close()
        words = received.split()
        return AttackReply(int(words[1]) if len(words) > 1 and words[1].isdigit() else 0)

    @staticmethod
    def _checked(reply: AttackReply, allowed: tuple[int, ...]) -> AttackReply:
        return reply if reply.fault or reply.status in allowed else AttackReply(reply.status, f"status {reply.status}")

    def close(self) -> None:
        """Close all WebSockets."""
        while self.sockets:
            self.sockets.pop().close()


def handshake(path: str, token: str) -> bytes:
    """Return the request that opens a WebSocket."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    )
    return f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


@cache
def video_bomb() -> bytes:
    """Return a short payload of many large black frames."""
    return seal(codec_of("h264").encode(np.zeros((BOMB_FRAMES, BOMB_SIDE, BOMB_SIDE, 3), dtype=np.uint8))[0])


@cache
def image_bomb(side: int) -> bytes:
    """Return a short PNG image that declares a size, with all pixels of the smallest one."""
    pixels = zlib.compress(bytes(side * (1 + 3 * side) if side == min(IMAGE_SIDES) else 10_000))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(one)) + kind + one + struct.pack(">I", zlib.crc32(kind + one)) for kind, one in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
