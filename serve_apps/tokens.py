"""The token of a connection, and how many requests it may make."""

from __future__ import annotations

import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

MOST_TOKENS = 10_000  # whose rates are kept
ASK_TOKEN = {"WWW-Authenticate": 'Basic realm="driftlab", charset="UTF-8"'}  # browsers then ask for it


def token_of(asked: HTTPConnection) -> str:
    """Read the token of a connection: as a bearer's, or as the password that a browser asked for."""
    scheme, _, rest = asked.headers.get("authorization", "").partition(" ")
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
    """How many requests each token may make: so many per second, in bursts of two seconds' worth."""

    per_s: float
    clock: Callable[[], float] = time.monotonic
    left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # by token: requests, and when

    def allow(self, token: str) -> bool:
        """Count a request; tell whether it may be made."""
        now_s, most = self.clock(), max(1.0, 2 * self.per_s)
        before, at = self.left.pop(token, (most, now_s))
        left = min(most, before + (now_s - at) * self.per_s)
        self.left[token] = (left - 1 if left >= 1 else left, now_s)
        if len(self.left) > MOST_TOKENS:
            self.left.popitem(last=False)
        return left >= 1
