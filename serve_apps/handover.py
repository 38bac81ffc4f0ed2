"""Replicas on one computer that listen on the same port, and hand connections over to each other.

The operating system distributes connections over the replicas without regard to sessions. A replica that receives a
request of another one's session hands the connection over, with the bytes that it has read. So no proxy has to read the
requests, whose bodies are images.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp

from driftlab.serve_apps.http_server import HttpServer, LimitedProtocol, ServerAddress, UnknownConnections
from driftlab.serve_apps.shards import COUNT, PREFIX, SOCKET, HeldShards, shard_of_request

IS_SUPPORTED = sys.platform == "linux"  # it distributes connections evenly, and has short paths of open folders
MOVE_S, RETRY_S = 5.0, 0.05  # that a request waits while its shard moves; between attempts to hand it over
SEND_S = 2.0  # for a replica to take a connection
BACKLOG = 64  # connections that wait for a replica
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)  # which pass
HEAD = struct.Struct("!Qd")  # number of bytes that follow, and seconds for which the request may still wait
Adopt = Callable[[socket.socket, bytes, float], None]  # takes a connection, the bytes read from it, and the seconds


class Handover:
    """Hands connections over to other replicas, and receives those of this one in a thread."""

    def __init__(self, shards: HeldShards) -> None:
        self._shards = shards
        self._folder = os.open(shards.folder, os.O_RDONLY | os.O_DIRECTORY)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path(shards.name))
        os.chmod(self._path(shards.name), 0o600)
        self._thread: threading.Thread | None = None

    @property
    def is_working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, adopt: Adopt) -> None:
        """Begin to receive connections; the thread calls `adopt` with each."""
        self._listener.listen(BACKLOG)
        self._thread = threading.Thread(target=self._receive_all, args=(adopt,), name="handover", daemon=True)
        self._thread.start()

    def holds(self, shard: int) -> bool:
        """Return whether this replica holds a shard."""
        return shard in self._shards.held

    def own_shard(self) -> int:
        """Return a shard that this replica holds, or is to hold."""
        own = (shard for shard in range(COUNT) if self._shards.owner_of(shard) == self._shards.name)
        return min(self._shards.held, default=next(own, 0))

    def hand_over(self, shard: int, connection: int, data: bytes, left_s: float) -> bool:
        """Send a connection to the replica that is to hold a shard; return whether that took it."""
        owner = self._shards.owner_of(shard)
        if owner == self._shards.name:
            return False  # the shard is on its way to this replica
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
                sender.settimeout(SEND_S)
                sender.connect(self._path(owner))
                socket.send_fds(sender, [HEAD.pack(len(data), left_s)], [connection])
                sender.sendall(data)
        except OSError:  # the replica has ended, is about to start, or is busy; it discards a part of the bytes
            return False
        return True

    def close(self) -> None:
        """Receive no further connection."""
        if self._thread is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the call that waits for a connection
            self._thread.join()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(self._shards.name))
        os.close(self._folder)

    def _path(self, replica: str) -> str:
        """Return the path of a replica's file through the open folder: the system limits paths to 107 bytes."""
        return f"/proc/self/fd/{self._folder}/{PREFIX}{replica}{SOCKET}"

    def _receive_all(self, adopt: Adopt) -> None:
        while True:
            try:
                sender, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    return  # the listener is closed, or broken: then the replica is replaced
                time.sleep(RETRY_S)
                continue
            with sender:
                sender.settimeout(SEND_S)
                _receive(sender, adopt)


