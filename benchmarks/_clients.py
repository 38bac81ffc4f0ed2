"""Send requests over several connections at once, and print their times.

One thread serves all connections: fifty threads of Python would measure how they wait for each other.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

END, READ_BYTES, TIMEOUT_S = b"\r\n\r\n", 2**18, 120.0


@dataclass
class Connection:
    """A connection with at most one request under way."""

    socket: socket.socket
    message: bytes
    left: int  # requests that are not sent yet
    began_s: float = 0.0
    received: bytearray = field(default_factory=bytearray)

    def send(self) -> None:
        self.left, self.began_s = self.left - 1, time.perf_counter()
        self.received.clear()
        self.socket.sendall(self.message)

    def receive(self) -> bool:
        """Read the received bytes, and return whether the reply is complete."""
        part = self.socket.recv(READ_BYTES)
        assert part, "the server closed a connection"
        self.received += part
        head, found, body = self.received.partition(END)
        if not found:
            return False
        assert head.startswith(b"HTTP/1.1 200"), bytes(head[:200])
        lines = dict(line.split(b": ", 1) for line in bytes(head).lower().split(b"\r\n")[1:])
        if b"content-length" in lines:
            return len(body) >= int(lines[b"content-length"])
        return body.endswith(b"0" + END)  # it comes in chunks


def send_all(port: int, message: bytes, clients: int, requests: int) -> list[float]:
    """Return the seconds of each request."""
    selector, took_s = selectors.DefaultSelector(), []
    for _ in range(clients):
        connected = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connected, selectors.EVENT_READ, Connection(connected, message, requests))
    for key in list(selector.get_map().values()):
        key.data.send()
    while selector.get_map():
        ready = selector.select(TIMEOUT_S)
        assert ready, "the server does not reply"
        for key, _ in ready:
            if not key.data.receive():
                continue
            took_s.append(time.perf_counter() - key.data.began_s)
            if key.data.left:
                key.data.send()
            else:
                selector.unregister(key.fileobj)
                key.data.socket.close()
    return took_s


def main() -> None:
    """Read a line of JSON with port, size of the message, clients and requests of each, then the message."""
    asked = json.loads(sys.stdin.buffer.readline())
    message = sys.stdin.buffer.read(asked["bytes"])
    began_s = time.perf_counter()
    took_s = send_all(asked["port"], message, asked["clients"], asked["requests"])
    print(json.dumps({"seconds": time.perf_counter() - began_s, "took_s": took_s}))


if __name__ == "__main__":
    main()
