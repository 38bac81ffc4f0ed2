"""A back end in two processes: devices and applications in a child, all other nodes here."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from driftlab.platform.core.records import Reply
from driftlab.platform.sim.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.sim.session import Job, NodeId

KEY = b"a test"
AWAY = ("device", "application")


@dataclass(frozen=True)
class RemotePayload:
    """Stands for the payload of a job of the child, which keeps it."""

    number: int


def serve(address: Any) -> None:
    """Run the parent's calls in the child until the parent closes the connection."""
    session, payloads = InlineSession(), {}
    with Client(address, authkey=KEY) as line:
        while True:
            try:
                verb, node, number, args = line.recv()
            except EOFError:
                return
            if verb == "#fetch":
                line.send(payloads[number])
                continue
            args = [payloads[arg.number] if isinstance(arg, RemotePayload) else arg for arg in args]
            if verb == "#place":
                session.place(node, *args)
                line.send(None)
                continue
            reply = session.call(node, verb, *args).reply
            payloads[number] = reply.payload
            line.send(Reply(reply.facts, reply.rows))


@dataclass(eq=False)
class RemoteJob:
    """A job that the child has done."""

    node: NodeId
    verb: str
    reply: Reply
    number: int


@dataclass(eq=False)
class RemoteSession(InlineSession):
    """Calls devices and applications over the line, everything else here."""

    line: Connection = field(kw_only=True)
    crossed: Counter[str] = field(kw_only=True)  # payload bytes by the verb that made them
    number: int = 0

    def ask(self, verb: str, node: NodeId | None, number: int, args: Any = ()) -> Any:
        self.line.send((verb, node, number, args))
        return self.line.recv()

    def place(self, node: NodeId, *args: Any) -> None:
        if node.kind in AWAY:
            self.ask("#place", node, 0, [self._outward(arg) for arg in args])
        else:
            super().place(node, *map(self._homeward, args))

    def call(self, node: NodeId, verb: str, *args: Any) -> Any:
        if node.kind not in AWAY:
            return super().call(node, verb, *map(self._homeward, args))
        self.number += 1
        reply = self.ask(verb, node, self.number, [self._outward(arg) for arg in args])
        return RemoteJob(node, verb, reply, self.number)

    def result(self, job: Job) -> Reply:
        return job.reply if isinstance(job, RemoteJob) else super().result(job)

    def _outward(self, arg: Any) -> Any:
        """Convert a call's values for the child: its payloads become numbers, the others stay."""
        if isinstance(arg, RemoteJob):
            return RemotePayload(arg.number)
        if isinstance(arg, InlineJob):
            self._count(arg.verb, arg.reply.payload)
            return arg.reply.payload
        return arg

    def _homeward(self, arg: Any) -> Any:
        if not isinstance(arg, RemoteJob):
            return arg
        payload = self.ask("#fetch", None, arg.number)
        self._count(arg.verb, payload)
        return payload

    def _count(self, verb: str, payload: Any) -> None:
        self.crossed[verb] += len(payload) if isinstance(payload, bytes) else len(pickle.dumps(payload))


class RemoteBackend(InlineBackend):
    """Starts the child, and ends it."""

    name = "remote"

    def __init__(self) -> None:
        super().__init__()
        self.crossed: Counter[str] = Counter()
        with Listener(("127.0.0.1", 0), authkey=KEY) as listener:
            self.child = multiprocessing.get_context("spawn").Process(target=serve, args=(listener.address,))
            self.child.start()
            self.line = listener.accept()

    def open(self, session: str) -> RemoteSession:
        return RemoteSession(line=self.line, crossed=self.crossed)

    def close(self) -> None:
        self.line.close()
        self.child.join(30)