def _receive(sender: socket.socket, adopt: Adopt) -> None:
    """Receive a connection and pass it on; close it if its sender has not sent all bytes."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(sender, HEAD.size, 1, socket.MSG_CMSG_CLOEXEC)
        size, left_s = HEAD.unpack(head)
        data = b"".join(iter(partial(sender.recv, 2**18), b""))
        connection = socket.socket(fileno=descriptors[0]) if descriptors and len(data) == size else None
    except (OSError, struct.error):
        connection = None
    if connection is not None:
        adopt(connection, data, left_s)
        return
    for number in descriptors:
        os.close(number)


def _path_of(data: bytes) -> tuple[str, str] | None:
    """Return method and path of the request that begins with some bytes; None without its first line."""
    method, _, rest = data.lstrip(b"\r\n").partition(b"\r\n")[0].decode("latin-1").partition(" ")
    try:
        path = unquote(urlsplit(rest.rpartition(" ")[0]).path)
    except ValueError:
        return None
    return (method, path) if path else None


class HandoverProtocol(LimitedProtocol):
    """Hands a connection over before a request of another replica's session is parsed."""

    def __init__(
        self,
        handover: Handover,
        unknown: UnknownConnections,
        *args: Any,
        given: tuple[bytes, float] | None = None,
        **named: Any,
    ) -> None:
        """Begin with the bytes and the seconds that come with a connection from another replica."""
        super().__init__(unknown, *args, **named)
        self._handover, self._given = handover, given
        self._leaving: bytearray | None = None  # received from a connection that is handed over
        self._stays = False  # the request that begins gets its reply here

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._given is not None:
            self._leaving = bytearray(self._given[0])
            self.loop.call_soon(self._begin)  # uvloop begins to read after this function, even if it pauses reading

    def data_received(self, data: bytes) -> None:
        if self._leaving is not None:
            self._leaving += data
            self.transport.pause_reading()  # after the first of several parts that the event loop would read at once
        else:
            super().data_received(data)

    def _parse(self, data: bytes) -> None:
        if self._leaving is not None:  # the rest of a request whose head was held
            self._leaving += data
            return
        begins = self._is_idle and not self._stays and not self.transport.get_write_buffer_size()
        called = _path_of(data) if begins else None
        if called is None or self._handover.holds(shard := self._shard_of(*called)):
            super()._parse(data)
            return
        self._leaving, self._known = bytearray(data), None
        self.transport.pause_reading()
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._task = self.loop.create_task(  # kept here: the event loop has only a weak reference
            self._leave(shard, self._leaving, self._given)
        )

    def _shard_of(self, method: str, path: str) -> int:
        """Return the shard of a request; one that opens a session has a random shard, and is handed over once."""
        shard = shard_of_request(path, method)
        if shard is None:
            return secrets.randbelow(COUNT) if self._given is None else self._handover.own_shard()
        return shard

    async def _leave(self, shard: int, received: bytearray, given: tuple[bytes, float] | None) -> None:
        """Hand the connection over; stay if this replica gets the shard, or no replica takes it in time."""
        until_s = self.loop.time() + (MOVE_S if given is None else given[1])
        try:
            if given is not None:  # replicas that differ about the owner of a shard would pass it back and forth
                await asyncio.sleep(RETRY_S)
            while not self.transport.is_closing():
                left_s = until_s - self.loop.time()
                if self._handover.holds(shard) or left_s < 0:
                    self._begin(stays=True)
                elif await self._is_taken(shard, bytes(received), left_s):
                    self.transport.abort()
                else:
                    await asyncio.sleep(RETRY_S)
                    continue
                return
        except BaseException:
            self.transport.abort()
            raise

    async def _is_taken(self, shard: int, data: bytes, left_s: float) -> bool:
        """Return whether another replica has taken the connection, of which it gets a copy."""
        connection = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            send = partial(self._handover.hand_over, shard, connection, data, left_s)
            return await self.loop.run_in_executor(None, send)
        finally:
            os.close(connection)

    def _begin(self, stays: bool = False) -> None:
        """Begin with the bytes that have been received; if the request stays, its reply may have status 503."""
        data, self._leaving = bytes(self._leaving or b""), None
        if self.transport.is_closing():
            return
        self._stays, self._head_bytes = stays, 0
        self._await_headers()
        self.transport.resume_reading()
        try:
            self.data_received(data)
        except BaseException:
            self.transport.abort()  # as the event loop does
            raise
        finally:
            self._stays, self._given = False, None


class SharedPortServer(HttpServer):
    """The server of a replica whose port is also that of the other replicas on this computer."""

    def __init__(self, app: ASGIApp, where: ServerAddress, shards: HeldShards) -> None:
        self._handover = Handover(shards)
        try:
            super().__init__(app, where, partial(HandoverProtocol, self._handover), is_shared=True)
        except BaseException:
            self._handover.close()
            raise
        self._handover.start(self._adopt)

    @property
    def is_working(self) -> bool:
        return super().is_working and self._handover.is_working

    def close(self) -> None:
        self._handover.close()
        super().close()

    def _adopt(self, connection: socket.socket, data: bytes, left_s: float) -> None:
        """Receive a connection from the thread of the handover."""
        connection.setblocking(False)
        asyncio.run_coroutine_threadsafe(self._serve(connection, (data, left_s)), self.loop)

    async def _serve(self, connection: socket.socket, given: tuple[bytes, float]) -> None:
        try:
            await self.loop.connect_accepted_socket(partial(self.protocol, given=given), connection)
        except OSError:  # the client has disconnected
            connection.close()
