"""The sessions of a server: open them, find them by token, run their training rounds, delete them."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from driftlab.errors import RunError
from driftlab.platform.core.files import check_private, sync, write_atomically
from driftlab.platform.field.request import SessionRequest, parse_session_request
from driftlab.platform.field.rounds import NETWORKS, RoundsWorker, Worker, take_lock
from driftlab.platform.sim.host import keep_freed_memory, use_one_thread
from driftlab.serve_apps.fair_queue import FairQueue
from driftlab.serve_apps.hosting import SESSION, HostedSession, SessionMoved, read_session
from driftlab.serve_apps.loaded import LoadedNetworks
from driftlab.serve_apps.quotas import Limits, SessionQuotas, TokenBuckets
from driftlab.serve_apps.server_metrics import ServerMetrics
from driftlab.serve_apps.shards import AllShards, Shards, shard_of
from driftlab.serve_apps.tokens import enrolment_of

log = logging.getLogger(__name__)
POLL_INTERVAL_S = 0.05  # between checks whether all rounds are finished


class ServerFull(RunError):
    """The server already has the maximum number of sessions."""


def digest_of(token: str) -> str:
    """Return the hash of a token; only hashes are written to disk."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass
class DeviceFacts:
    """The device of a session, for its owner."""

    created: float  # wall clock
    revoked: bool = False
    seen: float | None = None  # wall clock at its newest request to this process
    address: str = ""


async def _nothing() -> dict[str, Any]:
    return {}


class SessionWorkerThread:
    """The thread that runs the rounds of one worker's sessions, in the order of `FairQueue`.

    A worker that trains several learners as one batch gets the rounds of several sessions, each in a further thread.
    """

    def __init__(self, worker: Worker, meters: ServerMetrics) -> None:
        self.worker, self._meters = worker, meters
        self.sessions: dict[str, HostedSession] = {}
        self._queue = FairQueue()
        self._wake, self._stop = threading.Event(), False
        self._working: set[HostedSession] = set()  # in further threads
        self._pool = ThreadPoolExecutor(worker.at_once, thread_name_prefix="round")
        self.thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self.thread.start()

    def add(self, name: str, session: HostedSession) -> None:
        """Add a session to this thread."""
        session.on_work = self._wake.set
        self.sessions[name] = session
        self._wake.set()

    def drop(self, name: str) -> None:
        """Remove a session and delete its folder, after its current round."""
        shutil.rmtree(self.release(name).folder, ignore_errors=True)

    def release(self, name: str) -> HostedSession:
        """Remove a session after its current round, and return it."""
        session = self.sessions.pop(name)
        self._queue.drop(session)
        with session.idle():
            self.worker.drop(session.folder)
        return session

    def stop(self) -> None:
        """End all threads after the current rounds."""
        self._stop = True
        self._wake.set()
        self.thread.join()
        self._pool.shutdown()

    def _run(self) -> None:
        while not self._stop:
            self._wake.clear()
            free = [session for session in list(self.sessions.values()) if session not in self._working]
            ready = [session for session in free if session.has_work]
            if not ready or len(self._working) == self.worker.at_once:
                self._wake.wait()
                continue
            session = self._queue.next_of(ready)
            if self.worker.at_once == 1:
                self._work(session)
            else:
                self._working.add(session)
                self._pool.submit(self._work_apart, session)

    def _work_apart(self, session: HostedSession) -> None:
        try:
            self._work(session)
        finally:
            self._working.discard(session)
            self._wake.set()

    def _work(self, session: HostedSession) -> None:
        with self._meters.round_s.time():
            session.work()
        self._meters.wait_s.observe(session.since_upload_s)


@dataclass(frozen=True)
class _TakenSession:
    """A session that the registry has removed, and the thread of its rounds."""

    name: str
    session: HostedSession
    runner: SessionWorkerThread

    def drop(self) -> None:
        """End the session and delete its files, after its current round."""
        self.session.end()
        self.runner.drop(self.name)


