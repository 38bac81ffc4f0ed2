"""The errors driftlab raises on purpose: one root, so a caller can catch them all.

This module is the only one that every layer may import; it imports nothing from driftlab.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DriftlabError(Exception):
    """Root of every error that driftlab raises on purpose."""


class RequestError(DriftlabError):
    """The request is wrong: the message says what was given, what is allowed and what to do (exit code 2)."""


class DataError(RequestError):
    """A stream, a file or a run folder cannot be read as what it claims to be."""


class RunError(DriftlabError):
    """The request was right and the run failed all the same (exit code 1)."""


class BackendLost(RunError):
    """What the nodes run on has gone: no cell of this run can go on, though another run can continue it."""


class WireError(DriftlabError):
    """A message between nodes is torn, stale, replayed or foreign, and was refused."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> RequestError:
    """Say that a name is not known, what was probably meant, and what is allowed."""
    names = sorted(allowed)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return RequestError(f"Unknown {kind} '{given}'.{hint} Known: {', '.join(names) or 'none'}.")


def first_line(error: BaseException) -> str:
    """Cut an error down to what it says first; one that says nothing has at least a name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
