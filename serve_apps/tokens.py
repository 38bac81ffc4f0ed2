"""The token of a connection."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import HTTPConnection

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
