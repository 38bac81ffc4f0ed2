"""Forward TCP connections on the loopback interface, and interrupt them as a failing network does."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

PIECE = 65536


class Proxy:
    """Forwards TCP connections to a port; while it is cut, no byte passes."""

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._stop = threading.Event()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, seconds: float) -> None:
        """Forward nothing for a while; connections stay open, without notice to either side."""
        self._open.clear()
        time.sleep(seconds)
        self._open.set()

    def drop(self) -> None:
        """Close every connection."""
        lines, self._lines = self._lines, []
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stop.set()
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(line,), daemon=True).start()

    def _forward(self, line: socket.socket) -> None:
        self._open.wait()
        try:
            other = socket.create_connection(self._to, 5.0)
        except OSError:
            line.close()
            return
        self._lines += [line, other]
        with line, other, selectors.DefaultSelector() as ready:
            ready.register(line, selectors.EVENT_READ, other)
            ready.register(other, selectors.EVENT_READ, line)
            with contextlib.suppress(OSError):
                while not self._stop.is_set():
                    for key, _ in ready.select(0.2):
                        self._open.wait()
                        data = key.fileobj.recv(PIECE)  # type: ignore[union-attr]
                        if not data:
                            return
                        key.data.sendall(data)