class SessionRegistry:
    """The sessions of a server, or of one of its replicas, distributed over its workers."""

    def __init__(
        self,
        folder: Path,
        token: str,
        limits: Limits | None = None,
        cert: str = "",
        workers: Sequence[Worker] = (),
        shards: Shards | None = None,
        torch_device: str = "cpu",
        networks: int = NETWORKS,
    ) -> None:
        use_one_thread()
        keep_freed_memory()
        self.folder, self.token_digest, self.limits = folder, digest_of(token), limits or Limits()
        self.enrolment = enrolment_of(token)  # of devices, and the only token that they receive from the owner
        self.cert = cert  # certificate file of this server, for devices on the same computer
        self.shards = shards or AllShards()
        self.elsewhere: Callable[[], Awaitable[dict[str, Any]]] = _nothing  # states of the other replicas' sessions
        self.sessions: dict[str, HostedSession] = {}
        self.tokens: dict[str, str] = {}  # digest of a session's token -> its id
        self.devices: dict[str, DeviceFacts] = {}  # by the id of the session
        self.opening, self.draining = 0, False
        self.meters, self.quotas = ServerMetrics(self), SessionQuotas(self.limits)
        self.rates = TokenBuckets(self.limits.rate_limit)
        self.wrong_tokens = TokenBuckets(self.limits.wrong_tokens)
        self.openings = TokenBuckets(self.limits.openings, burst_s=self.limits.max_sessions / self.limits.openings)
        self._lock = threading.RLock()
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="building")
        self._device = torch_device  # of learners and predictions
        self._networks = LoadedNetworks(networks)
        self._own = () if workers else (RoundsWorker(torch_device, networks=networks),)
        self._runners = [SessionWorkerThread(worker, self.meters) for worker in workers or self._own]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: it holds frames of devices
        check_private(folder)
        if shards is None:
            self.reopen()

    @property
    def is_working(self) -> bool:
        return all(runner.thread.is_alive() for runner in self._runners)

    @property
    def max_sessions(self) -> int:
        """Return how many sessions this process may host."""
        return max(1, int(self.limits.max_sessions * self.shards.share))

    def is_owner(self, token: str) -> bool:
        """Return whether a token is the server's; takes constant time."""
        return secrets.compare_digest(digest_of(token), self.token_digest)

    def is_enrolment(self, token: str) -> bool:
        """Return whether a token only opens sessions; takes constant time."""
        return secrets.compare_digest(digest_of(token), digest_of(self.enrolment))

    def states(self) -> dict[str, Any]:
        """Return the state of every session and its device by its id."""
        with self._lock:
            hosted = [(name, session, self.devices[name]) for name, session in self.sessions.items()]
        return {name: session.status() | vars(device) for name, session, device in hosted}

    def seen(self, name: str, address: str) -> None:
        """Record a request of a session's device."""
        device = self.devices.get(name)
        if device is not None:  # the session is not moving
            device.seen, device.address = time.time(), address

    def revoke(self, name: str) -> None:
        """Refuse the token of a session from now on, and end the session; its files stay."""
        about = {**read_session(self.folder / name), "token": "", "revoked": True}
        write_atomically(self.folder / name / SESSION, json.dumps(about))
        self._forget_token(name)
        self.devices[name].revoked = True
        self.sessions[name].end()

    def session_of(self, digest: str) -> str | None:
        """Return the id of a token's session by the token's hash; so the time of the search reveals no token."""
        return self.tokens.get(digest)

    def open(self, asked: SessionRequest) -> tuple[str, str]:
        """Open a session and return its id and its token; blocks while the network is trained."""
        return self.begin_opening(asked).result()

    def begin_opening(self, asked: SessionRequest) -> Future[tuple[str, str]]:
        """Begin to open a session, for which one that is over is dropped if the server is full."""
        with self._lock:
            full = len(self.sessions) + self.opening >= self.max_sessions
            finished = next((name for name, one in self.sessions.items() if full and one.over), None)
            if full and finished is None:
                raise ServerFull(f"the server already has {self.max_sessions} sessions, its limit")
            taken = None if finished is None else self._take_out(finished)
            self.opening += 1
        return self._builder.submit(self._open_new, asked, taken)

    def _new_name(self) -> str:
        """Return an unused id of this replica's shards; raise if it has none."""
        while self.shards.share:
            if self.shards.holds(name := secrets.token_hex(8)):
                return name
        raise SessionMoved("this replica has no shard yet")

    def drop(self, name: str) -> None:
        """End a session and delete its files."""
        taken = self._take_out(name)
        if taken is not None:
            taken.drop()

    def _take_out(self, name: str) -> _TakenSession | None:
        """Remove a session, and return it with the thread of its rounds; None if it is removed already."""
        with self._lock:
            session = self.sessions.pop(name, None)
            if session is None:
                return None
            self._forget_token(name)
            self._networks.drop(session)
            del self.devices[name]
            return _TakenSession(name, session, next(one for one in self._runners if name in one.sessions))

    def _forget_token(self, name: str) -> None:
        for digest in [digest for digest, one in list(self.tokens.items()) if one == name]:
            del self.tokens[digest]  # in place: a copy would lose a token that another thread adds meanwhile

    def drain(self, max_s: float) -> None:
        """Refuse new uploads and sessions, and wait up to `max_s` until all rounds are finished."""
        self.draining, until_s = True, time.monotonic() + max_s
        for session in list(self.sessions.values()):
            session.news.ring()  # ends requests that wait for results
        while time.monotonic() < until_s and any(one.is_busy for one in list(self.sessions.values())):
            time.sleep(POLL_INTERVAL_S)

    def close(self) -> None:
        """Stop all threads; acknowledged uploads are on disk."""
        for runner in self._runners:
            runner.stop()
        for worker in self._own:
            worker.close()
        self._builder.shutdown(cancel_futures=True)

    def _open_new(self, asked: SessionRequest, taken: _TakenSession | None) -> tuple[str, str]:
        """Drop a session after its current round, then open another; return its id and its token."""
        try:
            if taken is not None:
                taken.drop()
            name, token = self._new_name(), secrets.token_urlsafe(24)
            self._open(name, token, asked)
        finally:
            with self._lock:
                self.opening -= 1
        return name, token

    def _open(self, name: str, token: str, asked: SessionRequest) -> None:
        folder = self.folder / name
        runner = self._free_runner()
        try:
            runner.worker.build(asked)
            session = HostedSession(folder, asked, runner.worker, self._device)
            about = {"token": digest_of(token), "asked": asked.model_dump(mode="json"), "created": time.time()}
            with self._lock:
                if not self.shards.holds(name):
                    raise SessionMoved("the session's shard has moved to another replica")
                write_atomically(folder / SESSION, json.dumps(about))
                sync(self.folder)
                self._add(name, about, session, runner)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _free_runner(self) -> SessionWorkerThread:
        return min(self._runners, key=lambda runner: len(runner.sessions))

    def _add(self, name: str, about: Any, session: HostedSession, runner: SessionWorkerThread) -> None:
        session.before_decoding = partial(self.quotas.decode, name)
        session.on_use = partial(self._networks.use, session)
        session.on_use()
        self.devices[name] = DeviceFacts(about["created"], about.get("revoked", False))
        self.sessions[name], session.created = session, about["created"]
        if self.devices[name].revoked:
            session.end()
        else:
            self.tokens[about["token"]] = name
        runner.add(name, session)

    def reopen(self, shard: int | None = None) -> None:
        """Open the sessions of a shard from their folders, or all; log those that cannot be opened."""
        own = (path for path in self.folder.iterdir() if shard is None or shard_of(path.name) == shard)
        for folder in sorted(path for path in own if (path / SESSION).exists()):
            try:
                check_private(folder)
                about, runner = read_session(folder), self._free_runner()
                take_lock(folder).close()  # the round of a killed process is over
                session = HostedSession(folder, parse_session_request(about["asked"]), runner.worker, self._device)
                with self._lock:
                    self._add(folder.name, about, session, runner)
            except Exception:  # of a damaged folder or another version: other sessions must open
                log.warning("the session in %s cannot be opened again", folder, exc_info=True)

    def hand_over(self, shard: int) -> None:
        """Close the sessions of a shard after their current rounds; their files are complete then."""
        with self._lock:
            leaving = [name for name in self.sessions if shard_of(name) == shard]
            for name in leaving:
                self.sessions[name].leave()
        for name in leaving:
            taken = self._take_out(name)
            if taken is not None:
                taken.runner.release(name)
