"""All sessions of a server: opened, found by token, worked on in turn, dropped."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftlab.errors import RunError
from driftlab.platform.core.files import write_atomically
from driftlab.platform.field.request import SessionAsked, read_asked
from driftlab.platform.field.rounds import RoundsWorker, Worker
from driftlab.platform.sim.host import keep_freed_memory, use_one_thread
from driftlab.serve_apps.fair_queue import Turns
from driftlab.serve_apps.hosting import SESSION, HostedSession, read_session
from driftlab.serve_apps.server_metrics import Meters
from driftlab.serve_apps.tokens import TokenRates

log = logging.getLogger(__name__)
LOOK_S = 0.05  # between two looks whether all work is done


class Full(RunError):
    """The server holds as many sessions as it may."""


@dataclass(frozen=True)
class Limits:
    """What one server accepts."""

    sessions: int = 64
    body_bytes: int = 32 * 2**20
    image_bytes: int = 4 * 2**20
    rate: float = 200.0  # requests per second of one token


def digest_of(token: str) -> str:
    """Hash a token: only the hash is kept on disk."""
    return hashlib.sha256(token.encode()).hexdigest()


class Desk:
    """A worker's thread: its sessions have their rounds in turn, in order of arrival or as their scheduler says."""

    def __init__(self, worker: Worker, meters: Meters) -> None:
        self.worker, self._meters = worker, meters
        self.sessions: dict[str, HostedSession] = {}
        self._turns = Turns()
        self._wake, self._stop = threading.Event(), False
        self.thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self.thread.start()

    def add(self, name: str, session: HostedSession) -> None:
        """Take a session over."""
        session.on_work = self._wake.set
        self.sessions[name] = session
        self._wake.set()

    def drop(self, name: str) -> None:
        """Forget a session; a round of it is finished first."""
        session = self.sessions.pop(name)
        self._turns.forget(session)
        with session.idle():
            self.worker.drop(session.folder)
            shutil.rmtree(session.folder, ignore_errors=True)

    def stop(self) -> None:
        """End after the running round."""
        self._stop = True
        self._wake.set()
        self.thread.join()

    def _run(self) -> None:
        while not self._stop:
            self._wake.clear()
            ready = [session for session in list(self.sessions.values()) if session.has_work]
            if ready:
                session = self._turns.next_of(ready)
                with self._meters.round_s.time():
                    session.work()
                self._meters.wait_s.observe(session.since_upload_s)
            else:
                self._wake.wait()


class Hub:
    """The sessions, shared out among the workers."""

    def __init__(
        self,
        folder: Path,
        token: str,
        limits: Limits | None = None,
        cert: str = "",
        workers: Sequence[Worker] = (),
    ) -> None:
        use_one_thread()
        keep_freed_memory()
        self.folder, self.token_digest, self.limits = folder, digest_of(token), limits or Limits()
        self.cert = cert  # of this server, for devices on its machine
        self.sessions: dict[str, HostedSession] = {}
        self.tokens: dict[str, str] = {}  # digest of a session's token -> its id
        self.opening, self.draining = 0, False
        self.meters, self.rates = Meters(self), TokenRates(self.limits.rate)
        self._lock = threading.Lock()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="building")
        self._own = () if workers else (RoundsWorker(),)
        self._desks = [Desk(worker, self.meters) for worker in workers or self._own]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # frames of devices are in it
        self._reopen()

    @property
    def is_working(self) -> bool:
        return all(desk.thread.is_alive() for desk in self._desks)

    def is_owner(self, token: str) -> bool:
        """Tell whether a token is the server's, in constant time."""
        return secrets.compare_digest(digest_of(token), self.token_digest)

    def session_of(self, token: str) -> str | None:
        """Return the session that a token is for; comparing hashes tells nothing of the token."""
        return self.tokens.get(digest_of(token))

    def open(self, asked: SessionAsked) -> tuple[str, str]:
        """Open a session, which may take as long as its network takes to train; return its id and its token."""
        with self._lock:
            full = len(self.sessions) + self.opening >= self.limits.sessions
            over = next((name for name, one in self.sessions.items() if full and one.over), None)
            if over is not None:
                self.drop(over)
            elif full:
                raise Full(f"there are {self.limits.sessions} sessions already")
            self.opening += 1
        try:
            name, token = secrets.token_hex(8), secrets.token_urlsafe(24)
            self._builder.submit(self._open, name, token, asked).result()
        finally:
            with self._lock:
                self.opening -= 1
        return name, token

    def drop(self, name: str) -> None:
        """End a session and remove its files."""
        self.sessions.pop(name).end()
        self.tokens = {digest: one for digest, one in self.tokens.items() if one != name}
        next(desk for desk in self._desks if name in desk.sessions).drop(name)

    def drain(self, most_s: float) -> None:
        """Take no more uploads and sessions, and wait until every upload was used."""
        self.draining, until_s = True, time.monotonic() + most_s
        for session in list(self.sessions.values()):
            session.news.tell()  # requests that wait for results go back
        while time.monotonic() < until_s and any(one.is_busy for one in list(self.sessions.values())):
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Stop the work; what was acknowledged is on disk."""
        for desk in self._desks:
            desk.stop()
        for worker in self._own:
            worker.close()
        self._builder.shutdown(cancel_futures=True)

    def _open(self, name: str, token: str, asked: SessionAsked) -> None:
        folder = self.folder / name
        desk = self._free_desk()
        try:
            desk.worker.build(asked)
            session = HostedSession(folder, asked, desk.worker)
            about = {"token": digest_of(token), "asked": asked.model_dump(mode="json"), "created": time.time()}
            write_atomically(folder / SESSION, json.dumps(about))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._add(name, about, session, desk)

    def _free_desk(self) -> Desk:
        return min(self._desks, key=lambda desk: len(desk.sessions))

    def _add(self, name: str, about: Any, session: HostedSession, desk: Desk) -> None:
        self.sessions[name] = session
        self.tokens[about["token"]] = name
        desk.add(name, session)

    def _reopen(self) -> None:
        """Open the sessions of the process before this one."""
        for folder in sorted(path for path in self.folder.iterdir() if (path / SESSION).exists()):
            try:
                about, desk = read_session(folder), self._free_desk()
                self._add(folder.name, about, HostedSession(folder, read_asked(about["asked"]), desk.worker), desk)
            except Exception:  # of a folder that is damaged or of another version; the others go on
                log.warning("session in %s cannot be opened again", folder, exc_info=True)
