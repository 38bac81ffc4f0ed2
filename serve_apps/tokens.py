"""The token of a connection, and its request rate."""

from __future__ import annotations

import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

MAX_TOKENS = 10_000  # most recent ones whose rates are stored
TOKEN_REQUIRED = {"WWW-Authenticate": 'Basic realm="driftlab", charset="UTF-8"'}  # makes browsers prompt for it


def token_of(connection: HTTPConnection) -> str:
    """Return the bearer token or the password of a connection; empty without either."""
    scheme, _, rest = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


@dataclass
class TokenRates:
    """A token bucket for each access token: `per_s` requests per second, bursts of twice as many."""

    per_s: float
    clock: Callable[[], float] = time.monotonic
    left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # requests left and time, by token

    def allow(self, token: str) -> bool:
        """Count a request, and return whether it is within the rate."""
        now_s, burst = self.clock(), max(1.0, 2 * self.per_s)
        before, before_s = self.left.pop(token, (burst, now_s))
        left = min(burst, before + (now_s - before_s) * self.per_s)
        self.left[token] = (left - 1 if left >= 1 else left, now_s)
        if len(self.left) > MAX_TOKENS:
            self.left.popitem(last=False)
        return left >= 1
