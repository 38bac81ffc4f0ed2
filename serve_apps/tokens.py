"""The token of a connection, and the token that only opens sessions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from starlette.types import Scope

TOKEN_REQUIRED = {"WWW-Authenticate": 'Basic realm="driftlab", charset="UTF-8"'}  # makes browsers prompt for it


def token_of(scope: Scope) -> str:
    """Return the bearer token or the password of a connection; empty without either."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, rest = given.decode("latin-1").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def enrolment_of(owner: str) -> str:
    """Return the token for devices that belongs to a server's token, which it does not reveal.

    It only opens sessions. A server with the same token has the same one after a restart.
    """
    digest = hmac.new(owner.encode(), b"enrolment", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:24]).decode()
