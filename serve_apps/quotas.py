"""Limits of one session, token or address; above its limit it is refused, and others are served."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from driftlab.errors import RunError

MAX_KEYS = 10_000  # most recent ones whose rates are stored


class QuotaExceeded(RunError):
    """A session has used its quota; it may repeat the request later."""


@dataclass(frozen=True)
class Limits:
    """The limits of one server."""

    max_sessions: int = 64
    body_bytes: int = 32 * 2**20
    image_bytes: int = 4 * 2**20
    rate_limit: float = 200.0  # requests per second of one token
    wrong_tokens: float = 10.0  # requests per second of one address without a valid token
    openings: float = 0.5  # sessions per second that are opened with the enrolment token
    processor_share: float = 1.0  # processor seconds per second that predictions of one session use
    decoded_bytes: float = 128 * 2**20  # bytes per second of decoded images and frames of one session
    received_bytes: float = 32 * 2**20  # bytes per second of bodies of one session
    resyncs: float = 0.1  # requests per second of one session for all weights
    requests: int = 64  # of one session at the same time
    pending_bytes: int = 64 * 2**20  # of bodies of one session at the same time
    sockets: int = 4  # WebSockets of one session


@dataclass
class TokenBuckets:
    """A token bucket for each key: `per_s` units per second, at most `burst_s` seconds of them at once."""

    per_s: float
    burst_s: float = 2.0
    clock: Callable[[], float] = time.monotonic
    left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # units left and time, by key
    lock: threading.Lock = field(default_factory=threading.Lock)
    burst: float = field(init=False)  # units

    def __post_init__(self) -> None:
        self.burst = max(1.0, self.burst_s * self.per_s)

    def allow(self, key: str, units: float = 1.0) -> bool:
        """Take units if they are left, and return whether they were; more than the burst take all of it."""
        return self._take(key, units, units if units < self.burst else self.burst)

    def charge(self, key: str, units: float) -> None:
        """Take units that were used already; the key may fall into debt."""
        self._take(key, units, -math.inf)

    def _take(self, key: str, units: float, needed: float) -> bool:
        """Take units if at least `needed` are left."""
        now_s = self.clock()
        with self.lock:
            left, before_s = self.left.get(key, (self.burst, now_s))
            left += (now_s - before_s) * self.per_s
            if not left <= self.burst:  # faster than `min`; without a limit it is no number
                left = self.burst
            self.left[key] = (left - units if left >= needed else left, now_s)
            self.left.move_to_end(key)
            if len(self.left) > MAX_KEYS:
                self.left.popitem(last=False)
            return left >= needed


class SessionQuotas:
    """Counts requests, sockets, bytes and processor seconds of each session."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._processor = TokenBuckets(limits.processor_share, burst_s=10.0)
        self._decoded = TokenBuckets(limits.decoded_bytes, burst_s=4.0)
        self.received = TokenBuckets(limits.received_bytes, burst_s=4.0)
        self._resyncs = TokenBuckets(limits.resyncs, burst_s=60.0)
        self.requests: Counter[str] = Counter()
        self.pending: Counter[str] = Counter()
        self._sockets: Counter[str] = Counter()

    def request(self, session: str | None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Count a request until the block ends; the block's value counts bytes of its body.

        Requests of no session, such as the owner's, are not limited.
        """
        return contextlib.nullcontext(lambda count: None) if session is None else RunningRequest(self, session)

    @contextlib.contextmanager
    def socket(self, session: str) -> Iterator[None]:
        """Count a WebSocket until the block ends."""
        _add(self._sockets, session, self.limits.sockets, "WebSockets")
        try:
            yield
        finally:
            _subtract(self._sockets, session, 1)

    def decode(self, session: str, size: int) -> None:
        """Count bytes that will be decoded."""
        if not self._decoded.allow(session, size):
            raise QuotaExceeded(f"the session decodes more than {self.limits.decoded_bytes:g} bytes per second")

    def check_processor(self, session: str) -> None:
        """Refuse work of a session that has used more processor time than it may."""
        if not self._processor.allow(session, 0.0):
            raise QuotaExceeded(f"the session uses more than {self.limits.processor_share:g} processors")

    def charge_processor(self, session: str, cpu_s: float) -> None:
        """Count processor seconds that predictions have used."""
        self._processor.charge(session, cpu_s)

    def resync(self, session: str) -> None:
        """Count a request for all weights."""
        if not self._resyncs.allow(session):
            raise QuotaExceeded(f"the session requests all weights more than {self.limits.resyncs:g} times per second")


class RunningRequest:
    """A request of a session; a class, because a generator takes longer."""

    def __init__(self, quotas: SessionQuotas, session: str) -> None:
        self._quotas, self._session, self._size = quotas, session, 0

    def __enter__(self) -> Callable[[int], None]:
        self.begin()
        return self.read

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        _add(self._quotas.requests, self._session, self._quotas.limits.requests, "requests at the same time")

    def read(self, count: int) -> None:
        """Count bytes of the body."""
        quotas, session = self._quotas, self._session
        self._size += count
        quotas.pending[session] += count
        if quotas.pending[session] > quotas.limits.pending_bytes:
            raise QuotaExceeded(f"the session has more than {quotas.limits.pending_bytes} bytes in requests")
        if not quotas.received.allow(session, count):
            limit = quotas.limits.received_bytes
            raise QuotaExceeded(f"the session sends more than {limit:g} bytes per second")

    def end(self) -> None:
        _subtract(self._quotas.requests, self._session, 1)
        _subtract(self._quotas.pending, self._session, self._size)


def _add(counts: Counter[str], key: str, limit: int, what: str) -> None:
    if counts[key] >= limit:
        raise QuotaExceeded(f"the session already has {limit} {what}")
    counts[key] += 1


def _subtract(counts: Counter[str], key: str, count: int) -> None:
    counts[key] -= count
    if not counts[key]:
        del counts[key]
